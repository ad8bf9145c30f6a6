"""Checkpoints seen from outside: what ranks saved when asked to leave, and whether an attempt made progress."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from cluster.jobs.record import Job, JobPaths
from cluster.jobs.supervisor.launcher import newest_checkpoint, whole_checkpoints
from cluster.recovery.cause import Cause
from cluster.recovery.failure_kinds import FailureKind

ASKED = "asked to save"

_MAY_BE_THE_PROGRAM_S = (FailureKind.RANK_SIGNAL, FailureKind.HANG, FailureKind.PROGRAM, FailureKind.LAUNCH)

_RANK = r"^(?:\[\d+,\d+\]<std(?:out|err)>:)?\s*"
_EARLY = re.compile(_RANK + r"Asked to stop: (?P<did>saved|leaves) after step (?P<step>\d+)", re.MULTILINE)
# Printed by this project's trainers after the last step.
_FINISHED = re.compile(_RANK + r"Finished .*\bin \d", re.MULTILINE)


def has_finished(job: Job, console: str, exit_code: int, done: int | None) -> bool:
    """Return True if the job is known to have been complete when it was asked to leave.

    A program that saved and left also exits with 0, so for a program without a known number of steps this is unknown.
    """
    if exit_code or _EARLY.search(console):
        return False
    is_at_its_last = job.plan.steps is not None and done is not None and done >= job.plan.steps
    return is_at_its_last or (job.spec.program.is_built_in and bool(_FINISHED.search(console)))


def left_early(console: str) -> Cause | None:
    """Return the cause if ranks left in good order before their last step because a signal asked them to, else None."""
    m = _EARLY.search(console)
    return m and Cause(
        kind=FailureKind.TOLD,
        text="a rank was told to end (SIGTERM or SIGUSR1), not by 'inv jobs.stop': "
        + (f"all saved after step {m['step']} and left" if m["did"] == "saved" else f"they left after step {m['step']}")
        + "; was a host shut down?",
    )


def what_was_saved(console: str, is_newer: bool) -> str:
    """Describe what was saved, by the ranks' output or by a checkpoint newer than the request."""
    m = _EARLY.search(console)
    if m and m["did"] == "saved":
        return f"saved after step {m['step']}"
    return "saved" if is_newer else ASKED


def newest_stamp(paths: JobPaths) -> int:
    """Return when the newest checkpoint was written, in ns by the folder's clock; 0 without any. Raises OSError."""
    newest = newest_checkpoint(paths)
    return Path(newest).stat().st_mtime_ns if newest else 0


@dataclass(frozen=True, kw_only=True)
class Kept:
    """Checkpoints that a job has at one time."""

    # The highest numbers, by the name without its digits.
    numbers: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    stamp: int = 0  # time of the newest, as from `newest_stamp`


def kept(paths: JobPaths) -> Kept:
    """Return the checkpoints that the job has now. Raises OSError, except if their folder does not exist."""
    numbers: dict[str, tuple[int, ...]] = {}
    try:
        names = [p.name for p in whole_checkpoints(paths)]
    except FileNotFoundError:
        return Kept()
    for name in names:
        found = tuple(int(n) for n in re.findall(r"[0-9]+", name))
        common = re.sub(r"[0-9]+", "#", name)
        numbers[common] = max(found, numbers.get(common, ()))
    return Kept(numbers=numbers, stamp=newest_stamp(paths))


def shows_progress(before: Kept, now: Kept, what: FailureKind) -> bool:
    """Return True if the checkpoints show that an attempt got further than those before it.

    A new name or a higher number shows it (`step-400` after `step-300`). A file rewritten under the same name shows it
    only if the program cannot have caused the end. A program that begins at step 0 each time rewrites its file, too.
    """
    if any(numbers > before.numbers.get(common, (-1,)) for common, numbers in now.numbers.items() if numbers):
        return True
    if now.numbers.keys() - before.numbers.keys():
        return True
    return now.stamp > before.stamp and what not in _MAY_BE_THE_PROGRAM_S
