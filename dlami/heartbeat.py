"""Heartbeat of a rank: its number of steps, its phase and the time of both, in a file in shared memory.

A job's supervisor reads the files of all ranks, which show if the training progresses. An existing process or a busy
GPU proves nothing. The layout of the file is `RECORD`, and any program may read one or write its own. A heartbeat takes
about a microsecond and never fails. Outside a job, or without room for the file, it does nothing.
"""

from __future__ import annotations

import contextlib
import enum
import mmap
import os
import struct
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import SupportsInt


class Phase(enum.IntEnum):
    """Phase of a rank. Each phase has its own limit on the time without a heartbeat."""

    START = 0  # imports, building the model, reading the checkpoint
    COMPILE = 1  # the first step of a shape
    STEP = 2
    EVALUATE = 3
    SAVE = 4  # and everything after the last step


# Fields in order: count of beats; "beat"; version; phase; pid; steps done, and how many that were after this process's
# first, 0 before it; time of this beat and of the phase's begin (CLOCK_MONOTONIC of the host); the longest silence so
# far in each phase, in seconds; the count once more. Where the two counts differ the record was being written: read it
# again.
RECORD = struct.Struct("<Q4sHHIQQdd5dQ")
MAGIC, VERSION = b"beat", 2
_MOST_STEPS = 2**64 - 1  # maximum of the record's field


def beat_file(environment: Mapping[str, str] = os.environ) -> Path | None:
    """Return the path of this rank's heartbeat file, or None if this process writes none.

    Outside a job there is none. Of a rank's several processes, started by a launcher, only the first writes one,
    because they step together.
    """
    job, attempt = environment.get("DLAMI_JOB", ""), environment.get("DLAMI_ATTEMPT", "")
    if not job or "/" in job or not attempt.isdecimal():
        return None
    if environment.get("DLAMI_PER", "gpu") != "gpu" and environment.get("LOCAL_RANK", "0") != "0":
        return None
    rank = environment.get("OMPI_COMM_WORLD_RANK", environment.get("PMI_RANK", "0"))
    folder = Path("/dev/shm") if Path("/dev/shm").is_dir() else Path(tempfile.gettempdir())
    return folder / f"dlami-beat-{os.getuid()}-{job}-{attempt}-{int(rank)}"


class Beat:
    """Writer of this process's heartbeat. Use it only from the thread that steps."""

    def __init__(self) -> None:
        self._map: mmap.mmap | None = None
        self.step = self._count = self._first = 0
        self._phase = Phase.START
        self._time = self._since = 0.0
        self._longest = [0.0] * len(Phase)

    def begin(self, file: Path | None) -> None:
        """Create the file and write heartbeats to it from now on. On failure, print a warning and write none."""
        if file is None:
            return
        try:
            with contextlib.suppress(FileNotFoundError):
                file.unlink()
            fd = os.open(file, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
            try:
                os.posix_fallocate(fd, 0, RECORD.size)  # fails here if there is no room
                self._map = mmap.mmap(fd, RECORD.size)
            finally:
                os.close(fd)
        except OSError as e:
            print(f"warning: {file}: {e.strerror}: nobody will see if this rank hangs", file=sys.stderr, flush=True)
            return
        self._time = self._since = time.monotonic()
        self._tell(self._phase)

    def stepped(self, step: SupportsInt) -> None:
        """Record that `step` steps are done. The number may be an array's or a tensor's too."""
        self.step = min(max(0, int(step)), _MOST_STEPS)
        self._first = self._first or self.step
        self._tell(Phase.STEP)

    def alive(self) -> None:
        """Record that the process is alive, in its current phase."""
        self._tell(self._phase)

    def enter(self, phase: Phase) -> None:
        """Record that another phase begins."""
        self._tell(phase)

    @contextlib.contextmanager
    def during(self, phase: Phase) -> Iterator[None]:
        """Set the phase while the block or decorated function runs, then restore the previous one."""
        before = self._phase
        self._tell(phase)
        try:
            yield
        finally:
            self._tell(before)

    def _tell(self, phase: Phase) -> None:
        if self._map is None:
            self._phase = phase
            return
        now = time.monotonic()
        self._longest[self._phase] = max(self._longest[self._phase], now - self._time)
        if phase is not self._phase:
            self._phase, self._since = phase, now
        self._time, self._count = now, self._count + 1
        RECORD.pack_into(
            self._map, 0, self._count, MAGIC, VERSION, phase, os.getpid(), self.step, self._first, now,
            self._since, *self._longest, self._count,
        )  # fmt: skip


beat = Beat()  # the heartbeat of this process
