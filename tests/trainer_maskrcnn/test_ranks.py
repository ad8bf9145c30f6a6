"""Several ranks on this machine: the same gradient, every image evaluated once, a NaN seen by all."""

import json
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from tests.trainer_maskrcnn.helpers import REDUCED, assert_same_gradient, mpirun
from trainer.coco.annotations import read_set
from trainer.coco.sample import write_sample

WORKER = ["-m", "tests.trainer_maskrcnn.rank_worker"]


def test_one_two_and_four_ranks_have_the_same_gradient(shapes: Path, tmp_path: Path) -> None:
    """The same four images as 1 x 4, 2 x 2 and 4 x 1."""
    found = {}
    for ranks in (1, 2, 4):
        out = tmp_path / f"{ranks}.npz"
        done = mpirun(ranks, [*WORKER, "gradient", str(shapes), str(out)])
        assert done.returncode == 0, done.stderr[-3000:]
        with np.load(out) as file:
            found[ranks] = dict(file)
    assert len(found[1]) > 50
    for name, one in found[1].items():
        for ranks in (2, 4):
            assert_same_gradient(found[ranks][name], one, f"{name}, {ranks} ranks")


@pytest.mark.parametrize(("ranks", "images"), [(3, 24), (5, 4)])
def test_every_image_is_evaluated_once(tmp_path: Path, ranks: int, images: int) -> None:
    """More images than ranks, and more ranks than images: no image twice, none left out, no rank waits for ever."""
    write_sample(tmp_path / "set", train=1, val=images, size=96, seed=1)
    out = tmp_path / "out.json"
    done = mpirun(ranks, [*WORKER, "evaluation", str(tmp_path / "set"), str(out)])
    assert done.returncode == 0, done.stderr[-3000:]
    count = Counter(image for image, _ in json.loads(out.read_text()))

    assert set(count) == {p.id for p in read_set(tmp_path / "set", "val2017").pictures}
    assert set(count.values()) == {3}  # TEST.RESULTS_PER_IM


def test_a_loss_that_is_no_number_ends_all_ranks_with_one_message(shapes: Path, tmp_path: Path) -> None:
    """Nothing is saved from weights that are lost."""
    done = mpirun(
        2,
        [
            "-m",
            "trainer.maskrcnn",
            "--job-dir",
            str(tmp_path / "job"),
            *REDUCED,
            f"DATA.BASEDIR={shapes}",
            "TRAIN.BASE_LR=1e30",
            "TRAIN.WARMUP=0",
            "TRAIN.LR_EPOCH_SCHEDULE=[(2,None)]",
        ],
    )
    assert done.returncode == 1
    assert "the loss is not a number at step" in done.stderr
    assert "Traceback" not in done.stderr
    assert not list((tmp_path / "job").glob("checkpoints/step-*"))
