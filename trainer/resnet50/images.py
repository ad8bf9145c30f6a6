"""Input pipelines from TFRecords to batches of uint8 pixels. The device does the rest (`trainer.resnet50.augment`)."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf

from trainer.common.data import sampler
from trainer.resnet50.reader import InputError, RecordReader

EVAL_RESIZE = 256 / 224  # shorter side before the central crop, in units of the crop
STRETCHED = 0.8  # share of both sides in the reference's evaluation
SMEARED = 2  # pixels at a window's edge whose colours libjpeg cannot take from both sides
FEATURES = {
    "image/encoded": tf.io.FixedLenFeature([], tf.string),
    "image/class/label": tf.io.FixedLenFeature([], tf.int64),
}

Batch = tuple[tf.Tensor, tf.Tensor, tf.Tensor]  # [N, S, S, 3] uint8, [N] int32 from 0, [N, 2] int64 seeds


@contextmanager
def unwrapped() -> Iterator[None]:
    """Raise one `InputError` for any data error inside a pipeline. Wrap the code that reads from it."""
    try:
        yield
    except tf.errors.OpError as e:
        # TensorFlow puts an assertion's text in brackets.
        text = re.search(rf"(\[?){InputError.__name__}: ([^\n]*)", str(e))
        if text:
            raise InputError(text[2].removesuffix("]") if text[1] else text[2]) from e
        if any(word in str(e).lower() for word in ("jpeg", "parse example", "feature: image/")):
            raise InputError(
                "a record holds no readable JPEG image with a label: python -m trainer.verify --decode names it"
            ) from e
        raise


as_written = tf.autograph.experimental.do_not_convert
"""Decorator for functions without `if` or loop over tensors. Converting them takes a twentieth of the start."""


def brought_out(data: tf.data.Dataset) -> Iterator[Any]:
    """Yield the pipeline's batches, with its errors `unwrapped`."""
    with unwrapped():
        yield from data


@dataclass(frozen=True, kw_only=True)
class InputShare:
    """Part of the input that one rank reads, and the batches to make of it."""

    rank: int
    ranks: int
    batch: int  # images per rank and step
    size: int  # pixels of the square
    threads: int


