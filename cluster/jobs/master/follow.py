"""Printer of a job's output as it appears: the newest attempt's console and later ones, or one rank's lines."""

import contextlib
import os
import select
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass

from cluster.errors import ConfigError
from cluster.jobs.log_filter import EVERY_LINE, LineFilter, LineSplitter, without_verdicts
from cluster.jobs.record import DamagedRecord, JobPaths, JobStatus, open_log, read_job
from cluster.jobs.status import read_status, supervisor_trouble
from cluster.jobs.supervisor.console_times import position_at
from cluster.jobs.supervisor.launcher import newest_checkpoint
from cluster.recovery.cause import of_rank, plain
from cluster.recovery.failure_kinds import FailureKind
from cluster.terminal import counted

_LOOK_S = 0.2
_PART = 1 << 20  # bytes read at once
_AWAY_S = 60.0  # wait for the shared folder to come back


@dataclass(frozen=True, kw_only=True)
class Start:
    """Position in a job's logs where printing begins."""

    attempt: int
    position: int = 0  # byte of its console
    only: bool = False  # print this attempt only


def console(
    paths: JobPaths,
    *,
    follow: bool,
    rank: int | None = None,
    since_s: float | None = None,
    choice: LineFilter = EVERY_LINE,
    start: Start | None = None,
    skip: int = 0,
) -> JobStatus:
    """Print the newest attempt's output, or with `follow` all output until the job ends. Return the job's final status.

    rank: only this rank's stdout and stderr.
    since_s: only the output of the last so many seconds, by earlier attempts too.
    start: begin here instead.
    skip: leave out so many bytes of the output, because they were printed already.
    Raises ConfigError if there is no such rank.
    """
    if rank is not None:
        _require_rank(paths, rank)
    is_wanted = choice.filter()
    start = start or start_of(paths, since_s=since_s)
    for line in without_verdicts(lines(paths, follow=follow, start=start)):
        said = plain(line) if rank is None else of_rank(line, rank)
        if said is not None and is_wanted(said.rstrip("\n")):
            whole = said.encode(errors="replace")
            sys.stdout.write(whole[skip:].decode(errors="replace") if skip else said)
            skip = max(0, skip - len(whole)) if skip else 0
            sys.stdout.flush()
    return read_status(paths)


def start_of(
    paths: JobPaths, *, since_s: float | None = None, attempt: int | None = None, last: int | None = None
) -> Start:
    """Return where a log begins, by default with the newest attempt. Raises ConfigError if there is no such attempt.

    since_s: at the first output of the last so many seconds, unless an attempt is given.
    last: at the last so many lines of the attempt's console.
    """
    newest = read_status(paths).attempt
    if attempt is not None and not 1 <= attempt <= newest:
        raise ConfigError(f"{paths.folder.name} has {counted(newest, 'attempt')}: there is no attempt {attempt}")
    if since_s is not None and attempt is None:
        first = _first_since(paths, newest, time.time() - since_s)
        return Start(attempt=first, position=position_at(paths, first, time.time() - since_s))
    first = attempt or newest
    position = 0 if last is None else _position_of_last(paths, first, last)
    return Start(attempt=first, position=position, only=attempt is not None)


def _position_of_last(paths: JobPaths, attempt: int, count: int) -> int:
    """Return the byte of a console where its last so many lines begin."""
    with contextlib.suppress(OSError), os.fdopen(open_log(paths, paths.console(attempt)), "rb") as log:
        end = at = log.seek(0, os.SEEK_END)
        if not count:
            return end
        while at > 0:
            begin = max(0, at - _PART)
            log.seek(begin)
            data = log.read(at - begin)
            cut = len(data) - (at == end and data.endswith(b"\n"))  # the final newline does not begin a line
            while (cut := data.rfind(b"\n", 0, cut)) >= 0:
                count -= 1
                if not count:
                    return begin + cut + 1
            at = begin
    return 0


def ending(status: JobStatus, job_id: str, checkpoint: str | None = None) -> str:
    """Return a summary of how a job ended: its state and cause, its log, how to resume it, and what it left behind.

    checkpoint: path of its newest one, "" if it has none, None if that is unknown.
    """
    text = f"{job_id}: {status.state}"
    if status.cause:
        text += f": {status.cause}"
    if status.state.is_bad:
        text += f"\nlog: {status.log}" if status.log else ""
        text += "".join(f"\n{hint}" for hint in _how_to_go_on(status, job_id, checkpoint))
    if status.left:
        text += "\nleft behind: " + "; ".join(status.left)
    return text


