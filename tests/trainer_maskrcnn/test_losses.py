"""What a training would leave out, what its sets contradict each other in, and files that are not there: said by --check."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest

from trainer.coco import verify
from trainer.coco.annotations import read_set
from trainer.coco.losses import fits, losses
from trainer.common.files.errors import ConfigError
from trainer.maskrcnn.__main__ import main
from trainer.maskrcnn.scoring import ground_truth

SQUARE = [10, 10, 30, 10, 30, 25, 10, 25]
POINT = [10, 10, 12, 12]
TRAIN, VAL = "train2017", "val2017"
WORDS = (
    "BACKBONE.NORM=GN", "BACKBONE.FREEZE_AT=0", "TRAIN.LR_SCHEDULE=[500]", "TRAIN.WARMUP=1", "TRAIN.EVAL_PERIOD=0",
)  # fmt: skip


def drawn_set(folder: Path, name: str, names: tuple[str, ...] = ("cat", "dog"), **more: object) -> dict[str, Any]:
    """Writes four images of one object each, and the annotations, which it returns."""
    images = [{"id": i, "file_name": f"{i:04}.jpg", "width": 64, "height": 48} for i in range(1, 5)]
    entry = {"bbox": [10, 10, 20, 15], "area": 300, "iscrowd": 0, "segmentation": [SQUARE], **more}
    raw = {
        "images": images,
        "categories": [{"id": i, "name": n} for i, n in enumerate(names, start=1)],
        "annotations": [{"id": i, "image_id": i, "category_id": 1 + i % 2, **entry} for i in range(1, 5)],
    }
    (folder / name).mkdir(parents=True, exist_ok=True)
    for image in images:
        cv2.imwrite(str(folder / name / str(image["file_name"])), np.zeros((48, 64, 3), np.uint8))
    written(folder, name, raw)
    return raw


def written(folder: Path, name: str, raw: dict[str, Any]) -> None:
    """Writes the annotations of a set."""
    (folder / "annotations").mkdir(exist_ok=True)
    (folder / f"annotations/instances_{name}.json").write_text(json.dumps(raw))


@pytest.fixture
def coco(tmp_path: Path) -> Path:
    """Two sets that fit each other."""
    drawn_set(tmp_path, TRAIN)
    drawn_set(tmp_path, VAL)
    return tmp_path


def checked(folder: Path, *words: str) -> int:
    """The exit code of a training's --check."""
    return main(["--check", f"DATA.BASEDIR={folder}", *WORDS, *words])


