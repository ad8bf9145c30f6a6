"""REFERENCE=tensorpack beside what tensorpack's own graph computed (`benchmarks/tensorpack_numbers.py` stores it)."""

import multiprocessing
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from benchmarks import tensorpack_scene
from benchmarks.tensorpack_scene import CATEGORIES, SCENES, Scene, told
from trainer.coco.annotations import AnnotatedImage, Instance
from trainer.common.files.errors import ConfigError
from trainer.maskrcnn import keys, model, weights
from trainer.maskrcnn.batch import Batch
from trainer.maskrcnn.config import Config
from trainer.maskrcnn.detector import Detector, assign, session_config
from trainer.maskrcnn.examples import Example, collate, training_example
from trainer.maskrcnn.keys import apply_settings
from trainer.maskrcnn.layers import tf1
from trainer.maskrcnn.reference import TENSORPACK, implied
from trainer.maskrcnn.rpn import anchors_of, rpn_head
from trainer.maskrcnn.sampling import label_anchors
from trainer.maskrcnn.shapes import resized
from trainer.maskrcnn.tensorpack_trainer import decay

NUMBERS = Path(__file__).parent / "from_tensorpack"
Arrays = dict[str, np.ndarray]


@dataclass(frozen=True)
class Compared:
    """What this trainer makes of a scene, and what tensorpack made of it."""

    example: Example
    ours: Arrays
    theirs: Arrays


def config_of(scene: Scene, *more: str) -> Config:
    """The scene's settings with tensorpack's meaning: there one number says how many proposals are kept at each stage."""
    if "MODE_FPN" in scene.settings:
        return apply_settings(Config(), [*more, *scene.words(), f"DATA.NUM_CATEGORY={CATEGORIES}"])
    kept = {when: scene.told[f"RPN.{when}_PER_LEVEL_NMS_TOPK"] for when in ("TRAIN", "TEST")}
    names = ("PER_LEVEL_PRE_NMS", "IMAGE")
    limits = [f"RPN.{when}_{name}_TOPK={most}" for when, most in kept.items() for name in names]
    return apply_settings(Config(), [*scene.words(), *limits, f"DATA.NUM_CATEGORY={CATEGORIES}", *more])


def as_tensorpack(scene: Scene) -> list[str]:
    """The word, or where it is refused what it stands for."""
    if "MODE_FPN" in scene.settings:
        return [f"{key}={value}" for key, value in implied("tensorpack").items()]
    return ["REFERENCE=tensorpack"]


def example_of(scene: Scene, config: Config, folder: Path) -> Example:
    instances = [
        Instance(id=i, label=o.label, box=o.box, area=1.0, is_crowd=o.is_crowd, segmentation=o.polygons)
        for i, o in enumerate(tensorpack_scene.objects(scene))
    ]
    path = tensorpack_scene.write(scene, folder)
    picture = AnnotatedImage(id=1, path=path, height=scene.height, width=scene.width, instances=tuple(instances))
    of_seed = [np.random.default_rng([config.train.seed, epoch, 1]).random() < 0.5 for epoch in range(99)]
    return training_example(picture, config, epoch=of_seed.index(scene.is_mirrored))


def as_npz(scene: Scene, shapes: dict[str, tuple[int, ...]], folder: Path) -> Path:
    """The scene's weights as tensorpack would have saved them."""
    path = folder / "theirs.npz"
    np.savez(path, **tensorpack_scene.weights(shapes, scene.seed))
    return path


@pytest.fixture(
    scope="module",
    params=[
        pytest.param(s, id=s.name, marks=[pytest.mark.long] if s.name in ("cascade", "c4") else []) for s in SCENES
    ],
)
def scene(request: pytest.FixtureRequest) -> Scene:
    found: Scene = request.param
    return found


@pytest.fixture(scope="module")
def compared(scene: Scene, tmp_path_factory: pytest.TempPathFactory) -> Compared:
    """One training step's tensors, its regions handed in and all its anchors learned from.

    Of a process of their own: the first session of a process decides how many threads share a sum, and with another number
    of them a value at a kink falls on its other side.
    """
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as alone:
        example, ours = alone.submit(computed, scene, tmp_path_factory.mktemp(scene.name)).result()
    with np.load(NUMBERS / f"{scene.name}.npz") as file:
        return Compared(example, ours, dict(file))


