"""Snapshot of hosts, GPUs, ranks and jobs at one moment."""

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from cluster.hang_detection.rank_state import RankPhase
from cluster.hosts import Host


class Visibility(enum.StrEnum):
    """Visibility of a host."""

    SEEN = "seen"
    AWAITED = "awaited"  # its first answer is pending
    SILENT = "silent"  # its answer is overdue
    NONSENSE = "nonsense"  # its answer is malformed
    GONE = "gone"  # no connection, or the reporter has exited there


@dataclass(frozen=True, kw_only=True)
class GpuState:
    """State of a GPU; None for values that it does not report."""

    index: int
    use: float | None  # share of the last second in which a kernel ran
    memory_used: float | None  # bytes
    memory_total: float | None
    celsius: float | None
    watts: float | None
    watts_limit: float | None


@dataclass(frozen=True, kw_only=True)
class RankSnapshot:
    """State of a rank: its heartbeat, and its values from the trainer's last record."""

    job: str
    attempt: int
    rank: int
    step: int  # steps done
    phase: RankPhase | None
    silent_s: float  # since its last heartbeat
    images_per_s: float | None = None  # its share of the job's
    own_images_per_s: float | None = None  # as if it never waited for the others
    input_share: float | None = None  # share of a step spent waiting for the next batch
    wait_share: float | None = None  # share of a step spent waiting for gradients: for slower ranks, the network


@dataclass(frozen=True, kw_only=True)
class Rates:
    """Rates between two answers of a host."""

    cpu: float  # share of all its cores
    net_in: float  # bytes per second
    net_out: float
    disk_read: float
    disk_written: float


@dataclass(frozen=True, kw_only=True)
class Vitals:
    """Content of one answer of a host."""

    now: float  # seconds by the host's monotonic clock
    cpu_ticks: tuple[int, int]  # busy, all
    cores: int
    memory_used: int  # bytes
    memory_total: int
    net: tuple[int, int]  # bytes in and out since boot
    disk: tuple[int, int]  # bytes read and written
    full: float  # used share of its fullest disk
    gpus: tuple[GpuState, ...]
    gpu_trouble: str
    ping_s: float | None  # to another host and back, the shortest of three ways; None where pings are not answered
    ranks: tuple[RankSnapshot, ...]


@dataclass(frozen=True, kw_only=True)
class Odd:
    """Outlier: a value of one host that differs from those of the others."""

    what: str
    value: float
    usual: float  # median of the others and itself
    distance: float  # in units of the ordinary difference; above 1
    text: str  # message for people


@dataclass(frozen=True, kw_only=True)
class HostState:
    """State of a host."""

    host: Host
    sight: Visibility
    why: str = ""  # why it is not seen
    answer_s: float | None = None  # from query to answer, the shorter one of the last two
    ping_s: float | None = None  # to another host and back, the shortest of three ways, the longer of the last two
    vitals: Vitals | None = None  # newest answer; the last one while it is not seen
    rates: Rates | None = None  # None before its second answer
    odd: tuple[Odd, ...] = ()  # the oddest first

    @property
    def is_seen(self) -> bool:
        """Return True if the host's values are current."""
        return self.sight is Visibility.SEEN


@dataclass(frozen=True, kw_only=True)
class JobSeen:
    """State of an active job."""

    id: str
    name: str
    state: str
    attempt: int
    np: int
    steps: int | None  # planned steps, if its trainer reports them
    step: int | None  # steps done by the furthest rank
    images_per_s: float | None  # of all ranks
    started: str
    hosts: tuple[str, ...]
    slots: Mapping[str, tuple[int, ...]] = field(default_factory=dict)  # slots that it has, by host address
    cause: str = ""  # cause of the failure, during recovery


@dataclass(frozen=True, kw_only=True)
class ClusterSnapshot:
    """Snapshot of all hosts and jobs at one moment."""

    time: float  # seconds since 1970
    cluster: str
    hosts: tuple[HostState, ...]
    jobs: tuple[JobSeen, ...]
    jobs_trouble: str = ""  # why the jobs are not known

    def to_json(self) -> dict[str, Any]:
        """Return the frame as a JSON object; ratios are shares of 1, sizes bytes, times seconds."""
        return {
            "time": round(self.time, 3),
            "cluster": self.cluster,
            "hosts": [_host_record(h) for h in self.hosts],
            "jobs": [vars(j) for j in self.jobs],
            "jobs_trouble": self.jobs_trouble,
        }


def _host_record(seen: HostState) -> dict[str, Any]:
    vitals = seen.vitals
    return {
        "rank": seen.host.rank,
        "address": seen.host.address,
        "sight": str(seen.sight),
        "why": seen.why,
        "answer_s": _short(seen.answer_s),
        "ping_s": seen.ping_s and round(seen.ping_s, 6),
        "cores": vitals and vitals.cores,
        "memory_used": vitals and vitals.memory_used,
        "memory_total": vitals and vitals.memory_total,
        "disk_full": vitals and _short(vitals.full),
        "rates": seen.rates and {name: _short(value) for name, value in vars(seen.rates).items()},
        "gpus": [vars(gpu) for gpu in vitals.gpus] if vitals else [],
        "gpu_trouble": vitals.gpu_trouble if vitals else "",
        "ranks": [_rank_record(rank) for rank in vitals.ranks] if vitals else [],
        "odd": [vars(one) for one in seen.odd],
    }


def _rank_record(rank: RankSnapshot) -> Mapping[str, Any]:
    phase = None if rank.phase is None else rank.phase.name.lower()
    return {**{name: _short(value) for name, value in vars(rank).items()}, "phase": phase}


def _short(value: Any) -> Any:
    return round(value, 4) if isinstance(value, float) else value
