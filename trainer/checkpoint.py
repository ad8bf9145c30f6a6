"""Checkpoints that are whole or not there: named arrays and a few facts, written atomically, verified before use.

A checkpoint is `step-00001000.npz` with the arrays and `step-00001000.json` with the facts and the arrays' checksum.
The JSON file is renamed into place last: without it there is no checkpoint. Nothing here knows TensorFlow or the model.
"""

import contextlib
import hashlib
import json
import os
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from trainer.errors import TrainerError

BEST = "best.json"


@dataclass(frozen=True, kw_only=True)
class Facts:
    """What is known of a checkpoint without reading its arrays."""

    step: int  # steps done
    time: str  # when it was written, ISO 8601, UTC
    sha256: str  # of the file of arrays
    bytes: int  # of the file of arrays
    more: dict[str, Any] = field(default_factory=dict)  # the trainer's own: scores, seeds, the configuration


@dataclass(frozen=True)
class Best:
    """The checkpoint with the highest score so far."""

    step: int
    score: float


@dataclass(frozen=True)
class Folder:
    """The checkpoints of one job."""

    path: Path

    def arrays_file(self, step: int) -> Path:
        """Where the arrays of this step lie."""
        return self.path / f"step-{step:08d}.npz"

    def facts_file(self, step: int) -> Path:
        """The file whose presence makes the checkpoint."""
        return self.path / f"step-{step:08d}.json"

    def steps(self) -> list[int]:
        """Steps with a checkpoint, newest first; not verified."""
        return sorted((int(p.stem[5:]) for p in self.path.glob("step-*.json") if p.stem[5:].isdigit()), reverse=True)

    def save(self, step: int, arrays: Mapping[str, np.ndarray], more: Mapping[str, Any] | None = None) -> Facts:
        """Writes a checkpoint; after any crash the folder holds either all of it or none."""
        partial = self.path / f".{self.arrays_file(step).name}.{os.getpid()}.partial"
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            with partial.open("wb") as file:
                np.savez(file, **arrays)
                file.flush()
                os.fsync(file.fileno())
            facts = Facts(
                step=step,
                time=datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
                sha256=_sha256(partial),
                bytes=partial.stat().st_size,
                more=dict(more or {}),
            )
            # First, so that a rewrite of the same step never pairs old facts with new arrays.
            self.facts_file(step).unlink(missing_ok=True)
            partial.replace(self.arrays_file(step))
            write_atomically(self.facts_file(step), json.dumps(asdict(facts), indent=1) + "\n")
        except OSError as e:
            with contextlib.suppress(OSError):
                partial.unlink()
            raise TrainerError(
                f"{self.path}: the checkpoint of step {step} cannot be written ({e.strerror}); the "
                "older ones are untouched, free the disk and start again to resume"
            ) from e
        return facts

    def facts(self, step: int) -> Facts:
        """The facts of one checkpoint, its arrays verified against them.

        Raises:
            TrainerError: a file is missing, cut off or changed; says which.
        """
        try:
            facts = Facts(**json.loads(self.facts_file(step).read_text()))
            arrays = self.arrays_file(step)
            if arrays.stat().st_size != facts.bytes:
                raise TrainerError(f"{arrays} has {arrays.stat().st_size} bytes, not {facts.bytes}")
            if _sha256(arrays) != facts.sha256:
                raise TrainerError(f"{arrays} does not match its checksum")
        except (OSError, ValueError, TypeError) as e:
            raise TrainerError(f"the checkpoint of step {step} in {self.path} cannot be read: {e}") from e
        return facts

    def newest(self) -> Facts | None:
        """The newest checkpoint that proves to be whole; the others are passed over with a line on stderr."""
        for step in self.steps():
            try:
                return self.facts(step)
            except TrainerError as e:
                print(f"warning: {e}; passed over", file=sys.stderr, flush=True)
        return None

    def peek(self) -> Facts | None:
        """The newest checkpoint's facts without a look at its arrays."""
        for step in self.steps():
            with contextlib.suppress(OSError, ValueError, TypeError):
                return Facts(**json.loads(self.facts_file(step).read_text()))
        return None

    def load(self, facts: Facts) -> dict[str, np.ndarray]:
        """The arrays of a verified checkpoint."""
        with np.load(self.arrays_file(facts.step), allow_pickle=False) as file:
            return dict(file)

    def best(self) -> Best | None:
        """The step that `mark_best` last noted, if its checkpoint is still there."""
        try:
            best = Best(**json.loads((self.path / BEST).read_text()))
        except (OSError, ValueError, TypeError):
            return None
        return best if self.facts_file(best.step).exists() else None

    def mark_best(self, step: int, score: float) -> None:
        """Notes this checkpoint as the best if its score is higher than any before; it is then kept."""
        best = self.best()
        if best is None or score > best.score:
            write_atomically(self.path / BEST, json.dumps(asdict(Best(step, score))) + "\n")

    def keep_newest(self, count: int) -> None:
        """Removes all but the newest and the best; those were made by this job, the operator set how many stay."""
        best = self.best()
        for step in self.steps()[count:]:
            if best is None or step != best.step:
                self.facts_file(step).unlink(missing_ok=True)
                self.arrays_file(step).unlink(missing_ok=True)

    def remove_partial(self) -> None:
        """Removes what a killed writer left half-written. Only for the one process that writes here."""
        for path in self.path.glob(".step-*.partial"):
            path.unlink(missing_ok=True)


def write_atomically(path: Path, text: str) -> None:
    """The text as the file's whole content, or the old file untouched.

    Several hosts may write the same file on a shared file system, where a process id is not theirs alone.
    """
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
