"""`python -m trainer.maskrcnn.export --job-dir DIR --out DIR`: a SavedModel that serves an image of any size.

Signature `serving_default`: `image` [height, width, 3] uint8, red green blue, to `boxes` [K, 4] float32 (x1 y1 x2 y2 in
pixels of the image), `scores` [K], `labels` [K] int32 (1 ..) and `masks` [K, 28, 28] float32 over the boxes. Resizing
and padding are part of the graph.
"""

import argparse
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trainer.commandline import Parser
from trainer.errors import ConfigError, entry
from trainer.maskrcnn.config import Config
from trainer.maskrcnn.predict import make_detector, source_options
from trainer.maskrcnn.shapes import MULTIPLE, candidates


def export(config: Config, weights: Mapping[str, NDArray[np.generic]], out: Path) -> None:
    """Writes the SavedModel into an absent folder, whole or not at all.

    Raises:
        ConfigError: the folder exists.
    """
    import tensorflow as tf

    from trainer.maskrcnn.detector import assign
    from trainer.maskrcnn.layers import tf1
    from trainer.maskrcnn.model import detections, make_layers

    if out.exists():
        raise ConfigError(f"{out} exists already: give a new folder")
    partial = out.with_name(f".{out.name}.partial")
    out.parent.mkdir(parents=True, exist_ok=True)
    with tf.Graph().as_default(), tf1.Session() as session:
        image = tf1.placeholder(tf.uint8, [None, None, 3], "image")
        batch, size, scale = _prepared(image, config)
        found = detections(batch, size[None], config, make_layers(config, training=False))
        outputs = {**found, "boxes": found["boxes"] * scale}
        variables = {v.op.name: v for v in tf1.global_variables()}
        assign(session, variables, {n: weights[n] for n in variables})
        tf1.saved_model.simple_save(
            session, str(partial), {"image": image}, {n: tf.identity(t, f"served_{n}") for n, t in outputs.items()}
        )
    partial.replace(out)


def _prepared(image: Any, config: Config) -> tuple[Any, Any, Any]:
    """The padded batch [1, H, W, 3] uint8 in blue green red, its size [2], and pixels of the image per pixel [4]."""
    import tensorflow as tf

    full = tf.cast(tf.shape(image)[:2], tf.float32)
    preproc = config.preproc
    factor = tf.minimum(preproc.test_short_edge_size / tf.reduce_min(full), preproc.max_size / tf.reduce_max(full))
    size = tf.maximum(tf.cast(tf.round(full * factor), tf.int32), 1)
    small = tf.image.resize(tf.cast(image[:, :, ::-1], tf.float32), size, "bilinear")
    pad = _padded(size, config) - size
    mean = tf.constant(np.round(preproc.pixel_mean[::-1]), tf.float32)
    canvas = tf.pad(tf.round(small) - mean, [[0, pad[0]], [0, pad[1]], [0, 0]]) + mean
    got = tf.cast(size, tf.float32)
    ratio = full / got
    return tf.cast(canvas, tf.uint8)[None], got, tf.tile(ratio[::-1], [2])


def _padded(size: Any, config: Config) -> Any:
    """[2] int32: the shape `trainer.maskrcnn.shapes.padded` gives an image of this size."""
    import tensorflow as tf

    tight = size + -size % MULTIPLE
    if not config.preproc.predefined_padding:
        return tight
    shapes = tf.constant([*candidates(config.preproc)])
    holds = tf.reduce_all(shapes >= tight, 1)
    return tf.where(tf.reduce_any(holds), tf.gather(shapes, tf.argmax(tf.cast(holds, tf.int32))), tight)


@entry
def main(argv: Sequence[str]) -> None:
    """Exports the newest checkpoint of a job, or an npz; an --out ending in .npz is written as npz."""
    p = Parser(
        prog="python -m trainer.maskrcnn.export",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    source_options(p)
    p.add_argument("--out", type=Path, required=True, help="new folder for the SavedModel, or FILE.npz for tensorpack")
    a = p.parse_args(argv)
    detector = make_detector(a)
    if a.out.suffix == ".npz":
        from trainer.maskrcnn.weights import write_npz

        write_npz(a.out, detector.weights(), detector.config)
    else:
        export(detector.config, detector.weights(), a.out)
    print(f"{a.out} written")


if __name__ == "__main__":
    sys.exit(main())
