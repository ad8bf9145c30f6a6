"""Interface of a program to the job that it runs in: `from dlami import job`.

    state = load(job.resume()) if job.resume() else new()
    for step in range(state.step, steps):
        train(state)
        job.beat(step + 1)
        if job.stopping():
            break
    save(state)

It needs only the standard library. Outside a job all calls exist and do nothing.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from pathlib import Path
from typing import SupportsInt

from dlami.heartbeat import Beat, Phase, beat_file


class _Job:
    """State of this process: its heartbeat, and whether it was asked to stop."""

    def __init__(self) -> None:
        self.beat: Beat | None = None
        self.step = 0
        self.listens = self.asked = self.has_said = self.has_stepped = False

    def note(self, *_: object) -> None:
        self.asked = True


_this = _Job()


def beat(step: SupportsInt | None = None) -> None:
    """Report that `step` steps are done, or, without a number, that the rank is busy with something else.

    It takes about a microsecond. A rank that steps counts as hung after 30 s without a call, or ten times its step time
    if that is longer. Its attempt is then ended and restarted. `--hang-after SECONDS` changes the 30 s.

    Call it without a number before anything that takes longer, such as an evaluation or a save. The rank may then take
    half an hour until its next step. Once such a pause has been measured, the limit is ten times its length, but at
    least five minutes. A rank that never calls it while others do is not watched.
    """
    if _this.beat is None:
        _this.beat = Beat()
        _this.beat.begin(beat_file())
    if step is None:
        _this.beat.enter(Phase.EVALUATE) if _this.has_stepped else _this.beat.alive()
    else:
        _this.beat.stepped(step)
        _this.step, _this.has_stepped = _this.beat.step, True


def resume() -> Path | None:
    """Return the path to resume from, or None if there is no checkpoint.

    It is the newest file or folder in `$DLAMI_JOB_DIR/checkpoints` when this attempt began. Write a checkpoint under a
    name that ends with `.tmp`, and rename it when it is complete. Names with that ending are ignored.
    """
    found = os.environ.get("DLAMI_RESUME", "")
    return Path(found) if found else None


def stopping() -> bool:
    """Return True once the program should save and exit with code 0: the job is stopped, or a host will go away.

    After the first call SIGUSR1 no longer kills the process. Ranks get the request within moments of each other,
    perhaps not in the same step. Where that matters, let them agree, for example by an all-reduce of their answers.
    Call it from the main thread.
    """
    if not _this.listens and "DLAMI_JOB" in os.environ:
        with contextlib.suppress(ValueError):  # not the main thread
            signal.signal(signal.SIGUSR1, _this.note)
            _this.listens = True
    if _this.asked and not _this.has_said:
        _this.has_said = True
        with contextlib.suppress(OSError, ValueError):
            print(f"Asked to stop: leaves after step {_this.step}", file=sys.stderr, flush=True)
    return _this.asked
