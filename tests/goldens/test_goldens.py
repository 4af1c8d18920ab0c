"""The goldens themselves: rebuilt weights are the same bits everywhere, files are small, every case is complete."""

import hashlib
import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

FOLDER = Path(__file__).resolve().parent


def load(name: str) -> ModuleType:
    """A module of this folder, by its path: the test folders are no packages."""
    spec = importlib.util.spec_from_file_location(f"goldens_{name}", FOLDER / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


seeded, cases = load("seeded"), load("cases")
MODELS = sorted(p for p in FOLDER.glob("*.npz") if p.stem != "functions")


def digest(array: np.ndarray) -> str:
    return hashlib.sha256(np.ascontiguousarray(array).tobytes()).hexdigest()[:12]


def test_seeded_bits_never_change() -> None:
    """A change here makes every stored golden worthless."""
    arrays = {
        "conv": seeded.seeded_array("layer1.0.conv1.weight", (8, 4, 3, 3), "float32"),
        "depthwise": seeded.seeded_array("features.0.weight", (8, 1, 3, 3), "float32"),
        "norm": seeded.seeded_array("bn1.running_var", (7,), "float32"),
        "image": seeded.synthetic_image(61, 43),
    }
    assert {k: digest(v) for k, v in arrays.items()} == {
        "conv": "f2f3734030ab",
        "depthwise": "bc540a5ba84c",
        "norm": "f8e876be7527",
        "image": "2abc6d04663e",
    }


def test_seeded_filters_are_scaled_and_centred() -> None:
    array = seeded.seeded_array("x.weight", (64, 32, 3, 3), "float32")
    assert array.std() == pytest.approx((2 / (32 * 9)) ** 0.5, rel=0.02)
    assert np.abs(array.sum((1, 2, 3))).max() < 1e-4
    assert seeded.seeded_array("n.num_batches_tracked", (), "int64") == 0
    with pytest.raises(ValueError, match="gamma"):
        seeded.seeded_array("gamma", (3,), "float32")


def test_state_takes_gains_and_shifts_and_leaves_geometry_alone() -> None:
    shapes = {
        "a.weight": ((2, 3), "float32"),
        "a.bias": ((2,), "float32"),
        "b.relative_position_index": ((4,), "int64"),
    }
    plain = seeded.seeded_state(shapes)
    gains = {"a.weight": np.array([2.0, 3.0], np.float32), "absent.weight": np.float32(1)}
    golden = seeded.Golden(np.zeros((0, 2), np.int64), gains, {"a.bias": np.array([1.0, -1.0], np.float32)})
    state = seeded.seeded_state(shapes, golden)
    assert set(state) == {"a.weight", "a.bias"}
    np.testing.assert_array_equal(state["a.weight"], plain["a.weight"] * np.float32([[2], [3]]))
    np.testing.assert_array_equal(state["a.bias"], plain["a.bias"] + np.float32([1, -1]))


@pytest.mark.parametrize("path", MODELS, ids=lambda p: p.stem)
def test_golden_files(path: Path) -> None:
    assert path.stat().st_size <= 100_000
    golden = seeded.read_golden(path)
    assert len(golden.sizes) > 0
    assert all(np.isfinite(v).all() for v in golden.outputs.values())
    for i, image in enumerate(golden.images()):
        height, width = image.shape[:2]
        if f"logits_{i}" in golden.outputs:
            assert golden.outputs[f"logits_{i}"].std() > 0.1
            continue
        boxes, scores = golden.outputs[f"boxes_{i}"], golden.outputs[f"scores_{i}"]
        assert 5 <= len(boxes) == len(scores) == len(golden.outputs[f"labels_{i}"])
        assert (np.diff(scores) <= 0).all()
        if path.stem.startswith("yolox"):  # its evaluation does not clip boxes to the photo
            assert (boxes[:, 2:] > boxes[:, :2]).all()
        else:
            assert (boxes >= 0).all()
            assert (boxes <= np.array([width, height] * 2) + 1e-3).all()


def test_golden_round_trip(tmp_path: Path) -> None:
    gains = {"a": np.float32(2), "b": np.arange(3, dtype=np.float32)}
    golden = seeded.Golden(np.array([[5, 7]]), gains, {}, {"logits_0": np.arange(4.0)})
    seeded.write_golden(tmp_path / "x.npz", golden)
    back = seeded.read_golden(tmp_path / "x.npz")
    assert list(back.gains) == ["a", "b"]
    assert back.gains["a"].shape == ()
    np.testing.assert_array_equal(back.gains["b"], gains["b"])
    assert back.shifts == {}
    np.testing.assert_array_equal(back.outputs["logits_0"], golden.outputs["logits_0"])


def test_function_cases_are_complete() -> None:
    path = FOLDER / "functions.npz"
    assert path.stat().st_size <= 200_000
    found = cases.read_cases(path)
    assert len(found) > 100
    for key, case in found.items():
        assert key.split("/")[0] in case.function or key == "warmup_cosine"
        arrays = [*case.inputs.values(), *case.outputs.values(), *case.gradients.values()]
        assert all(np.isfinite(a).all() for a in arrays), key
        if case.cotangent is not None:
            assert case.cotangent.shape == case.outputs["out"].shape, key
            assert {n: g.shape for n, g in case.gradients.items()}.items() <= {
                n: a.shape for n, a in case.inputs.items()
            }.items(), key
    relu6 = found["relu6/"]
    x, flow = relu6.inputs["input"], relu6.cotangent
    np.testing.assert_allclose(relu6.outputs["out"], np.clip(x, 0, 6), rtol=1e-6)
    np.testing.assert_allclose(relu6.gradients["input"], flow * ((x > 0) & (x < 6)), rtol=1e-6)
