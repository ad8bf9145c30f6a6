"""Goodput: the share of time in which a training progresses, given failure rates of others and our recovery times."""

from dataclasses import dataclass

# 419 unexpected interruptions in 54 days on 2,048 hosts of 8 GPUs: The Llama 3 Herd of Models, arXiv 2407.21783
FAILURES_OF_A_HOST_DAY = 419 / 54 / 2048
DAY_S = 86_400.0


@dataclass(frozen=True, kw_only=True)
class FailureCost:
    """Cost of a failure, besides the lost work since the last checkpoint.

    The defaults are the medians of benchmarks/recovery.py.
    """

    with_spare_s: float = 30.0
    replaced_s: float = 300.0
    """Time for a new instance if there is no spare. It depends on AWS and was not measured here."""
    save_every_s: float = 30.0
    save_s: float = 0.3
    """Time that training waits for one checkpoint: the limit, 1 % of the interval."""


def goodput(
    hosts: int, spares: int, healing: FailureCost, failures_of_a_host_day: float = FAILURES_OF_A_HOST_DAY
) -> float:
    """Return useful seconds over all seconds.

    Failures come at hosts x rate. Each costs the recovery, and half a checkpoint interval of work on average (Daly,
    2006, to first order). A spare is missing while its own replacement starts. The probability that a failure finds no
    spare is that of a load finding all servers busy (Erlang's loss formula).
    """
    per_s = hosts * failures_of_a_host_day / DAY_S
    without = _erlang(per_s * healing.replaced_s, spares)
    heal_s = (1.0 - without) * healing.with_spare_s + without * (healing.with_spare_s + healing.replaced_s)
    share = healing.save_every_s / (healing.save_every_s + healing.save_s)
    return share / (1.0 + per_s * (heal_s + healing.save_every_s / 2.0))


def _erlang(load: float, servers: int) -> float:
    """Return the probability that all servers are busy (Erlang B)."""
    blocked = 1.0
    for n in range(1, servers + 1):
        blocked = load * blocked / (n + load * blocked)
    return blocked
