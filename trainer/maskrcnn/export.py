"""`python -m trainer.maskrcnn.export --job-dir DIR --out OUT`: a trained detector for others to run.

A new folder is a SavedModel that serves an image of any size, `FILE.onnx` ONNX for images of the --image-size,
`FILE.npz` weights by tensorpack's names.

Signature `serving_default`: `image` [height, width, 3] uint8, red green blue, to `boxes` [K, 4] float32 (x1 y1 x2 y2 in
pixels of the image), `scores` [K], `labels` [K] int32 (1 ..) and `masks` [K, 28, 28] float32 over the boxes. Resizing
and padding are part of the graph.
"""

import argparse
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trainer.common.files.atomic_write import written_whole
from trainer.common.files.commandline import TrainerParser
from trainer.common.files.errors import ConfigError, TrainerError, entry
from trainer.maskrcnn.config import Config
from trainer.maskrcnn.predict import make_detector, source_options
from trainer.maskrcnn.shapes import MULTIPLE, Shape, candidates


def export(config: Config, weights: Mapping[str, NDArray[np.generic]], out: Path) -> None:
    """Write the SavedModel into an absent folder, atomically.

    Raises:
        ConfigError: the folder exists.
    """
    import tensorflow as tf

    from trainer.maskrcnn.detector import assign
    from trainer.maskrcnn.layers import tf1
    from trainer.maskrcnn.model import detections, make_layers

    if out.exists():
        raise ConfigError(f"{out} exists already: give a new folder")
    out.parent.mkdir(parents=True, exist_ok=True)
    with written_whole(out) as partial, tf.Graph().as_default(), tf1.Session() as session:
        image = tf1.placeholder(tf.uint8, [None, None, 3], "image")
        batch, size, scale = _prepared(image, config)
        found = detections(batch, size[None], config, make_layers(config, training=False))
        limit = tf.cast(tf.tile(tf.shape(image)[1::-1], [2]), tf.float32)
        outputs = {**found, "boxes": tf.minimum(found["boxes"] * scale, limit)}
        variables = {v.op.name: v for v in tf1.global_variables()}
        assign(session, variables, {n: weights[n] for n in variables})
        tf1.saved_model.simple_save(
            session, str(partial), {"image": image}, {n: tf.identity(t, f"served_{n}") for n, t in outputs.items()}
        )


def _prepared(image: Any, config: Config) -> tuple[Any, Any, Any]:
    """Return the padded batch [1, H, W, 3] uint8, its size [2], and the scale to the original image's pixels [4].

    The batch is blue green red.
    """
    import tensorflow as tf

    from trainer.maskrcnn import resizing

    full = tf.shape(image)[:2]
    size = _size(full, config)
    pad = _padded(size, config) - size
    mean = tf.constant(np.round(config.preproc.pixel_mean[::-1]), tf.float32)
    small = resizing.resized(image[:, :, ::-1], size)
    canvas = tf.pad(small - mean, [[0, pad[0]], [0, pad[1]], [0, 0]]) + mean
    got = tf.cast(size, tf.float32)
    ratio = tf.cast(full, tf.float32) / got
    if config.reference == "tensorpack":  # one scale for both sides, as `Detector.detect`
        ratio = tf.fill([2], tf.sqrt(ratio[0] * ratio[1]))
    return tf.cast(canvas, tf.uint8)[None], got, tf.tile(ratio[::-1], [2])


def _size(full: Any, config: Config) -> Any:
    """Return [2] int32: the size to which `trainer.maskrcnn.shapes.resized` resizes the image, in the same steps."""
    import tensorflow as tf

    short, most = config.preproc.test_short_edge_size, config.preproc.longest_side
    sides = tf.cast(full, tf.float64)
    least = tf.reduce_min(sides)
    sides = tf.where(sides > least, short / least * sides, tf.cast(short, tf.float64))
    longest = tf.reduce_max(sides)
    sides = tf.where(longest > most, most / longest * sides, sides)
    return tf.maximum(tf.cast(sides + 0.5, tf.int32), 1)


def _padded(size: Any, config: Config) -> Any:
    """Return [2] int32: the shape to which `trainer.maskrcnn.shapes.padded` pads an image of this size."""
    import tensorflow as tf

    tight = size + -size % MULTIPLE
    if not config.preproc.predefined_padding:
        return tight
    shapes = tf.constant([*candidates(config.preproc)])
    holds = tf.reduce_all(shapes >= tight, 1)
    return tf.where(tf.reduce_any(holds), tf.gather(shapes, tf.argmax(tf.cast(holds, tf.int32))), tight)


def _write_onnx(out: Path, detector: Any, size: Shape) -> None:
    from trainer.maskrcnn import onnx_graph

    if out.exists():
        raise ConfigError(f"{out} exists already: give another --out")
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        onnx_graph.write(out, detector.config, detector.weights(), size)
    except OSError as e:
        raise TrainerError(f"{out} cannot be written ({e.strerror}): make room or give another --out") from e


def _image_size(told: str | None, *, is_needed: bool) -> Shape | None:
    """Parse --image-size to height and width. Returns None where none is needed.

    Raises:
        ConfigError: the size is missing for ONNX, is not HEIGHTxWIDTH, or is given for another format.
    """
    if not is_needed:
        if told:
            raise ConfigError("--image-size is for --out FILE.onnx: a SavedModel takes images of any size")
        return None
    sides = re.fullmatch(r"([1-9]\d{0,4})x([1-9]\d{0,4})", told or "")
    if not sides:
        raise ConfigError("ONNX is written for images of one size: give --image-size HEIGHTxWIDTH, 480x640 for example")
    return int(sides[1]), int(sides[2])


@entry
def main(argv: Sequence[str]) -> None:
    """Export the newest checkpoint of a job, or a file of weights."""
    p = TrainerParser(
        prog="python -m trainer.maskrcnn.export",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    source_options(p)
    p.add_argument("--out", type=Path, required=True, help="new folder for the SavedModel, FILE.onnx or FILE.npz")
    p.add_argument("--image-size", metavar="HEIGHTxWIDTH", help="of FILE.onnx: of the images that it takes, in pixels")
    a = p.parse_args(argv)
    size = _image_size(a.image_size, is_needed=a.out.suffix == ".onnx")
    detector = make_detector(a)
    if a.out.suffix == ".npz":
        from trainer.maskrcnn.weights import write_npz

        write_npz(a.out, detector.weights(), detector.config)
    elif size:
        _write_onnx(a.out, detector, size)
    else:
        export(detector.config, detector.weights(), a.out)
    print(f"{a.out} written")


if __name__ == "__main__":
    sys.exit(main())
