"""The preprocessing that all models share."""

import zlib

import numpy as np
import pytest
from chainsight.vision.model import IMAGENET_MEAN, IMAGENET_STD, to_input


@pytest.mark.parametrize(
    ("mean", "std", "checksum"),
    [
        (IMAGENET_MEAN, IMAGENET_STD, 3172512184),
        ((0.48235, 0.45882, 0.40784), (1 / 255,) * 3, 2550426469),
        ((0.5, 0.5, 0.5), (0.5, 0.5, 0.5), 2508858467),
    ],
)
def test_input_is_torchvisions_to_the_last_bit(mean, std, checksum):
    """The checksums are of what torchvision 0.29.1 makes of all 256 values: convert_image_dtype, then normalize."""
    values = np.arange(256, dtype=np.uint8)[None, :, None].repeat(3, 2)
    x = to_input(values, mean, std).numpy()
    assert x.shape == (1, 3, 1, 256)
    assert zlib.crc32(np.ascontiguousarray(x[0]).tobytes()) == checksum
