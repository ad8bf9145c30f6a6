"""Parser of a host's answers. A malformed answer raises Nonsense that names the fault."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from cluster.errors import ClusterError
from cluster.hang_detection.rank_state import RankPhase
from cluster.health.known_faults import SILENT_FIELDS
from cluster.health.smi import measure, unbracketed
from cluster.top.onhost.gpus import QUERY
from cluster.top.snapshot import GpuState, JobSeen, RankSnapshot, Rates, Vitals

_MIB = 1 << 20
_STALE_S = 5.0  # nvidia-smi prints every second
_LONG = 1 << 62


class Nonsense(ClusterError):
    """Error: a host's answer is malformed."""


def vitals_of(told: Any) -> Vitals:
    """Parse a host's answer. Raises Nonsense."""
    try:
        gpus, trouble = _gpus(told["gpus"])
        return Vitals(
            now=_number(told["now"]),
            cpu_ticks=(_count(told["cpu"]["busy"]), _count(told["cpu"]["all"])),
            cores=max(1, _count(told["cpu"]["cores"])),
            memory_used=_count(told["memory"]["used"]),
            memory_total=max(1, _count(told["memory"]["total"])),
            net=(_count(told["net"]["in"]), _count(told["net"]["out"])),
            disk=(_count(told["disk"]["read"]), _count(told["disk"]["written"])),
            full=_number(told["full"]),
            gpus=gpus,
            gpu_trouble=trouble,
            ping_s=None if told["ping_s"] is None else _number(told["ping_s"]),
            ranks=tuple(_rank(one) for one in told["ranks"]),
        )
    except KeyError as e:
        raise Nonsense(f"its answer has no {e}") from e
    except (TypeError, ValueError, AttributeError, OverflowError) as e:
        raise Nonsense(f"its answer is nonsense: {str(e)[:80]}") from e


def rates(before: Vitals, now: Vitals) -> Rates | None:
    """Return the rates between two answers; None if the host has booted in between, or no time has passed."""
    seconds = now.now - before.now
    ticks = now.cpu_ticks[1] - before.cpu_ticks[1]
    moved = [b - a for a, b in zip((*before.net, *before.disk), (*now.net, *now.disk), strict=True)]
    if seconds <= 0 or ticks < 0 or min(moved) < 0:
        return None
    cpu = (now.cpu_ticks[0] - before.cpu_ticks[0]) / ticks if ticks else 0.0
    net_in, net_out, read, written = (bytes_ / seconds for bytes_ in moved)
    return Rates(cpu=min(1.0, max(0.0, cpu)), net_in=net_in, net_out=net_out, disk_read=read, disk_written=written)


def gpu_of(line: str) -> GpuState:
    """Parse a line of `nvidia-smi --query-gpu --format=csv,noheader,nounits`. Raises ValueError."""
    fields = [field.strip() for field in line.split(",")]
    if len(fields) != len(QUERY.split(",")):
        raise ValueError(f"nvidia-smi: {line[:60]}")
    use, used, total, celsius, watts, limit = (_told(field) for field in fields[1:])
    return GpuState(
        index=int(fields[0]),
        use=None if use is None else use / 100,
        memory_used=None if used is None else used * _MIB,
        memory_total=None if total is None else total * _MIB,
        celsius=celsius,
        watts=watts,
        watts_limit=limit,
    )


def jobs_of(told: Any) -> tuple[tuple[JobSeen, ...], Mapping[str, Mapping[str, Any]], str]:
    """Parse the master's jobs: the jobs, their newest metrics by id, and why there are none. Raises Nonsense."""
    try:
        if told["age_s"] is None:
            return (), {}, "the shared folder does not answer on the master"
        found = told["found"]
        jobs = tuple(
            JobSeen(
                id=str(one["id"]),
                name=str(one["name"]),
                state=str(one["state"]),
                attempt=_count(one["attempt"]),
                np=_count(one["np"]),
                steps=None if one["steps"] is None else _count(one["steps"]),
                step=_step(one["metrics"]),
                images_per_s=_maybe((one["metrics"] or {}).get("images_per_s")),
                started=str(one["started"]),
                hosts=tuple(map(str, one["hosts"])),
                slots={str(a): tuple(map(_count, slots)) for a, slots in one.get("slots", {}).items()},
                cause=str(one["cause"] or ""),
            )
            for one in found
        )
        late = f"what is told of jobs is {told['age_s']:.0f} s old: the shared folder does not answer on the master"
        return jobs, {one["id"]: one["metrics"] for one in found if one["metrics"]}, late if told["age_s"] > 10 else ""
    except (KeyError, TypeError, ValueError, AttributeError) as e:
        raise Nonsense(f"what it says of jobs is nonsense: {e}") from e


def with_metrics(rank: RankSnapshot, row: Mapping[str, Any]) -> RankSnapshot:
    """Return the rank with its values from the trainer's last record; unchanged values if that has none."""

    def own(name: str) -> float | None:
        values = row.get(name)
        return _maybe(values[rank.rank]) if isinstance(values, Sequence) and rank.rank < len(values) else None

    waits, works, reduces = (own(f"rank_{name}_s") for name in ("input", "compute", "reduce"))
    whole = (waits or 0.0) + (works or 0.0) + (reduces or 0.0)
    shares = [None if part is None or whole <= 0 else part / whole for part in (waits, reduces)]
    everyones, speeds = _maybe(row.get("images_per_s")), row.get("rank_images_per_s")
    return RankSnapshot(
        **{
            **vars(rank),
            "images_per_s": everyones / len(speeds) if everyones is not None and isinstance(speeds, list) else None,
            "own_images_per_s": own("rank_images_per_s"),
            "input_share": shares[0],
            "wait_share": shares[1],
        }
    )


def _gpus(told: Any) -> tuple[tuple[GpuState, ...], str]:
    if told is None:
        return (), ""
    trouble = str(told["error"])[:120]
    age_s = told["age_s"]
    if age_s is not None and age_s > _STALE_S:
        trouble = trouble or f"nvidia-smi is silent for {age_s:.0f} s"
    found = []
    for line in told["lines"]:
        try:
            found.append(gpu_of(line))
        except ValueError:
            trouble = trouble or f"nvidia-smi says {line[:60]!r}"
    return tuple(sorted(found, key=lambda g: g.index)), trouble or _silent(told["lines"])


def _silent(lines: Sequence[str]) -> str:
    """Return the first GPU that does not answer the driver, in the driver's words."""
    fields = ((line.partition(",")[0], field.strip()) for line in lines for field in line.split(","))
    return next((f"GPU {index}: {said}" for index, said in fields if unbracketed(said) in SILENT_FIELDS), "")


def _rank(told: Any) -> RankSnapshot:
    phase = told["phase"]
    return RankSnapshot(
        job=str(told["job"]),
        attempt=_count(told["attempt"]),
        rank=_count(told["rank"]),
        step=_count(told["step"]),
        phase=RankPhase(phase) if phase in list(RankPhase) else None,
        silent_s=_number(told["silent_s"]),
    )


def _told(field: str) -> float | None:
    """Parse a value without unit; None if the GPU does not have it, or does not answer."""
    value = measure(field.strip("[]"), "")
    return None if value is None or not math.isfinite(value) else value


def _step(row: Mapping[str, Any] | None) -> int | None:
    return None if row is None else _count(row["step"]) + 1  # a record's step is the number of steps before it


def _maybe(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) and math.isfinite(value) else None


def _number(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < _LONG:
        raise ValueError(f"{value!r} is no number of that kind")
    return float(value)


def _count(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < _LONG:
        raise ValueError(f"{value!r} is no count")
    return value
