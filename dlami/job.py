"""What a program may tell the job that it runs in, and ask of it: `from dlami import job`.

    state = load(job.resume()) if job.resume() else new()
    for step in range(state.step, steps):
        train(state)
        job.beat(step + 1)
        if job.stopping():
            break
    save(state)

Standard library only. Outside of a job every call is there and does nothing.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from pathlib import Path
from typing import SupportsInt

from dlami.beat import Beat, Phase, beat_file


class _Job:
    """What this process has said and heard."""

    def __init__(self) -> None:
        self.beat: Beat | None = None
        self.step = 0
        self.listens = self.asked = self.has_said = self.has_stepped = False

    def note(self, *_: object) -> None:
        self.asked = True


_this = _Job()


def beat(step: SupportsInt | None = None) -> None:
    """So many steps are done; without a number: it goes on, with something else than steps. Costs a microsecond.

    A rank that steps and is silent for 30 s, or ten times as long as a step takes if that is more, hangs: the attempt
    is ended and begun again. Call it without a number before what takes longer, an evaluation or a save: until the next
    step half an hour may pass, and once it is known how long that takes, ten times as long or five minutes.
    `--hang-after SECONDS` is another time for steps. A rank that never beats, while others do, is not watched by it.
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
    """What to go on from: the newest file or folder in `$DLAMI_JOB_DIR/checkpoints` when this attempt began, if any.

    Write a checkpoint under a name that ends with `.tmp` and rename it when it is whole: such names are passed over.
    """
    found = os.environ.get("DLAMI_RESUME", "")
    return Path(found) if found else None


def stopping() -> bool:
    """Whether it is time to save and leave, with exit code 0: the job is stopped, or a host of it will go.

    From the first call on SIGUSR1 does not end the process. Ranks hear it within moments of each other, perhaps not in
    the same step: where that matters let them agree, for example by adding up their answers. For the main thread.
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
