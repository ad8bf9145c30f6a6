"""A process told apart from a later one with the same number: by host, boot and start."""

import os
import socket
import time
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, kw_only=True)
class ProcessId:
    """One process of one host, whatever becomes of its number."""

    host: str
    pid: int
    started: int  # kernel's clock ticks since boot
    boot: str = ""  # the kernel's own name of that boot

    @property
    def is_of_this_boot(self) -> bool:
        """Whether it was started here since this machine's last boot, so that its end can be seen."""
        return self.host == socket.gethostname() and self.boot in ("", boot_id())

    def is_of_an_earlier_boot(self, seen: float) -> bool:
        """Whether it was started here before this machine's last boot, and has ended with that.

        seen: when it was last known to live. Since that boot: then another machine has the same name.
        """
        is_of_this_host = self.host == socket.gethostname() and self.boot not in ("", boot_id())
        return is_of_this_host and seen < booted()

    @property
    def is_alive(self) -> bool:
        """Whether that very process runs here."""
        try:
            return self.is_of_this_boot and start_ticks(self.pid) == self.started
        except OSError:
            return False

    @property
    def is_stopped(self) -> bool:
        """Whether it runs here and does nothing, because of SIGSTOP or a debugger."""
        return self.is_alive and is_stopped(self.pid)

    def belongs_to(self, uid: int) -> bool:
        """Whether it runs here as this user."""
        try:
            return self.is_alive and Path(f"/proc/{self.pid}").stat().st_uid == uid
        except OSError:
            return False


def process_id(pid: int) -> ProcessId:
    """A process of this machine. Raises OSError if there is none with this number."""
    return ProcessId(host=socket.gethostname(), pid=pid, started=start_ticks(pid), boot=boot_id())


def this_process() -> ProcessId:
    """The calling process."""
    return process_id(os.getpid())


def boot_id() -> str:
    """The kernel's own name of this boot."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def booted() -> float:
    """When this machine booted, in seconds since 1970 by its clock of today."""
    return time.time() - float(Path("/proc/uptime").read_text().split()[0])


def is_stopped(pid: int) -> bool:
    """Whether a process of this machine does nothing, because of SIGSTOP or a debugger."""
    try:
        return _stat(pid)[0] in (b"T", b"t")
    except OSError:
        return False


def start_ticks(pid: int) -> int:
    """When a process began. Raises OSError if it is gone or a zombie."""
    stat = _stat(pid)
    if stat[0] in (b"Z", b"X"):
        raise ProcessLookupError(pid)
    return int(stat[19])


def _stat(pid: int) -> list[bytes]:
    """What the kernel says of it, from its state on."""
    return Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
