from pathlib import Path

import numpy as np
import pytest
from chainsight.weights.errors import WeightsError
from chainsight.weights.loading import TORCHVISION_RENAMES, match_state


def array(*shape: int, dtype: type = np.float32) -> np.ndarray:
    return np.ones(shape, dtype)


MODEL = {"conv.weight": array(4, 3), "bn.num_batches_tracked": array(dtype=np.int64), "head.weight": array(91, 4)}


def test_a_file_that_fits() -> None:
    report = match_state(MODEL, {name: a * 2 for name, a in MODEL.items()})
    assert report.loaded == list(MODEL)
    assert report.fits
    np.testing.assert_array_equal(report.arrays["conv.weight"], MODEL["conv.weight"] * 2)
    assert str(report) == "3 loaded"


def test_everything_that_is_wrong_is_listed() -> None:
    found = {"conv.weight": array(4, 3, 1, 1), "other.weight": array(1), "other.bias": array(1)}
    with pytest.raises(WeightsError, match="do not fit the model") as caught:
        match_state(MODEL, found)
    lines = str(caught.value).splitlines()[1:]
    assert lines == [
        "0 loaded",
        "1 missing from the file:",
        "  head.weight",
        "2 unexpected in the file:",
        "  other.weight",
        "  other.bias",
        "1 mismatched:",
        "  conv.weight: expected (4, 3) float32, got (4, 3, 1, 1) float32",
        "1 skipped:",
        "  bn.num_batches_tracked",
    ]
    report = match_state(MODEL, found, strict=False)
    assert (report.missing, report.unexpected) == (["head.weight"], ["other.weight", "other.bias"])
    assert [name for name, _ in report.mismatched] == ["conv.weight"]
    assert not report.fits


def test_a_file_of_another_model_gives_one_line() -> None:
    with pytest.raises(
        WeightsError, match=r"nothing of the file fits.*conv.weight.*the file 1, like stem.weight"
    ) as caught:
        match_state(MODEL, {"stem.weight": array(1)})
    assert len(str(caught.value).splitlines()) == 1


def test_what_the_caller_allows() -> None:
    found = {"conv.weight": array(4, 3), "aux.weight": array(1), "x.num_batches_tracked": array(dtype=np.int64)}
    report = match_state(MODEL, found, allow_missing=[r"head\..*"], allow_unexpected=[r"aux\..*"])
    assert report.loaded == ["conv.weight"]
    assert sorted(report.skipped) == ["aux.weight", "bn.num_batches_tracked", "head.weight", "x.num_batches_tracked"]
    with pytest.raises(WeightsError, match="aux"):
        match_state(MODEL, found, allow_missing=[r"head\..*"], allow_unexpected=["aux"])  # whole names only


def test_another_number_of_classes() -> None:
    found = {"conv.weight": array(4, 3), "head.weight": array(21, 4)}
    report = match_state(MODEL, found, reinitialise=[r"head\.weight"])
    assert report.reinitialised == ["head.weight"]
    assert "head.weight" not in report.arrays
    assert report.fits


def test_dtypes() -> None:
    model = {"float": array(2), "int": array(2, dtype=np.int64)}
    report = match_state(model, {"float": array(2, dtype=np.float16), "int": array(2, dtype=np.uint8)})
    assert [a.dtype for a in report.arrays.values()] == [np.float32, np.int64]
    report = match_state(model, {"float": array(2, dtype=np.int64), "int": array(2)}, strict=False)
    assert [name for name, _ in report.mismatched] == ["float", "int"]
    same = array(2)
    assert match_state({"a": array(2)}, {"a": same}).arrays["a"] is same


def test_renames() -> None:
    renames = [(r"(.*)\.gamma", r"\1.weight"), (r"old\.(.*)", r"conv.\1")]
    model = {"conv.weight": array(2), "old.bias": array(1)}
    report = match_state(model, {"conv.gamma": array(2), "old.bias": array(1)}, renames=renames)
    assert report.loaded == ["conv.weight", "old.bias"], "a name that the model knows is not renamed"
    with pytest.raises(
        WeightsError, match=r"'conv\.gamma' and 'old\.weight' in the file both stand for 'conv\.weight'"
    ):
        match_state(model, {"conv.gamma": array(2), "old.weight": array(2)}, renames=renames)
    # A rename that leads to no parameter is not applied: the report speaks of the file's own name.
    assert match_state(model, {"x.gamma": array(1)}, renames=renames, strict=False).unexpected == ["x.gamma"]


def old_name(name: str) -> str:
    """What files of 2019 to 2021 call a parameter of today's torchvision, written independently of the renames."""
    parts = name.split(".")
    if "fpn" in parts and ("inner_blocks" in parts or "layer_blocks" in parts):
        parts.pop(-2)
    elif name.startswith("rpn.head.conv."):
        del parts[3:5]
    elif "mask_head" in parts:
        parts[-3:-1] = [f"mask_fcn{int(parts[-3]) + 1}"]
    elif parts[0] == "head" and parts[2] == "conv":
        parts[-3:-1] = [str(2 * int(parts[-3]))]
    return ".".join(parts)


@pytest.mark.parametrize("model", ["fasterrcnn_resnet50_fpn", "maskrcnn_resnet50_fpn", "retinanet_resnet50_fpn"])
def test_torchvision_files_of_both_ages(shared: Path, model: str) -> None:
    lines = (shared / "facts" / "torchvision_state_keys" / f"{model}.txt").read_text().splitlines()
    expected = {line.split()[0]: array(1) for line in lines if line.strip() and not line.startswith("#")}
    old = {old_name(name): a for name, a in expected.items()}
    assert len(old) == len(expected)
    assert old.keys() != expected.keys()
    assert match_state(expected, old, renames=TORCHVISION_RENAMES).loaded == list(expected)
    assert match_state(expected, expected, renames=TORCHVISION_RENAMES).loaded == list(expected)


def test_renames_leave_the_flat_heads_of_fcos(shared: Path) -> None:
    lines = (shared / "facts" / "torchvision_state_keys" / "fcos_resnet50_fpn.txt").read_text().splitlines()
    expected = {line.split()[0]: array(1) for line in lines if line.strip() and not line.startswith("#")}
    assert "head.classification_head.conv.0.weight" in expected
    assert match_state(expected, expected, renames=TORCHVISION_RENAMES).loaded == list(expected)
