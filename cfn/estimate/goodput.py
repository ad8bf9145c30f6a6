"""How much of the time a training gets on, when hosts fail as they do elsewhere and it heals as it does here."""

from dataclasses import dataclass

# 419 unexpected interruptions in 54 days on 2,048 hosts of 8 GPUs: The Llama 3 Herd of Models, arXiv 2407.21783
FAILURES_OF_A_HOST_DAY = 419 / 54 / 2048
DAY_S = 86_400.0


@dataclass(frozen=True, kw_only=True)
class Healing:
    """What a failure costs, beside the work since the last checkpoint; defaults: benchmarks/recovery.py's medians."""

    with_spare_s: float = 30.0
    replaced_s: float = 300.0
    """Where no spare waits: an instance has to start. Not measured here: AWS's own time."""
    save_every_s: float = 30.0
    save_s: float = 0.3
    """That training waits for one checkpoint: its limit, 1 % of the interval."""


def goodput(hosts: int, spares: int, healing: Healing, failures_of_a_host_day: float = FAILURES_OF_A_HOST_DAY) -> float:
    """Useful seconds over all seconds.

    Failures come at hosts x rate; each costs the healing, and half an interval of work on average (Daly, 2006, to first
    order). A spare is missing while its own replacement starts, which a failure meets with the chance that a load finds
    so many servers taken (Erlang's loss formula).
    """
    per_s = hosts * failures_of_a_host_day / DAY_S
    without = _erlang(per_s * healing.replaced_s, spares)
    heal_s = (1.0 - without) * healing.with_spare_s + without * (healing.with_spare_s + healing.replaced_s)
    share = healing.save_every_s / (healing.save_every_s + healing.save_s)
    return share / (1.0 + per_s * (heal_s + healing.save_every_s / 2.0))


def _erlang(load: float, servers: int) -> float:
    """The chance that all servers are taken (Erlang B)."""
    blocked = 1.0
    for n in range(1, servers + 1):
        blocked = load * blocked / (n + load * blocked)
    return blocked
