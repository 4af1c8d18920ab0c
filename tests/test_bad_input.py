"""What people give by mistake: the right result, or one clear error that says what was expected, what came and where.

Broken image files are in vision/test_image.py, hostile weights in weights/test_hostile_files.py and mistakes in
annotations in evaluations/test_on_coco.py; here is what the package as a whole makes of such things.
"""

import copy
import json
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import chainsight
import numpy as np
import pytest
from chainsight.cli import main
from chainsight.weights.writer import read_metadata, save_safetensors
from PIL import Image


@pytest.fixture(scope="module")
def photo(shared):
    return str(shared / "data/coco128/images/val/000000000139.jpg")


@pytest.fixture(scope="module")
def weights(shared):
    return str(shared / "weights/nanodet_g.safetensors")


@pytest.fixture(scope="module")
def model(weights):
    return chainsight.load("nanodet_g", weights=weights)


@pytest.fixture(scope="module")
def pets(tmp_path_factory):
    """A saved model of two classes of its own."""
    file = tmp_path_factory.mktemp("saved") / "pets.safetensors"
    chainsight.load("nanodet_g", weights=None, categories=["Kätzchen", "狗"]).save(file)
    return file


def same(a, b):
    return len(a) == len(b) and np.allclose(a.boxes, b.boxes, atol=1e-3)


# The call.


@pytest.mark.parametrize(
    ("source", "error", "message"),
    [
        (None, TypeError, "NoneType"),
        ({"a.jpg"}, TypeError, "set"),
        ([], ValueError, "empty list"),
        ([["a.jpg"]], TypeError, "image 0: .*list"),
        ([np.zeros((4, 4, 3), np.uint8), np.zeros((4, 4, 3))], TypeError, "image 1: .*float64"),
        ([np.zeros((4, 4, 3), np.uint8), "missing.jpg"], chainsight.ImageError, r"image 1: missing\.jpg"),
        (np.full((4, 4, 3), np.nan), ValueError, "48 values that are NaN"),
        (np.zeros((3, 40, 50), np.uint8), ValueError, "channels seem to come first"),
        (np.zeros((2, 40, 50, 3), np.uint8), ValueError, "pass a list"),
        (np.zeros((0, 5, 3), np.uint8), ValueError, "at least one pixel"),
        ("a\0b.jpg", chainsight.ImageError, "no such file"),
    ],
)
def test_predict_says_what_is_wrong_with_a_source(model, source, error, message):
    with pytest.raises(error, match=message):
        model.predict(source)


@pytest.mark.parametrize(("score", "error"), [(2, ValueError), (float("nan"), ValueError), ("0.5", TypeError)])
def test_predict_wants_a_score_from_0_to_1(model, photo, score, error):
    with pytest.raises(error, match="from 0 to 1"):
        model.predict(photo, score_threshold=score)


@pytest.mark.parametrize("shape", [(1, 1), (1, 3000), (3000, 1), (600, 12000)])
def test_images_of_any_shape_are_drawn(model, shape, tmp_path):
    image = np.random.default_rng(0).integers(0, 255, (*shape, 3), np.uint8)
    found = model.predict(image, score_threshold=0.02)
    assert found.image_size == shape
    assert (found.boxes <= [shape[1], shape[0], shape[1], shape[0]]).all()
    found.save_image(tmp_path / "found.jpg")
    assert chainsight.read_image(tmp_path / "found.jpg").shape[0] >= shape[0]


def test_an_image_too_narrow_for_a_model_of_the_short_side():
    """Its long side would become a million pixels and take all memory."""
    model = chainsight.load("lraspp_mobilenet_v3_large", weights=None)
    with pytest.raises(chainsight.ImageError, match=r"3000 x 1 pixels would be enlarged to 1560000 x 520"):
        model.predict(np.zeros((1, 3000, 3), np.uint8))
    assert model.predict(np.zeros((1, 2, 3), np.uint8)).image_size == (1, 2)


