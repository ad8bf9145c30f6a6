"""Input tensors of a training step on one rank."""

from dataclasses import dataclass

import tensorflow as tf


@dataclass(frozen=True)
class Batch:
    """Tensors of one training step on one rank: B images padded to one size, G objects padded with class 0."""

    images: tf.Tensor
    """[B, H, W, 3] uint8, blue green red; H and W multiples of 32."""
    sizes: tf.Tensor
    """[B, 2] float32, height and width of the image without its padding."""
    boxes: tf.Tensor
    """[B, G, 4] float32 in pixels of `images`."""
    labels: tf.Tensor
    """[B, G] int32."""
    crowds: tf.Tensor
    """[B, C, 4] float32 boxes of crowd regions, padded with zeros."""
    masks: tf.Tensor
    """[B, G, N, M] uint8, column by column, in pixels of the file: they need not be resized to be sampled."""
    mask_map: tf.Tensor
    """[B, 4] float32: pixel x, y of `images` is x * [0] + [2], y * [1] + [3] of `masks`; [0] < 0 where mirrored."""
    weights: tf.Tensor
    """[B] float32; the loss is the sum of the images' losses times these."""
    seeds: tf.Tensor
    """[B, 2] int32; what is drawn depends on these only."""

    SIGNATURE = (
        ("images", (None, None, None, 3), tf.uint8),
        ("sizes", (None, 2), tf.float32),
        ("boxes", (None, None, 4), tf.float32),
        ("labels", (None, None), tf.int32),
        ("crowds", (None, None, 4), tf.float32),
        ("masks", (None, None, None, None), tf.uint8),
        ("mask_map", (None, 4), tf.float32),
        ("weights", (None,), tf.float32),
        ("seeds", (None, 2), tf.int32),
    )

    @classmethod
    def specs(cls, batch_size: int) -> list[tf.TensorSpec]:
        """Return shapes and types of the fields in order."""
        return [tf.TensorSpec((batch_size, *shape[1:]), dtype, name) for name, shape, dtype in cls.SIGNATURE]