def training(
    reader: RecordReader,
    share: InputShare,
    *,
    steps: range,
    first_image: int,
    crop_area: float,
    seed: int,
    classes: int,
) -> tf.data.Dataset:
    """Return batches of random crops for these steps, in the order of `trainer.common.data.sampler`.

    Each image's seeds are (seed, position in the run), so its crop is the same whichever rank computes it.

    Args:
        first_image: the run's position at which the first of the steps begins.
    """

    def fetch(step: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        where = first_image + sampler.positions(int(step) - steps.start, share.rank, share.batch, share.ranks)
        seeds = np.stack([np.full(share.batch, seed, np.int64), where], axis=1)
        return reader(sampler.examples_at(where, len(reader), seed), replace=True), seeds

    @as_written
    def fetch_step(step: tf.Tensor) -> tuple[tf.Tensor, ...]:
        serialized, seeds = tf.numpy_function(fetch, [step], (tf.string, tf.int64))
        encoded, label = _parsed(tf.ensure_shape(serialized, [share.batch]), classes)
        return encoded, label, tf.ensure_shape(seeds, [share.batch, 2])

    @as_written
    def decode(encoded: tf.Tensor, label: tf.Tensor, seeds: tf.Tensor) -> tuple[tf.Tensor, ...]:
        return random_crop(encoded, seeds, share.size, crop_area), label, seeds

    data = tf.data.Dataset.range(steps.start, steps.stop).map(fetch_step).prefetch(1).unbatch()
    data = data.map(decode, num_parallel_calls=share.threads).batch(share.batch, drop_remainder=True)
    return data.prefetch(2).with_options(_options(share.threads))


def evaluation(reader: RecordReader, share: InputShare, *, crop: str, classes: int) -> tf.data.Dataset:
    """Return the pipeline of this rank's share of the images. Each image occurs once over all ranks.

    The last batch may be smaller.

    Args:
        crop: one of `CROPS`.
    """
    numbers = np.asarray(sampler.own_images(len(reader), share.rank, share.ranks))

    @as_written
    def fetch(numbers: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        return _parsed(tf.ensure_shape(tf.numpy_function(reader, [numbers], tf.string), [None]), classes)

    @as_written
    def decode(encoded: tf.Tensor, label: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        return CROPS[crop](encoded, share.size), label

    data = tf.data.Dataset.from_tensor_slices(numbers).batch(share.batch).map(fetch).prefetch(1).unbatch()
    data = data.map(decode, num_parallel_calls=share.threads).batch(share.batch).prefetch(2)
    return data.with_options(_options(share.threads))


def _parsed(serialized: tf.Tensor, classes: int) -> tuple[tf.Tensor, tf.Tensor]:
    """Parse records to encoded images and labels from 0."""
    features = tf.io.parse_example(serialized, FEATURES)
    labels = features["image/class/label"]
    fits = tf.debugging.Assert(
        tf.reduce_all((labels >= 1) & (labels <= classes)),
        [f"{InputError.__name__}: a label lies outside 1 to {classes}: give the --classes of the data"],
    )
    with tf.control_dependencies([fits]):
        return features["image/encoded"], tf.cast(labels - 1, tf.int32)


def on_device(data: tf.data.Dataset) -> tf.data.Dataset:
    """Return the pipeline with its next batches already copied to this rank's GPU. Without a GPU it is unchanged."""
    gpus = tf.config.list_logical_devices("GPU")
    return data.apply(tf.data.experimental.prefetch_to_device(gpus[0].name, 2)) if gpus else data


def synthetic(*, batch: int, size: int, classes: int, seed: int, rank: int) -> Iterator[Batch]:
    """Yield the same random batch for ever."""
    rng = np.random.default_rng((seed, rank))
    images = tf.constant(rng.integers(0, 256, (batch, size, size, 3), np.uint8))
    labels = tf.constant(rng.integers(0, classes, batch), tf.int32)
    seeds = tf.zeros([batch, 2], tf.int64)
    while True:
        yield images, labels, seeds


def random_crop(encoded: tf.Tensor, seeds: tf.Tensor, size: int, least_area: float) -> tf.Tensor:
    """Crop a random share of the area to [size, size, 3] uint8. Its aspect is 3/4 to 4/3 in true pixels.

    The share is between `least_area` and all.
    """
    shape = tf.io.extract_jpeg_shape(encoded)
    begin, extent, _ = tf.image.stateless_sample_distorted_bounding_box(
        shape,
        tf.zeros([1, 0, 4]),
        seeds,
        min_object_covered=0.0,
        aspect_ratio_range=(3 / 4, 4 / 3),
        area_range=(least_area, 1.0),
        max_attempts=10,
        use_image_if_no_bounding_boxes=True,
    )
    window = tf.stack([begin[0], begin[1], extent[0], extent[1]])
    return _fit(_decode(encoded, window), size)


def central_crop(encoded: tf.Tensor, size: int) -> tf.Tensor:
    """Return the central crop of an image whose shorter side is resized to 256/224 of `size`, antialiased.

    The result is [size, size, 3] uint8. Source: torchvision's Resize and CenterCrop of a Pillow image, by which
    accuracies are published.
    """
    sides = tf.io.extract_jpeg_shape(encoded)[:2]
    shrunk = round(size * EVAL_RESIZE) * sides // tf.reduce_min(sides)
    before = tf.round(tf.cast(shrunk - size, tf.float32) / 2)  # pixels of the shrunk image left out on each side
    scale = tf.cast(shrunk, tf.float32) / tf.cast(sides, tf.float32)
    begin, extent = _seen(sides, before / scale, (before + size) / scale, around=tf.maximum(1.0, 1 / scale) + SMEARED)
    image = _decode_exactly(encoded, tf.concat([begin, extent], 0))
    resized = tf.raw_ops.ScaleAndTranslate(
        images=image[None],
        size=(size, size),
        scale=scale,
        translation=scale * tf.cast(begin, tf.float32) - before,
        kernel_type="triangle",
        antialias=True,
    )
    return _as_pixels(resized[0], size)


def _seen(sides: tf.Tensor, begin: tf.Tensor, end: tf.Tensor, around: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Return begin and extent of the whole pixels that a crop reads, with so many around them."""
    first = tf.maximum(tf.cast(tf.floor(begin - around), tf.int32), 0)
    return first, tf.minimum(tf.cast(tf.math.ceil(end + around), tf.int32), sides) - first


def stretched_crop(encoded: tf.Tensor, size: int) -> tf.Tensor:
    """Crop the central 80% of both sides to [size, size, 3] uint8, whatever the aspect, as the reference evaluates.

    Source: crop_and_resize_image of train_imagenet_resnet_hvd.py, which samples points and does not antialias.
    """
    image = tf.io.decode_jpeg(encoded, channels=3, dct_method="INTEGER_FAST", fancy_upscaling=False)
    edges = [[0.5 - STRETCHED / 2, 0.5 - STRETCHED / 2, 0.5 + STRETCHED / 2, 0.5 + STRETCHED / 2]]
    return _as_pixels(tf.image.crop_and_resize(image[None], edges, [0], (size, size))[0], size)


CROPS = {"centre": central_crop, "reference": stretched_crop}


def _decode(encoded: tf.Tensor, window: tf.Tensor) -> tf.Tensor:
    return tf.image.decode_and_crop_jpeg(encoded, window, channels=3, dct_method="INTEGER_FAST", fancy_upscaling=False)


def _decode_exactly(encoded: tf.Tensor, window: tf.Tensor) -> tf.Tensor:
    return tf.image.decode_and_crop_jpeg(
        encoded, window, channels=3, dct_method="INTEGER_ACCURATE", fancy_upscaling=True
    )


def _fit(image: tf.Tensor, size: int) -> tf.Tensor:
    return _as_pixels(tf.image.resize(image, (size, size)), size)


def _as_pixels(image: tf.Tensor, size: int) -> tf.Tensor:
    return tf.ensure_shape(tf.cast(tf.round(image), tf.uint8), (size, size, 3))


def _options(threads: int) -> tf.data.Options:
    options = tf.data.Options()
    options.threading.private_threadpool_size = threads
    options.deterministic = True
    return options
