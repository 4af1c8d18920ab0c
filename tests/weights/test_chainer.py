"""Chainer's files: their names, and what is said about those that hold no weights."""

import numpy as np
import pytest
from chainsight.weights import chainer
from chainsight.weights.errors import WeightsError
from chainsight.weights.readers import read


def test_other_files_stay_as_they_are():
    arrays = {"backbone.conv.weight": np.ones(2), "backbone.conv.bias": np.ones(2)}
    assert chainer.converter([("backbone", "other")])(arrays) is arrays


def test_norms_and_counters():
    arrays = {f"bn/{leaf}": np.full(1, k) for k, leaf in enumerate(("gamma", "beta", "avg_mean", "avg_var", "N"))}
    names = ["bn.weight", "bn.bias", "bn.running_mean", "bn.running_var"]
    assert {k: int(v[0]) for k, v in chainer.torch_names(arrays).items()} == {n: i for i, n in enumerate(names)}


def test_boxes_of_a_layer_are_reordered():
    weight = np.arange(2 * 7 * 3).reshape(14, 3, 1, 1)
    swapped = chainer.swap_axes(weight, 7)
    assert swapped[:7, 0, 0, 0].tolist() == weight[[1, 0, 3, 2, 4, 5, 6], 0, 0, 0].tolist()
    np.testing.assert_array_equal(chainer.swap_axes(swapped, 7), weight)


def test_a_parameter_without_shape_is_named(tmp_path):
    np.savez(tmp_path / "lazy.npz", **{"fc/W": np.array(None), "fc/b": np.ones(2)})
    with pytest.raises(WeightsError, match=r"lazy\.npz: 'fc/W': .* a parameter that had no shape yet"):
        read(tmp_path / "lazy.npz")


def test_a_snapshot_is_told_from_weights(tmp_path):
    np.savez(tmp_path / "snapshot_iter_9", **{"updater/model:main/fc/W": np.ones(2), "updater/iteration": np.array(9)})
    with pytest.raises(WeightsError, match=r"a snapshot of a whole training by Chainer, not weights.*save_npz"):
        read(tmp_path / "snapshot_iter_9.npz")
