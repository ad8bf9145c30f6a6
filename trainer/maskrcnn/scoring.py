"""Scoring: COCO's results JSON and COCO's average precision. No TensorFlow."""

import contextlib
import copy
import io
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from pycocotools.coco import COCO
from pycocotools.cocoeval import COCOeval

from trainer.coco import masks as coco_masks
from trainer.coco.annotations import AnnotatedImage, CocoSet
from trainer.maskrcnn.detections import Detections

NUMBERS = (
    "ap",
    "ap50",
    "ap75",
    "ap_small",
    "ap_medium",
    "ap_large",
    "ar1",
    "ar10",
    "ar100",
    "ar_small",
    "ar_medium",
    "ar_large",
)
"""The 12 numbers of COCO in pycocotools' order."""


def results(
    picture: AnnotatedImage, found: Detections, category_ids: Sequence[int], *, accurate: bool = True
) -> list[dict[str, Any]]:
    """Return the detections on one picture as entries of COCO's results JSON."""
    entries = []
    for i, (box, score, label) in enumerate(
        zip(found.boxes.tolist(), found.scores.tolist(), found.labels.tolist(), strict=True)
    ):
        x1, y1, x2, y2 = box
        entry: dict[str, Any] = {
            "image_id": picture.id,
            "category_id": category_ids[label - 1],
            "bbox": [round(v, 3) for v in (x1, y1, x2 - x1, y2 - y1)],
            "score": round(score, 5),
        }
        if found.masks is not None:
            entry["segmentation"] = coco_masks.encode(
                found.full_mask(i, picture.height, picture.width, accurate=accurate)
            )
        entries.append(entry)
    return entries


def score(
    data: CocoSet, entries: list[dict[str, Any]], *, with_masks: bool, per_category: bool = False
) -> dict[str, float]:
    """Return COCO's numbers as `box_ap`, `box_ap50`, ... and `mask_...`, in 0 .. 1; -1 where there is nothing to find.

    With `per_category` also `box_ap/NAME` and `mask_ap/NAME`.
    """
    truth = ground_truth(data, with_masks=with_masks)
    scores: dict[str, float] = {}
    kinds = [("box", "bbox"), ("mask", "segm")] if with_masks else [("box", "bbox")]
    for kind, iou_type in kinds:
        if not entries:
            scores |= {f"{kind}_{n}": 0.0 for n in NUMBERS}
            continue
        with contextlib.redirect_stdout(io.StringIO()):  # pycocotools prints every step
            evaluation = COCOeval(truth, truth.loadRes(_of_kind(entries, kind)), iou_type)
            evaluation.params.imgIds = [p.id for p in data.pictures]
            evaluation.evaluate()
            evaluation.accumulate()
            evaluation.summarize()
        scores |= {f"{kind}_{n}": float(v) for n, v in zip(NUMBERS, evaluation.stats, strict=True)}
        if per_category:
            scores |= {
                f"{kind}_ap/{name}": v for name, v in zip(data.class_names, _per_category(evaluation), strict=True)
            }
    return scores


def ground_truth(data: CocoSet, *, with_masks: bool = True) -> COCO:
    """Return the annotations in pycocotools' form, without objects that cannot be scored.

    Those are objects of unknown images and categories, which were not checked, and with masks those without one.
    """
    kept = []
    images, categories = {p.id for p in data.pictures}, set(data.category_ids)
    for entry in data.raw["annotations"]:
        if entry["image_id"] not in images or entry["category_id"] not in categories:
            continue
        segmentation = entry.get("segmentation", [])
        if isinstance(segmentation, list):
            polygons = [p for p in segmentation if isinstance(p, list) and len(p) >= 6 and len(p) % 2 == 0]
            if not polygons and with_masks:
                continue
            entry = entry | {"segmentation": polygons}
        kept.append({"iscrowd": 0, "area": entry["bbox"][2] * entry["bbox"][3]} | entry)
    truth = COCO()
    truth.dataset = {"info": {}, **data.raw, "annotations": copy.deepcopy(kept)}
    with contextlib.redirect_stdout(io.StringIO()):
        truth.createIndex()
    return truth


def _of_kind(entries: Iterable[dict[str, Any]], kind: str) -> list[dict[str, Any]]:
    """Return the entries for scoring boxes or masks.

    Removes masks for boxes, or pycocotools would use the masks' areas.
    """
    return [{k: v for k, v in e.items() if kind == "mask" or k != "segmentation"} for e in entries]


def _per_category(evaluation: COCOeval) -> list[float]:
    precision = evaluation.eval["precision"][:, :, :, 0, -1]  # [IoU, recall, category], all areas, 100 detections
    return [float(np.mean(p[p > -1])) if (p > -1).any() else -1.0 for p in np.moveaxis(precision, 2, 0)]
