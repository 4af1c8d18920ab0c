import numpy as np
import pytest
from chainsight.evaluations.metrics import TopKAccuracy


def test_random_scores_rank_as_a_sort():
    rng = np.random.default_rng(0)
    scores = rng.integers(0, 6, (200, 12)).astype(float)  # many equal scores
    labels = rng.integers(0, 12, 200)
    accuracy = TopKAccuracy((1, 3, 5, 12))
    for part in np.array_split(np.arange(200), 7):
        accuracy.update(scores[part], labels[part])
    order = np.argsort(-scores, axis=1, kind="stable")
    for k, value in zip(accuracy.ks, accuracy.to_dict().values()):
        assert value == np.mean([label in row[:k] for label, row in zip(labels, order)])
    assert accuracy.to_dict()["top12"] == 1
    assert "(200 images)" in str(accuracy)


def test_bad_input_is_named():
    accuracy = TopKAccuracy()
    assert np.isnan(accuracy.to_dict()["top1"])
    with pytest.raises(ValueError, match=r"labels: expected 0\.\.1, got 2\.\.2"):
        accuracy.update([[0.0, 1.0]], [2])
    with pytest.raises(ValueError, match="nan in row 1"):
        accuracy.update([[0.0, 1.0], [np.nan, 0.0]], [0, 0])
    with pytest.raises(ValueError, match=r"got \(1, 2\) and \(2,\)"):
        accuracy.update([[0.0, 1.0]], [0, 1])
    with pytest.raises(ValueError, match="at least 1"):
        TopKAccuracy(())
