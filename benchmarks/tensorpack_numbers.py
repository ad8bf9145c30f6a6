"""`python -m benchmarks.tensorpack_numbers DIR`: what tensorpack's own Mask R-CNN graph computes, stored for the tests.

DIR is a checkout of tensorpack. Of each scene (`tensorpack_scene.py`) its loader, its training graph and its prediction
graph run once, with the regions to learn from handed in; of each tensor norm, maximum and 64 fixed elements go to
`tests/trainer_maskrcnn/from_tensorpack/SCENE.npz`. Features are stored channels last, kernels as tensorpack has them.
"""

import argparse
import copy
import logging
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import tensorpack_scene
from benchmarks.tensorpack_example import changed
from benchmarks.tensorpack_scene import CATEGORIES, SCENES, Scene, told

OUT = Path(__file__).parents[1] / "tests/trainer_maskrcnn/from_tensorpack"
LOSSES = {
    "rpn_label": "rpn_losses/label_loss",
    "rpn_box": "rpn_losses/box_loss",
    "mask": "maskrcnn_loss/maskrcnn_loss",
}


def settle(scene: Scene) -> Any:
    """tensorpack's configuration of the scene, as its own `finalize_configs` completes it."""
    from config import config, finalize_configs
    from dataset import DatasetRegistry

    if not _UNTOUCHED:
        _UNTOUCHED.update(config.to_dict())
    config.from_dict(copy.deepcopy(_UNTOUCHED))
    config.TRAINER = "horovod"
    config.DATA.TRAIN = config.DATA.VAL = (scene.name,)
    DatasetRegistry.register_metadata(scene.name, "class_names", ["BG", *map(str, range(1, CATEGORIES + 1))])
    for key, value in scene.told.items():
        group, _, name = key.rpartition(".")
        setattr(getattr(config, group) if group else config, name, value)
    finalize_configs(is_training=True)
    return config


_UNTOUCHED: dict[str, Any] = {}
"""Its own values."""


def example(scene: Scene, config: Any, folder: Path) -> dict[str, np.ndarray]:
    """What its loader makes of the scene's file, resized as its prediction does: in whole grey levels."""
    from data import TrainingDataPreprocessor
    from tensorpack.dataflow import imgaug
    from tensorpack.dataflow.imgaug import ResizeTransform

    resize = ResizeTransform.apply_image
    ResizeTransform.apply_image = lambda self, image: resize(self, image.astype("uint8")).astype("float32")
    loader = TrainingDataPreprocessor(config)
    loader.aug = imgaug.AugmentorList(
        [loader.aug.augmentors[0], imgaug.Flip(horiz=True, prob=float(scene.is_mirrored))]
    )
    found = tensorpack_scene.objects(scene)
    made: dict[str, np.ndarray] = loader(
        {
            "file_name": str(tensorpack_scene.write(scene, folder)),
            "boxes": np.array([o.box for o in found], np.float32),
            "class": np.array([o.label for o in found], np.int32),
            "is_crowd": np.array([o.is_crowd for o in found], np.int8),
            "segmentation": [
                None if o.is_crowd else [np.array(p, np.float32).reshape(-1, 2) for p in o.polygons] for o in found
            ],
        }
    )
    ResizeTransform.apply_image = resize
    return made


def numbers(scene: Scene, folder: Path) -> dict[str, np.ndarray]:
    """All that is stored of a scene."""
    import tensorflow as tf
    from modeling import generalized_rcnn
    from modeling.model_frcnn import BoxProposals
    from tensorpack.tfutils.common import get_default_sess_config
    from tensorpack.tfutils.tower import PredictTowerContext, TrainTowerContext

    tf1 = tf.compat.v1
    config = settle(scene)
    fed = example(scene, config, folder)
    size = fed["image"].shape[:2]
    rois, classes, match, num_fg = tensorpack_scene.regions(fed["gt_boxes"], fed["gt_labels"], size, scene.seed)
    generalized_rcnn.sample_fast_rcnn_targets = lambda *_: BoxProposals(
        tf.constant(rois), tf.constant(classes, tf.int64), tf.constant(match[:num_fg], tf.int64)
    )
    stored: dict[str, Any] = {
        "image": fed["image"],
        "gt_boxes": fed["gt_boxes"],
        "masks": np.unpackbits(fed["gt_masks_packed"], axis=-1),
    }
    anchors = [fed[name] for name in sorted(fed) if name.startswith("anchor_labels")]
    with tf.Graph().as_default() as graph, tf1.Session(config=get_default_sess_config()) as session:
        model = _watched(config)
        holders = {s.name: tf1.placeholder(s.dtype, s.shape, s.name) for s in model.inputs()}
        with TrainTowerContext(""):
            cost = model.build_graph(*holders.values())
        learned = tf1.trainable_variables()
        gradients = tf.gradients(cost, learned)
        feed = {holders[name]: fed[name] for name in holders}
        _assign(session, scene)
        outputs = {
            **_nhwc("features", model.seen["features"]),
            **{
                f"anchors/{i}": _narrowed(labels, f)
                for i, (labels, f) in enumerate(zip(anchors, model.seen["features"], strict=True))
            },
            **{f"loss/{name}": graph.get_tensor_by_name(f"{at}:0") for name, at in LOSSES.items()},
            **{f"loss/frcnn_{part}": _summed(graph, part) for part in ("label", "box")},
            **{f"gradient/{v.op.name}": g for v, g in zip(learned, gradients, strict=True)},
        }
        stored |= session.run(outputs, feed)
        boxes, scores = session.run([model.seen["proposals"], model.seen["scores"]], feed)
        order = np.argsort(-scores, kind="stable")
        stored |= {"proposals": boxes[order], "scores": scores[order]}
        least = min(np.abs(v[v != 0]).min() for v in session.run(_rectified(graph), feed))
        print(f"{scene.name}: {len(learned)} gradients, {len(boxes)} proposals, nearest to a ReLU's zero {least:.1e}")
    with tf.Graph().as_default() as graph, tf1.Session(config=get_default_sess_config()) as session:
        model = _watched(config)
        holders = {s.name: tf1.placeholder(s.dtype, s.shape, s.name) for s in model.inputs()}
        with PredictTowerContext(""):
            model.build_graph(*holders.values())
        _assign(session, scene)
        names = ("boxes", "scores", "labels", "masks")
        outputs = {f"detected/{n}": graph.get_tensor_by_name(f"output/{n}:0") for n in names}
        stored |= session.run(outputs, {holders["image"]: fed["image"]})
    whole = ("gt_boxes", "proposals", "detected/boxes", "detected/scores", "detected/labels")
    return {name: np.asarray(value) if name in whole else told(value) for name, value in stored.items()}


