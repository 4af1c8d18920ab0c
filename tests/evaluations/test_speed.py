"""The timing of engines side by side, with small stand-ins for the engines in real processes."""

import json
import os
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from chainsight.evaluations import speed, speed_worker

ENGINE = """
import sys, time
sys.path.insert(0, {folder!r})
from speed_worker import serve
import numpy as np

def make():
    {prologue}
    def run():
        print("noise on standard output")
        with open({log!r}, "a") as file:
            file.write({name!r} + " ")
        time.sleep({seconds})
        return {{"logits": np.arange(4.0) + {offset}}}
    return "9.9", run

serve(make)
"""


@pytest.fixture
def engine(tmp_path: Path):
    """A command that starts an engine which sleeps for a while and returns four numbers."""

    def command(name: str, seconds: float = 0.001, offset: float = 0.0, prologue: str = "pass") -> list[str]:
        text = ENGINE.format(
            folder=str(Path(speed_worker.__file__).parent),
            log=str(tmp_path / "log"),
            name=name,
            seconds=seconds,
            offset=offset,
            prologue=prologue,
        )
        path = tmp_path / f"{name}.py"
        path.write_text(text)
        return [sys.executable, str(path)]

    return command


def test_measure_takes_turns_and_compares(engine, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    task = speed.Task("network", "none", (), ("slow",), 1.15)
    commands = {
        "chainsight": engine("fast"),
        "slow": engine("slow", seconds=0.02, offset=3e-3),
        "absent": engine("absent", prologue="import no_such_engine_at_all"),
    }
    ours, slow = speed.measure(task, commands, tmp_path, rounds=3, threads=1)
    assert "no absent (No module named 'no_such_engine_at_all')" in capsys.readouterr().err
    turns = ["fast", "fast", "slow", "slow"]  # the first run of a turn does not count
    assert (tmp_path / "log").read_text().split() == ["fast", "slow"] + turns * (2 + 3 + 3)
    assert (ours.engine, slow.engine, slow.version) == ("chainsight", "slow", "9.9")
    assert len(ours.seconds) == len(slow.seconds) == len(slow.busy_seconds) == 3
    assert min(slow.seconds) >= 0.02
    assert ours.agreement == ""
    assert slow.agreement == "logits differ by 1.0e-03"
    assert 5 < ours.peak_mb < 200  # whatever this process holds
    text = speed.table([ours, slow])
    assert text.count("\n") == 2
    assert "logits differ by 1.0e-03" in text


def test_worker_that_dies_is_an_error() -> None:
    with pytest.raises(RuntimeError, match="ended with status 3"):
        speed.Worker([sys.executable, "-c", "raise SystemExit(3)"], threads=1)


def test_worker_reports_its_own_failure(engine, capfd: pytest.CaptureFixture[str]) -> None:
    worker = speed.Worker(engine("broken", prologue="pass"), threads=1)
    worker.run()
    with pytest.raises(RuntimeError, match="ended with status 1"):
        worker.order("save /no/such/folder/at/all.npz")
    worker.close()
    assert "No such file" in capfd.readouterr().err


def test_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENBLAS_CORETYPE", "Haswell")
    monkeypatch.setenv("OPENBLAS_L2_SIZE", "1")
    monkeypatch.delenv("GOMP_SPINCOUNT", raising=False)
    found = speed.environment(3)
    assert found["OMP_NUM_THREADS"] == "3"
    assert found["GOMP_SPINCOUNT"] == "1000"
    assert not {"OPENBLAS_CORETYPE", "OPENBLAS_L2_SIZE"} & set(found)
    monkeypatch.setenv("GOMP_SPINCOUNT", "7")
    assert speed.environment(3)["GOMP_SPINCOUNT"] == "7"


def test_busy_process_uses_a_processor_and_ends() -> None:
    with speed.busy_process():
        time.sleep(0.3)
        before = os.times()
    after = os.times()
    assert after.children_user - before.children_user > 0.02


def test_agreement_of_detections() -> None:
    found = {
        "boxes": np.array([[0, 0, 10, 10], [5, 5, 20, 20], [1, 1, 2, 2]], np.float32),
        "scores": np.array([0.9, 0.8, 0.3], np.float32),
        "labels": np.array([1, 2, 3]),
    }
    ours = found | {"known": np.arange(10)}
    assert speed.agreement(ours, found) == "3 of 3 detections found, 3 given"
    assert speed.agreement(ours | {"known": np.array([1, 2])}, found) == "2 of 2 detections found, 3 given"
    other = {k: v.copy() for k, v in found.items()}
    other["boxes"][0, 2] = 10.2  # IoU 0.98
    other["scores"][1] += 0.002
    other["labels"][2] = 9
    assert speed.agreement(ours, other) == "0 of 3 detections found, 3 given"
    other["scores"][1] -= 0.0015
    none = {"boxes": np.zeros((0, 4)), "scores": np.zeros(0), "labels": np.zeros(0, int), "known": np.arange(10)}
    assert speed.agreement(ours, other) == "1 of 3 detections found, 3 given"
    assert speed.agreement(none, found) == "0 of 3 detections found, 0 given"


def test_table_tells_kept_limits_from_missed_ones() -> None:
    def result(engine: str, milliseconds: float, busy: float = 0.0) -> speed.Result:
        busy_seconds = [busy / 1e3] if busy else []
        return speed.Result("network", engine, "1", [milliseconds / 1e3], busy_seconds, 100.0, "")

    rows = [
        result("chainsight", 20, 100),
        result("onnxruntime", 18, 36),
        result("openvino", 25),
        result("torch", 40, 80),
    ]
    text = speed.table(rows)
    assert "network: 1.11 of onnxruntime's time, at most 1.0: MISSED" in text  # the fastest of the two
    assert "network: 1.00 of onnxruntime's peak memory, at most 1.0: kept" in text
    assert "network: 2.50 of onnxruntime's slowdown beside a busy process, at most 1.0: MISSED" in text
    assert "0.50" in text.splitlines()[4]
    assert text.splitlines()[1].split()[5] == "50.0"  # images/s
    assert "network: 0.83 of openvino's time" in speed.table([result("chainsight", 15), result("openvino", 18)])


def test_tasks_are_chosen_by_name_or_by_model(monkeypatch, capsys, tmp_path: Path) -> None:
    measured = []

    def measure(task, *_):
        measured.append((task.name, task.batch))
        return [speed.Result(task.name, "chainsight", "1", [0.001], peak_mb=1.0)]

    monkeypatch.setattr(speed, "measure", measure)
    monkeypatch.setattr(speed, "prepare", lambda *_: None)
    assert speed.main(["mobilenet_v3_large"]) == 0
    assert measured == [("mobilenet_v3_large", 1), ("mobilenet_v3_large-network", 1), ("mobilenet-training", 32)]
    measured.clear()
    assert speed.main(["nanodet_g", "--tasks", "network", "--json", str(tmp_path / "a.json")]) == 0
    assert measured == [("network", 1), ("nanodet_g-network", 1)]
    assert json.loads((tmp_path / "a.json").read_text())["results"][0]["task"] == "network"
    with pytest.raises(SystemExit):
        speed.main(["no_such_model"])
    assert "no task is known for no_such_model" in capsys.readouterr().err


def test_a_classifier_learns_from_its_own_batch(tmp_path: Path) -> None:
    (task,) = (t for t in speed.NETWORKS if t.name == "mobilenet-training")
    speed.prepare([replace(task, size=64, batch=3)], {}, None, tmp_path)
    assert np.load(tmp_path / "inputs.npz")[task.name].shape == (3, 3, 64, 64)
    _, run = speed_worker.build("chainsight", task.name, task.model, tmp_path)
    losses = [float(run()["loss"]) for _ in range(4)]
    assert losses[3] < losses[0]


def test_results_can_be_written_as_json() -> None:
    stored = json.dumps(speed.asdict(speed.Result("network", "torch", "1", [0.1])))
    assert json.loads(stored)["seconds"] == [0.1]


def test_agreement_of_networks_counts_all_outputs() -> None:
    ours = {"output 0": np.ones(3), "output 1": np.array([2.0, 4.0])}
    theirs = {"output 0": np.ones(3), "output 1": np.array([2.0, 4.01])}
    assert speed.agreement(ours, theirs) == "output differ by 2.5e-03"


def test_inputs_of_networks_keep_their_size_through_random_weights(tmp_path: Path) -> None:
    (task,) = (t for t in speed.NETWORKS if t.name == "mobilenet_v3_large-network")
    small = replace(task, size=64)
    speed.prepare([small], {}, None, tmp_path)
    _, run = speed_worker.build("chainsight", task.name, task.model, tmp_path)
    outputs = run()
    assert list(outputs) == ["output 0"]
    assert outputs["output 0"].shape == (1, 1000)
    assert outputs["output 0"].std() > 0.01
    state = dict(np.load(tmp_path / "mobilenet_v3_large.npz"))
    assert np.abs(state["features.0.1.running_var"] - 1).max() > 0.01  # no longer those of a new layer
    graph = json.loads(str(np.load(tmp_path / f"{task.name}.graph.npz")["graph"]))
    assert [kind for kind, *_ in graph["nodes"]].count("Conv") == 62