def _how_to_go_on(status: JobStatus, job_id: str, checkpoint: str | None) -> list[str]:
    """Return the command that resumes the job: with the same code, or with fixed code if the program itself failed."""
    if status.ended_by is FailureKind.PROGRAM:  # the same code would fail again
        mended = f"with mended code from its newest checkpoint: the same command with --resume {job_id}"
        return [mended] if checkpoint else []
    if checkpoint == "":
        return [f"it left no checkpoint; from its beginning: inv jobs.resume {job_id}"]
    return [f"again from the newest checkpoint: inv jobs.resume {job_id}"]


def unseen_checkpoints(paths: JobPaths) -> str:
    """Return a warning about checkpoints beside a program's code, where the next attempt does not look, or ""."""
    with contextlib.suppress(OSError, DamagedRecord):
        job = read_job(paths)
        own = paths.code / job.spec.below / "checkpoints"
        if not newest_checkpoint(paths) and any(own.iterdir()):
            return f"{own} is not looked at: what $DLAMI_RESUME is to name belongs into $DLAMI_JOB_DIR/checkpoints"
    return ""


def lines(paths: JobPaths, *, follow: bool, start: Start | None = None) -> Iterator[str]:
    """Yield whole lines of the newest attempt's console and our warnings, and with `follow` those of later attempts.

    start: begin here instead, and continue with the attempts after it up to the newest.
    """
    newest, start = read_status(paths).attempt, start or start_of(paths)
    attempt, position = start.attempt, start.position
    whole, has_warned, is_gone = LineSplitter(), False, False
    while True:
        status = _patient_status(paths) if follow else read_status(paths)
        ended = not status.state.is_going  # asked before reading, so that the output's end is read below
        try:
            with os.fdopen(open_log(paths, paths.console(attempt)), "rb") as log:
                if os.fstat(log.fileno()).st_size < position:
                    yield f"dlami: warning: {paths.console(attempt)} was cut or written anew: from its beginning\n"
                    position = 0
                log.seek(position)
                while data := log.read(_PART):
                    position += len(data)
                    yield from whole.feed(data)
        except FileNotFoundError:  # not created yet, or removed
            if position and not is_gone and paths.logs(attempt).parent.exists():
                is_gone = True
                yield f"dlami: warning: {paths.console(attempt)} was removed: what ranks print now is not shown\n"
        except OSError:  # the shared folder is unreachable for a while
            pass
        if not has_warned and status.supervisor and status.supervisor.is_stopped:
            has_warned = True
            yield f"dlami: warning: {supervisor_trouble(paths, status, time.time())}\n"
        is_last = status.attempt == attempt
        if not is_last or ended or not follow:
            yield from whole.rest()
        if not is_last and (follow or (attempt < newest and not start.only)):
            attempt, position = attempt + 1, 0
        elif ended or not follow or _nobody_reads():
            return
        else:
            time.sleep(_LOOK_S)


def _first_since(paths: JobPaths, newest: int, since: float) -> int:
    """Return the first attempt that printed something since this time, or the newest if none did."""
    for attempt in range(1, newest):
        with contextlib.suppress(OSError):
            if paths.console(attempt).stat().st_mtime >= since:
                return attempt
    return newest


def _patient_status(paths: JobPaths) -> JobStatus:
    """Return the job's status. Waits up to a minute for a record that cannot be read, then raises DamagedRecord."""
    deadline = time.monotonic() + _AWAY_S
    while True:
        try:
            return read_status(paths)
        except DamagedRecord:
            if time.monotonic() > deadline:
                raise
            time.sleep(_LOOK_S)


def _nobody_reads() -> bool:
    """Return True if the reader of our stdout is gone, for instance because its connection was lost."""
    asked = select.poll()
    try:
        asked.register(sys.stdout.fileno(), 0)
    except (OSError, ValueError):
        return False
    return any(event & (select.POLLERR | select.POLLHUP) for _, event in asked.poll(0))


def _require_rank(paths: JobPaths, rank: int) -> None:
    ranks = max(read_job(paths).np, read_job(paths).plan.whole_np)
    if not 0 <= rank < ranks:
        raise ConfigError(f"{paths.folder.name} has {counted(ranks, 'rank')}, counted from 0: there is no rank {rank}")
