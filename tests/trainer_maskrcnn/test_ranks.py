"""Several ranks on this machine: the same gradient, every image evaluated once, a NaN seen by all."""

import json
import os
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from dlami.heartbeat import RECORD, Phase
from tests.trainer_maskrcnn.helpers import REDUCED, ROOT, assert_same_gradient, mpirun
from trainer.coco.annotations import read_set
from trainer.coco.sample import write_sample
from trainer.common.checkpoints.checkpoint import CheckpointFolder
from trainer.common.ranks import metrics


def taken(folder: Path, pattern: str) -> list[bytes]:
    """What these files say; they are gone then."""
    found = sorted(folder.glob(pattern))
    said = [file.read_bytes() for file in found]
    for file in found:
        file.unlink()
    return said


WORKER = ["-m", "tests.trainer_maskrcnn.rank_worker"]


def test_one_and_two_ranks_have_the_same_gradient(shapes: Path, tmp_path: Path) -> None:
    """The same two images on one rank and one on each of two, and on one rank in two micro-steps."""
    found = {}
    for ranks, parts in ((1, 1), (2, 1), (1, 2)):
        out = tmp_path / "found.npz"
        done = mpirun(ranks, [*WORKER, "gradient", str(shapes), str(out), str(parts)])
        assert done.returncode == 0, done.stderr[-3000:]
        with np.load(out) as file:
            found[ranks, parts] = dict(file)
    whole = found.pop((1, 1))
    assert len(whole) > 50
    for name, one in whole.items():
        for (ranks, parts), others in found.items():
            assert_same_gradient(others[name], one, f"{name}, {ranks} ranks, {parts} parts")


def test_every_image_is_evaluated_once(tmp_path: Path) -> None:
    """More images than ranks, and more ranks than images: no image twice, none left out, no rank waits for ever."""
    sets = {name: tmp_path / "sets" / name for name in ("few", "many")}
    for name, images in (("few", 2), ("many", 24)):
        write_sample(sets[name], train=1, val=images, size=96, seed=1)
    out = tmp_path / "out.json"
    done = mpirun(3, [*WORKER, "evaluation", str(tmp_path / "sets"), str(out)])
    assert done.returncode == 0, done.stderr[-3000:]
    for name, entries in json.loads(out.read_text()).items():
        count = Counter(image for image, _ in entries)
        assert set(count) == {p.id for p in read_set(sets[name], "val2017").pictures}, name
        assert set(count.values()) == {3}, name  # TEST.RESULTS_PER_IM
    assert sets.keys() == json.loads(out.read_text()).keys()


def test_another_host_has_a_copy_bit_by_bit_and_hands_it_over(shapes: Path, tmp_path: Path) -> None:
    """Two ranks, each on a host of its own; the shared folder's checkpoints are damaged before the second attempt."""
    job = tmp_path / "job"
    trains = ["trainer.maskrcnn", "--job-dir", str(job), *REDUCED, f"DATA.BASEDIR={shapes}", "TRAIN.LOG_PERIOD=1"]
    trains += ["TRAIN.MAX_STEPS=6", "TRAIN.STEPS_PER_EPOCH=6", "TRAIN.WARMUP=2", "TRAIN.EVAL_PERIOD=0"]
    trains += ["TRAIN.EVAL_AT_END=False", "--checkpoint-seconds", "0"]
    hosts = str(ROOT / "tests/trainer/two_hosts.py")
    done = mpirun(2, [hosts, "1", str(ROOT / "tests/trainer/interrupted.py"), "stop", *trains])
    assert done.returncode == 0, done.stderr[-3000:]
    shared = CheckpointFolder(job / "checkpoints")
    (disk,) = tmp_path.glob("disk-1/dlami-checkpoints-*/job")
    (step,) = shared.steps()
    assert [step] == CheckpointFolder(disk).steps()
    assert shared.facts(step).sha256 == CheckpointFolder(disk).facts(step).sha256
    shared.arrays_file(step).write_bytes(b"damaged")

    done = mpirun(2, [hosts, "2", *trains])
    assert done.returncode == 0, done.stderr[-3000:]
    assert "The newest checkpoint is on the own disk of host1" in done.stdout
    assert f"Continuing after step {step}" in done.stdout
    assert [6, step] == shared.steps()
    assert [2, 2] == [shared.facts(s).attempt for s in shared.steps()]
    assert not disk.exists()


def test_a_loss_that_is_no_number_ends_all_ranks_with_one_message(shapes: Path, tmp_path: Path) -> None:
    """Nothing is saved from weights that are lost. Meanwhile every rank beats, as those of a job do."""
    tags = {"DLAMI_JOB": f"nan-{os.getpid()}", "DLAMI_ATTEMPT": "1"}
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
        env=tags,
    )
    beats = [
        RECORD.unpack(told) for told in taken(Path("/dev/shm"), f"dlami-beat-{os.getuid()}-{tags['DLAMI_JOB']}-1-*")
    ]
    assert done.returncode == 1
    assert "the loss is not a number at step" in done.stderr
    assert [(Phase.STEP, True), (Phase.STEP, True)] == [(beat[3], beat[5] > 0) for beat in beats]
    assert "Traceback" not in done.stderr
    assert not list((tmp_path / "job").glob("checkpoints/step-*"))


def test_one_rank_goes_on_with_what_two_began(shapes: Path, tmp_path: Path) -> None:
    """In two micro-steps a step: images, rates and steps are those of two ranks, and a line says so. Then two again."""
    words = ["-m", "trainer.maskrcnn", "--job-dir", str(tmp_path), *REDUCED, f"DATA.BASEDIR={shapes}"]
    words += ["TRAIN.LOG_PERIOD=1", "TRAIN.STEPS_PER_EPOCH=1", "TRAIN.EVAL_PERIOD=0", "TRAIN.EVAL_AT_END=False"]
    words += ["TRAIN.WARMUP=1", "TRAIN.LR_EPOCH_SCHEDULE=[(0.3,.1),(9,None)]"]  # epochs of two ranks' 9 steps
    said = []
    for ranks, steps in ((2, 2), (1, 4), (2, 5)):
        done = mpirun(ranks, [*words, f"TRAIN.MAX_STEPS={steps}"])
        assert done.returncode == 0, done.stderr[-3000:]
        said.append(done.stdout)
    records = [r for r in metrics.read(tmp_path) if r["kind"] == "train"]

    assert "1 rank instead of 2: 2 micro-steps each keep the global batch of 2\n" in said[1]
    assert "2 ranks again, as at the beginning: 2 images per step\n" in said[2]
    assert [(1, 2), (2, 2), (3, 1), (4, 1), (5, 2)] == [(r["step"], r["ranks"]) for r in records]
    assert [0.0025, 0.0025, 0.00025, 0.00025] == pytest.approx([r["lr"] for r in records[1:]])
    assert all(0.5 < r["loss"] < 20 for r in records)
    facts = CheckpointFolder(tmp_path / "checkpoints").newest()
    assert facts is not None
    assert (10, 10, 2, 2) == tuple(facts.more[name] for name in ("images_seen", "group", "ranks", "origin_ranks"))
