"""What became of ranks that were asked to save and leave: whether they had finished, and whether they have saved."""

import re
from pathlib import Path

from cluster.healing.ending import Ending
from cluster.jobs.cause import Cause
from cluster.jobs.launcher import newest_checkpoint
from cluster.jobs.record import Job, JobPaths

ASKED = "asked to save"

_RANK = r"^(?:\[\d+,\d+\]<std(?:out|err)>:)?\s*"
_EARLY = re.compile(_RANK + r"Asked to stop: (?P<did>saved|leaves) after step (?P<step>\d+)", re.MULTILINE)
_FINISHED = re.compile(_RANK + r"Finished .*\bin \d", re.MULTILINE)  # our trainers' word after the last step


def has_finished(job: Job, console: str, exit_code: int, done: int | None) -> bool:
    """Whether it is known that the job was at its end anyway when it was asked to leave.

    A program that has saved and left ends with 0, too: of that it is not known.
    """
    if exit_code or _EARLY.search(console):
        return False
    is_at_its_last = job.steps is not None and done is not None and done >= job.steps
    return is_at_its_last or (not job.program and bool(_FINISHED.search(console)))


def left_early(console: str) -> Cause | None:
    """The cause where ranks left in good order before their last step, because a signal asked them to."""
    m = _EARLY.search(console)
    return m and Cause(
        kind=Ending.TOLD,
        text="a rank was told to end (SIGTERM or SIGUSR1), not by 'inv jobs.stop': "
        + (f"all saved after step {m['step']} and left" if m["did"] == "saved" else f"they left after step {m['step']}")
        + "; was a host shut down?",
    )


def what_was_saved(console: str, is_newer: bool) -> str:
    """In words: by what ranks say, or because there is a checkpoint that is newer than the request."""
    m = _EARLY.search(console)
    if m and m["did"] == "saved":
        return f"saved after step {m['step']}"
    return "saved" if is_newer else ASKED


def newest_stamp(paths: JobPaths) -> int:
    """When the newest checkpoint was written, by the folder's own clock; 0 where there is none. Raises OSError."""
    newest = newest_checkpoint(paths)
    return Path(newest).stat().st_mtime_ns if newest else 0