def computed(scene: Scene, folder: Path) -> tuple[Example, Arrays]:
    """What this trainer makes of a scene, with one thread."""
    config = config_of(scene, *as_tensorpack(scene))
    example = example_of(scene, config, folder)
    size = (example.image.shape[0], example.image.shape[1])
    *drawn, num_fg = tensorpack_scene.regions(example.boxes, example.labels, size, scene.seed)
    kinds = (tf.float32, tf.int32, tf.int32)
    seen: dict[str, Any] = {}

    def heard(features: Any, *rest: Any) -> Any:
        seen["features"] = features
        return rpn_head(features, *rest)

    def sampled(found: Any, *_: Any, **__: Any) -> Any:
        seen["proposals"] = found
        regions = [tf.constant(v, kind) for v, kind in zip(drawn, kinds, strict=True)]
        return *regions, tf.ones([len(drawn[0])], tf.bool), tf.constant(num_fg)

    arrays = collate([example], config, weight=1.0, seeds=np.zeros((1, 2), np.int32))
    with pytest.MonkeyPatch.context() as patch, tf.Graph().as_default():
        patch.setattr(model, "rpn_head", heard)
        patch.setattr(model, "sample_proposals", sampled)
        holders = [tf1.placeholder(s.dtype, s.shape) for s in Batch.specs(1)]
        batch = Batch(*holders)
        parts = model.losses(batch, config, model.make_layers(config, training=True, device="CPU"))
        parts.pop("fg_rois")
        learned = tf1.trainable_variables()
        cost = tf.add_n(list(parts.values()))
        gradients = zip(tf.gradients(cost, learned), learned, strict=True)
        decayed = [tf.convert_to_tensor(g) + decay(v, config.train.weight_decay) for g, v in gradients]
        anchors = anchors_of(seen["features"], config)
        counts = [tf.shape(a)[0] for a in anchors]
        labels, _ = label_anchors(
            tf.concat(anchors, 0),
            batch.boxes[0],
            batch.labels[0] > 0,
            batch.crowds[0],
            batch.sizes[0],
            positive=config.rpn.positive_anchor_thresh,
            negative=config.rpn.negative_anchor_thresh,
            crowd_overlap=config.rpn.crowd_overlap_thresh,
            tied=config.rpn.tied_anchors,
        )
        outputs = {
            "proposals": seen["proposals"],
            **{f"features/{i}": f for i, f in enumerate(seen["features"])},
            **{f"anchors/{i}": v for i, v in enumerate(tf.split(labels, tf.stack(counts), num=len(counts)))},
            **{f"loss/{name}": value for name, value in _losses(parts).items()},
            **{f"gradient/{v.op.name}": g for v, g in zip(learned, decayed, strict=True)},
        }
        with tf1.Session(config=session_config(threads=1)) as session:
            variables = {v.op.name: v for v in tf1.global_variables()}
            shapes = {n: tuple(v.shape.as_list()) for n, v in variables.items()}
            assign(session, variables, weights.model_weights(as_npz(scene, shapes, folder), shapes, config))
            return example, session.run(outputs, dict(zip(holders, arrays, strict=True)))


def _losses(parts: dict[str, Any]) -> dict[str, Any]:
    """The losses by tensorpack's kinds: those of a cascade's stages one after the other."""
    heads = {f"frcnn_{part}": tf.stack([v for n, v in parts.items() if _kind(n) == part]) for part in ("label", "box")}
    return {**{n: v for n, v in parts.items() if not n.startswith("frcnn")}, **heads}


def _kind(name: str) -> str:
    return name.rpartition("_")[2] if name.startswith("frcnn") else ""


def differences(compared: Compared, kind: str) -> dict[str, float]:
    """How far each tensor of a kind is from tensorpack's, in parts of its largest element; its norm of itself."""
    theirs = {n: v for n, v in compared.theirs.items() if n.startswith(kind)}
    ours = {n: v for n, v in compared.ours.items() if n.startswith(kind)}
    assert set(ours) == set(theirs)
    found = {}
    for name, expected in theirs.items():
        got = told(weights.to_nchw(name, ours[name]))
        apart = np.abs(got - expected) / max(expected[1], 1e-12)
        apart[0] *= expected[1] / max(expected[0], 1e-12)
        found[name] = float(apart.max())
    return found


def test_the_loader_gives_what_tensorpacks_gives(compared: Compared) -> None:
    """Image, boxes of the objects, masks rasterised where the image is, and which anchors are positive."""
    example, theirs = compared.example, compared.theirs
    np.testing.assert_array_equal(told(example.image), theirs["image"])
    np.testing.assert_array_equal(example.boxes, theirs["gt_boxes"])
    np.testing.assert_array_equal(told(example.masks.transpose(0, 2, 1)), theirs["masks"])
    assert {0.0} == set(differences(compared, "anchors/").values())


