"""Detection of the ranks that the others wait for, from each rank's own work. Pure functions."""

import statistics
from collections.abc import Sequence

from trainer.common.ranks.clock import Times

SLOW = 1.3  # times the median of the ranks' own work


def slow_ranks(everyone: Sequence[Times]) -> list[int]:
    """Return the ranks whose own work takes clearly longer than the median. All others wait for them at every step.

    Returns none if computing was not timed, as in a deterministic run: input time alone is no evidence.
    """
    if not any(t.compute_s for t in everyone):
        return []
    usual = statistics.median(t.own_s for t in everyone)
    return [rank for rank, t in enumerate(everyone) if t.own_s > SLOW * usual]


def straggler_line(rank: int, host: str, everyone: Sequence[Times]) -> str:
    """Return the sentence that reports one slow rank."""
    own, usual = everyone[rank], statistics.median(t.own_s for t in everyone)
    cause = "input" if own.input_s > 0.5 * (own.own_s - usual) else "compute"
    return (
        f"slow: rank {rank} on {host} needs {own.own_s:.3f} s of its own per step, the median {usual:.3f} s ({cause})"
    )


def rank_values(everyone: Sequence[Times], batch: int) -> dict[str, list[float]]:
    """Return the metrics per rank: its speed in images/s as if it never waited for the others, and its times."""
    return {
        "rank_images_per_s": [round(batch / max(t.own_s, 1e-9), 2) for t in everyone],
        "rank_input_s": [round(t.input_s, 5) for t in everyone],
        "rank_compute_s": [round(t.compute_s, 5) for t in everyone],
        "rank_reduce_s": [round(t.reduce_s, 5) for t in everyone],
    }


def mean_values(everyone: Sequence[Times]) -> dict[str, float]:
    """Return the metrics of the time split: mean over the ranks, in seconds per step."""
    return {name: statistics.fmean(getattr(t, name) for t in everyone) for name in ("input_s", "compute_s", "reduce_s")}
