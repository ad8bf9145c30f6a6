"""An exported detector resizes to the bytes and the sizes that the trainer resizes to."""

import cv2
import numpy as np
import pytest
import tensorflow as tf

from tests.trainer_maskrcnn.helpers import evaluate
from trainer.maskrcnn import export, resizing
from trainer.maskrcnn.config import Config
from trainer.maskrcnn.keys import apply_settings
from trainer.maskrcnn.shapes import resized

SIZES = [((1, 1), (5, 7)), ((2, 1), (70, 35)), ((140, 180), (70, 90)), ((50, 70), (50, 70)), ((61, 99), (70, 114))]


def drawn_sizes() -> list[tuple[tuple[int, int], tuple[int, int]]]:
    """Of images as they are and as they are wanted, larger and smaller in each direction."""
    drawn = np.random.RandomState(0).randint(1, 160, (30, 2, 2)).tolist()
    return [*SIZES, *(((a, b), (c, d)) for (a, b), (c, d) in drawn)]


@pytest.mark.parametrize(("size", "wanted"), drawn_sizes())
def test_resizing_gives_the_bytes_of_cv2(size: tuple[int, int], wanted: tuple[int, int]) -> None:
    """Noise shows every rounding."""
    image = np.random.RandomState(sum(size)).randint(0, 256, (*size, 3)).astype(np.uint8)
    expected = cv2.resize(image, wanted[::-1], interpolation=cv2.INTER_LINEAR)

    found = evaluate(lambda i, s: resizing.resized(tf.cast(i, tf.uint8), s), image, np.int32(wanted))
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize(
    "settings",
    [[], ["PREPROC.TRAIN_SHORT_EDGE_SIZE=[70,70]", "PREPROC.TEST_SHORT_EDGE_SIZE=70", "PREPROC.MAX_SIZE=100"]],
)
def test_a_saved_model_brings_images_to_the_sizes_of_the_trainer(settings: list[str]) -> None:
    config = apply_settings(Config(), settings)
    images = np.random.RandomState(1).randint(1, 1500, (500, 2)).astype(np.int32)
    expected = [
        resized(h, w, config.preproc.test_short_edge_size, config.preproc.longest_side) for h, w in images.tolist()
    ]

    found = evaluate(lambda v: tf.map_fn(lambda size: export._size(size, config), v), images)
    np.testing.assert_array_equal(found, expected)