def test_boxes_alone_are_enough_for_a_detector_without_masks(coco: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With masks it is refused, with how many objects of how many images; verifying fails likewise. In its ground truth too."""
    for name in (TRAIN, VAL):
        drawn_set(coco, name, segmentation=[])
    assert 2 == checked(coco)
    said = capsys.readouterr().err
    assert (
        "instances_train2017.json: 4 objects on 4 images have no mask, of 4 in all: more than a share of 0.01" in said
    )
    assert "MODE_MASK=False" in said and "--most-left-out 1" in said
    assert 2 == verify.main([str(coco)])
    assert "4 objects on 4 images have no mask" in capsys.readouterr().out
    assert 0 == checked(coco, "MODE_MASK=False")
    assert "images           4 to learn from, 4 to evaluate on" in capsys.readouterr().out
    assert 0 == verify.main([str(coco), "--boxes-only"])
    data = read_set(coco, VAL, with_masks=False)
    assert 4 == len(ground_truth(data, with_masks=False).anns) and [] == ground_truth(data).getAnnIds()


@pytest.mark.parametrize(
    ("entry", "says"),
    [
        ({"segmentation": []}, "1 object on 1 image has no mask"),
        ({"segmentation": [POINT]}, "1 object on 1 image has no mask"),
        ({"segmentation": [SQUARE, POINT]}, "1 object on 1 image loses polygons with fewer than three corners"),
        ({"bbox": [10, 10, 0, 15]}, "1 object on 1 image has a box without area"),
        ({"category_id": 9}, "1 object on 1 image is of an unknown category"),
        ({"image_id": 9}, "1 object on 1 image is on an unknown image"),
        ({"bbox": [10, 10, 54, 38]}, "1 object on 1 image has a box that does not fit their polygons"),
    ],
)
def test_each_rule_that_leaves_objects_out_is_told_and_has_a_limit(
    coco: Path, capsys: pytest.CaptureFixture[str], entry: dict[str, Any], says: str
) -> None:
    """One of four objects is more than a hundredth; where a quarter may go, --check says which and goes on."""
    raw = drawn_set(coco, TRAIN)
    raw["annotations"][2] |= entry
    written(coco, TRAIN, raw)
    assert 2 == checked(coco) and says in capsys.readouterr().err
    assert 2 == checked(coco, "--most-left-out", "0.24")
    assert 0 == checked(coco, "--most-left-out", "0.25")
    assert f"left out         train2017: {says}\n" in capsys.readouterr().out
    assert 0 == main(["--check", "--json", "--most-left-out=1", f"DATA.BASEDIR={coco}", *WORDS])
    assert f"train2017: {says}" in json.loads(capsys.readouterr().out)["left_out"]
    assert 2 == checked(coco, "--most-left-out", "1.5")


def test_a_crowd_or_a_small_object_fits_its_box(coco: Path) -> None:
    """A run-length code is not compared, nor is a pixel's rounding; the usual set has no loss."""
    data = read_set(coco, TRAIN)
    (instance,) = data.pictures[0].instances
    assert fits(instance) and [] == losses(data)


def swapped(coco: Path) -> None:
    drawn_set(coco, VAL, ("dog", "cat"))


@pytest.mark.parametrize(
    ("spoil", "words", "says"),
    [
        (swapped, (), "there 1 is cat, here dog: export both with the same ids"),
        (lambda coco: drawn_set(coco, VAL, ("cat", "dog", "cow")), (), "there 3 is missing, here cow"),
        (
            lambda coco: drawn_set(coco, "more", ("dog", "cat")),
            ("DATA.TRAIN=train2017,more",),
            "there 1 is cat, here dog",
        ),
        (
            lambda coco: None,
            ("DATA.CLASS_NAMES=dog,cat",),
            "class 1 is 'dog' by DATA.CLASS_NAMES, but 'dog' is class 2",
        ),
    ],
)
def test_an_id_means_one_category_in_all_sets(
    coco: Path, capsys: pytest.CaptureFixture[str], spoil: Callable[[Path], object], words: tuple[str, ...], says: str
) -> None:
    """Compared by id and name between what is learned from and what is evaluated on."""
    spoil(coco)
    assert 2 == checked(coco, *words)
    assert says in capsys.readouterr().err


def test_verifying_compares_the_sets_of_a_folder(coco: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A name with other capitals is the same one."""
    drawn_set(coco, VAL, ("Cat", " dog"))
    assert 0 == verify.main([str(coco)])
    swapped(coco)
    assert 2 == verify.main([str(coco)])
    assert "there 1 is cat, here dog" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("missing.jpg", "missing.jpg: bring them"),
        ("JPEGImages\\0003.jpg", "its name has a backslash, as Windows writes paths: write / in file_name"),
        ("0003.JPG", "0003.jpg is there: capitals differ"),
        ("0003.png", "0003.jpg is there: the ending differs"),
        ("below/0003.jpg", "train2017/below is missing or empty"),
    ],
)
def test_an_image_that_is_not_there_is_found_before_the_first_step(
    coco: Path, capsys: pytest.CaptureFixture[str], name: str, hint: str
) -> None:
    """By one listing of its folder, with what its name may be meant as."""
    raw = drawn_set(coco, TRAIN)
    raw["images"][2]["file_name"] = name
    written(coco, TRAIN, raw)
    assert 2 == checked(coco)
    said = capsys.readouterr().err
    assert "instances_train2017.json: 1 of 4 images are not there, the first:" in said and hint in said


def test_an_image_that_is_not_learned_from_may_be_missing(coco: Path) -> None:
    """It has no object; where such images are learned from as well it is needed."""
    raw = drawn_set(coco, TRAIN)
    raw["annotations"].pop()
    written(coco, TRAIN, raw)
    (coco / TRAIN / "0004.jpg").unlink()
    assert 0 == checked(coco)
    assert 2 == checked(coco, "DATA.FILTER_EMPTY_ANNOTATIONS=False")


def test_a_file_that_is_two_images_is_a_problem(coco: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Each of them has a part of its objects."""
    raw = drawn_set(coco, TRAIN)
    raw["images"][1]["file_name"] = "0001.jpg"
    written(coco, TRAIN, raw)
    assert 1 == verify.main([str(coco)])
    assert "0001.jpg: is both image 1 and image 2" in capsys.readouterr().out


def test_annotations_may_begin_with_a_byte_order_mark(coco: Path) -> None:
    """As Windows' editors write it."""
    file = coco / "annotations/instances_train2017.json"
    file.write_text("\ufeff" + file.read_text())
    data = read_set(coco, TRAIN)
    assert 4 == len(data.pictures) and data.raw["images"]
    with pytest.raises(ConfigError, match="is not JSON"):
        (file.write_text("{"), read_set(coco, TRAIN))
