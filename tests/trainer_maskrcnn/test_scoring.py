"""COCO's numbers: perfect for the truth, honest for less."""

import contextlib
import copy
import io
from dataclasses import replace
from pathlib import Path

import cv2
import numpy as np
import pytest
from pycocotools.cocoeval import COCOeval

from trainer.coco import masks
from trainer.coco.annotations import CocoSet, read_set
from trainer.errors import TrainerError
from trainer.maskrcnn.detections import Detections, paste
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


def test_half_of_the_truth_scores_about_half_and_nothing_scores_nothing(coco_mini: Path) -> None:
    data = read_set(coco_mini, "val2017")
    entries = truth_as_detections(data)
    shifted = [{**e, "bbox": [e["bbox"][0] + 1000, *e["bbox"][1:]]} for e in entries]

    half = score(data, entries[::2], with_masks=False)
    assert 0.2 < half["box_ap"] < 0.8
    assert [f"box_{n}" for n in NUMBERS] == list(half), "categories are for who asks for them"
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


def test_above_keeps_the_best() -> None:
    """Those of at least this score, with their boxes, labels and masks."""
    found = Detections(
        boxes=np.arange(12, dtype=np.float32).reshape(3, 4),
        scores=np.float32([0.9, 0.5, 0.4]),
        labels=np.int32([3, 2, 1]),
        masks=np.stack([np.full((28, 28), i, np.float32) for i in range(3)]),
    )
    kept = found.above(0.5)

    assert ([3, 2], [0, 1]) == (kept.labels.tolist(), kept.masks[:, 0, 0].tolist())
    assert found.boxes[:2].tolist() == kept.boxes.tolist()
    assert 0 == len(found.above(0.95).scores) and replace(found, masks=None).above(0.5).masks is None


@pytest.mark.parametrize(
    "box", [[10, 20, 50, 80], [-30, -10, 50, 60], [3.3, 4.7, 40.2, 33.9], [40, 50, 600, 900], [5, 5, 6, 6]]
)
def test_a_resized_mask_lies_where_the_sampled_one_does(box: list[float]) -> None:
    """MRCNN.ACCURATE_PASTE=False: half a pixel off, not more, also where the box reaches beyond the image."""
    disk = (np.hypot(*(np.mgrid[:28, :28] - 13.5)) < 11).astype(np.float32)
    exact, resized = (paste(disk, np.float32(box), 100, 120, accurate=accurate) for accurate in (True, False))

    outline = cv2.morphologyEx(exact, cv2.MORPH_GRADIENT, np.ones((3, 3), np.uint8), borderType=cv2.BORDER_REFLECT)
    assert not (exact != resized)[outline == 0].any()


def test_results_are_made_with_either_way_of_pasting(coco_mini: Path) -> None:
    """The setting reaches the masks of COCO's results."""
    data = read_set(coco_mini, "val2017")
    picture = data.pictures[0]
    found = Detections(
        boxes=np.float32([[10.4, 20.4, 50.6, 80.6]]),
        scores=np.float32([0.75]),
        labels=np.int32([1]),
        masks=np.random.default_rng(0).random((1, 28, 28)).astype(np.float32),
    )
    one, other = (results(picture, found, data.category_ids, accurate=a)[0]["segmentation"] for a in (True, False))
    assert one != other


def test_parts_that_do_not_make_a_whole_are_refused(coco_mini: Path) -> None:
    """A rank with another annotation file would make the AP wrong without a word."""
    import json
    import zlib

    data = read_set(coco_mini, "val2017")
    part = zlib.compress(json.dumps({"images": [0, 1], "entries": []}).encode())
    with pytest.raises(TrainerError, match="4 evaluations of 2 images, of a set of 24"):
        merged([part, part], data)
