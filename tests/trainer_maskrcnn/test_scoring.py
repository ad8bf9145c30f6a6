"""COCO's numbers: perfect for the truth, honest for less."""

from pathlib import Path

import numpy as np
import pytest

from trainer.coco import masks
from trainer.coco.annotations import CocoSet, read_set
from trainer.errors import TrainerError
from trainer.maskrcnn.detections import Detections
from trainer.maskrcnn.evaluation import merged
from trainer.maskrcnn.scoring import NUMBERS, results, score


def truth_as_detections(data: CocoSet) -> list[dict[str, object]]:
    entries: list[dict[str, object]] = []
    for picture in data.pictures:
        for i in picture.objects:
            x1, y1, x2, y2 = i.box
            mask = masks.decode(i.segmentation, picture.height, picture.width)
            entries.append(
                {
                    "image_id": picture.id,
                    "category_id": data.category_ids[i.label - 1],
                    "score": 1.0,
                    "bbox": [x1, y1, x2 - x1, y2 - y1],
                    "segmentation": masks.encode(mask),
                }
            )
    return entries


def test_the_truth_scores_one(coco_mini: Path) -> None:
    """Fed in as detections, the annotations of real photographs give AP 1.0 for boxes and masks."""
    data = read_set(coco_mini, "val2017")
    scores = score(data, truth_as_detections(data), with_masks=True, per_category=True)

    assert [k for k in scores if "/" not in k] == [f"{kind}_{n}" for kind in ("box", "mask") for n in NUMBERS]
    for kind in ("box", "mask"):
        for number in ("ap", "ap50", "ap75", "ap_small", "ap_medium", "ap_large"):
            assert scores[f"{kind}_{number}"] == pytest.approx(1.0), (kind, number)
    assert scores["mask_ap/person"] == pytest.approx(1.0)
    assert len([k for k in scores if k.startswith("box_ap/")]) == 80


def test_half_of_the_truth_scores_about_half_and_nothing_scores_nothing(coco_mini: Path) -> None:
    data = read_set(coco_mini, "val2017")
    entries = truth_as_detections(data)
    shifted = [{**e, "bbox": [e["bbox"][0] + 1000, *e["bbox"][1:]]} for e in entries]  # type: ignore[index]

    assert 0.2 < score(data, entries[::2], with_masks=False)["box_ap"] < 0.8
    assert score(data, shifted, with_masks=False)["box_ap"] == 0
    assert score(data, [], with_masks=True)["mask_ap50"] == 0


def test_results_are_cocos_json(coco_mini: Path) -> None:
    """Category ids, not class numbers; x y width height; a mask of the image's size."""
    data = read_set(coco_mini, "val2017")
    picture = data.pictures[0]
    found = Detections(
        boxes=np.float32([[10, 20, 50, 80]]),
        scores=np.float32([0.75]),
        labels=np.int32([80]),
        masks=np.ones((1, 28, 28), np.float32),
    )
    (entry,) = results(picture, found, data.category_ids)

    assert (entry["image_id"], entry["category_id"], entry["bbox"], entry["score"]) == (
        picture.id,
        90,
        [10, 20, 40, 60],
        0.75,
    )
    assert masks.decode(entry["segmentation"], picture.height, picture.width).sum() == 40 * 60


def test_parts_that_do_not_make_a_whole_are_refused(coco_mini: Path) -> None:
    """A rank with another annotation file would make the AP wrong without a word."""
    import json
    import zlib

    data = read_set(coco_mini, "val2017")
    part = zlib.compress(json.dumps({"images": [0, 1], "entries": []}).encode())
    with pytest.raises(TrainerError, match="4 images were evaluated, 2 of them different, out of 24"):
        merged([part, part], data)
