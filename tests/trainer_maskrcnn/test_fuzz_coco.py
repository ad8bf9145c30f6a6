"""Damaged annotation files: named, annotation by annotation, and never an exception or a crash of native code."""

import atexit
import functools
import json
import tempfile
from pathlib import Path

import numpy as np
import pytest

from tests import fuzzing
from trainer.coco import masks, verify
from trainer.coco.annotations import read_set
from trainer.coco.sample import write_sample
from trainer.common.files.errors import TrainerError
from trainer.maskrcnn.examples import object_masks
from trainer.maskrcnn.scoring import ground_truth

pytestmark = [pytest.mark.fuzz, pytest.mark.slow]

SET = "train2017"


@functools.cache
def drawn() -> tuple[Path, bytes]:
    """Ten pictures with polygons, both run-length codes and a crowd, and the text of their annotations."""
    folder = tempfile.TemporaryDirectory(prefix="fuzz-coco-")
    atexit.register(folder.cleanup)
    out = Path(folder.name) / "set"
    write_sample(out, train=10, val=1, size=64, seed=2)
    file = out / "annotations" / f"instances_{SET}.json"
    value = json.loads(file.read_text())
    for entry in value["annotations"][::3]:
        image = next(i for i in value["images"] if i["id"] == entry["image_id"])
        entry["segmentation"] = masks.encode(masks.decode(entry["segmentation"], image["height"], image["width"]))
    return out, json.dumps(value).encode()


def one_damaged_set(rng: np.random.Generator) -> None:
    """Verified in words; and what a training would take can be drawn and scored."""
    out, text = drawn()
    changed = fuzzing.damaged(text, rng) if rng.integers(3) == 0 else fuzzing.other_json(text, rng)
    file = out / "annotations" / f"instances_{SET}.json"
    file.write_bytes(changed)
    try:
        data = verify.read_annotations(file, out / SET)
        assert verify.counts(data)
        assert all(str(problem) for problem in verify.problems(data, threads=1))
        assert all(p.path.is_relative_to(out / SET) and ".." not in p.path.parts for p in data.pictures)
    except TrainerError as e:
        assert str(file) in str(e)
    try:
        data = read_set(out, SET)
    except TrainerError as e:
        assert str(file) in str(e)
        return
    for picture in data.pictures:
        object_masks(picture)
        assert all(np.isfinite(i.box).all() and np.isfinite(i.area) for i in picture.instances)
    truth = ground_truth(data)
    for entry in truth.loadAnns(truth.getAnnIds(imgIds=[p.id for p in data.pictures])):
        truth.annToMask(entry)


def test_a_damaged_annotation_file_is_named(tmp_path: Path) -> None:
    """Bytes changed, values replaced by NaN, null, 1e9, paths and the like."""
    fuzzing.survives(one_damaged_set, tmp_path, least=50)


def test_the_set_is_whole_before_it_is_damaged() -> None:
    """Or damaging it would show nothing."""
    out, text = drawn()
    (out / "annotations" / f"instances_{SET}.json").write_bytes(text)
    assert verify.main([str(out)]) == 0
