"""Using a trained model: two ranks learn the drawn shapes, then predict, evaluate, export and the notebook."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import cv2
import numpy as np
import pytest

from lab.record import Lab
from tests.conftest import Inv
from tests.trainer_maskrcnn.helpers import REDUCED, ROOT, environment, mpirun
from trainer.coco import masks
from trainer.coco.annotations import read_set
from trainer.common.checkpoints import checkpoint
from trainer.common.ranks import metrics
from trainer.maskrcnn import checkpoint_loader, evaluate, predict
from trainer.maskrcnn.export import export

TARGET = 0.3
"""Box and mask AP to reach on images that were learned from. The AP of a detector that guesses is under 0.01."""
WORDS = (
    *REDUCED,
    "PREPROC.TRAIN_SHORT_EDGE_SIZE=96",
    "PREPROC.TEST_SHORT_EDGE_SIZE=96",
    "PREPROC.MAX_SIZE=128",
    "RPN.ANCHOR_SIZES=12,24,40,64,96",
    "TRAIN.BASE_LR=0.16",
    "TRAIN.WARMUP=50",
    "TRAIN.WARMUP_INIT_LR=0.01",
    "TRAIN.GRADIENT_CLIP=10",
    "TRAIN.STEPS_PER_EPOCH=50",
    "TRAIN.LR_EPOCH_SCHEDULE=[(200,.1),(240,None)]",
    "DATA.VAL=coco_train2017",
    f"TEST.BOX_TARGET={TARGET}",
    f"TEST.MASK_TARGET={TARGET}",
    "TRAIN.CHECKPOINTS_KEPT=2",
)


@pytest.fixture(scope="module")
def data(session_lab: Lab, session_inv: Inv) -> Path:
    """A drawn set in the folder that the lab's hosts share."""
    words = "--train 6 --val 6 --size 96 --max-objects 2".split()
    done = session_inv("data.sample", "--coco", "--out", "/shared/shapes", "--", *words)
    assert done.returncode == 0, done.stdout + done.stderr
    return session_lab.shared / "shapes"


@pytest.fixture(scope="module")
def job(data: Path, session_lab: Lab, session_inv: Inv) -> Path:
    """The folder of a job of two ranks on a lab host that stopped as soon as an evaluation reached the target."""
    seats = ("--hosts", "0,1", "--np", "2", "--name", "shapes", "--unchecked")
    words = ("--threads", "1", "DATA.BASEDIR=/shared/shapes", *WORDS)
    done = session_inv("train.maskrcnn", *seats, "--", *words, timeout=1500)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    (folder,) = (session_lab.shared / "jobs").glob("*-shapes-*")
    return folder


def last_scores(job: Path) -> dict[str, float]:
    """Of the evaluation that ended the training."""
    return [r for r in metrics.read(job) if r["kind"] == "eval"][-1]


def test_two_ranks_learn_to_see_shapes(job: Path, data: Path) -> None:
    """Reaches the target in both APs on the images it learns from; both ranks then stop together."""
    last, losses = last_scores(job), [r["loss"] for r in metrics.read(job) if r["kind"] == "train"]

    assert last["box_ap"] >= TARGET
    assert last["mask_ap"] >= TARGET
    assert np.mean(losses[-3:]) < 0.7 * np.mean(losses[:3])
    assert checkpoint.CheckpointFolder(job / "checkpoints").steps()[0] == last["step"]
    assert len(checkpoint.CheckpointFolder(job / "checkpoints").steps()) <= 2
    assert list((job / "tensorboard").iterdir())
    found = json.loads((job / "detections.json").read_text())
    assert {e["image_id"] for e in found} <= {p.id for p in read_set(data, "train2017").pictures}


def test_evaluate_gives_a_checkpoint_the_scores_it_had_in_the_training(job: Path, data: Path, tmp_path: Path) -> None:
    """Stand-alone, over two ranks, all 24 numbers and the categories."""
    out = tmp_path / "results.json"
    done = mpirun(
        2,
        [
            "-m",
            "trainer.maskrcnn.evaluate",
            "--job-dir",
            str(job),
            "--out",
            str(out),
            "--json",
            "--per-category",
            "--config",
            f"DATA.BASEDIR={data}",
        ],
    )
    assert done.returncode == 0, done.stderr[-3000:]
    scores, before = json.loads(done.stdout), last_scores(job)

    assert len(scores) == 24 + 6
    assert {n: before[n] for n in scores if "/" not in n} == pytest.approx(
        {n: s for n, s in scores.items() if "/" not in n}, abs=0.02
    )
    entry = json.loads(out.read_text())[0]
    assert set(entry) == {"image_id", "category_id", "bbox", "score", "segmentation"}
    assert evaluate.table({"box_ap": 0.5, "mask_ap": 0.25}).split() == ["box", "mask", "ap", "0.500", "0.250"]


