"""Reader of a job's metrics: line by line into curves and a map of ranks, so that the file may be of any length."""

import json
import math
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from cluster.jobs.curves.curves import Curve, CurveBuckets
from cluster.jobs.curves.rank_map import RankBuckets, RankMap
from cluster.ssh.onhost import trusted_files

_MOST_CURVES = 40
_LONGEST_NAME = 60  # characters
_LONGEST_LINE = 1 << 20  # bytes; 512 ranks take 20,000
_LATEST = 2.0**35  # seconds since 1970
_LAST_STEP = 1 << 53


@dataclass(frozen=True, kw_only=True)
class Measured:
    """Content of a job's metrics."""

    curves: tuple[Curve, ...] = ()
    ranks: RankMap | None = None  # None if its program reports no values per rank
    records: int = 0
    not_numbers: int = 0  # values that are infinite or no numbers, and left out of curves
    damaged: int = 0  # malformed lines

    def curve(self, kind: str, name: str) -> Curve | None:
        """Return the curve of this name in records of this kind, or None."""
        return next((c for c in self.curves if (c.kind, c.name) == (kind, name)), None)


def read_metrics(file: Path) -> Measured:
    """Read a job's `metrics.jsonl`. Returns empty metrics if the file does not exist."""
    curves: dict[tuple[str, str], CurveBuckets] = {}
    ranks = RankBuckets()
    records = not_numbers = damaged = 0
    for line in _lines(file):
        record = record_of(line)
        if record is None:
            damaged += 1
            continue
        records += 1
        kind, step = str(record["kind"])[:_LONGEST_NAME], int(record["step"])
        for name, value in record.items():
            if name in ("step", "time", "kind") or not isinstance(value, int | float) or isinstance(value, bool):
                continue
            key = (kind, name[:_LONGEST_NAME])
            if not _is_finite(value):
                not_numbers += 1
            elif key in curves or len(curves) < _MOST_CURVES:
                curves.setdefault(key, CurveBuckets()).add(step, float(value))
        ranks.add(record)
    return Measured(
        curves=tuple(buckets.curve(*key) for key, buckets in curves.items()),
        ranks=ranks.rank_map(),
        records=records,
        not_numbers=not_numbers,
        damaged=damaged,
    )


def _lines(file: Path) -> Iterator[bytes]:
    try:
        opened = os.fdopen(trusted_files.open_file(file), "rb")
    except OSError:
        return
    with opened:
        yield from whole_lines(opened)


def whole_lines(opened: BinaryIO) -> Iterator[bytes]:
    """Yield the complete lines from the current position; an overlong one as b"".

    A last line without its end may be cut off, and is skipped.
    """
    while line := opened.readline(_LONGEST_LINE):
        is_too_long = len(line) == _LONGEST_LINE and not line.endswith(b"\n")
        while is_too_long and line and not line.endswith(b"\n"):
            line = opened.readline(_LONGEST_LINE)
        if line.endswith(b"\n"):
            yield b"" if is_too_long else line


def record_of(line: bytes) -> dict[str, Any] | None:
    """Parse the record of a step; None if the line is malformed."""
    try:
        record = json.loads(line)
        is_one = (
            isinstance(record, dict)
            and type(record["step"]) is int
            and 0 <= record["step"] < _LAST_STEP
            and isinstance(record["kind"], str)
            and 0 <= float(record["time"]) < _LATEST
        )
    except (ValueError, TypeError, KeyError, OverflowError, RecursionError):
        return None
    return record if is_one else None


def _is_finite(value: int | float) -> bool:
    try:
        return math.isfinite(float(value)) and abs(value) < 1e300
    except OverflowError:
        return False
