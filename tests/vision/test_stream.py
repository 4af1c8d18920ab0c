"""Images read ahead from files and videos; memory that stays flat."""

import threading
from pathlib import Path

import cv2
import numpy as np
import pytest
from chainsight.cli import main
from chainsight.vision.image import ImageError
from chainsight.vision.models import load
from chainsight.vision.stream import read_ahead
from PIL import Image


@pytest.fixture
def clip(tmp_path):
    path = tmp_path / "clip.mp4"
    video = cv2.VideoWriter(str(path), cv2.VideoWriter_fourcc(*"mp4v"), 10, (64, 48))
    for k in range(5):
        video.write(np.full((48, 64, 3), (0, 0, 50 * k), np.uint8))  # BGR: red
    video.release()
    return path


def test_photos_videos_and_errors_in_order(clip, tmp_path):
    Image.new("RGB", (7, 5), "blue").save(tmp_path / "a.png")
    (tmp_path / "bad.mp4").write_bytes(b"nothing")
    names = [str(tmp_path / n) for n in ("a.png", "bad.mp4", "none.jpg", "none.mp4", "clip.mp4", "a.png")]
    found = list(read_ahead(names))
    frames = [str(tmp_path / f"clip-{k:05}.png") for k in range(5)]
    assert [name for name, _ in found] == [*names[:4], *frames, names[5]]
    for (name, error), reason in zip(found[1:4], ("no video", "no such file", "no such file"), strict=True):
        assert isinstance(error, ImageError)
        assert name in str(error)
        assert reason in str(error)
    for k, (_, frame) in enumerate(found[4:9]):
        assert frame.shape == (48, 64, 3)
        np.testing.assert_allclose(frame.mean((0, 1)), (50 * k, 0, 0), atol=12)


def test_only_two_images_are_ahead_and_the_thread_ends():
    asked = []

    def sources():
        for k in range(100):
            asked.append(k)
            yield np.zeros((2, 2, 3), np.uint8)

    images = read_ahead(sources())
    next(images)
    next(images)
    images.close()
    assert len(asked) <= 5
    assert not [t for t in threading.enumerate() if t.name.startswith("chainsight-read")]


def test_the_command_takes_videos(clip, shared, tmp_path, capsys):
    out = tmp_path / "out"
    weights = str(shared / "weights/nanodet_g.safetensors")
    assert main(["predict", str(clip), "--model", "nanodet_g", "--weights", weights, "--out", str(out)]) == 0
    assert sorted(p.name for p in out.iterdir()) == [f"clip-{k:05}.png" for k in range(5)]
    printed = capsys.readouterr().out
    assert printed.index("clip-00001.png") < printed.index("clip-00004.png")


def resident():
    return int(Path("/proc/self/status").read_text().split("VmRSS:")[1].split()[0]) / 1024


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="resident memory is read from Linux's /proc")
def test_memory_is_flat(tmp_path):
    rng = np.random.default_rng(0)
    for k in range(20):
        Image.fromarray(rng.integers(0, 256, (60 + k, 80, 3), np.uint8)).save(tmp_path / f"{k}.png")
    names = [str(tmp_path / f"{k % 20}.png") for k in range(300)]
    model = load("nanodet_shapes")
    sizes = []
    for _, image in read_ahead(names):
        model.predict(image).draw()
        sizes.append(resident())
    assert max(sizes[100:]) - sizes[99] < 8  # MB
