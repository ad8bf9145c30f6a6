"""Identity of a process that survives reuse of its PID: host, boot and start time."""

import os
import socket
import time
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, kw_only=True)
class ProcessId:
    """Identity of a process on one host, distinct from that of later processes with the same PID."""

    host: str
    pid: int
    started: int  # in the kernel's clock ticks since boot
    boot: str = ""  # the kernel's id of that boot

    @property
    def is_of_this_boot(self) -> bool:
        """Return True if it was started on this machine since its last boot. Only then can its end be observed here."""
        return self.host == socket.gethostname() and self.boot in ("", boot_id())

    def is_of_an_earlier_boot(self, seen: float) -> bool:
        """Return True if it was started on this machine before its last boot, and so has ended.

        seen: when it was last known to live. If that is after the boot, another machine has the same hostname.
        """
        is_of_this_host = self.host == socket.gethostname() and self.boot not in ("", boot_id())
        return is_of_this_host and seen < booted()

    @property
    def is_alive(self) -> bool:
        """Return True if this very process runs on this machine."""
        try:
            return self.is_of_this_boot and start_ticks(self.pid) == self.started
        except OSError:
            return False

    @property
    def is_stopped(self) -> bool:
        """Return True if it runs on this machine but is stopped by SIGSTOP or a debugger."""
        return self.is_alive and is_stopped(self.pid)

    def belongs_to(self, uid: int) -> bool:
        """Return True if it runs on this machine as this user."""
        try:
            return self.is_alive and Path(f"/proc/{self.pid}").stat().st_uid == uid
        except OSError:
            return False


def process_id(pid: int) -> ProcessId:
    """Return the identity of a process of this machine. Raises OSError if no process has this PID."""
    return ProcessId(host=socket.gethostname(), pid=pid, started=start_ticks(pid), boot=boot_id())


def this_process() -> ProcessId:
    """Return the identity of the calling process."""
    return process_id(os.getpid())


def boot_id() -> str:
    """Return the kernel's id of the current boot."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def booted() -> float:
    """Return the time of this machine's boot in seconds since 1970, by its current clock."""
    return time.time() - float(Path("/proc/uptime").read_text().split()[0])


def is_stopped(pid: int) -> bool:
    """Return True if a process of this machine is stopped by SIGSTOP or a debugger."""
    try:
        return _stat(pid)[0] in (b"T", b"t")
    except OSError:
        return False


def start_ticks(pid: int) -> int:
    """Return when a process began, in clock ticks since boot. Raises OSError if it is gone or a zombie."""
    stat = _stat(pid)
    if stat[0] in (b"Z", b"X"):
        raise ProcessLookupError(pid)
    return int(stat[19])


def _stat(pid: int) -> list[bytes]:
    """Return the fields of the process's /proc/PID/stat, from its state on."""
    return Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
