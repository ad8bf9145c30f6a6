"""All-reduce of gradients during the backward pass: its duration, and how long ranks wait for it."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from cfn.estimate.machines import Machine

FUSED_BYTES = 64e6  # HOROVOD_FUSION_THRESHOLD, the maximum size of one all-reduce
CYCLE_S = 1e-3  # HOROVOD_CYCLE_TIME, the interval at which Horovod collects ready gradients
MESSAGE_S = {"bus": 5e-6, "efa": 15e-6, "tcp": 30e-6}  # latency of a message from one GPU to the next, by transport
NETWORK = {"efa": 0.80, "tcp": 0.65}  # share of the card's rate that NCCL reaches
BUS = 0.75


@dataclass(frozen=True)
class Gradient:
    """Gradient of one layer: its size, and when the backward pass has computed it."""

    size: float
    """Bytes."""
    at_s: float


def all_reduce_s(size: float, machine: Machine, hosts: int) -> float:
    """Return the seconds of one all-reduce of `size` bytes over all GPUs: a ring's bytes and a tree's messages.

    A ring sends 2 (n - 1) / n of the bytes over its slowest link, in 2 (n - 1) messages (Patarasuk and Yuan, 2009). A
    tree over the hosts sends as many bytes in 2 log2 n messages, which are never more (NCCL 2.4, which chooses it where
    messages dominate).
    """
    ranks = hosts * machine.gpus
    way = "efa" if machine.efa else "tcp"
    bus = BUS * machine.card.bus * 1e9
    if hosts == 1:
        rate, messages = bus, 2.0 * (machine.gpus - 1) * MESSAGE_S["bus"]
    else:
        rate = min(bus, NETWORK[way] * machine.gbit * 1e9 / 8)
        messages = 2.0 * (machine.gpus - 1) * MESSAGE_S["bus"] + 2.0 * math.log2(hosts) * MESSAGE_S[way]
    return 2.0 * (ranks - 1) / ranks * size / rate + messages


@dataclass(frozen=True)
class Summing:
    """Time of the all-reduces of one step."""

    busy_s: float
    """Total, most of it during the backward pass."""
    waited_s: float
    """Part of it after the backward pass."""


def summing(gradients: Sequence[Gradient], backward_s: float, machine: Machine, hosts: int) -> Summing:
    """Return the time of one step's all-reduces on GPUs."""
    if hosts * machine.gpus == 1:
        return Summing(0.0, 0.0)
    return in_turn(gradients, backward_s, lambda size: all_reduce_s(size, machine, hosts), CYCLE_S)


def in_turn(
    gradients: Sequence[Gradient], backward_s: float, all_reduce: Callable[[float], float], cycle_s: float
) -> Summing:
    """Return the time of one step's all-reduces, where ready gradients are sent together, one batch after another.

    Args:
        all_reduce: returns the seconds of one all-reduce of so many bytes.
        cycle_s: delay before each of them.
    """
    waiting = sorted(gradients, key=lambda g: g.at_s)
    now = busy_s = 0.0
    while waiting:
        now = max(now, waiting[0].at_s) + cycle_s
        size = 0.0
        while waiting and waiting[0].at_s <= now and (not size or size + waiting[0].size <= FUSED_BYTES):
            size += waiting.pop(0).size
        took_s = all_reduce(size)
        now += took_s
        busy_s += took_s
    return Summing(busy_s, max(0.0, now - backward_s))