# Loading.


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"name": None}, TypeError, "NoneType"),
        ({"name": 3}, TypeError, "int"),
        ({"name": "nanodet_f"}, ValueError, "did you mean nanodet_g"),
        ({"name": "a.safetensors", "weights": "default"}, chainsight.WeightsError, r"a\.safetensors: there is no such"),
        ({"name": os.sep, "weights": "default"}, ValueError, "there is no model"),
        ({"weights": 3}, TypeError, "int"),
        ({"weights": ""}, ValueError, "no file"),
        ({"weights": os.sep}, ValueError, "a folder"),
        ({"weights": "COCO_V9"}, ValueError, r"entries \(COCO\)"),
        (
            {"weights": __file__},
            chainsight.WeightsError,
            r"test_bad_input\.py: not weights of nanodet_g: expected a torch",
        ),
        ({"categories": "boat"}, TypeError, "'boat'"),
        ({"categories": {"a", "b"}}, TypeError, "in the order of the labels, got a set"),
        ({"categories": 5}, TypeError, "int"),
        ({"categories": []}, ValueError, "at least one"),
        ({"categories": ["a", "a"]}, ValueError, "a more than once"),
        ({"categories": ["a", 2]}, ValueError, "texts, got 2"),
        ({"categories": ["a", " "]}, ValueError, "texts, got ' '"),
        ({"device": "tpu"}, ValueError, "\"cuda:N\", got 'tpu'"),
        ({"device": 0}, TypeError, "got 0"),
    ],
)
def test_load_says_what_is_wrong(arguments, error, message):
    with pytest.raises(error, match=message):
        chainsight.load(**{"name": "nanodet_g", "weights": None} | arguments)


def test_cuda_without_cupy_says_what_to_install(model, monkeypatch):
    monkeypatch.setitem(sys.modules, "cupy", None)
    with pytest.raises(RuntimeError, match=r"chainsight\[cuda12x\]"):
        model.to("cuda")


def test_offline_without_a_cached_file(monkeypatch, tmp_path):
    monkeypatch.setenv("CHAINSIGHT_OFFLINE", "1")
    monkeypatch.setenv("CHAINSIGHT_CACHE", str(tmp_path))
    with pytest.raises(chainsight.DownloadError, match=r"(?s)CHAINSIGHT_OFFLINE.*by hand") as caught:
        chainsight.load("resnet18")
    assert str(tmp_path) in str(caught.value)


def test_a_cache_that_cannot_be_written(monkeypatch, tmp_path):
    (tmp_path / "file").write_text("")
    monkeypatch.delenv("CHAINSIGHT_OFFLINE", raising=False)
    monkeypatch.setenv("CHAINSIGHT_CACHE", str(tmp_path / "file"))
    with pytest.raises(chainsight.DownloadError, match="cannot write to the cache"):
        chainsight.load("resnet18")


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_weights_with_nan_are_refused(model, tmp_path, value):
    state = {name: array.copy() for name, array in model.state_dict().items()}
    state["backbone.stages.0.conv.weight"][3, 2, 1, 0] = value
    save_safetensors(tmp_path / "broken.safetensors", state)
    with pytest.raises(chainsight.WeightsError, match=r"broken\.safetensors: .*stages\.0\.conv\.weight.* 1 of 864"):
        chainsight.load("nanodet_g", weights=tmp_path / "broken.safetensors")


# Saved models.


def test_a_saved_model_brings_its_classes(pets, tmp_path):
    image = np.zeros((60, 80, 3), np.uint8)
    other_name = tmp_path / "pets with ümlaut.bin"
    other_name.write_bytes(pets.read_bytes())
    expected = chainsight.load(pets).predict(image, score_threshold=0)
    for arguments in (
        {"name": str(other_name)},
        {"name": "nanodet_g", "weights": pets},
        {"name": "nanodet_g", "weights": str(pets), "categories": ["Kätzchen", "狗"]},
    ):
        loaded = chainsight.load(**arguments)
        assert loaded.categories.names == ("Kätzchen", "狗")
        assert same(loaded.predict(image, score_threshold=0), expected)
    expected.save_image(tmp_path / "pets.png")


def test_a_saved_model_can_start_with_other_classes(pets):
    loaded = chainsight.load(pets, categories=["fox"])
    assert loaded.categories.names == ("fox",)
    old = chainsight.load(pets).state_dict()
    assert (loaded.state_dict()["backbone.stages.0.conv.weight"] == old["backbone.stages.0.conv.weight"]).all()


