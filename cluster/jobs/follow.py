"""A job's output as it comes: the console of its newest attempt, or one rank's file."""

import sys
import time
from collections.abc import Iterator
from pathlib import Path

from cluster.errors import ConfigError
from cluster.jobs.cause import plain
from cluster.jobs.record import JobPaths, Status
from cluster.jobs.status import read_status

_LOOK_S = 0.2


def console(paths: JobPaths, *, follow: bool, rank: int | None = None) -> Status:
    """Print what the newest attempt has said, and with `follow` what it says until it ends. Its status at the end."""
    for line in _lines(paths, follow=follow, rank=rank):
        sys.stdout.write(line if rank is not None else plain(line))
        sys.stdout.flush()
    return read_status(paths)


def ending(status: Status, job_id: str) -> str:
    """One or two lines: how a job stands, and what to look at."""
    text = f"{job_id}: {status.state}"
    if status.cause:
        text += f": {status.cause}"
    if status.state.is_bad:
        text += f"\nlog: {status.log}" if status.log else ""
        text += f"\nagain from the newest checkpoint: inv jobs.resume {job_id}"
    if status.left:
        text += "\nleft behind: " + "; ".join(status.left)
    return text


def _lines(paths: JobPaths, *, follow: bool, rank: int | None) -> Iterator[str]:
    """Whole lines of the log; the last one may be a part if the job has ended."""
    position, pending = 0, b""
    while True:
        status = read_status(paths)
        ended = not status.state.is_going  # before reading: what was written until then is read below
        file = _file(paths, status.attempt, rank)
        if file and file.exists():
            with file.open("rb") as log:
                log.seek(position)
                pending += log.read()
                position = log.tell()
        *whole, pending = pending.split(b"\n")
        for line in whole:
            yield line.decode(errors="replace") + "\n"
        if ended or not follow:
            if pending:
                yield pending.decode(errors="replace") + "\n"
            return
        time.sleep(_LOOK_S)


def _file(paths: JobPaths, attempt: int, rank: int | None) -> Path | None:
    if rank is None:
        return paths.console(attempt)
    found = [p for p in paths.rank_logs(attempt).glob("*/rank.*") if int(p.name.removeprefix("rank.")) == rank]
    if not found and not read_status(paths).state.is_going:
        raise ConfigError(f"attempt {attempt} of {paths.folder.name} has no log of rank {rank}")
    return found[0] / "stdout" if found else None
