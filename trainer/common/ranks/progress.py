"""Progress reports of an attempt: lines for the operator, records in metrics.jsonl, and the slow ranks."""

import json
import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import astuple, dataclass
from pathlib import Path

from trainer.common.ranks.clock import Clock, Interval, Times
from trainer.common.ranks.horovod_rank import GatherBytes, Ranks
from trainer.common.ranks.metrics import MetricsWriter
from trainer.common.ranks.stragglers import mean_values, rank_values, slow_ranks, straggler_line


@dataclass(frozen=True)
class IntervalTimes:
    """Speed and times of an interval on this rank, and every rank's times in it."""

    interval: Interval
    everyone: list[Times]


class ProgressReporter:
    """Progress reporter. Every rank has one, since they measure together, but only rank 0 prints and writes."""

    def __init__(self, ranks: Ranks, gather: GatherBytes) -> None:
        self.ranks, self._gather = ranks, gather
        self.hosts = [name.decode(errors="replace") for name in gather(socket.gethostname().encode())]
        self.clock = Clock()
        self._metrics: MetricsWriter | None = None
        self._slow: list[int] = []  # ranks in the last interval

    @contextmanager
    def recorded(self, job_dir: Path | None, resume_step: int) -> Iterator[None]:
        """Context in which rank 0 writes records into the job's folder, if there is one."""
        if not self.ranks.is_first or job_dir is None:
            yield
            return
        with MetricsWriter(job_dir, resume_step) as self._metrics:
            yield
        self._metrics = None

    def say(self, text: str) -> None:
        """Print a line for the operator, on rank 0."""
        if self.ranks.is_first:
            print(text, flush=True)

    def look(self) -> IntervalTimes:
        """Return the interval since the last call, with all ranks' times. All ranks must call it at the same step."""
        interval = self.clock.read()
        # Horovod: a few numbers, once per line.
        told = self._gather(json.dumps(astuple(interval.times)).encode())
        return IntervalTimes(interval, [Times(*json.loads(times)) for times in told])

    def tell_step(self, step: int, line: str, values: Mapping[str, float], look: IntervalTimes, batch: int) -> None:
        """Print the line and the ranks that were slow twice in a row, which is no accident. Then write the record.

        Args:
            batch: images per rank and step.
        """
        self.say(line)
        slow = slow_ranks(look.everyone) if step > 1 else []
        for rank in (r for r in slow if r in self._slow):
            self.say(straggler_line(rank, self.hosts[rank], look.everyone))
        self._slow = slow
        if self._metrics:
            measured: dict[str, float | list[float]] = {
                "images_per_s": look.interval.images_per_s,
                "input_wait": look.interval.input_wait,
                "ranks": self.ranks.size,
                **mean_values(look.everyone),
                **rank_values(look.everyone, batch),
            }
            self._metrics.write("train", step, {**values, **measured})

    def tell_evaluation(self, step: int, lines: str, values: Mapping[str, float]) -> None:
        """Print the lines and write the record of an evaluation."""
        self.say(lines)
        if self._metrics:
            self._metrics.write("eval", step, values)