def test_a_saved_model_of_another_name_or_with_other_weights(pets, weights):
    with pytest.raises(chainsight.WeightsError, match=r"pets\.safetensors: a saved nanodet_g, not weights of resnet18"):
        chainsight.load("resnet18", weights=pets)
    with pytest.raises(ValueError, match=r"pets\.safetensors: a saved model brings its own weights"):
        chainsight.load(pets, weights=weights)
    with pytest.raises(chainsight.WeightsError, match="not a saved model, only weights"):
        chainsight.load(weights)


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ((), "{"),
        ((), "[" * 100_000),
        ((), "[]"),
        ((), "null"),
        (("model",), None),
        (("model",), "nanodet_x"),
        (("model",), ["nanodet_g"]),
        (("categories",), []),
        (("categories", "names"), ["a"]),
        (("categories", "names"), ["a", None]),
        (("categories", "names"), "ab"),
        (("categories", "ids"), [1, 1]),
        (("categories", "ids"), ["x", "y"]),
        (("categories", "slots"), [0, 0]),
        (("categories", "slots"), [-1, 0]),
        (("categories", "slots"), [0, 10**30]),
        (("categories", "outputs"), 1),
        (("categories", "outputs"), "2"),
        (("categories", "outputs"), 10**12),
    ],
)
def test_a_saved_model_with_a_damaged_description(pets, tmp_path, path, value):
    about = json.loads(read_metadata(pets)["chainsight"])
    if path:
        place = about
        for key in path[:-1]:
            place = place[key]
        place[path[-1]] = value
    file = tmp_path / "altered.safetensors"
    state = chainsight.load(pets).state_dict()
    save_safetensors(file, state, {"chainsight": json.dumps(about) if path else value})
    with pytest.raises(chainsight.WeightsError, match=r"altered\.safetensors: the description .* is damaged"):
        chainsight.load(file)


def test_save_refuses_facts_that_would_spoil_the_file(model, tmp_path):
    with pytest.raises(ValueError, match="model"):
        model.save(tmp_path / "a.safetensors", model="resnet18")
    with pytest.raises(TypeError, match="JSON"):
        model.save(tmp_path / "a.safetensors", best=np.float32(0.5))
    with pytest.raises(OSError, match="folder"):
        model.save(tmp_path / "no" / "a.safetensors")
    with pytest.raises(OSError, match="folder"):
        model.save(tmp_path)
    assert list(tmp_path.iterdir()) == []


# Models in use.


def test_copies_of_a_model_are_independent(model, photo):
    expected = model.predict(photo)
    for twin in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert same(twin.predict(photo), expected)
        for p in twin.parameters():
            p.data = p.data * 0
        assert not same(twin.predict(photo), expected)
    assert same(model.predict(photo), expected)


def test_changed_parameters_count_and_silent_changes_are_errors(weights, photo):
    model = chainsight.load("nanodet_g", weights=weights)
    before = model.predict(photo)
    first = model.parameters()[0]
    with pytest.raises(ValueError, match="read-only"):
        first.data[0] = 0
    first.data = first.data * 0
    assert not same(model.predict(photo), before)


def test_predict_leaves_the_modes_of_all_parts_as_they_were(weights, photo):
    model = chainsight.load("nanodet_g", weights=weights)
    expected = model.predict(photo)
    model.train()
    model.backbone.stages.eval()
    modes = [module.training for _, module in model.named_modules()]
    assert len(set(modes)) == 2
    assert same(model.predict(photo), expected)
    assert [module.training for _, module in model.named_modules()] == modes


@pytest.mark.parametrize("training", [False, True])
def test_threads_share_a_model(weights, photo, training):
    model = chainsight.load("nanodet_g", weights=weights)
    expected = model.predict(photo)
    if training:
        model.frozen_norms = False
        model.train()
    before = {name: array.copy() for name, array in model.state_dict().items()}
    right = []

    def work():
        for _ in range(3):
            right.append(same(model.predict(photo), expected))

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert right == [True] * 9
    assert model.training is training
    assert all((before[name] == array).all() for name, array in model.state_dict().items())


