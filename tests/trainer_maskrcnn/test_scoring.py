"""COCO's numbers: perfect for the truth, honest for less."""

import contextlib
import copy
import io
from pathlib import Path

import numpy as np
import pytest
from pycocotools.cocoeval import COCOeval

from trainer.coco import masks
from trainer.coco.annotations import CocoSet, read_set
from trainer.common.files.errors import TrainerError
from trainer.maskrcnn.detections import Detections
from trainer.maskrcnn.evaluation import merged
from trainer.maskrcnn.scoring import NUMBERS, ground_truth, results, score


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


def test_a_categorys_ap_is_over_objects_of_all_sizes(coco_mini: Path) -> None:
    """Against COCOeval on that category alone; where only the large objects are found, it is not that of the small."""
    data = read_set(coco_mini, "val2017")
    large = [e for e in truth_as_detections(data) if e["bbox"][2] * e["bbox"][3] > 96**2]
    scores = score(data, large, with_masks=False, per_category=True)
    person = data.category_ids[data.class_names.index("person")]
    with contextlib.redirect_stdout(io.StringIO()):
        truth = ground_truth(data)
        alone = COCOeval(truth, truth.loadRes(copy.deepcopy(large)), "bbox")
        alone.params.catIds = [person]
        alone.evaluate()
        alone.accumulate()
        alone.summarize()

    assert scores["box_ap/person"] == pytest.approx(alone.stats[0])
    assert alone.stats[3] < 0.1 < alone.stats[0] < 0.9


def test_parts_that_do_not_make_a_whole_are_refused(coco_mini: Path) -> None:
    """A rank with another annotation file would make the AP wrong without a word."""
    import json
    import zlib

    data = read_set(coco_mini, "val2017")
    part = zlib.compress(json.dumps({"images": [0, 1], "entries": []}).encode())
    with pytest.raises(TrainerError, match="4 evaluations of 2 images, of a set of 24"):
        merged([part, part], data)
