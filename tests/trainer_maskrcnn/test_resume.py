"""A training that is stopped and killed goes on to the same curve."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.trainer_maskrcnn.helpers import REDUCED, ROOT, environment, on_one_core, plain
from trainer import metrics
from trainer.maskrcnn.__main__ import main

pytestmark = pytest.mark.long

STEPS = 14
SETTINGS = [*REDUCED, "TRAIN.STEPS_PER_EPOCH=4", f"TRAIN.MAX_STEPS={STEPS}", "TRAIN.LOG_PERIOD=1", "TRAIN.WARMUP=6",
            "TRAIN.EVAL_PERIOD=0", "TRAIN.EVAL_AT_END=False", "PREPROC.TRAIN_SHORT_EDGE_SIZE=96,128"]


def curve(job: Path) -> dict[int, float]:
    return {r["step"]: r["loss"] for r in metrics.read(job) if r["kind"] == "train"}


def interrupted(job: Path, words: list[str], number: signal.Signals, ready: Callable[[], bool]) -> int:
    """Starts the training, sends the signal when `ready`, and returns the exit code."""
    process = subprocess.Popen([sys.executable, "-m", "trainer.maskrcnn", *words], cwd=ROOT, env=environment(None),
                               stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, preexec_fn=on_one_core)
    try:
        deadline = time.monotonic() + 200
        while not ready():
            assert process.poll() is None, "ended before the signal"
            assert time.monotonic() < deadline
            time.sleep(0.01)
        os.kill(process.pid, number)
        return process.wait(timeout=60)
    finally:
        process.kill()
        process.wait()


def test_stopped_then_killed_then_finished_is_the_uninterrupted_curve(shapes: Path, tmp_path: Path,
                                                                      capfd: pytest.CaptureFixture[str]) -> None:
    """SIGTERM saves at once and leaves with 0; SIGKILL loses at most what came after the last checkpoint.

    On one core, because threads add up gradients in another order every time, and the draws then differ.
    """
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    words = ["--job-dir", str(parts), *SETTINGS, f"DATA.BASEDIR={shapes}"]
    done = plain(["-m", "trainer.maskrcnn", "--job-dir", str(whole), *SETTINGS, f"DATA.BASEDIR={shapes}"])
    assert done.returncode == 0, done.stderr[-3000:]

    def has_step(step: int) -> Callable[[], bool]:
        return lambda: (parts / metrics.FILE).exists() and max(curve(parts), default=0) >= step

    assert interrupted(parts, words, signal.SIGTERM, has_step(2)) == 0
    stopped = max(int(p.stem[5:]) for p in (parts / "checkpoints").glob("step-*.json"))
    assert stopped == max(curve(parts)) < STEPS - 2
    killed_after = max(stopped + 1, 5)
    assert interrupted(parts, words, signal.SIGKILL, has_step(killed_after)) == -signal.SIGKILL
    done = plain(["-m", "trainer.maskrcnn", *words])
    assert done.returncode == 0, done.stderr[-3000:]
    assert "Continuing after step" in done.stdout
    assert list(curve(parts)) == list(range(1, STEPS + 1))
    assert [curve(parts)[s] for s in sorted(curve(parts))] == pytest.approx(
        [curve(whole)[s] for s in sorted(curve(whole))], rel=1e-5)
    assert main([*words, "TRAIN.BASE_LR=0.5"]) == 2
    assert "continue it with the same settings, or give another --job-dir" in capfd.readouterr().err
