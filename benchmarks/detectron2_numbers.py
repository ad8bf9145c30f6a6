"""`PYTHON -m benchmarks.detectron2_numbers DIR`: what Detectron2's own Mask R-CNN computes, stored for the tests.

DIR is a checkout of Detectron2; PYTHON has PyTorch, torchvision and what its Python files import (fvcore, omegaconf).
Of each model below, with drawn weights, features, scores and offsets of proposals and detections of a drawn image go to
`tests/trainer_maskrcnn/from_detectron2/NAME.npz`: norm, maximum and 64 fixed elements of each tensor. Nothing compiled
of Detectron2 is needed: RoIAlign and NMS are torchvision's.
"""

import argparse
import json
import sys
import types
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import tensorpack_scene
from benchmarks.tensorpack_scene import Floats, told

OUT = Path(__file__).parents[1] / "tests/trainer_maskrcnn/from_detectron2"
CONFIGS = "configs/COCO-InstanceSegmentation/mask_rcnn_R_50_FPN_3x.yaml"
SHORT, LONG, CATEGORIES, WIDTH, CHANNELS = 96, 128, 4, 32, 32
ANCHORS = (16, 32, 64, 128, 256)


@dataclass(frozen=True, kw_only=True)
class Model:
    """A model in the words of both: Detectron2's settings, and this trainer's."""

    name: str
    theirs: Mapping[str, Any] = field(default_factory=dict)
    ours: tuple[str, ...] = ()

    def words(self) -> list[str]:
        """This trainer's settings."""
        return [
            *(
                f"BACKBONE.CHANNELS={WIDTH}",
                f"FPN.NUM_CHANNEL={CHANNELS}",
                "FPN.FRCNN_FC_HEAD_DIM=64",
                "MRCNN.HEAD_DIM=32",
            ),
            *("FPN.FRCNN_CONV_HEAD_DIM=32", f"RPN.ANCHOR_SIZES={','.join(map(str, ANCHORS))}"),
            *(f"PREPROC.TEST_SHORT_EDGE_SIZE={SHORT}", f"PREPROC.TRAIN_SHORT_EDGE_SIZE={SHORT}"),
            *("PREPROC.MAX_SIZE=192", "PREPROC.PREDEFINED_PADDING=False"),
            *("TEST.RESULTS_PER_IM=40", f"DATA.NUM_CATEGORY={CATEGORIES}", *self.ours),
        ]


MODELS = (
    Model(name="msra", ours=("BACKBONE.STRIDE_1X1=True", "PREPROC.PIXEL_STD=1.,1.,1.")),
    Model(
        name="gn",
        theirs={
            "MODEL.RESNETS.NORM": "GN",
            "MODEL.RESNETS.STRIDE_IN_1X1": False,
            "MODEL.FPN.NORM": "GN",
            "MODEL.ROI_BOX_HEAD.NUM_CONV": 4,
            "MODEL.ROI_BOX_HEAD.CONV_DIM": 32,
            "MODEL.ROI_BOX_HEAD.NUM_FC": 1,
            "MODEL.ROI_BOX_HEAD.NORM": "GN",
            "MODEL.ROI_MASK_HEAD.NORM": "GN",
            "MODEL.PIXEL_STD": [57.375, 57.12, 58.395],
        },
        ours=(
            *("BACKBONE.NORM=GN", "BACKBONE.FREEZE_AT=0", "FPN.NORM=GN"),
            *("FPN.FRCNN_HEAD_FUNC=fastrcnn_4conv1fc_gn_head", "FPN.MRCNN_HEAD_FUNC=maskrcnn_up4conv_gn_head"),
        ),
    ),
    Model(
        name="cascade",
        theirs={
            "MODEL.ROI_HEADS.NAME": "CascadeROIHeads",
            "MODEL.ROI_BOX_HEAD.CLS_AGNOSTIC_BBOX_REG": True,
            "MODEL.RESNETS.STRIDE_IN_1X1": False,
        },
        ours=("FPN.CASCADE=True", "PREPROC.PIXEL_STD=1.,1.,1."),
    ),
)
SAME = {
    "MODEL.DEVICE": "cpu",
    "MODEL.WEIGHTS": "",
    "MODEL.RESNETS.WIDTH_PER_GROUP": WIDTH,
    "MODEL.RESNETS.STEM_OUT_CHANNELS": WIDTH,
    "MODEL.RESNETS.RES2_OUT_CHANNELS": 4 * WIDTH,
    "MODEL.FPN.OUT_CHANNELS": CHANNELS,
    "MODEL.ANCHOR_GENERATOR.SIZES": [[size] for size in ANCHORS],
    "MODEL.ROI_HEADS.NUM_CLASSES": CATEGORIES,
    "MODEL.ROI_BOX_HEAD.FC_DIM": 64,
    "MODEL.ROI_MASK_HEAD.CONV_DIM": 32,
    "MODEL.ROI_BOX_HEAD.POOLER_SAMPLING_RATIO": 2,  # as here; 0, its default, takes more samples of a large region
    "MODEL.ROI_MASK_HEAD.POOLER_SAMPLING_RATIO": 2,
    "TEST.DETECTIONS_PER_IMAGE": 40,
}
IMAGE = tensorpack_scene.image(tensorpack_scene.Scene(name="image", height=SHORT, width=LONG))
_GAINS = {"objectness_logits": 0.5, "anchor_deltas": 0.05, "bbox_pred": 0.3, "cls_score": 0.4, "predictor": 0.5}


