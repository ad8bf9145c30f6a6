"""Kernel counters of this host: CPU, memory, network, disks."""

from __future__ import annotations

import os
from typing import Any

SCRATCH = "/opt/dlami/nvme"
_SECTOR = 512  # bytes; the unit of /proc/diskstats for every disk
_NO_DISK = ("loop", "ram", "dm-", "md", "zram", "sr", "fd", "nbd")
# EFA traffic bypasses the network device: bytes sent, received and moved by RDMA.
_EFA_IN = ("rx_bytes", "rdma_read_bytes", "rdma_write_recv_bytes")
_EFA_OUT = ("tx_bytes", "rdma_read_resp_bytes", "rdma_write_bytes")


def counters() -> dict[str, Any]:
    """Return CPU ticks, memory in bytes, bytes of network and disk traffic since boot, and the used share of disks."""
    return {"cpu": _cpu(), "memory": _memory(), "net": _net(), "disk": _disk(), "full": _full()}


def _cpu() -> dict[str, int]:
    """Return the ticks of all cores, busy and in total, and the number of cores."""
    with open("/proc/stat") as file:
        lines = file.read().splitlines()
    user, nice, system, idle, waits, irq, softirq, steal = map(int, lines[0].split()[1:9])
    busy = user + nice + system + irq + softirq + steal
    cores = sum(line.startswith("cpu") for line in lines) - 1
    return {"busy": busy, "all": busy + idle + waits, "cores": cores}


def _memory() -> dict[str, int]:
    with open("/proc/meminfo") as file:
        fields = dict(line.split(":", 1) for line in file)
    total, available = (int(fields[name].split()[0]) * 1024 for name in ("MemTotal", "MemAvailable"))
    return {"total": total, "used": total - available}


def _net() -> dict[str, int]:
    """Return bytes in and out of network cards; if none is visible, of all devices but the loopback."""
    with open("/proc/net/dev") as file:
        lines = [line.partition(":") for line in file if ":" in line]
    moved = {name.strip(): fields.split() for name, _, fields in lines}
    cards = [name for name in moved if os.path.exists(f"/sys/class/net/{name}/device")]
    counted = cards or [name for name in moved if name != "lo"]
    efa_in, efa_out = _efa()
    return {
        "in": sum(int(moved[name][0]) for name in counted) + efa_in,
        "out": sum(int(moved[name][8]) for name in counted) + efa_out,
    }


def _efa() -> tuple[int, int]:
    """Return the bytes in and out of EFA cards."""
    folder = "/sys/class/infiniband"
    cards = os.listdir(folder) if os.path.isdir(folder) else []
    counts = [f"{folder}/{card}/ports/1/hw_counters/" for card in cards]
    return tuple(sum(_number(at + name) for at in counts for name in names) for names in (_EFA_IN, _EFA_OUT))  # type: ignore[return-value]


def _number(path: str) -> int:
    try:
        with open(path) as file:
            return int(file.read())
    except (OSError, ValueError):
        return 0


def _disk() -> dict[str, int]:
    """Return bytes read from and written to whole disks."""
    read = written = 0
    with open("/proc/diskstats") as file:
        for line in file:
            fields = line.split()
            name = fields[2]
            if not name.startswith(_NO_DISK) and os.path.isdir(f"/sys/block/{name}"):  # partitions have no entry there
                read, written = read + int(fields[5]) * _SECTOR, written + int(fields[9]) * _SECTOR
    return {"read": read, "written": written}


def _full() -> float:
    """Return the used share of the root or the local NVMe, whichever is fuller."""
    shares = [0.0]
    for path in ("/", SCRATCH):
        if path == "/" or os.path.ismount(path):
            stat = os.statvfs(path)
            used = stat.f_blocks - stat.f_bfree
            shares.append(used / max(1, used + stat.f_bavail))
    return max(shares)
