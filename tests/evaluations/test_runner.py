import hashlib
import json
import subprocess
import sys

import pytest
from chainsight.evaluations.metrics import VocMetrics
from chainsight.evaluations.runner import Evaluation, describe_weights, file_sha256, run, settings_hash, write_text

SETTINGS = {"score": 0.05, "data": "a.json"}


def test_records_keep_the_order_of_the_keys_and_speed_is_measured():
    result = run([3, 1, 2], lambda key: {"twice": 2 * key}, settings=SETTINGS, progress=False)
    assert list(result.records.items()) == [(3, {"twice": 6}), (1, {"twice": 2}), (2, {"twice": 4})]
    assert result.images_per_second > 0
    assert not result.failures


def test_a_bad_image_is_reported_and_the_others_count(caplog):
    def process(key):
        if key == 2:
            raise ValueError("2.jpg is no image")
        return key

    result = run([1, 2, 3], process, settings=SETTINGS, progress=False)
    assert list(result.records) == [1, 3]
    assert result.failures == {2: "2.jpg is no image"}
    assert "image 2: 2.jpg is no image" in caplog.text


def test_an_error_of_the_program_is_not_taken_for_a_bad_image():
    with pytest.raises(ZeroDivisionError):
        run([1], lambda key: 1 // 0, settings=SETTINGS, progress=False)


def test_all_bad_is_an_error():
    def process(key):
        raise OSError(f"{key} is gone")

    with pytest.raises(ValueError, match="all 2 images failed; the first: a is gone"):
        run(["a", "b"], process, settings=SETTINGS, progress=False)


def test_going_on_after_an_interruption(tmp_path):
    file = tmp_path / "cache" / "run.jsonl"
    seen = []

    def process(key):
        seen.append(key)
        if key == 2 and seen.count(2) == 1:
            raise OSError("unreadable")
        if key == 4 and seen.count(4) == 1:
            raise KeyboardInterrupt
        return [key]

    with pytest.raises(KeyboardInterrupt):
        run([1, 2, 3, 4, 5], process, settings=SETTINGS, resume=file, progress=False)
    with open(file, "a") as cut:
        cut.write('{"key": 4, "rec')  # killed while writing
    result = run([1, 2, 3, 4, 5], process, settings=SETTINGS, resume=file, progress=False)
    assert seen == [1, 2, 3, 4, 2, 4, 5]
    assert result.records == {k: [k] for k in (1, 2, 3, 4, 5)}
    assert list(result.records) == [1, 2, 3, 4, 5]
    assert (result.resumed, result.failures) == (2, {})
    again = run([1, 2, 3, 4, 5], process, settings=SETTINGS, resume=file, progress=False)
    assert (again.resumed, again.images_per_second) == (5, None)
    assert run([5, 1], process, settings=SETTINGS, resume=file, progress=False).records == {5: [5], 1: [1]}
    assert len(file.read_text().splitlines()) == 6


def test_a_file_of_other_settings_is_refused(tmp_path):
    file = tmp_path / "run.jsonl"
    run([1], lambda key: key, settings=SETTINGS, resume=file, progress=False)
    before = file.read_bytes()
    with pytest.raises(ValueError, match=r"other settings \(score: 0\.05 there, 0\.5 now\)"):
        run([1], lambda key: key, settings=SETTINGS | {"score": 0.5}, resume=file, progress=False)
    assert file.read_bytes() == before
    (tmp_path / "notes.txt").write_text("shopping list\nmilk\n")
    with pytest.raises(ValueError, match=r"notes\.txt: expected a file written by an earlier evaluation"):
        run([1], lambda key: key, settings=SETTINGS, resume=tmp_path / "notes.txt", progress=False)
    assert (tmp_path / "notes.txt").read_text() == "shopping list\nmilk\n"


def test_resuming_in_another_process_after_a_kill(tmp_path):
    """A second process is killed hard in the middle; the records it finished are there."""
    script = (
        "import os, sys\n"
        "from chainsight.evaluations.runner import run\n"
        "run([1, 2, 3], lambda key: os._exit(9) if key == 3 else key * 10, settings={}, resume=sys.argv[1])\n"
    )
    file = tmp_path / "run.jsonl"
    assert subprocess.run([sys.executable, "-c", script, str(file)], capture_output=True).returncode == 9
    result = run([1, 2, 3], lambda key: key * 100, settings={}, resume=file, progress=False)
    assert result.records == {1: 10, 2: 20, 3: 300}


def test_progress_bar(capsys):
    run([1, 2], lambda key: key, settings=SETTINGS, progress=True)
    assert "2/2" in capsys.readouterr().err
    run([1, 2], lambda key: key, settings=SETTINGS)  # not a terminal
    assert capsys.readouterr().err == ""


def test_hashes(tmp_path):
    assert settings_hash({"a": 1, "b": [2]}) == settings_hash({"b": [2], "a": 1}) != settings_hash({"a": 1})
    file = tmp_path / "w.bin"
    file.write_bytes(b"weights" * 1000)
    digest = hashlib.sha256(b"weights" * 1000).hexdigest()
    assert file_sha256(file) == digest
    assert describe_weights(object(), file) == {"name": "w.bin", "file": str(file), "sha256": digest}
    assert describe_weights(object()) == {"name": None, "file": None, "sha256": None}


def test_an_evaluation_as_json_and_text(tmp_path):
    import numpy as np

    metrics = VocMetrics(("a", "b"), np.array([0.5, np.nan]), ((), ()), ((), ()), 0.5, "area")
    evaluation = Evaluation(
        task="object detection",
        metrics=metrics,
        model="demo",
        weights={"name": "X", "file": None, "sha256": "ab"},
        settings=SETTINGS,
        image_ids=[1, 2, 3],
        images_per_second=2.0,
        published={"mAP": 0.525},
        published_on="VOC2007 test",
        failures={9: "truncated"},
        notes=["one thing"],
    )
    evaluation.save(tmp_path / "out" / "e.json")
    data = json.loads((tmp_path / "out" / "e.json").read_text())
    assert data["metrics"] == {"mAP": 0.5}
    assert data["per_category"] == {"a": 0.5, "b": None}
    assert data["published"] == {"data": "VOC2007 test", "metrics": {"mAP": 0.525}}
    assert data["failures"] == {"9": "truncated"}
    assert data["versions"]["numpy"] == np.__version__
    assert {"model", "weights", "settings", "images_per_second", "images"} <= data.keys()
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["e.json"]
    text = str(evaluation)
    for part in ("mAP 0.5250  measured here 0.5000", "3 images scored, 2.00 images per second", "9: truncated"):
        assert part in text
    assert "1 images could not be scored" in text
    assert "note: one thing" in text


def test_a_failed_write_leaves_nothing(tmp_path):
    (tmp_path / "folder").mkdir()
    with pytest.raises(OSError):
        write_text(tmp_path / "folder", "text")
    assert [path.name for path in tmp_path.iterdir()] == ["folder"]