def weights(shapes: Mapping[str, tuple[int, ...]]) -> dict[str, Floats]:
    """Numbers for each of Detectron2's names, drawn by the name."""
    return {name: _weight(name, shape) for name, shape in shapes.items()}


def _weight(name: str, shape: tuple[int, ...]) -> Floats:
    random = np.random.RandomState(zlib.crc32(name.encode()))
    layer, _, last = name.rpartition(".")
    if last == "running_var":
        drawn = random.uniform(0.6, 1.6, shape)
    elif len(shape) > 1:
        fan = shape[0] if "deconv" in name else np.prod(shape[1:])
        pixels = 1 / 60 if "stem" in name else 1.0
        drawn = random.normal(0, pixels * _GAINS.get(layer.rpartition(".")[2], 1.4) / np.sqrt(fan), shape)
    elif layer.endswith("norm") and last == "weight":
        drawn = random.uniform(0.1, 0.3, shape) if "conv3" in layer else random.uniform(0.6, 1.4, shape)
    else:
        drawn = random.normal(0, 0.1, shape)
    return drawn.astype(np.float32)


def numbers(model: Model, checkout: Path) -> dict[str, Floats]:
    """What Detectron2 makes of the image; `shapes` are those of its weights by name, as JSON."""
    import torch
    from detectron2.config import get_cfg
    from detectron2.modeling import build_model

    torch.set_grad_enabled(False)
    config = get_cfg()
    config.merge_from_file(str(checkout / CONFIGS))
    config.merge_from_list([part for item in {**SAME, **model.theirs}.items() for part in item])
    network = build_model(config).eval()
    shapes = {name: tuple(value.shape) for name, value in network.state_dict().items()}
    network.load_state_dict({name: torch.from_numpy(array) for name, array in weights(shapes).items()})
    images = network.preprocess_image([{"image": torch.from_numpy(IMAGE.transpose(2, 0, 1).copy())}])
    features = network.backbone(images.tensor)
    logits, offsets = network.proposal_generator.rpn_head(list(features.values()))
    proposals, _ = network.proposal_generator(images, features, None)
    (found,), _ = network.roi_heads(images, features, proposals, None)
    return {
        **{f"features/{i}": told(f[0].permute(1, 2, 0).numpy()) for i, f in enumerate(features.values())},
        **{f"logits/{i}": told(f[0].permute(1, 2, 0).numpy()) for i, f in enumerate(logits)},
        **{f"offsets/{i}": told(f[0].permute(1, 2, 0).numpy()) for i, f in enumerate(offsets)},
        "proposals": told(proposals[0].proposal_boxes.tensor.numpy()),
        "boxes": found.pred_boxes.tensor.numpy(),
        "scores": found.scores.numpy(),
        "labels": found.pred_classes.numpy().astype(np.int32) + 1,
        "masks": np.array([told(mask) for mask in found.pred_masks[:, 0].numpy()]),
        "shapes": np.array(json.dumps(shapes)),
    }


def main() -> None:
    """Stores the numbers of every model."""
    parser = argparse.ArgumentParser(description="Detectron2's numbers for the tests.")
    parser.add_argument("checkout", type=Path)
    a = parser.parse_args()
    sys.path.insert(0, str(a.checkout))
    sys.modules["detectron2._C"] = types.ModuleType("detectron2._C")
    OUT.mkdir(exist_ok=True)
    for model in MODELS:
        found = numbers(model, a.checkout)
        np.savez_compressed(OUT / f"{model.name}.npz", **found)
        scores = found["scores"]
        print(model.name, {n: f"{v[1]:.3g}" for n, v in found.items() if n.startswith(("features", "log", "off"))})
        print(len(scores), scores[:3], scores[-3:], found["boxes"][:3].tolist())


if __name__ == "__main__":
    main()
