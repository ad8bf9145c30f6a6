"""Collection of a job's results in a folder on the master's own disk, under the names that they get in S3."""

import json
import os
from collections.abc import Iterator
from pathlib import Path

from cluster.jobs.master.facts import read_facts
from cluster.jobs.record import JobPaths
from cluster.jobs.records import read_attempts
from cluster.jobs.status import read_status
from cluster.jobs.supervisor.launcher import newest_checkpoint
from cluster.report.page import page

MOST_BYTES = 64 << 20  # most bytes of a log; of a longer one, its end
_BLOCK = 1 << 20


def gather(paths: JobPaths, into: Path) -> None:
    """Collect all results: files that may still be written are copied, large finished ones are linked.

    Raises OSError, DamagedRecord.
    """
    (into / "report.html").write_text(page(read_facts(paths)))
    for file in (paths.public, paths.status, paths.attempts, paths.metrics):
        if file.exists():
            _copy(file, into / file.name)
    for log in _logs(paths):
        target = into / log.relative_to(paths.folder)
        target.parent.mkdir(parents=True, exist_ok=True)
        _copy(log, target) if "ranks" not in target.parts or log.stat().st_size > MOST_BYTES else target.symlink_to(log)
    (into / "checkpoints").mkdir()
    for file in best_checkpoint(paths):
        target = into / "checkpoints" / file.relative_to(paths.checkpoints)
        target.parent.mkdir(parents=True, exist_ok=True)
        _hold(file, target)


def _logs(paths: JobPaths) -> list[Path]:
    """Return the logs of all attempts that have ended; of the current attempt if none has."""
    over = [a.number for a in read_attempts(paths) if a.is_over] or [read_status(paths).attempt]
    files = (p for number in over if paths.logs(number).exists() for p in _files_below(paths.logs(number)))
    return sorted(p for p in files if not p.is_symlink())


def _files_below(folder: Path) -> list[Path]:
    """Return all files below a folder, sorted.

    Raises OSError for an unreadable folder, which must not count as empty.
    """

    def refuse(error: OSError) -> None:
        raise error

    found = (Path(above, name) for above, _, names in os.walk(folder, onerror=refuse) for name in names)
    return sorted(p for p in found if p.is_file())


def best_checkpoint(paths: JobPaths) -> Iterator[Path]:
    """Yield the files of the checkpoint with the best score; of the newest if none has a score."""
    best = paths.checkpoints / "best.json"
    step = _step(best)
    if step is not None and (facts := paths.checkpoints / f"step-{step:08d}.json").exists():
        yield from (best, facts, facts.with_suffix(".npz"))
        return
    facts_files = sorted(paths.checkpoints.glob("step-*.json"))
    if facts_files:
        yield from (facts_files[-1], facts_files[-1].with_suffix(".npz"))
    elif newest := newest_checkpoint(paths):
        found = Path(newest)
        yield from (found,) if found.is_file() else _files_below(found)


def _step(best: Path) -> int | None:
    try:
        step = json.loads(best.read_bytes())["step"]
    except (OSError, ValueError, TypeError, KeyError, RecursionError):
        return None
    return step if type(step) is int and 0 <= step < 10**18 else None


def _hold(file: Path, target: Path) -> None:
    """Hard-link a file, so that it survives its removal elsewhere. Across file systems a symbolic link is made."""
    try:
        os.link(file, target)
    except OSError:
        target.symlink_to(file)


def _copy(file: Path, target: Path) -> None:
    """Copy a file as it is now. Of a text log longer than MOST_BYTES only the end is copied."""
    with file.open("rb") as source, target.open("wb") as copy:
        size = os.fstat(source.fileno()).st_size
        if size > MOST_BYTES and file.suffix != ".jsonl":
            copy.write(f"[the first {size - MOST_BYTES:,} bytes are left out here]\n".encode())
            source.seek(size - MOST_BYTES)
        left = size - source.tell()
        while left > 0 and (block := source.read(min(_BLOCK, left))):
            copy.write(block)
            left -= len(block)
