"""What becomes of a detector's findings: drawn, written, scored and exported, without a network."""

import json
import re
import threading
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import cv2
import numpy as np
import pytest

import trainer.common.ranks.horovod_rank
from tests.conftest import wait_for
from trainer.coco.annotations import AnnotatedImage, CocoSet, Instance, parse, read_set
from trainer.common.checkpoints.checkpoint import CheckpointFolder
from trainer.common.files.errors import ConfigError, TrainerError
from trainer.common.ranks.horovod_rank import Ranks
from trainer.maskrcnn import checkpoint_loader, evaluate, export, keys, predict
from trainer.maskrcnn.config import Config
from trainer.maskrcnn.detections import Detections
from trainer.maskrcnn.draw import BLEND, color_of, draw_detections, draw_truth
from trainer.maskrcnn.evaluation import Evaluation
from trainer.maskrcnn.keys import apply_settings
from trainer.maskrcnn.resume import CONFIG_FILE
from trainer.maskrcnn.scoring import results

GRAY = np.full((120, 160, 3), 100, np.uint8)


def found(*labels: int, with_masks: bool = True) -> Detections:
    """Boxes in a row, each with its label, the scores falling from 0.9; masks fill the upper half of their boxes."""
    count = len(labels)
    left = 10 + 50 * np.arange(count)
    half = np.zeros((count, 28, 28), np.float32)
    half[:, :14] = 1
    return Detections(
        boxes=np.stack([left, 0 * left + 40, left + 40, 0 * left + 100], 1).astype(np.float32),
        scores=np.float32(0.9 - 0.2 * np.arange(count)),
        labels=np.int32(labels),
        masks=half if with_masks else None,
    )


def tinted(color: tuple[int, int, int]) -> list[int]:
    """A gray pixel below a mask of this colour."""
    return [int(100 * (1 - BLEND) + c * BLEND) for c in color]


def test_a_detection_is_drawn_with_its_mask_and_its_frame() -> None:
    """Half covered where its mask is, framed where its box is; the picture that is given stays as it was."""
    before = GRAY.copy()
    drawn = draw_detections(GRAY, found(1, 2), ["a", "b"])
    np.testing.assert_array_equal(before, GRAY)
    for i, left in enumerate((10, 60)):
        color = color_of(i)
        assert tinted(color) == drawn[55, left + 20].tolist()
        assert [100, 100, 100] == drawn[85, left + 20].tolist()
        for y, x in ((100, left + 20), (80, left), (80, left + 40)):
            assert list(color) == drawn[y, x].tolist()
    plain = draw_detections(GRAY, found(1, 2, with_masks=False), ["a", "b"])
    assert [100, 100, 100] == plain[55, 30].tolist() and list(color_of(0)) == plain[100, 30].tolist()


def test_truth_is_drawn_with_crowds_in_gray() -> None:
    """Objects have the colours of detections, and their category's name."""
    square = [[20.0, 40, 60, 40, 60, 90, 20, 90]]
    objects = [
        Instance(id=1, label=1, box=(20, 40, 60, 90), area=1, is_crowd=False, segmentation=square),
        Instance(
            id=2,
            label=1,
            box=(90, 40, 130, 90),
            area=1,
            is_crowd=True,
            segmentation=[[v + 70 * (i % 2 == 0) for i, v in enumerate(square[0])]],
        ),
    ]
    picture = AnnotatedImage(id=1, path=Path("a.jpg"), height=120, width=160, instances=tuple(objects))
    drawn = draw_truth(GRAY, picture, ["a"])
    assert tinted(color_of(0)) == drawn[70, 40].tolist() and list(color_of(0)) == drawn[90, 40].tolist()
    assert tinted((160, 160, 160)) == drawn[70, 110].tolist() and [160] * 3 == drawn[90, 110].tolist()
    assert (draw_truth(GRAY, picture, ["b"]) != drawn).any()


def drawn_set(folder: Path, count: int) -> CocoSet:
    """So many gray pictures, of each of which a category with the id 9 could be found."""
    images = [{"id": i, "file_name": f"{i}.png", "height": 120, "width": 160} for i in range(1, count + 1)]
    for image in images:
        cv2.imwrite(str(folder / f"{image['file_name']}"), GRAY)
    return parse(
        {"images": images, "annotations": [], "categories": [{"id": 9, "name": "a"}]}, folder / "x.json", folder
    )


def detector_of(data: CocoSet, entries: list[dict[str, Any]], *settings: str) -> Any:
    """One that sees the same in every picture: half-covered boxes, as many as the set's pictures have."""
    config = apply_settings(Config(), ["DATA.NUM_CATEGORY=1", *settings])
    return SimpleNamespace(
        config=config,
        assign=lambda weights: None,
        detect=lambda image: found(1, 1, 1),
        detect_all=lambda pictures: ((p, found(1, 1)) for p in pictures),
    )


