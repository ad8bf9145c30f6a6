"""`jobs.watch`: curves as signs, as large as the room there is, and what is said where there are none."""

import contextlib
import dataclasses
import fcntl
import os
import pty
import struct
import sys
import termios
import threading
from typing import Any

import pytest

from cluster.jobs.client import live_curves
from cluster.jobs.curves.curves import CurveBuckets
from cluster.jobs.curves.metrics import Measured
from cluster.jobs.record import JobStatus, JobView
from cluster.jobs.state import JobState
from tests.cluster.jobs_here import a_job
from tests.conftest import PATIENCE_S

VIEW = JobView(
    job=a_job("", "x", steps=101), status=JobStatus(state=JobState.RUNNING), folder="/f", owner="me", age_s=4000
)


def curve(kind: str, name: str, values: Any) -> Any:
    buckets = CurveBuckets()
    for step, value in enumerate(values):
        buckets.add(step, value)
    return buckets.curve(kind, name)


@pytest.mark.parametrize(("columns", "rows"), [(100, 40), (80, 24), (40, 10), (20, 5)])
def test_the_picture_fits_into_the_terminal(columns: int, rows: int) -> None:
    """Also a small one; each curve with its newest value."""
    measured = Measured(
        curves=(curve("train", "images_per_s", [80.0] * 50), curve("train", "loss", [5 - n / 10 for n in range(50)]))
    )
    text = live_curves.picture(VIEW, measured, columns, rows)

    assert text.splitlines()[1].startswith("train loss: 0.1  (steps 0 to 49)")
    assert "train images_per_s: 80" in text
    assert columns >= max(map(len, text.splitlines()[2:4]))
    assert len(text.splitlines()) <= max(rows, 10)


def test_what_is_not_as_it_should_be_is_said_first() -> None:
    """Its cause, its warnings; and that there are no numbers."""
    bad = dataclasses.replace(
        VIEW, status=JobStatus(state=JobState.FAILED, cause="rank 1 exited 1", warnings=("slow",))
    )
    text = live_curves.picture(bad, Measured(), 80, 24)

    assert ["x  failed", "warning: slow", "rank 1 exited 1", "it wrote no numbers"] == text.splitlines()
    assert "no numbers yet" in live_curves.picture(VIEW, Measured(), 80, 24)


def test_a_watch_on_a_terminal_that_is_resized(monkeypatch: pytest.MonkeyPatch) -> None:
    """The whole task's loop on a real terminal: what is drawn after the resize fits into it."""
    ours, theirs = pty.openpty()

    def resize(columns: int, rows: int) -> None:
        fcntl.ioctl(ours, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    said = bytearray()
    looks = 0

    class OneJob:
        def curves(self, which: str) -> Any:
            nonlocal looks
            looks += 1
            state = JobState.RUNNING if looks < 3 else JobState.SUCCEEDED
            resize(*((100, 40), (50, 12), (50, 12))[looks - 1])
            values = curve("train", "loss", [5 - n / 10 for n in range(50)])
            return dataclasses.replace(VIEW, status=JobStatus(state=state)), Measured(curves=(values,))

    def read() -> None:
        with contextlib.suppress(OSError):
            while data := os.read(ours, 1 << 16):
                said.extend(data)

    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    monkeypatch.setenv("COLUMNS", "200")  # of another terminal
    monkeypatch.setenv("LINES", "70")
    monkeypatch.setenv("NO_COLOR", "1")
    with os.fdopen(theirs, "w") as screen:
        monkeypatch.setattr(sys, "stdout", screen)
        monkeypatch.setattr(sys, "__stdout__", screen)
        one_job: Any = OneJob()
        assert 0 == live_curves.watch(one_job, "x", once=False, every_s=1.0)
    reader.join(PATIENCE_S)
    last = said.decode().split("\x1b[2J")[-1].split("\r\n")

    assert max(map(len, last)) <= 50
    assert 5 <= len(last) <= 12
