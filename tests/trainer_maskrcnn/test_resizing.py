"""An exported detector resizes to the bytes and the sizes that the trainer resizes to."""

import cv2
import numpy as np
import pytest
import tensorflow as tf

from tests.trainer_maskrcnn.helpers import evaluate
from trainer.maskrcnn import resizing

SIZES = [((1, 1), (5, 7)), ((2, 1), (70, 35)), ((140, 180), (70, 90)), ((50, 70), (50, 70)), ((61, 99), (70, 114))]


def drawn_sizes() -> list[tuple[tuple[int, int], tuple[int, int]]]:
    """Of images as they are and as they are wanted, larger and smaller in each direction."""
    drawn = np.random.RandomState(0).randint(1, 160, (30, 2, 2)).tolist()
    return [*SIZES, *(((a, b), (c, d)) for (a, b), (c, d) in drawn)]


@pytest.mark.seconds
@pytest.mark.parametrize(("size", "wanted"), drawn_sizes())
def test_resizing_gives_the_bytes_of_cv2(size: tuple[int, int], wanted: tuple[int, int]) -> None:
    """Noise shows every rounding."""
    image = np.random.RandomState(sum(size)).randint(0, 256, (*size, 3)).astype(np.uint8)
    expected = cv2.resize(image, wanted[::-1], interpolation=cv2.INTER_LINEAR)

    found = evaluate(lambda i, s: resizing.resized(tf.cast(i, tf.uint8), s), image, np.int32(wanted))
    np.testing.assert_array_equal(found, expected)
