"""fit: what a run leaves behind, equal seeds, interruptions of every kind, bad data."""

import json
import os
import resource
import signal
import subprocess
import sys
import time

import chainsight as cs
import numpy as np
import pytest
from chainsight import core, training
from chainsight.core.training import NotFiniteError
from chainsight.datasets import ShapeScenes
from chainsight.vision.model import Model
from chainsight.vision.sample import Sample
from chainsight.vision.transforms import HorizontalFlip
from chainsight.weights.readers import read
from PIL import Image

SCENES = ShapeScenes(6, size=64, seed=3)


def model(categories=SCENES.categories):
    core.seed(0)
    made = cs.load("nanodet_g", weights=None, categories=categories)
    made.size = (64, 64)  # a 64 x 64 input keeps the tests short
    return made


def fit(out, made=None, **options):
    settings = {"epochs": 2, "batch_size": 2, "progress": False, "workers": 1} | options
    made = model() if made is None else made
    return training.fit(made, SCENES, settings.pop("valid", None), out=out, **settings)


def same_arrays(first, second):
    a, b = read(first), read(second)
    assert list(a) == list(b)
    for name in a:
        np.testing.assert_array_equal(a[name], b[name], err_msg=name)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """An uninterrupted run of two epochs."""
    folder = tmp_path_factory.mktemp("whole")
    made = model()
    return fit(folder, made, valid=SCENES[:2]), made