def test_predictions_are_pictures_and_one_list(tmp_path: Path) -> None:
    """Of what is sure enough; the number of all of it is returned, and a file that is no folder refused."""
    data = drawn_set(tmp_path, 2)
    files = [p.path for p in data.pictures]
    detector = detector_of(data, [], "DATA.CLASS_NAMES=thing", "TEST.RESULT_SCORE_THRESH_VIS=0.7")
    assert 4 == predict.predict(detector, [*files, files[0]], tmp_path / "new/out")
    assert ["1.png", "2.png", "detections.json"] == sorted(p.name for p in (tmp_path / "new/out").iterdir())
    first, _ = json.loads((tmp_path / "new/out/detections.json").read_text())
    assert (str(files[0]), 120, 160, ["thing"] * 2) == (
        first["file"],
        first["height"],
        first["width"],
        [d["class"] for d in first["detections"]],
    )
    np.testing.assert_array_equal(
        draw_detections(GRAY, found(1, 1), ["thing"]), cv2.imread(str(tmp_path / "new/out/1.png"))
    )
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match=r"--out .*/file cannot be made a folder: File exists"):
        predict.predict(detector, files, tmp_path / "file")


def test_a_job_s_settings_and_weights_are_found(tmp_path: Path) -> None:
    """The newest checkpoint, or that of a step; settings that are given change its own."""
    with pytest.raises(
        ConfigError, match=r"maskrcnn.json is missing: .* is not the --job-dir of a Mask R-CNN training"
    ):
        checkpoint_loader.find_config(tmp_path, [])
    config = apply_settings(Config(), ["TRAIN.SEED=5", "DATA.NUM_CATEGORY=3"])
    (tmp_path / CONFIG_FILE).write_text(json.dumps(keys.plain(config)))
    assert apply_settings(config, ["TRAIN.SEED=6"]) == checkpoint_loader.find_config(tmp_path, ["TRAIN.SEED=6"])
    with pytest.raises(ConfigError, match="checkpoints holds no valid checkpoint: train first"):
        checkpoint_loader.newest_weights(tmp_path)
    for step in (2, 10):
        CheckpointFolder(tmp_path / "checkpoints").save(step, {"w": np.full(1, step, "f")})
    for wanted, step in ((None, 10), (2, 2)):
        at, arrays = checkpoint_loader.newest_weights(tmp_path, wanted)
        assert (step, [step]) == (at, arrays["w"].tolist())
    with pytest.raises(ConfigError, match=r"has no checkpoint of step 3; there are \[2, 10\]"):
        checkpoint_loader.newest_weights(tmp_path, 3)


def scored_set(folder: Path) -> CocoSet:
    """Two pictures; on the first lies what `found(1, 1)` sees and a third that nobody does, on the second nothing."""
    (folder / "x").mkdir(parents=True)
    (folder / "annotations").mkdir()
    for i in (1, 2):
        (folder / f"x/{i}.png").touch()
    images = [{"id": i, "file_name": f"{i}.png", "height": 120, "width": 160} for i in (1, 2)]
    truth = results(AnnotatedImage(id=1, path=folder, height=120, width=160), found(1, 1, 1), [9])
    annotations = [{**e, "id": i, "iscrowd": 0, "area": 1200} for i, e in enumerate(truth, 1)]
    raw = {"images": images, "annotations": annotations, "categories": [{"id": 9, "name": "thing"}]}
    (folder / "annotations/instances_x.json").write_text(json.dumps(raw))
    return read_set(folder, "x")


def evaluation_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *words: str, rank: int = 0, **more: str) -> int:
    """The exit code of an evaluation on a rank of one or two, whose detector sees two things in every picture."""
    data = scored_set(tmp_path / "set")
    ranks = Ranks(rank=rank, size=rank + 1, local_rank=0, local_size=1, threads=1)
    settings = [
        f"DATA.BASEDIR={more.get('basedir', tmp_path / 'set')}",
        "DATA.VAL=x",
        *more.get("settings", "").split(),
    ]
    monkeypatch.setattr(trainer.common.ranks.horovod_rank, "start", lambda: ranks)
    everything = zlib.compress(json.dumps({"images": [0], "entries": []}).encode())
    monkeypatch.setattr(
        trainer.common.ranks.horovod_rank, "Gather", lambda threads: lambda part: [everything, part][1 - rank :]
    )
    monkeypatch.setattr(evaluate, "make_detector", lambda a, threads: detector_of(data, [], *settings))
    return evaluate.main(["--job-dir", "none", *words])


