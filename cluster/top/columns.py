"""Columns of the table: content, width, and which are dropped on a narrow terminal."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from cluster.top.snapshot import GpuState, HostState, RankSnapshot

_UNITS = ("", "K", "M", "G", "T", "P")


@dataclass(frozen=True, kw_only=True)
class Column:
    """Column of the table. Values are text; "" if unknown."""

    title: str
    width: int
    of_host: Callable[[HostState], str]
    keep: int  # priority: on a narrow terminal the lowest are dropped first
    odd: tuple[str, ...] = ()  # outliers that are marked in this column
    of_rank: Callable[[RankSnapshot, GpuState | None], str] = lambda rank, gpu: ""
    kind: str = "host"  # "gpu" and "rank" columns appear only if there are any


def size(amount: float | None) -> str:
    """Format bytes, or bytes per second, in four characters: 999, 1.2K, 34M, 5.6G (powers of 1000)."""
    if amount is None:
        return ""
    for unit in _UNITS:
        if amount < 999.5:
            return f"{amount:.0f}" if not unit else f"{amount:.{1 if amount < 9.95 else 0}f}{unit}"
        amount /= 1000
    return "huge"


def percent(share: float | None) -> str:
    """Format a share of 1 as a percentage without the sign; "" for None."""
    return "" if share is None else f"{100 * share:.0f}"


def ping(seconds: float | None) -> str:
    """Format seconds as milliseconds; "" for None."""
    return "" if seconds is None else f"{1000 * seconds:.{2 if seconds < 0.01 else 0}f}"


def _mean(values: Sequence[float | None]) -> float | None:
    told = [v for v in values if v is not None]
    return sum(told) / len(told) if told else None


def _most(values: Sequence[float | None]) -> float | None:
    return max((v for v in values if v is not None), default=None)


def _least(values: Sequence[float | None]) -> float | None:
    return min((v for v in values if v is not None), default=None)


def _sum(values: Sequence[float | None]) -> float | None:
    told = [v for v in values if v is not None]
    return sum(told) if told else None


def gpus(seen: HostState) -> tuple[GpuState, ...]:
    """Return the host's GPUs."""
    return seen.vitals.gpus if seen.vitals else ()


def ranks(seen: HostState) -> tuple[RankSnapshot, ...]:
    """Return the ranks on the host."""
    return seen.vitals.ranks if seen.vitals else ()


def _rate(name: str) -> Callable[[HostState], str]:
    return lambda seen: size(getattr(seen.rates, name)) if seen.rates else ""


def _whole(value: float | None) -> str:
    return "" if value is None else f"{value:.0f}"


def _speed(value: float | None) -> str:
    return "" if value is None else f"{value:.{1 if value < 999.95 else 0}f}"


def _rank_numbers(seen: HostState) -> str:
    found = sorted({rank.rank for rank in ranks(seen)})
    return "" if not found else str(found[0]) if len(found) == 1 else f"{found[0]}-{found[-1]}"


def _step(rank: RankSnapshot) -> str:
    doing = "" if rank.phase is None or rank.phase.name == "STEP" else f" {rank.phase.name.lower()}"
    return f"{rank.step}{doing}"


def _host_step(seen: HostState) -> str:
    found = ranks(seen)
    return _step(min(found, key=lambda rank: rank.step)) if found else ""


COLUMNS = (
    Column(
        title="CPU%", width=4, keep=90, odd=("cpu",), of_host=lambda h: percent(h.rates.cpu if h.rates else None)
    ),
    Column(
        title="MEM%", width=4, keep=70, odd=("memory",),
        of_host=lambda h: percent(h.vitals.memory_used / h.vitals.memory_total if h.vitals else None),
    ),
    Column(title="IN/s", width=5, keep=60, of_host=_rate("net_in")),
    Column(title="OUT/s", width=5, keep=60, of_host=_rate("net_out")),
    Column(title="READ/s", width=6, keep=20, of_host=_rate("disk_read")),
    Column(title="WRIT/s", width=6, keep=20, of_host=_rate("disk_written")),
    Column(title="DISK%", width=5, keep=50, of_host=lambda h: percent(h.vitals.full if h.vitals else None)),
    Column(title="PING", width=5, keep=80, odd=("ping", "answer"), of_host=lambda h: ping(h.ping_s)),
    Column(
        title="GPU%", width=4, keep=95, odd=("gpu",), kind="gpu",
        of_host=lambda h: percent(_mean([g.use for g in gpus(h)])),
        of_rank=lambda rank, gpu: percent(gpu.use) if gpu else "",
    ),
    Column(
        title="GMEM%", width=5, keep=65, kind="gpu",
        of_host=lambda h: percent(_most([share_of_memory(g) for g in gpus(h)])),
        of_rank=lambda rank, gpu: percent(share_of_memory(gpu)) if gpu else "",
    ),
    Column(
        title="°C", width=3, keep=75, odd=("heat",), kind="gpu",
        of_host=lambda h: _whole(_most([g.celsius for g in gpus(h)])),
        of_rank=lambda rank, gpu: _whole(gpu.celsius) if gpu else "",
    ),
    Column(
        title="WATT", width=4, keep=55, odd=("watts",), kind="gpu",
        of_host=lambda h: _whole(_sum([g.watts for g in gpus(h)])),
        of_rank=lambda rank, gpu: _whole(gpu.watts) if gpu else "",
    ),
    Column(
        title="RANK", width=7, keep=40, kind="rank", of_host=_rank_numbers, of_rank=lambda rank, gpu: str(rank.rank)
    ),
    Column(title="STEP", width=15, keep=85, kind="rank", of_host=_host_step, of_rank=lambda rank, gpu: _step(rank)),
    Column(
        title="IMG/s", width=7, keep=88, kind="rank",
        of_host=lambda h: _speed(_sum([r.images_per_s for r in ranks(h)])),
        of_rank=lambda rank, gpu: _speed(rank.images_per_s),
    ),
    Column(
        title="OWN/s", width=7, keep=84, odd=("own img/s",), kind="rank",
        of_host=lambda h: _speed(_sum([r.own_images_per_s for r in ranks(h)])),
        of_rank=lambda rank, gpu: _speed(rank.own_images_per_s),
    ),
    Column(
        title="INPUT%", width=6, keep=82, odd=("input",), kind="rank",
        of_host=lambda h: percent(_most([r.input_share for r in ranks(h)])),
        of_rank=lambda rank, gpu: percent(rank.input_share),
    ),
    Column(
        title="WAIT%", width=5, keep=86, odd=("wait",), kind="rank",
        of_host=lambda h: percent(_least([r.wait_share for r in ranks(h)])),
        of_rank=lambda rank, gpu: percent(rank.wait_share),
    ),
)  # fmt: skip


def share_of_memory(gpu: GpuState) -> float | None:
    """Return the used share of a GPU's memory; None if it is not known."""
    return gpu.memory_used / gpu.memory_total if gpu.memory_used is not None and gpu.memory_total else None


def chosen(hosts: Sequence[HostState], width: int) -> list[Column]:
    """Return the columns that have values and fit into the width."""
    kinds = {"host"}
    kinds |= {"gpu"} if any(gpus(h) for h in hosts) else set()
    kinds |= {"rank"} if any(ranks(h) for h in hosts) else set()
    wanted = [c for c in COLUMNS if c.kind in kinds]
    while wanted and sum(c.width + 1 for c in wanted) > width:
        wanted.remove(min(wanted, key=lambda c: c.keep))
    return wanted