FORK = """
import os, sys
import chainsight
model = chainsight.load("nanodet_g", weights=sys.argv[1])
expected = model.predict(sys.argv[2])
children = []
for _ in range(2):
    child = os.fork()
    if child == 0:
        ok = all(abs(model.predict(sys.argv[2]).boxes - expected.boxes).max() < 1e-3 for _ in range(2))
        os._exit(0 if ok else 1)
    children.append(child)
print([os.waitpid(child, 0)[1] for child in children], len(model.predict(sys.argv[2])) == len(expected))
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the platform has no fork")
def test_forked_children_predict_at_the_same_time(weights, photo):
    run = subprocess.run([sys.executable, "-c", FORK, weights, photo], capture_output=True, text=True, timeout=100)
    assert run.stdout.strip() == "[0, 0] True", run.stderr


def test_the_reference_kernels_give_the_same(model, weights, photo):
    code = "import sys, chainsight; print(chainsight.load('nanodet_g', weights=sys.argv[1]).predict(sys.argv[2]))"
    environment = os.environ | {"CHAINSIGHT_ONEDNN": "0"}
    command = [sys.executable, "-W", "error", "-c", code, weights, photo]
    run = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert run.stdout.split()[:2] == ["Detections:", str(len(model.predict(photo)))]


# Results.


@pytest.mark.parametrize(
    ("fields", "error", "message"),
    [
        ({"boxes": [[1, 2]]}, ValueError, r"\(n, 4\) .* got \(1, 2\)"),
        ({"boxes": [[1, 2], [3, 4]]}, ValueError, r"got \(2, 2\)"),
        ({"boxes": [[1, 2, np.nan, 4]]}, ValueError, "NaN"),
        ({"labels": [0.5]}, TypeError, "float64"),
        ({"labels": [1]}, ValueError, "got 1 to 1"),
        ({"categories": "a"}, TypeError, "'a'"),
        ({"image_size": (0, 5)}, ValueError, "at least one pixel"),
        ({"scores": [0.5, 0.6]}, ValueError, r"scores \(2,\)"),
    ],
)
def test_detections_check_their_fields(fields, error, message):
    good = {"boxes": [[1, 2, 3, 4]], "scores": [0.5], "labels": [0], "categories": ("a",), "image_size": (5, 5)}
    assert len(chainsight.Detections(**good)) == 1
    with pytest.raises(error, match=message):
        chainsight.Detections(**good | fields)


@pytest.mark.parametrize("index", [1.5, 7, [7], [0.5], None, np.zeros((2, 2), int), np.zeros(3, bool)])
def test_detections_explain_a_wrong_index(index):
    found = chainsight.Detections([[1, 2, 3, 4]], [0.5], [0], ("a",), (5, 5))
    with pytest.raises(IndexError):
        found[index]


# Evaluation.


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        (("nanodet_g", "data"), TypeError, "expected a model.* got str"),
        ((None, None), TypeError, "expected a model"),
    ],
)
def test_evaluate_wants_a_model(arguments, error, message):
    with pytest.raises(error, match=message):
        chainsight.evaluate(*arguments)


def test_evaluate_wants_data_and_sensible_options(model, shared):
    data = shared / "data/coco128/val.json"
    with pytest.raises(TypeError, match="data set or the path of one, got NoneType"):
        chainsight.evaluate(model, None)
    with pytest.raises(ValueError, match="at least 1 image, got 0"):
        chainsight.evaluate(model, data, limit=0)
    with pytest.raises(ValueError, match="from 0 to 1 or None, got 2"):
        chainsight.evaluate(model, data, score_threshold=2)


# The command line: one line on stderr, no traceback, exit codes 0, 1 and 2.


def run_main(capsys, *arguments):
    try:
        status = main([str(a) for a in arguments])
    except SystemExit as stop:  # argparse
        status = stop.code
    written = capsys.readouterr()
    assert "Traceback" not in written.err
    return status, written.out, written.err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--threads", "0"], "at least 1, got '0'"),
        (["--threads", "-1"], "at least 1, got '-1'"),
        (["--threads", "100000"], "expected at most"),
        (["--score", "2"], "from 0 to 1, got '2'"),
        (["--score", "nan"], "from 0 to 1, got 'nan'"),
        (["--device", "gpu"], "got 'gpu'"),
        (["--out", "file"], "--out file: expected a folder, got a file"),
        (["--out", "file/below"], "--out file/below: cannot make the folder"),
        (["--json", "folder"], "--json folder: expected a file, got a folder"),
        (["--json", "file/below.json"], "--json file/below.json: cannot make the folder"),
    ],
)
def test_options_are_checked_before_the_work(weights, photo, capsys, tmp_path, monkeypatch, arguments, message):
    monkeypatch.chdir(tmp_path)
    Path("file").write_text("")
    Path("folder").mkdir()
    status, out, err = run_main(capsys, "predict", photo, "--model", "nanodet_g", "--weights", weights, *arguments)
    assert (status, out) == (2, "")
    assert message in err.splitlines()[-1]


def test_evaluate_checks_its_files_before_the_work(weights, shared, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("folder").mkdir()
    data = ["--data", shared / "data/coco128/val.json", "--images", shared / "data/coco128/images/val"]
    for option in ("--json", "--resume"):
        status, out, err = run_main(
            capsys, "evaluate", "--model", "nanodet_g", "--weights", weights, *data, option, "folder"
        )
        assert (status, out, err) == (2, "", f"error: {option} folder: expected a file, got a folder\n")


def test_bad_and_good_sources_and_names_that_match_nothing(weights, photo, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    files = {"empty.jpg": b"", "text.jpg": b"hello", "cut.jpg": Path(photo).read_bytes()[:9000]}
    for name, content in files.items():
        Path(name).write_bytes(content)
    Path("Фото и файлы").mkdir()
    Path("Фото и файлы/ä b.jpg").write_bytes(Path(photo).read_bytes())
    arguments = ["--model", "nanodet_g", "--weights", weights, "--out", "out ö", "--json", "new/found.json"]
    status, out, err = run_main(capsys, "predict", *files, "none*.png", "Фото*/*", *arguments)
    assert status == 1
    for name in (*files, "none*.png"):
        assert any(line.startswith(f"error: {name}") for line in err.splitlines())
    assert "4 of 5 images failed" in err
    assert "ä b.jpg" in out
    assert [p.name for p in Path("out ö").iterdir()] == ["ä b.jpg"]
    assert json.loads(Path("new/found.json").read_text())[0]["source"].endswith("ä b.jpg")

    status, out, err = run_main(capsys, "predict", "none*.png", "--model", "nanodet_g", "--weights", weights)
    assert (status, out) == (2, "")
    assert err.startswith("error: no image found in none*.png")


def test_a_device_that_is_missing(weights, photo, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "cupy", None)
    status, _, err = run_main(
        capsys, "predict", photo, "--model", "nanodet_g", "--weights", weights, "--device", "cuda"
    )
    assert status == 2
    assert err.startswith("error: device 'cuda' needs CuPy")


def test_a_classifier_has_nothing_to_draw(photo, capsys, tmp_path):
    file, out = tmp_path / "squeezenet.safetensors", tmp_path / "out"
    chainsight.load("squeezenet1_1", weights=None).save(file)
    status, text, _ = run_main(capsys, "predict", photo, "--model", file, "--out", out)
    assert status == 0
    assert "1000 classes" in text
    assert list(out.iterdir()) == []


COMMAND = [sys.executable, "-m", "chainsight.cli"]


@pytest.mark.skipif(os.name == "nt", reason="other names of files, and no limit of their size")
def test_a_name_that_is_no_text_and_a_terminal_of_ascii(weights, photo, tmp_path):
    name = os.fsdecode(b"caf\xe9.jpg")
    (tmp_path / name).write_bytes(Path(photo).read_bytes())
    run = subprocess.run(
        [*COMMAND, "predict", name, "--model", "nanodet_g", "--weights", weights, "--json", "found.json"],
        cwd=tmp_path,
        env=os.environ | {"PYTHONIOENCODING": "ascii"},
        capture_output=True,
        text=True,
    )
    assert (run.returncode, run.stderr) == (0, "")
    assert run.stdout.startswith(r"caf\udce9.jpg: Detections")
    assert json.loads((tmp_path / "found.json").read_text())[0]["source"] == name


LIMITED = """
import resource, sys
resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100))
from chainsight.cli import main
sys.exit(main(sys.argv[1:]))
"""


@pytest.mark.skipif(os.name == "nt", reason="other names of files, and no limit of their size")
def test_a_disk_that_takes_no_more(weights, photo, tmp_path):
    command = [sys.executable, "-c", LIMITED, "predict", photo, "--model", "nanodet_g", "--weights", weights]
    run = subprocess.run([*command, "--out", "out"], cwd=tmp_path, capture_output=True, text=True)
    assert run.returncode == 1
    assert "Traceback" not in run.stderr
    assert f"out{os.sep}{Path(photo).name}" in run.stderr
    assert list((tmp_path / "out").iterdir()) == []
    (tmp_path / "found.json").write_text("[]")
    run = subprocess.run([*command, "--json", "found.json"], cwd=tmp_path, capture_output=True, text=True)
    assert run.returncode == 2
    assert "found.json" in run.stderr
    assert (tmp_path / "found.json").read_text() == "[]"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["found.json", "out"]


@pytest.mark.skipif(os.name == "nt", reason="no such signals")
def test_an_interruption_leaves_no_half_file(weights, shared, tmp_path):
    photos = shared / "data/coco128/images/val"
    process = subprocess.Popen(
        [*COMMAND, "predict", photos, "--model", "nanodet_g", "--weights", weights, "--out", "out"],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    deadline = time.monotonic() + 60
    while not (tmp_path / "out").exists() or not list((tmp_path / "out").glob("*.jpg")):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert err.splitlines()[-1] == "interrupted"
    assert "Traceback" not in err
    for picture in (tmp_path / "out").iterdir():
        assert picture.suffix == ".jpg"
        with Image.open(picture) as image:
            image.load()


@pytest.mark.skipif(os.name == "nt", reason="no such pipes")
def test_a_reader_that_has_seen_enough():
    process = subprocess.Popen([*COMMAND, "models"], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    process.stdout.close()
    assert process.stderr.read() == b""
    process.stderr.close()
    assert process.wait() == 1
