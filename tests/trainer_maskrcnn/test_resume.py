"""A training that is stopped and killed goes on to the same curve."""

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.trainer_maskrcnn.helpers import REDUCED, ROOT, environment, plain
from trainer.common.ranks import metrics
from trainer.maskrcnn.__main__ import main

STEPS = 14
TRAIN = ["-m", "trainer.maskrcnn"]
INTERRUPTED = str(ROOT / "tests/trainer/interrupted.py")
SETTINGS = [
    *REDUCED,
    "TRAIN.STEPS_PER_EPOCH=4",
    f"TRAIN.MAX_STEPS={STEPS}",
    "TRAIN.LOG_PERIOD=1",
    "TRAIN.WARMUP=6",
    "TRAIN.EVAL_PERIOD=0",
    "TRAIN.EVAL_AT_END=False",
    "PREPROC.TRAIN_SHORT_EDGE_SIZE=96,128",
]


def curve(job: Path) -> dict[int, float]:
    return {r["step"]: r["loss"] for r in metrics.read(job) if r["kind"] == "train"}


def begin(words: list[str], *, core: int, log: Path) -> "subprocess.Popen[bytes]":
    """`python WORDS` on one core: the first or the last one this process may use."""
    cores = sorted(os.sched_getaffinity(0))
    with log.open("ab") as said:
        return subprocess.Popen(
            [sys.executable, *words],
            cwd=ROOT,
            env=environment(None),
            stdout=said,
            stderr=said,
            preexec_fn=lambda: os.sched_setaffinity(0, {cores[core]}),
        )


@contextmanager
def uninterrupted(folder: Path, shapes: Path) -> Iterator[Path]:
    """The job folder of a run that nothing disturbs; it trains beside what is done inside, and is done afterwards."""
    job, log = folder / "whole", folder / "whole.log"
    process = begin([*TRAIN, "--job-dir", str(job), *SETTINGS, f"DATA.BASEDIR={shapes}"], core=-1, log=log)
    try:
        yield job
        assert process.wait(timeout=1500) == 0, log.read_text()[-3000:]
    finally:
        process.kill()
        process.wait()


@pytest.mark.promise("the detector")
def test_stopped_then_killed_then_finished_is_the_uninterrupted_curve(
    shapes: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """A request saves at once and leaves with 0; so does SIGTERM, but with 143; SIGKILL loses what came after a checkpoint.

    Each on one core, because threads add up gradients in another order every time, and the draws then differ.
    """
    parts = tmp_path / "parts"
    words = [*TRAIN, "--job-dir", str(parts), *SETTINGS, f"DATA.BASEDIR={shapes}"]
    with uninterrupted(tmp_path, shapes) as whole:
        done = plain([INTERRUPTED, "stop", *words[1:]])
        assert done.returncode == 0, done.stderr[-3000:]
        stopped = max(int(p.stem[5:]) for p in (parts / "checkpoints").glob("step-*.json"))
        assert stopped == max(curve(parts)) < STEPS - 5
        before = curve(parts)
        done = plain([INTERRUPTED, "terminate", *words[1:]])
        assert done.returncode == 128 + signal.SIGTERM
        stopped += 3
        assert f"SIGTERM came to rank 0 ({socket.gethostname()}), and nobody had asked for a stop" in done.stderr
        assert f"saved after step {stopped}; the same command continues" in done.stderr
        assert plain([INTERRUPTED, "tear", *words[1:]]).returncode == -signal.SIGKILL
        assert max(curve(parts)) > stopped
        done = plain(words)
    assert done.returncode == 0, done.stderr[-3000:]
    assert "Continuing after step" in done.stdout
    assert list(curve(parts)) == list(range(1, STEPS + 1))
    if apart := [s for s, loss in sorted(before.items()) if loss != pytest.approx(curve(whole)[s], rel=1e-5)]:
        pytest.skip(
            f"one command gave two losses at step {apart[0]}, before anything was stopped: resuming is not judged"
        )
    assert [curve(parts)[s] for s in sorted(curve(parts))] == pytest.approx(
        [curve(whole)[s] for s in sorted(curve(whole))], rel=1e-5
    )
    for record in (r for r in metrics.read(parts) if r["kind"] == "train"):
        assert 0 < record["compute_s"] + record["reduce_s"] + record["input_s"] < 1.05 / record["images_per_s"]
        assert [1, 1] == [record["ranks"], len(record["rank_images_per_s"])]
    assert main([*words[2:], "TRAIN.BASE_LR=0.5"]) == 2
    assert "continue it with the same settings, or give another --job-dir" in capfd.readouterr().err
