"""Map of ranks by time: each rank's own work beside that of the others, which shows for whom all wait, and when."""

import base64
import itertools
import math
import statistics
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

MOST_COLUMNS = 240
MOST_RANKS = 1024
SLOW = 1.3  # multiple of the median from which a rank is slow; trainers use the same
LEVELS = 120  # byte values of a share: 0 not known, 1 a quarter of the median, LEVELS four times it


@dataclass(frozen=True, kw_only=True)
class RankMap:
    """Map of ranks by time.

    A share is a rank's own work per step (input and computing) over the median of all ranks.
    """

    ranks: int
    columns: int
    start: float  # seconds since 1970, of the first column
    column_s: float
    levels: str  # base64 of ranks x columns bytes, row by row: see `share_of`

    def shares(self) -> list[list[float | None]]:
        """Return each rank's share per column; None where it is not known."""
        data = base64.b64decode(self.levels)
        rows = (data[r * self.columns : (r + 1) * self.columns] for r in range(self.ranks))
        return [[share_of(level) for level in row] for row in rows]


@dataclass(frozen=True, kw_only=True)
class Straggler:
    """Rank that the others waited for."""

    rank: int
    mean: float  # mean share over the columns in which it was seen
    slow: float  # part of these columns in which it was slow
    worst: float
    worst_at: float  # seconds since 1970


def level_of(share: float) -> int:
    """Return the byte that encodes a share, on a logarithmic scale."""
    place = (math.log2(min(max(share, 0.25), 4.0)) + 2) / 4
    return 1 + round(place * (LEVELS - 1))


def share_of(level: int) -> float | None:
    """Return the share that a byte encodes; None for 0."""
    return None if not level else float(2.0 ** ((level - 1) / (LEVELS - 1) * 4 - 2))


def stragglers(ranks: RankMap, most: int = 8) -> tuple[Straggler, ...]:
    """Return the ranks that were slow in two neighbouring columns, the most costly first."""
    found = []
    for rank, row in enumerate(ranks.shares()):
        seen = [(share, column) for column, share in enumerate(row) if share is not None]
        slow = [share > SLOW for share, _ in seen]
        if any(map(all, itertools.pairwise(slow))):  # two columns in a row: not by chance
            worst, column = max(seen)
            found.append(
                Straggler(
                    rank=rank,
                    mean=statistics.fmean(share for share, _ in seen),
                    slow=sum(slow) / len(seen),
                    worst=worst,
                    worst_at=ranks.start + column * ranks.column_s,
                )
            )
    return tuple(sorted(found, key=lambda s: (-s.slow * s.mean, s.rank))[:most])


@dataclass
class RankBuckets:
    """Accumulator of a map; columns double in width whenever they are too many."""

    most: int = MOST_COLUMNS
    _width: float = 1.0  # seconds
    _start: float | None = None
    # Column -> rank -> sum of shares, count
    _sums: dict[int, dict[int, tuple[float, int]]] = field(default_factory=dict)

    def add(self, record: Mapping[str, Any]) -> None:
        """Add a training record, if it has times of each rank."""
        shares = _shares(record.get("rank_input_s"), record.get("rank_compute_s"))
        if not shares:
            return
        at = float(record["time"])
        self._start = at if self._start is None else self._start
        column = max(0, int((at - self._start) / self._width))
        self._merge(column, {rank: (share, 1) for rank, share in enumerate(shares)})
        while len(self._sums) > self.most or max(self._sums) >= 4 * self.most:
            self._width *= 2
            before, self._sums = self._sums, {}
            for index, sums in before.items():
                self._merge(index // 2, sums)

    def rank_map(self) -> RankMap | None:
        """Return the map of the records added so far; None if there were none."""
        if self._start is None:
            return None
        ranks = 1 + max(max(sums) for sums in self._sums.values())
        columns = 1 + max(self._sums)
        levels = bytearray(ranks * columns)
        for column, first in self._covered():
            for rank, (total, count) in self._sums[column].items():
                begin = rank * columns
                levels[begin + first : begin + column + 1] = bytes([level_of(total / count)]) * (column + 1 - first)
        return RankMap(
            ranks=ranks,
            columns=columns,
            start=self._start,
            column_s=self._width,
            levels=base64.b64encode(bytes(levels)).decode(),
        )

    def _covered(self) -> Iterator[tuple[int, int]]:
        """Yield each column with a record, and the first column that the record covers.

        A record covers the time since the one before. If that gap exceeds three times the usual, the job did something
        else meanwhile, and the record covers its own column alone.
        """
        known = sorted(self._sums)
        gaps = [after - before for before, after in itertools.pairwise(known)]
        usual = statistics.median(gaps) if len(gaps) > 2 else 1
        yield known[0], known[0]
        for before, column in itertools.pairwise(known):
            yield column, before + 1 if column - before <= 3 * usual else column

    def _merge(self, column: int, sums: Mapping[int, tuple[float, int]]) -> None:
        own = self._sums.setdefault(column, {})
        for rank, (total, count) in sums.items():
            before = own.get(rank, (0.0, 0))
            own[rank] = (before[0] + total, before[1] + count)


def _shares(inputs: Any, computing: Any) -> list[float]:
    """Return each rank's own time over the median; [] unless it is known for all."""
    if not (isinstance(inputs, list) and isinstance(computing, list) and len(inputs) == len(computing) <= MOST_RANKS):
        return []
    try:
        own = [float(i) + float(c) for i, c in zip(inputs, computing, strict=True)]
        if not any(float(c) for c in computing):
            return []  # not timed, as in a deterministic run; input alone is not enough
        usual = statistics.median(own) if own else 0.0
    except (TypeError, ValueError, OverflowError):
        return []
    if not (usual > 0 and all(math.isfinite(t) and t >= 0 for t in own)):
        return []
    return [t / usual for t in own]
