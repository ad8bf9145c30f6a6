"""A job's output as it comes: the console of its newest attempt, or one rank's file."""

import sys
import time
from collections.abc import Iterator
from pathlib import Path

from cluster.errors import ConfigError
from cluster.jobs.cause import plain
from cluster.jobs.record import JobPaths, State, read_state

_LOOK_S = 0.2


def console(paths: JobPaths, *, follow: bool, rank: int | None = None) -> State:
    """Print what the newest attempt has said, and with `follow` what it says until it ends. Its state at the end."""
    for line in _lines(paths, follow=follow, rank=rank):
        sys.stdout.write(line if rank is not None else plain(line))
        sys.stdout.flush()
    return read_state(paths)


def ending(state: State, job_id: str) -> str:
    """One or two lines: how a job stands, and what to look at."""
    text = f"{job_id}: {state.state}"
    if state.cause:
        text += f": {state.cause}"
    if state.state in ("failed", "lost"):
        text += f"\nlog: {state.log}" if state.log else ""
        text += f"\nagain from the newest checkpoint: inv jobs.resume {job_id}"
    if state.left:
        text += "\nleft behind: " + "; ".join(state.left)
    return text


def _lines(paths: JobPaths, *, follow: bool, rank: int | None) -> Iterator[str]:
    """Whole lines of the log; the last one may be a part if the job has ended."""
    position, pending = 0, b""
    while True:
        ended = not read_state(paths).is_going  # before reading: what was written until then is read below
        file = _file(paths, read_state(paths).attempt, rank)
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
    if not found and not read_state(paths).is_going:
        raise ConfigError(f"attempt {attempt} of {paths.folder.name} has no log of rank {rank}")
    return found[0] / "stdout" if found else None
