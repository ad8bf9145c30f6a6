"""Activity of a rank's processes on this host: counters in /proc that stand still while a program hangs."""

from __future__ import annotations

import contextlib
import glob
from typing import Any

from cluster.hang_detection.onhost.ranks import RankProcess

_WORKER = b"TORCHELASTIC_RUN_ID="  # in the environment of torchrun's workers, each one rank


def activity(main: RankProcess, own: list[RankProcess]) -> dict[str, Any]:
    """Return processor seconds, read and written bytes of all of a rank's processes, and its main thread's switches.

    A process of another user, or one that has ended meanwhile, adds nothing.
    """
    return {
        "cpu_s": round(sum(p.cpu_s for p in own), 2),
        "io_bytes": sum(_io_bytes(p.pid) for p in own),
        "switches": _switches(main.pid),
    }


def members(found: list[RankProcess]) -> dict[int, list[RankProcess]]:
    """Return the processes of each rank, by its number; where torchrun has started workers, of each worker.

    A worker's number is that of PyTorch's world (`RANK`), which is what the program prints.
    """
    ranks: dict[int, list[RankProcess]] = {}
    workers: dict[int, dict[int, list[RankProcess]]] = {}
    for process in found:
        if process.rank is None:
            continue
        ranks.setdefault(process.rank, []).append(process)
        number = _worker_number(process.pid)
        if number is not None:
            workers.setdefault(process.rank, {}).setdefault(number, []).append(process)
    split: dict[int, list[RankProcess]] = {}
    for rank, own in ranks.items():
        split.update(workers.get(rank) or {rank: own})
    return split


def network_bytes() -> int:
    """Return how many bytes all interfaces of this host, EFA and InfiniBand too, have sent and received."""
    total = 0
    with contextlib.suppress(OSError, ValueError, IndexError), open("/proc/net/dev") as file:
        for line in file.readlines()[2:]:
            fields = line.rpartition(":")[2].split()
            total += int(fields[0]) + int(fields[8])
    for path in glob.glob("/sys/class/infiniband/*/ports/*/hw_counters/[rt]x_bytes"):
        with contextlib.suppress(OSError, ValueError), open(path) as file:
            total += int(file.read())
    return total


def _worker_number(pid: int) -> int | None:
    with contextlib.suppress(OSError, ValueError), open(f"/proc/{pid}/environ", "rb") as file:
        variables = file.read().split(b"\0")
        if any(v.startswith(_WORKER) for v in variables):
            return next((int(v[5:]) for v in variables if v.startswith(b"RANK=")), None)
    return None


def _io_bytes(pid: int) -> int:
    with contextlib.suppress(OSError, ValueError, IndexError), open(f"/proc/{pid}/io") as file:
        fields = dict(line.split(": ", 1) for line in file)
        return int(fields["rchar"]) + int(fields["wchar"])
    return 0


def _switches(pid: int) -> int:
    with contextlib.suppress(OSError, ValueError, IndexError), open(f"/proc/{pid}/task/{pid}/status") as file:
        return sum(int(line.split()[1]) for line in file if "ctxt_switches" in line)
    return 0
