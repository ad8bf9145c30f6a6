"""What `predict` refuses before it draws."""

import dataclasses
import shutil
from pathlib import Path

import cv2
import numpy as np
import pytest

from trainer.coco import masks
from trainer.coco.annotations import read_set
from trainer.common.files.errors import ConfigError
from trainer.maskrcnn import predict, visualize


def test_predict_refuses_a_damaged_image_before_anything_is_written(shapes: Path, tmp_path: Path) -> None:
    """Where OpenCV would fill the rest with gray, and the network see something in it."""
    picture = read_set(shapes, "train2017").pictures[0]
    cut = tmp_path / "cut.jpg"
    for damaged in (picture.path.read_bytes()[:-300] + b"\xff\xd9", b"", b"no picture"):
        cut.write_bytes(damaged)
        with pytest.raises(ConfigError, match=r"cut.jpg cannot be read as an image: "):
            predict.predict(None, [picture.path, cut], tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_predict_draws_over_nothing(shapes: Path, tmp_path: Path) -> None:
    """Neither over an image that was given, nor two into one file."""
    first, second = (p.path for p in read_set(shapes, "train2017").pictures[:2])
    (tmp_path / "b").mkdir()
    shutil.copy(second, tmp_path / "b" / first.name)
    with pytest.raises(ConfigError, match=f"would both be drawn to .*{first.stem}.png"):
        predict.predict(None, [first, tmp_path / "b" / first.name], tmp_path / "out")
    own = tmp_path / "a.png"
    cv2.imwrite(str(own), np.zeros((8, 8, 3), np.uint8))
    before = own.read_bytes()
    with pytest.raises(ConfigError, match=r"would be drawn over .*a.png, one of the images: give another folder"):
        predict.predict(None, [own], tmp_path)
    assert before == own.read_bytes()


def test_a_few_small_pictures_of_an_evaluation_are_kept_for_the_job_s_page(
    shapes: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """With what was found on them and is sure enough; one that cannot be read costs a line."""
    data = read_set(shapes, "train2017")
    first = data.pictures[0]
    sure = {"image_id": first.id, "category_id": data.category_ids[0], "bbox": [2, 2, 30, 30], "score": 0.9}
    mask = np.zeros((first.height, first.width), np.uint8)
    mask[5:20, 5:20] = 1
    sure["segmentation"] = masks.encode(mask)
    visualize.write_gallery(tmp_path, data, [{**sure, "score": 0.1}], 0.5)
    plain = {p.name: p.read_bytes() for p in (tmp_path / visualize.FOLDER).iterdir()}
    lost = dataclasses.replace(
        data, pictures=(first, dataclasses.replace(data.pictures[1], path=tmp_path / "gone.jpg"))
    )
    visualize.write_gallery(tmp_path, lost, [sure], 0.5)
    drawn = (tmp_path / visualize.FOLDER / f"{first.path.stem}.jpg").read_bytes()

    assert min(visualize.COUNT, len(data.pictures)) == len(plain)
    assert all(len(content) < 60_000 for content in plain.values())
    assert drawn != plain[f"{first.path.stem}.jpg"]
    assert max(cv2.imdecode(np.frombuffer(drawn, np.uint8), 1).shape) <= visualize.SIDE
    assert "gone.jpg is not drawn" in capsys.readouterr().err
