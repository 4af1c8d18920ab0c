"""What a model says when it is used in the wrong way, or is broken."""

import chainsight
import numpy as np
import pytest
from PIL import Image

PHOTO = np.random.default_rng(0).integers(0, 256, (60, 80, 3), np.uint8)


@pytest.mark.parametrize("source", ["photo.jpg", PHOTO, Image.fromarray(PHOTO)])
def test_a_model_called_with_a_photo_points_to_predict(source):
    model = chainsight.load("squeezenet1_1", weights=None)
    with pytest.raises(
        TypeError, match=r"expected a Tensor \(n, 3, height, width\), got \w+: .* model\.predict\(photo"
    ):
        model(source)


@pytest.mark.parametrize("name", ["nanodet_shapes", "lraspp_mobilenet_v3_large", "squeezenet1_1"])
def test_nan_in_memory_is_named(name):
    model = chainsight.load(name, weights=None)
    model.predict(PHOTO)
    parameter, values = next(iter(model.named_parameters()))
    values.writable()[0] = np.nan
    for _ in range(2):
        with pytest.raises(ValueError, match=rf"{name}.*: {parameter} holds NaN or infinity"):
            model.predict(PHOTO)
    values.data = np.zeros_like(values.data)
    model.predict(PHOTO)
    buffer, values = next(iter(model.named_buffers()), (None, None))
    if buffer is not None:
        values.data = np.full_like(values.data, np.inf)
        with pytest.raises(ValueError, match=rf"{buffer} holds NaN or infinity"):
            model.predict(PHOTO)