def test_a_run_leaves_models_logs_and_pictures(whole):
    run, made = whole
    names = {path.name for path in run.folder.iterdir()}
    assert names == {
        ".lock",
        "best.safetensors",
        "last.safetensors",
        "checkpoint.safetensors",
        "settings.json",
        "epochs.csv",
        "steps.jsonl",
        "curves.png",
        "valid_predictions.jpg",
        "train_batch_1.jpg",
        "train_batch_2.jpg",
        "train_batch_3.jpg",
    }
    steps = [json.loads(line) for line in (run.folder / "steps.jsonl").read_text().splitlines()]
    assert [(s["step"], s["epoch"], s["batch"]) for s in steps] == [(i + 1, i // 3 + 1, i % 3 + 1) for i in range(6)]
    rows = (run.folder / "epochs.csv").read_text().splitlines()
    assert len(rows) == 3
    assert rows[0].startswith("epoch,lr,loss,loss quality,loss box,loss distribution,AP,AP50")
    assert json.loads((run.folder / "settings.json").read_text())["epochs"] == 2
    assert cs.read_image(run.folder / "train_batch_1.jpg").shape == (320, 640, 3)
    assert run.best_epoch in (1, 2)
    assert run.metrics["AP"] == max(row["AP"] for row in run.history)
    assert not made.training


def test_the_best_model_loads_alone(whole):
    run, made = whole
    loaded = cs.load(run.folder / "best.safetensors")
    loaded.size = made.size
    assert loaded.categories == made.categories
    image = SCENES[0].image
    ours, theirs = (m.predict(image, score_threshold=0.0) for m in (made, loaded))
    np.testing.assert_array_equal(ours.boxes, theirs.boxes)
    np.testing.assert_array_equal(ours.scores, theirs.scores)
    assert loaded.about["metrics"]["AP"] == run.metrics["AP"]


def test_equal_seeds_give_equal_files(whole, tmp_path):
    run, _ = whole
    fit(tmp_path / "again", valid=SCENES[:2], workers=3)
    for name in ("best.safetensors", "last.safetensors", "epochs.csv", "steps.jsonl", "checkpoint.safetensors"):
        assert (tmp_path / "again" / name).read_bytes() == (run.folder / name).read_bytes(), name
    fit(tmp_path / "other", seed=1, epochs=1)
    first = json.loads((tmp_path / "other" / "steps.jsonl").read_text().splitlines()[0])
    assert first["losses"] != json.loads((run.folder / "steps.jsonl").read_text().splitlines()[0])["losses"]


@pytest.mark.parametrize("stop", [1, 3, 4])
def test_ctrl_c_saves_and_the_resumed_run_is_bit_equal(whole, tmp_path, stop, monkeypatch):
    run, _ = whole
    made = model()
    losses, calls = made.losses, []

    def press(samples, rng):
        calls.append(len(samples))
        if len(calls) == stop:
            os.kill(os.getpid(), signal.SIGINT)
        return losses(samples, rng)

    monkeypatch.setattr(made, "losses", press)
    with pytest.raises(KeyboardInterrupt):
        fit(tmp_path / "run", made, valid=SCENES[:2])
    assert len((tmp_path / "run" / "steps.jsonl").read_text().splitlines()) == stop
    second = fit(tmp_path / "run", valid=SCENES[:2], resume=True)
    assert second.history == run.history
    for name in ("best.safetensors", "last.safetensors", "epochs.csv", "steps.jsonl", "checkpoint.safetensors"):
        assert (tmp_path / "run" / name).read_bytes() == (run.folder / name).read_bytes(), name


SCRIPT = """
import sys
sys.path.insert(0, sys.argv[2])
from test_training import fit
fit(sys.argv[1], resume=len(sys.argv) > 3)
"""


def age(folder):
    path = folder / "checkpoint.safetensors"
    return path.stat().st_mtime_ns if path.exists() else None


@pytest.mark.slow
def test_kill_9_at_any_moment_and_resume(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    folder = tmp_path / "run"
    command = [sys.executable, str(script), str(folder), os.path.dirname(__file__)]
    for attempt, delay in enumerate((0.0, 0.1, 0.4)):
        with subprocess.Popen(command + (["resume"] if attempt else [])) as process:
            before = age(folder)
            deadline = time.monotonic() + 300
            while process.poll() is None and age(folder) == before and time.monotonic() < deadline:
                time.sleep(0.02)
            time.sleep(delay)
            process.kill()
    assert subprocess.run([*command, "resume"]).returncode == 0
    plain = fit(tmp_path / "plain")
    for name in ("best.safetensors", "checkpoint.safetensors", "steps.jsonl"):
        assert (folder / name).read_bytes() == (plain.folder / name).read_bytes(), name
    same_arrays(folder / "last.safetensors", plain.folder / "last.safetensors")


def test_two_trainings_do_not_share_a_folder(tmp_path):
    folder = tmp_path / "run"
    folder.mkdir()
    code = (
        "import pathlib, sys; from chainsight.weights.lock import locked\n"
        "with locked(pathlib.Path(sys.argv[1]), print): print('held', flush=True); sys.stdin.read()"
    )
    command = [sys.executable, "-c", code, str(folder / ".lock")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout.readline() == "held\n"
        with pytest.raises(ValueError, match="run: another training is at work in this folder"):
            fit(folder)
        assert [p.name for p in folder.iterdir()] == [".lock"]
        other.kill()
    fit(folder, epochs=1)
    assert (folder / "best.safetensors").exists()


@pytest.mark.slow
def test_a_full_disk_is_one_error_and_leaves_the_old_checkpoint(tmp_path, monkeypatch):
    monkeypatch.setattr(training, "EPOCH_SECONDS", 0)
    made = model()
    losses, calls = made.losses, []
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)

    def fill(samples, rng):
        calls.append(len(samples))
        if len(calls) == 4:  # in the second epoch
            resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, limits[1]))
        return losses(samples, rng)

    monkeypatch.setattr(made, "losses", fill)
    folder = tmp_path / "run"
    try:
        with pytest.raises(OSError, match=r"(best|last|checkpoint)\.safetensors: could not be written .* is intact"):
            fit(folder, made)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert int(read(folder / "checkpoint.safetensors")["position.epoch"]) == 1
    assert not [path for path in folder.iterdir() if path.name.endswith(".tmp")]
    fit(folder, resume=True)
    plain = fit(tmp_path / "plain")
    same_arrays(folder / "best.safetensors", plain.folder / "best.safetensors")


def test_a_loss_that_is_not_finite_stops_with_the_batch_saved_and_named(tmp_path, monkeypatch, caplog):
    made = model()
    losses, seen = made.losses, []

    def spoil(samples, rng):
        found = losses(samples, rng)
        seen.append(samples)
        return found if len(seen) < 2 else {**found, "box": found["box"] * float("nan")}

    monkeypatch.setattr(made, "losses", spoil)
    with pytest.raises(NotFiniteError, match=r"epoch 0, batch 1: the loss is not finite .*box nan"):
        fit(tmp_path, made)
    saved = read(tmp_path / "not_finite" / "batch.safetensors")
    np.testing.assert_array_equal(saved["1.image"], seen[1][1].image)
    np.testing.assert_array_equal(saved["0.boxes"], seen[1][0].boxes)
    assert (tmp_path / "not_finite" / "batch.jpg").exists()
    assert str(seen[1][0].source) in caplog.text


def test_frozen_parameters_stay_and_are_trainable_afterwards(tmp_path):
    made = model()
    before = {k: v.copy() for k, v in made.state_dict().items()}
    fit(tmp_path, made, freeze=["backbone."], epochs=1)
    after = made.state_dict()
    frozen = [k for k in before if k.startswith("backbone.")]
    assert all(np.array_equal(before[k], after[k]) for k in frozen)  # the statistics of its norms too
    assert not np.array_equal(before["head.gfl_cls.0.weight"], after["head.gfl_cls.0.weight"])
    assert all(p.requires_grad for p in made.parameters())
    with pytest.raises(ValueError, match=r"no parameter of nanodet_g begins with 'body\.'"):
        fit(tmp_path / "x", freeze=["body."])


def test_folded_norms_train_frozen(tmp_path):
    made = model()
    for name, buffer in made.named_buffers():
        buffer.data = np.full(buffer.shape, 0 if name.endswith("mean") else np.float32(1 - 1e-5), np.float32)
    made.save(tmp_path / "folded.safetensors")
    folded = cs.load(tmp_path / "folded.safetensors")
    assert folded.frozen_norms
    folded.size = (64, 64)
    fit(tmp_path / "run", folded, epochs=1)
    for name, value in folded.state_dict().items():
        if name.endswith("running_mean"):
            assert not value.any(), name
    assert cs.load(tmp_path / "run" / "best.safetensors").frozen_norms


def test_early_stopping(tmp_path):
    run = fit(tmp_path, lr=0.0, epochs=5, patience=2, valid=SCENES[:1])
    assert run.stopped_early
    assert len(run.history) == 3
    again = fit(tmp_path, lr=0.0, epochs=5, patience=2, valid=SCENES[:1], resume=True)
    assert again.stopped_early
    assert len(again.history) == 3


def test_classes_in_another_order_are_matched_by_name(tmp_path):
    reverse = model(SCENES.categories[::-1])
    table = training._label_table(reverse, SCENES)
    prepared = training._Prepare(HorizontalFlip(0.0), table)(SCENES[0], np.random.default_rng(0), lambda: SCENES[1])
    names = [reverse.categories.names[i] for i in prepared.labels]
    assert names == [SCENES.categories[i] for i in SCENES[0].labels]
    with pytest.raises(ValueError, match=r"does not know square, triangle.*categories=train\.categories"):
        fit(tmp_path, model(("circle",)))


def test_what_cannot_be_trained(whole, tmp_path):
    run, _ = whole
    with pytest.raises(ValueError, match="holds a run already"):
        fit(run.folder)
    with pytest.raises(ValueError, match=r"other settings \(batch_size: 2, now 3"):
        fit(run.folder, batch_size=3, resume=True)
    with pytest.raises(ValueError, match="no run to go on with"):
        fit(tmp_path, resume=True)
    with pytest.raises(ValueError, match="expected images to train on"):
        training.fit(model(), SCENES[:0])
    broken = Sample(SCENES[0].image, boxes=np.array([[np.nan, 0, 5, 5]]))
    with pytest.raises(ValueError, match="box 0 is not finite"):
        model().losses([broken], np.random.default_rng(0))


@pytest.mark.parametrize("name", ["maskrcnn_resnet50_fpn", "keypointrcnn_resnet50_fpn", "lraspp_mobilenet_v3_large"])
def test_data_without_what_the_model_learns_leave_no_run(tmp_path, name):
    """Otherwise the second try, with the right data, finds a run in its folder."""
    source = tmp_path / "data"
    (source / "images").mkdir(parents=True)
    Image.fromarray(SCENES[0].image).save(source / "images" / "a.png")
    (source / "boxes.csv").write_text("path,xmin,ymin,xmax,ymax,label\nimages/a.png,1,2,30,40,circle\n")
    made = cs.load(name, weights=None, categories=("circle",))
    with pytest.raises(
        ValueError, match=r"boxes\S* has annotations of detection: `chainsight models --task 'detection'`"
    ):
        training.fit(made, str(source / "boxes.csv"), out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_model_without_losses_leaves_no_run(tmp_path, monkeypatch):
    made = cs.load("nanodet_g", weights=None, categories=SCENES.categories)
    monkeypatch.setattr(type(made), "losses", Model.losses)
    with pytest.raises(NotImplementedError, match="cannot be trained yet"):
        training.fit(made, SCENES, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()