def test_predict_draws_and_lists_what_it_sees(job: Path, data: Path, tmp_path: Path) -> None:
    """A picture is marked where its objects are; the JSON says the same in the picture's pixels."""
    picture = next(p for p in read_set(data, "train2017").pictures if len(p.objects) == 2)
    out = tmp_path / "out"
    assert (
        predict.main(
            [
                "--job-dir",
                str(job),
                "--out",
                str(out),
                str(picture.path),
                "--config",
                "TEST.RESULT_SCORE_THRESH_VIS=0.3",
            ]
        )
        == 0
    )
    drawn, plain = cv2.imread(str(out / f"{picture.path.stem}.png")), cv2.imread(str(picture.path))
    (listed,) = json.loads((out / "detections.json").read_text())

    assert drawn.shape == plain.shape
    assert (drawn != plain).any()
    assert (listed["height"], listed["width"]) == (picture.height, picture.width)
    best = listed["detections"][0]
    assert masks.decode(best["mask"], picture.height, picture.width).any()
    assert max(_iou(best["box"], o.box) for o in picture.objects) > 0.5


def test_predict_says_what_is_missing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert predict.main(["--job-dir", str(tmp_path), str(tmp_path / "no.jpg")]) == 2
    assert "no.jpg does not exist" in capsys.readouterr().err
    (tmp_path / "x.jpg").write_text("no")
    assert predict.main(["--job-dir", str(tmp_path), str(tmp_path / "x.jpg")]) == 2
    assert "is not the --job-dir of a Mask R-CNN training" in capsys.readouterr().err
    assert predict.main([str(tmp_path / "x.jpg")]) == 2
    assert "give either --job-dir" in capsys.readouterr().err


def test_the_export_sees_the_same(job: Path, data: Path, tmp_path: Path) -> None:
    """A server that knows TensorFlow only gets the detections of our detector, on pictures of several shapes."""
    _, detector = checkpoint_loader.detector_of_job(job, ["TEST.RESULT_SCORE_THRESH=0.2"])
    export(detector.config, detector.weights(), tmp_path / "served")
    pictures = [replace(p) for p in read_set(data, "train2017").pictures if p.objects][:6]
    images = {str(p.id): cv2.imread(str(p.path)) for p in pictures}
    np.savez(tmp_path / "images.npz", **images)
    code = (
        "import sys, numpy as np, tensorflow as tf\n"
        "serve = tf.saved_model.load(sys.argv[1]).signatures['serving_default']\n"
        "with np.load(sys.argv[2]) as images:\n"
        "    np.savez(sys.argv[3], **{f'{n}/{k}': v.numpy() for n in images.files\n"
        "             for k, v in serve(image=tf.constant(images[n][:, :, ::-1])).items()})\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "served"), str(tmp_path / "images.npz"), str(tmp_path / "out.npz")],
        env=environment(None),
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=1500,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    seen = 0
    with np.load(tmp_path / "out.npz") as served:
        for name, image in images.items():
            ours = detector.detect(image)
            np.testing.assert_allclose(served[f"{name}/scores"], ours.scores, atol=1e-4)
            np.testing.assert_allclose(served[f"{name}/boxes"], ours.boxes, atol=1e-2)
            np.testing.assert_array_equal(served[f"{name}/labels"], ours.labels)
            np.testing.assert_allclose(served[f"{name}/masks"], ours.masks, atol=1e-3)
            seen += len(ours.scores)
    assert seen > 3


def test_the_notebook_runs_from_top_to_bottom(job: Path, data: Path) -> None:
    """Its cells, in order, in a fresh interpreter; it leaves the picture it shows."""
    notebook = json.loads((ROOT / "trainer/maskrcnn/newest_checkpoint.ipynb").read_text())
    code = "\n".join("".join(c["source"]) for c in notebook["cells"] if c["cell_type"] == "code")
    told = {"MASKRCNN_JOB_DIR": str(job), "MASKRCNN_DATA": str(data), "MPLBACKEND": "Agg"}
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=1500,
        check=False,
        env=environment(told),
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert "3 categories" in done.stdout
    assert cv2.imread(str(job / "newest_checkpoint.png")).std() > 10


def _iou(a: list[float], b: tuple[float, ...]) -> float:
    w, h = min(a[2], b[2]) - max(a[0], b[0]), min(a[3], b[3]) - max(a[1], b[1])
    shared = max(w, 0) * max(h, 0)
    return shared / ((a[2] - a[0]) * (a[3] - a[1]) + (b[2] - b[0]) * (b[3] - b[1]) - shared)