def _watched(config: Any) -> Any:
    """Its model, which notes what passes through it."""
    from modeling.generalized_rcnn import ResNetC4Model, ResNetFPNModel

    class Watched(ResNetFPNModel if config.MODE_FPN else ResNetC4Model):  # type: ignore[misc]
        seen: dict[str, Any]

        def rpn(self, image: Any, features: Any, inputs: Any) -> Any:
            import tensorflow as tf

            self.seen = {"features": features}
            proposals, losses = super().rpn(image, features, inputs)
            graph = tf.compat.v1.get_default_graph()
            made_by = f"generate_{'fpn' if config.MODE_FPN else 'rpn'}_proposals"
            self.seen |= {
                "proposals": graph.get_tensor_by_name(f"{made_by}/boxes:0"),
                "scores": graph.get_tensor_by_name(f"{made_by}/scores:0"),
            }
            return proposals, losses

    return Watched()


def _assign(session: Any, scene: Scene) -> None:
    import tensorflow as tf

    tf1 = tf.compat.v1
    session.run(tf1.global_variables_initializer())
    variables = {v.op.name: v for v in tf1.global_variables() if v.shape.rank and "learning" not in v.op.name}
    drawn = tensorpack_scene.weights({n: tuple(v.shape.as_list()) for n, v in variables.items()}, scene.seed)
    for name, value in drawn.items():
        variables[name].load(value, session)


def _nhwc(name: str, tensors: Any) -> dict[str, Any]:
    import tensorflow as tf

    return {f"{name}/{i}": tf.transpose(t, [0, 2, 3, 1]) for i, t in enumerate(tensors)}


def _narrowed(labels: np.ndarray, feature: Any) -> Any:
    import tensorflow as tf

    shape = tf.shape(feature)
    return tf.constant(labels)[: shape[2], : shape[3]]


def _summed(graph: Any, part: str) -> Any:
    """The losses of the box head, or of the cascade's three one after the other."""
    import tensorflow as tf

    computed = [o for o in graph.get_operations() if not o.name.startswith("EMA/")]
    return tf.stack([o.outputs[0] for o in computed if o.name.endswith(f"fastrcnn_losses/{part}_loss")])


def _rectified(graph: Any) -> list[Any]:
    return [o.inputs[0] for o in graph.get_operations() if o.type == "Relu" and not o.name.startswith("tower")]


def main() -> None:
    """Writes the numbers of every scene."""
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("tensorpack", type=Path, metavar="DIR")
    p.add_argument("--out", type=Path, default=OUT)
    p.add_argument("--scene", nargs="*", default=[s.name for s in SCENES])
    a = p.parse_args()
    os.environ |= {"TF_CPP_MIN_LOG_LEVEL": "3", "TF_USE_LEGACY_KERAS": "1", "NHWC": "1", "INTRA": "1"}
    with tempfile.TemporaryDirectory() as folder:
        theirs = changed(a.tensorpack.resolve(), Path(folder) / "tensorpack")
        sys.path[:0] = [str(theirs / "examples/FasterRCNN"), str(theirs)]
        import horovod.tensorflow as hvd
        import tensorflow as tf
        from tensorpack.utils import logger

        logger.setLevel(logging.ERROR)
        tf.compat.v1.disable_v2_behavior()
        tf.variable_scope = tf.compat.v1.variable_scope  # its cascade takes it from there
        hvd.init()
        a.out.mkdir(parents=True, exist_ok=True)
        for scene in SCENES:
            if scene.name in a.scene:
                np.savez_compressed(a.out / f"{scene.name}.npz", **numbers(scene, Path(folder)))


if __name__ == "__main__":
    main()