def test_features_proposals_and_losses_are_tensorpacks(compared: Compared) -> None:
    assert max(differences(compared, "features/").values()) < 1e-4
    assert max(differences(compared, "loss/").values()) < 1e-4
    theirs = compared.theirs["proposals"]
    np.testing.assert_allclose(compared.ours["proposals"], theirs, atol=1e-4 * theirs.max())


def test_every_gradient_is_tensorpacks(compared: Compared) -> None:
    """Of each variable that learns, weight decay included; a bias that a norm takes away again has none but rounding."""
    apart = differences(compared, "gradient/")
    found = {name: value for name, value in apart.items() if compared.theirs[name][1] > 1e-6}
    assert len(found) > 40
    assert {} == {name: apart for name, apart in found.items() if apart > 1e-4}


@pytest.mark.parametrize("is_reference", [True, False], ids=["as tensorpack", "default"])
def test_a_tensorpack_trained_npz_detects_what_it_detects_there(
    scene: Scene, is_reference: bool, tmp_path: Path
) -> None:
    """By the reference's settings, and by the defaults but what is padded and dropped; then its anchors are converted."""
    settings = as_tensorpack(scene) if is_reference else ["PREPROC.PREDEFINED_PADDING=False", "RPN.MIN_SIZE=-1"]
    config = config_of(scene, "FPN.GN_HEAD_ORDER=relu-norm", *settings)
    detector = Detector(config, threads=1)
    detector.assign(weights.model_weights(as_npz(scene, detector.shapes, tmp_path), detector.shapes, config))
    image = tensorpack_scene.image(scene)
    found = detector.detect(np.ascontiguousarray(image[:, ::-1]) if scene.is_mirrored else image)
    with np.load(NUMBERS / f"{scene.name}.npz") as file:
        theirs = {n.removeprefix("detected/"): v for n, v in file.items() if n.startswith("detected/")}

    assert 5 < len(found.scores) == len(theirs["scores"])
    for label, score, box in zip(theirs["labels"], theirs["scores"], theirs["boxes"] * scene.scale, strict=True):
        apart = np.abs(found.boxes - box).max(1) + np.abs(found.scores - score) + 9 * (found.labels != label)
        assert apart.min() < 0.02  # in no order, as scores may tie
    np.testing.assert_allclose(told(found.masks)[:2], theirs["masks"][:2], rtol=1e-3)


def test_the_word_stands_for_its_settings_and_what_contradicts_it_is_refused() -> None:
    """docs/maskrcnn.md lists them, each beside what the default does; a job's file of settings loads to the same."""
    config = apply_settings(Config(), ["PREPROC.MAX_SIZE=1333", "REFERENCE=tensorpack"])
    flat = keys.dump(config)
    page = (
        (Path(__file__).parents[2] / "docs/maskrcnn.md").read_text().partition("## Departures")[2].partition("\n## ")[0]
    )

    assert all(flat[key] == value for key, value in TENSORPACK.items())
    assert (1344, 1344 / 16) == (config.preproc.longest_side, config.preproc.growth)
    assert (1333, 1333 / 16) == (Config().preproc.longest_side, Config().preproc.growth)
    assert [] == [key for key, value in TENSORPACK.items() if value != keys.dump(Config())[key] and key not in page]
    assert keys.load(keys.plain(config)) == config
    for setting, said in (
        ("FRCNN.BOX_LOSS=huber", r"FRCNN.BOX_LOSS=huber is not as REFERENCE=tensorpack has it \(l1\)"),
        ("TRAIN.BATCH_SIZE_PER_GPU=2", r"TRAIN.BATCH_SIZE_PER_GPU=2 is not as"),
        ("RPN.MIN_SIZE=0", r"RPN.MIN_SIZE=0 drops nothing in tensorpack"),
        ("RPN.TEST_IMAGE_TOPK=500", r"give all the same"),
    ):
        with pytest.raises(ConfigError, match=said):
            apply_settings(Config(), [setting, "REFERENCE=tensorpack"])
    with pytest.raises(ConfigError, match="REFERENCE is 'detectron': give tensorpack, or nothing"):
        apply_settings(Config(), ["REFERENCE=detectron"])


@pytest.mark.parametrize(
    ("height", "width", "expected"),
    [
        (480, 640, (800, 1067)),
        (427, 640, (800, 1199)),
        (333, 500, (800, 1201)),
        (375, 1242, (406, 1344)),
        (640, 360, (1344, 756)),
    ],
)
def test_an_image_is_resized_to_the_pixel_as_there(height: int, width: int, expected: tuple[int, int]) -> None:
    """Sizes that tensorpack's CustomResize gives, MAX_SIZE 1333 rounded up to 1344."""
    preproc = apply_settings(Config(), ["REFERENCE=tensorpack"]).preproc
    assert expected == resized(height, width, 800, preproc.longest_side)