def test_an_evaluation_is_a_table_or_json_and_may_keep_what_was_seen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of boxes and masks a column each; with categories where they are asked for."""
    out = tmp_path / "seen.json"
    assert 0 == evaluation_of(tmp_path / "a", monkeypatch, "--out", str(out))
    images, head, first, *rest = capsys.readouterr().out.splitlines()
    assert "2 images" == images and ["box", "mask"] == head.split()
    name, box, mask = first.split()
    assert "ap" == name and box == mask and 0.3 < float(box) < 0.7
    assert 11 == len(rest) and re.fullmatch(r"ar_large {16,}-1\.000  -1\.000", rest[-1])
    entries = json.loads(out.read_text())
    assert [1, 1, 2, 2] == [e["image_id"] for e in entries] and {9} == {e["category_id"] for e in entries}
    assert 0 == evaluation_of(tmp_path / "b", monkeypatch, "--json", "--per-category", settings="MODE_MASK=False")
    told = json.loads(capsys.readouterr().out)
    assert told["box_ap/thing"] == pytest.approx(told["box_ap"]) and 13 == len(told)
    assert box == f"{told['box_ap']:.3f}"


def test_only_the_first_rank_says_what_an_evaluation_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A folder that is not given and other categories are refused on all."""
    assert 0 == evaluation_of(tmp_path / "a", monkeypatch, rank=1)
    assert "" == capsys.readouterr().out
    assert 2 == evaluation_of(tmp_path / "b", monkeypatch, basedir="")
    assert "DATA.BASEDIR is not set: give the images' folder" in capsys.readouterr().err
    assert 2 == evaluation_of(tmp_path / "c", monkeypatch, settings="DATA.NUM_CATEGORY=2")
    assert "instances_x.json has 1 categories, the model 2" in capsys.readouterr().err


def test_an_export_is_of_the_form_that_its_name_asks_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Weights, ONNX of a size or a folder; one that is there already is not written over."""
    wrote: list[tuple[str, Any]] = []
    config = apply_settings(Config(), [])
    detector = SimpleNamespace(config=config, weights=lambda: {"rpn/box/b": np.zeros(12, "f")})
    monkeypatch.setattr(export, "make_detector", lambda a: detector)
    monkeypatch.setattr(export, "export", lambda config, weights, out: wrote.append(("folder", out)))
    monkeypatch.setattr(
        "trainer.maskrcnn.onnx_graph.write", lambda path, *rest: wrote.append(("onnx", (path, rest[-1])))
    )
    for name, *words in (("a.npz",), ("a.onnx", "--image-size", "20x30"), ("folder",)):
        assert 0 == export.main(["--job-dir", "none", "--out", str(tmp_path / name), *words])
        assert f"{tmp_path / name} written\n" == capsys.readouterr().out
    assert [("onnx", (tmp_path / "a.onnx", (20, 30))), ("folder", tmp_path / "folder")] == wrote
    assert ["a.npz"] == [p.name for p in tmp_path.iterdir()]
    (tmp_path / "a.onnx").write_text("")
    assert 2 == export.main(["--job-dir", "none", "--out", str(tmp_path / "a.onnx"), "--image-size", "20x30"])
    assert f"{tmp_path}/a.onnx exists already: give another --out" in capsys.readouterr().err
    assert 1 == export.main(["--job-dir", "none", "--out", str(tmp_path / "a.npz/b.onnx"), "--image-size", "2x3"])
    assert "b.onnx cannot be written (File exists): make room or give another --out" in capsys.readouterr().err


class Held:
    """A detector that waits until it may, and then sees two things in every picture, or fails."""

    def __init__(self, failure: Exception | None = None) -> None:
        self.may, self.failure = threading.Event(), failure
        self.config = apply_settings(Config(), ["DATA.NUM_CATEGORY=1"])
        self.weights: list[Any] = []
        self.assign = self.weights.append

    def detect_all(self, pictures: Iterable[AnnotatedImage]) -> Iterator[tuple[AnnotatedImage, Detections]]:
        assert self.may.wait(60)
        if self.failure:
            raise self.failure
        return ((p, found(1, 1)) for p in pictures)


def test_an_evaluation_goes_on_beside_a_training(tmp_path: Path) -> None:
    """It runs from its start to its end, is ready when its images are done, and may begin anew then."""
    detector: Any = Held()
    ranks = Ranks(rank=0, size=1, local_rank=0, local_size=1, threads=1)
    evaluation = Evaluation(detector, scored_set(tmp_path / "set"), ranks, lambda data: [data])
    assert (False, False) == (evaluation.is_running, evaluation.is_ready)
    evaluation.start({"w": np.zeros(1)}, 7)
    assert (True, False, 7) == (evaluation.is_running, evaluation.is_ready, evaluation.step)
    detector.may.set()
    wait_for(lambda: evaluation.is_ready, 60, "an evaluation whose images are done")
    assert evaluation.is_running
    scores, entries = evaluation.finish()
    assert (False, False) == (evaluation.is_running, evaluation.is_ready)
    assert 0.3 < scores["box_ap"] < 0.7 and 24 == len(scores) and [1, 1, 2, 2] == [e["image_id"] for e in entries]
    evaluation.start({"w": np.ones(1)}, 8)
    assert (scores, 8, 2) == (evaluation.finish()[0], evaluation.step, len(detector.weights))


def test_what_an_evaluation_failed_of_is_raised_where_it_is_waited_for(tmp_path: Path) -> None:
    """In the training's own thread; then it is over."""
    detector: Any = Held(TrainerError("a.jpg is damaged"))
    detector.may.set()
    ranks = Ranks(rank=0, size=1, local_rank=0, local_size=1, threads=1)
    evaluation = Evaluation(detector, scored_set(tmp_path / "set"), ranks, lambda data: [data])
    evaluation.start({}, 7)
    with pytest.raises(TrainerError, match=r"a.jpg is damaged"):
        evaluation.finish()
    assert not evaluation.is_running
