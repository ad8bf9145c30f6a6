"""Curve of a value over the steps, reduced to buckets that a page can show: least, mean and largest of each."""

from dataclasses import dataclass, field

MOST_BUCKETS = 400


@dataclass(frozen=True, kw_only=True)
class StepSummary:
    """Summary of the values of neighbouring steps."""

    first: int  # step
    last: int
    count: int
    least: float
    mean: float
    largest: float


@dataclass(frozen=True, kw_only=True)
class Curve:
    """Value of a training over its steps."""

    kind: str  # kind of its records: "train", "eval"
    name: str
    width: int  # steps per bucket; 1: no reduction
    buckets: tuple[StepSummary, ...]

    @property
    def newest(self) -> StepSummary:
        """Return the bucket with the newest values."""
        return self.buckets[-1]

    @property
    def lowest(self) -> StepSummary:
        """Return the bucket with the least value."""
        return min(self.buckets, key=lambda b: b.least)

    @property
    def highest(self) -> StepSummary:
        """Return the bucket with the largest value."""
        return max(self.buckets, key=lambda b: b.largest)

    @property
    def mean(self) -> float:
        """Return the mean of all values."""
        return sum(b.mean * b.count for b in self.buckets) / sum(b.count for b in self.buckets)


@dataclass(slots=True)
class _Sum:
    first: int
    last: int
    count: int = 0
    total: float = 0.0
    least: float = float("inf")
    largest: float = float("-inf")

    def take(self, step: int, value: float) -> None:
        if step < self.first:
            self.first = step
        elif step > self.last:
            self.last = step
        self.count += 1
        self.total += value
        if value < self.least:
            self.least = value
        if value > self.largest:
            self.largest = value

    def add(self, other: "_Sum") -> None:
        self.first, self.last = min(self.first, other.first), max(self.last, other.last)
        self.count, self.total = self.count + other.count, self.total + other.total
        self.least, self.largest = min(self.least, other.least), max(self.largest, other.largest)


@dataclass
class CurveBuckets:
    """Accumulator of a curve's values; buckets double in width whenever they are too many."""

    most: int = MOST_BUCKETS
    _width: int = 1
    _sums: dict[int, _Sum] = field(default_factory=dict)

    def add(self, step: int, value: float) -> None:
        """Add a value."""
        if (there := self._sums.get(step // self._width)) is not None:
            there.take(step, value)
            return
        self._put(_Sum(first=step, last=step, count=1, total=value, least=value, largest=value))
        while len(self._sums) > self.most:
            self._width *= 2
            before, self._sums = self._sums, {}
            for one in before.values():
                self._put(one)

    def curve(self, kind: str, name: str) -> Curve:
        """Return the curve of the values added so far."""
        buckets = (
            StepSummary(
                first=s.first,
                last=s.last,
                count=s.count,
                least=s.least,
                mean=min(max(s.total / s.count, s.least), s.largest),
                largest=s.largest,
            )
            for _, s in sorted(self._sums.items())
        )
        return Curve(kind=kind, name=name, width=self._width, buckets=tuple(buckets))

    def _put(self, one: _Sum) -> None:
        index = one.first // self._width
        if index in self._sums:
            self._sums[index].add(one)
        else:
            self._sums[index] = one
