"""Atomic checkpoints: named arrays and a few facts, verified before use.

A checkpoint is `step-00001000.npz` with the arrays and `step-00001000.json` with the facts and the arrays' checksum.
The JSON file is renamed into place last: without it there is no checkpoint. It carries a checksum of itself, so that a
changed fact is detected, too. This module does not depend on TensorFlow or the model.
"""

import contextlib
import errno
import hashlib
import json
import os
import re
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from trainer.common.checkpoints import npz_writer
from trainer.common.checkpoints.facts import Best, Facts
from trainer.common.checkpoints.unreadable import listed, unreadable_summary
from trainer.common.checkpoints.write_lease import Replaced, check_lease, own_attempt
from trainer.common.files.errors import TrainerError

BEST = "best.json"
_FACTS_FILE = re.compile(r"step-([0-9]{8,18})\.json")
_ARRAYS_FILE = re.compile(r"step-[0-9]{8,18}\.npz")


@dataclass(frozen=True)
class CheckpointFolder:
    """Folder of one job's checkpoints."""

    path: Path
    _whole: dict[int, tuple[int, int]] = field(default_factory=dict, compare=False, repr=False)
    """Verified checkpoints: step to size and modification time of the arrays' file."""
    damage: list[str] = field(default_factory=list, compare=False, repr=False)
    """Errors of the checkpoints that `newest` could not read, one sentence each. Empty if it found an intact one."""

    def arrays_file(self, step: int) -> Path:
        """Return the path of this step's arrays."""
        return self.path / f"step-{step:08d}.npz"

    def facts_file(self, step: int) -> Path:
        """Return the path of this step's facts. The checkpoint exists once this file does."""
        return self.path / f"step-{step:08d}.json"

    def steps(self) -> list[int]:
        """Return the steps with a checkpoint, newest first. They are not verified.

        Raises:
            CommonError: the folder exists but cannot be listed.
        """
        names = (_FACTS_FILE.fullmatch(name) for name in listed(self.path))
        return sorted((int(name[1]) for name in names if name), reverse=True)

    def save(self, step: int, arrays: Mapping[str, np.ndarray], more: Mapping[str, Any] | None = None) -> Facts:
        """Write a checkpoint atomically: after any crash the folder contains all of it or nothing.

        A folder that is removed meanwhile is created again.

        Raises:
            Replaced: a newer attempt of the job has begun.
            TrainerError: the folder cannot be written.
        """
        check_lease()
        try:
            try:
                return self._save(step, arrays, more)
            except FileNotFoundError:
                return self._save(step, arrays, more)
        except OSError as e:
            raise TrainerError(self._cannot_write(step, e)) from e

    def _save(self, step: int, arrays: Mapping[str, np.ndarray], more: Mapping[str, Any] | None) -> Facts:
        partial = self.path / f".{self.arrays_file(step).name}.{os.getpid()}.partial"
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            with partial.open("wb") as file:
                sha256 = npz_writer.write(file, arrays)
                file.flush()
                os.fsync(file.fileno())
            facts = Facts(
                step=step,
                time=datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
                sha256=sha256,
                bytes=partial.stat().st_size,
                # Outside a job the number of the last checkpoint's attempt is used again.
                attempt=own_attempt() or max(self._attempts().values(), default=0),
                more=dict(more or {}),
            )
            check_lease()  # writing may have taken minutes
            # First, so that a rewrite of the same step never pairs old facts with new arrays.
            self.facts_file(step).unlink(missing_ok=True)
            partial.replace(self.arrays_file(step))
            _write_whole(self.facts_file(step), facts.as_text())
            self._note_whole(step)
        except (Replaced, OSError):
            with contextlib.suppress(OSError):
                partial.unlink()
            raise
        return facts

    def _cannot_write(self, step: int, error: OSError) -> str:
        """Return the message for a checkpoint that cannot be written: the reason, the other checkpoints, the remedy."""
        with contextlib.suppress(TrainerError):
            kept = ", ".join(str(other) for other in sorted(self.steps()))
            there = f"checkpoints of step {kept} are there" if kept else "there is no other checkpoint"
            full = error.errno in (errno.ENOSPC, errno.EDQUOT)
            remedy = "free the disk" if full else "mend the folder"
            return (
                f"{self.path}: the checkpoint of step {step} cannot be written ({error.strerror}); {there}; {remedy} "
                "and start again" + (" to resume" if kept else "")
            )
        return f"{self.path}: the checkpoint of step {step} cannot be written ({error.strerror}), and nor read"

    def facts(self, step: int) -> Facts:
        """Return the facts of one checkpoint, after verifying its arrays against them.

        Raises:
            TrainerError: a file is missing, cut off or changed. The message names it.
        """
        try:
            facts = self._read_facts(step)
            arrays = self.arrays_file(step)
            if arrays.stat().st_size != facts.bytes:
                raise TrainerError(f"{arrays} has {arrays.stat().st_size} bytes, not {facts.bytes}")
            if _sha256(arrays) != facts.sha256:
                raise TrainerError(f"{arrays} does not match its checksum")
            self._note_whole(step)
        except (OSError, ValueError) as e:
            raise TrainerError(f"the checkpoint of step {step} in {self.path} cannot be read: {e}") from e
        return facts

    def newest(self) -> Facts | None:
        """Return the newest intact checkpoint, or None. Warns on stderr about each damaged one that it skips.

        Checkpoints of a newer attempt count as newer, whatever their step. If none is intact, `damage` holds the
        reasons.
        """
        self.damage.clear()
        for step in self._newest_first():
            try:
                found = self.facts(step)
            except TrainerError as e:
                self.damage.append(str(e))
                print(f"warning: {e}; passed over", file=sys.stderr, flush=True)
            else:
                self.damage.clear()
                return found
        names = set(listed(self.path))
        alone = sorted(n for n in names if _ARRAYS_FILE.fullmatch(n) and f"{n[:-4]}.json" not in names)
        # A killed writer leaves at most one such file.
        if self.damage or len(alone) > 1:
            self.damage.extend(f"{self.path / name} lacks its .json" for name in alone)
        return None

    def newest_or_refuse(self) -> Facts | None:
        """Return the newest intact checkpoint, or None if there never was one.

        Raises:
            TrainerError: there are checkpoints, and none can be read.
        """
        found = self.newest()
        if self.damage:
            raise TrainerError(f"{self.path}: {unreadable_summary(self.damage)}: bring readable files back")
        return found

    def peek(self) -> Facts | None:
        """Return the newest checkpoint's facts without verifying its arrays."""
        for step in self._newest_first():
            with contextlib.suppress(OSError, ValueError):
                return self._read_facts(step)
        return None

    def load(self, facts: Facts) -> dict[str, np.ndarray]:
        """Return the arrays of a verified checkpoint.

        Raises:
            TrainerError: they cannot be read after all.
        """
        file = self.arrays_file(facts.step)
        try:
            with np.load(file, allow_pickle=False) as arrays:
                return dict(arrays)
        except Exception as e:  # NumPy and zipfile raise many types for damaged bytes
            raise TrainerError(f"{file} cannot be read as arrays ({e}): remove it to go on from the one before") from e

    def best(self) -> Best | None:
        """Return the step and score that `mark_best` last recorded, if its checkpoint still exists."""
        try:
            best = Best.of_text((self.path / BEST).read_text())
        except (OSError, ValueError):
            return None
        return best if self.facts_file(best.step).exists() else None

    def mark_best(self, step: int, score: float) -> None:
        """Record this checkpoint as the best if its score is higher than any before. The best is never removed."""
        check_lease()
        best = self.best()
        if best is None or score > best.score:
            self.path.mkdir(parents=True, exist_ok=True)
            write_atomically(self.path / BEST, json.dumps(asdict(Best(step, score))) + "\n")

    def keep_newest(self, count: int) -> None:
        """Remove the checkpoints that are older than the newest `count` intact ones, except the best.

        A damaged checkpoint does not count, or it would displace a good one. If it is newer than those, it stays for
        inspection. This job made all of them, and the operator set how many stay.
        """
        check_lease()
        best, whole = self.best(), 0
        for step in self._newest_first():
            if whole < count:
                whole += self._is_whole(step)
            elif best is None or step != best.step:
                self._remove(step)

    def remove_newer(self, step: int) -> None:
        """Remove the checkpoints of later steps, because the run resumes at this step."""
        for other in self.steps():
            if other > step:
                self._remove(other)

    def remove_partial(self) -> None:
        """Remove the half-written files of a killed writer. Only the one process that writes here may call it."""
        for path in self.path.glob(".step-*.partial"):
            path.unlink(missing_ok=True)

    def _remove(self, step: int) -> None:
        self.facts_file(step).unlink(missing_ok=True)
        self.arrays_file(step).unlink(missing_ok=True)

    def _newest_first(self) -> list[int]:
        """Return the steps, newest first: by attempt, then by step.

        Steps with unreadable facts count as the last attempt's.
        """
        attempts = self._attempts()
        last = max(attempts.values(), default=0)
        return sorted(self.steps(), key=lambda step: (attempts.get(step, last), step), reverse=True)

    def _attempts(self) -> dict[int, int]:
        """Return the number of the attempt that wrote each step. Steps with unreadable facts are left out."""
        found = {}
        for step in self.steps():
            with contextlib.suppress(OSError, ValueError):
                found[step] = self._read_facts(step).attempt
        return found

    def _read_facts(self, step: int) -> Facts:
        file = self.facts_file(step)
        try:
            return Facts.of_text(file.read_text(), step)
        except ValueError as e:
            raise ValueError(f"{file.name}: {e}") from e

    def _note_whole(self, step: int) -> None:
        self._whole[step] = self._marks(step)

    def _is_whole(self, step: int) -> bool:
        """Return True if this step's checkpoint is intact.

        Reads its files only if they changed since they were last verified.
        """
        try:
            if self._whole.get(step) != self._marks(step):
                self.facts(step)
        except (OSError, TrainerError):
            return False
        return True

    def _marks(self, step: int) -> tuple[int, int]:
        stat = self.arrays_file(step).stat()
        return stat.st_size, stat.st_mtime_ns


def write_atomically(path: Path, text: str) -> None:
    """Write the text to the file atomically: on failure the old content stays.

    Raises:
        TrainerError: the file cannot be written. The message gives the reason.
    """
    try:
        _write_whole(path, text)
    except OSError as e:
        raise TrainerError(f"{path} cannot be written ({e.strerror}): make room or mend the folder") from e


def _write_whole(path: Path, text: str) -> None:
    # Several hosts may write the same file on a shared file system, where process ids are not unique.
    handle, partial = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".partial")
    try:
        with os.fdopen(handle, "w") as file:
            file.write(text)
            file.flush()
            os.fchmod(handle, 0o644)
            os.fsync(handle)
        Path(partial).replace(path)
    except BaseException:
        Path(partial).unlink(missing_ok=True)
        raise


def _blocks(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            yield block


def _sha256(path: Path) -> str:
    digest = hashlib.sha256()
    for block in _blocks(path):
        digest.update(block)
    return digest.hexdigest()
