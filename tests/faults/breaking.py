"""What breaks on a lab's host, and how it is mended again. A fault that met nothing raises `NothingThere`."""

import subprocess
import tempfile
import threading
from collections.abc import Callable
from dataclasses import dataclass

from cluster.inventory import ROOT
from lab import lab as labs
from lab import nodes
from lab.record import Lab, LabHost
from tests import dead_server

Undo = Callable[[], object]
TAGGED = r"grep -lzE '^DLAMI_(RUN|JOB)=' /proc/[0-9]*/environ 2>/dev/null | cut -d/ -f3"
MPIRUN = "pgrep -f '[m]pirun .*hostfile'"
# With this as `sitecustomize.py` on its PYTHONPATH a Python that gets SIGUSR2 never comes out of a loop again.
LOOPS = """\
import signal
def loop(*_):
    while True:
        sum(range(10000))
signal.signal(signal.SIGUSR2, loop)
"""
FULL = "filling"  # the file that fills the shared folder


class NothingThere(Exception):
    """The fault found nothing on the host that it could break: no trial."""


@dataclass(frozen=True)
class Fault:
    """How to break something; the function that is returned mends it."""

    strike: Callable[[Lab, LabHost], Undo]
    of_processes: bool = False  # there have to be processes of ours
    of_jobs: bool = False  # there has to be a job's supervisor
    of_launch: bool = False  # only what starts ranks meets it
    only_on_master: bool = False


def inside(lab: Lab, host: LabHost, script: str, *, check: bool = False) -> str:
    """Run shell text in a lab host, as its root, and what it prints; what it starts in the background stays there.

    Nothing if the host is down. check: raises NothingThere if the script fails, or the host is down.
    """
    pid = nodes.running(lab.name).get(host.name)
    if pid is None:
        if check:
            raise NothingThere(f"{host.name} is down")
        return ""
    words = ["nsenter", "-t", str(pid), "--all", "env", f"DLAMI_LAB={lab.name}", "sh", "-c", script]
    with tempfile.TemporaryFile("w+") as out:
        code = subprocess.run(words, timeout=60, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.DEVNULL)
        out.seek(0)
        if check and code.returncode:
            raise NothingThere(f"{script!r} ended with {code.returncode} on {host.name}")
        return out.read()


def _in_host(do: str, undo: str = "true", **more: bool) -> Fault:
    """A script that fails unless it has broken something, and one that mends it."""

    def strike(lab: Lab, host: LabHost) -> Undo:
        inside(lab, host, f"set -e; {do}", check=True)
        return lambda: inside(lab, host, undo)

    return Fault(strike, **more)


def _signalled(number: str, pids: str, undo: str = "true", **more: bool) -> Fault:
    return _in_host(f'p=$({pids}); [ -n "$p" ]; kill -{number} $p || true', undo, **more)


def _boot_again(lab: Lab, host: LabHost) -> None:
    if host.name in nodes.running(lab.name):
        labs.crash(lab, host)
    labs.heal(lab, [host])


def _crash(lab: Lab, host: LabHost) -> Undo:
    labs.crash(lab, host)
    return lambda: labs.heal(lab, [host])


def _reboot(lab: Lab, host: LabHost) -> Undo:
    _boot_again(lab, host)
    return lambda: None


def _cut(lab: Lab, host: LabHost) -> Undo:
    labs.cut(lab, host)
    return lambda: labs.heal(lab, [host])


def _slow(lab: Lab, host: LabHost) -> Undo:
    labs.slow(lab, host, mbit=40, delay_ms=None)
    return lambda: labs.heal(lab, [host])


def _interrupted(lab: Lab, host: LabHost) -> Undo:
    """Silence for three seconds: too short to be dead, long enough for packets to be lost."""
    labs.cut(lab, host)
    timer = threading.Timer(3, labs.heal, (lab, [host]))
    timer.start()
    return timer.join


def _sshd_gone(lab: Lab, host: LabHost) -> Undo:
    inside(lab, host, "pkill -9 -x sshd", check=True)
    return lambda: _boot_again(lab, host)


def _share_full(lab: Lab, _host: LabHost) -> Undo:
    """Every host's, as on a file system with a quota: what is there stays, nothing more goes in."""
    file = lab.shared / FULL
    with file.open("wb", buffering=0) as out:
        try:
            while True:
                out.write(bytes(1 << 20))
        except OSError:
            pass
    return lambda: file.unlink(missing_ok=True)


def _share_hangs(lab: Lab, host: LabHost) -> Undo:
    inside(lab, host, f"/usr/bin/python3 -c '{dead_server.PROGRAM}'", check=True)
    return lambda: inside(lab, host, "kill -9 $(cat /run/dead-server); umount -l /shared")


_PYTHONS = f"$(readlink -f '{ROOT}/.venv/bin/python') $(readlink -f /usr/bin/python3)"
_SUPERVISOR = "pgrep -f 'cluster[.]jobs[.]supervise'"

FAULTS: dict[str, Fault] = {
    "power cut": Fault(_crash),
    "power cut and back": Fault(_reboot),
    "network cut": Fault(_cut),
    "slow line": Fault(_slow),
    "network gone for 3 s": Fault(_interrupted),
    "sshd frozen": _in_host("pkill -STOP -x sshd", "pkill -CONT -x sshd"),
    "sshd gone": Fault(_sshd_gone),
    "sshd's sessions killed": _in_host("pkill -9 -f '[s]shd: .*(notty|pts|root)'"),
    "our processes frozen": _signalled("STOP", TAGGED, f"kill -CONT $({TAGGED})", of_processes=True),
    "our processes get TERM": _signalled("TERM", TAGGED, of_processes=True),
    "our processes killed": _signalled("KILL", TAGGED, of_processes=True),
    "mpirun frozen": _signalled("STOP", MPIRUN, f"kill -CONT $({MPIRUN})", of_jobs=True, only_on_master=True),
    "mpirun killed": _signalled("KILL", MPIRUN, of_jobs=True, only_on_master=True),
    "supervisor frozen": _signalled(
        "STOP", _SUPERVISOR, f"kill -CONT $({_SUPERVISOR})", of_jobs=True, only_on_master=True
    ),
    "supervisor killed": _signalled("KILL", _SUPERVISOR, of_jobs=True, only_on_master=True),
    "/tmp full": _in_host(
        "mount -o remount,size=$(($(df --output=used -k /tmp | tail -n 1) + 64))k /tmp; "
        "head -c 1m /dev/zero >/tmp/filling || true; [ -s /tmp/filling ]",
        "rm -f /tmp/filling; mount -o remount,size=50% /tmp",
    ),
    "/shared gone": _in_host(
        "mkdir -p /run/kept; mount --bind /shared /run/kept; umount -l /shared",
        "mount --bind /run/kept /shared; umount -l /run/kept",
    ),
    "/shared read-only": _in_host(
        "mount --bind /shared /shared; mount -o remount,bind,ro /shared", "umount -l /shared"
    ),
    "/shared full": Fault(_share_full, only_on_master=True),
    "/shared hangs": Fault(_share_hangs),
    "no python": _in_host(
        f"for p in {_PYTHONS}; do mount --bind /dev/null $p; done; ! '{ROOT}/.venv/bin/python' -c 1",
        "umount -l $(grep -o '/[^ ]*/python3[^ ]*' /proc/mounts)",
    ),
    "a talkative .bashrc": _in_host(
        "cp ~/.bashrc ~/.bashrc.kept; { echo 'echo hello from bashrc'; cat ~/.bashrc.kept; } >~/.bashrc",
        "mv ~/.bashrc.kept ~/.bashrc",
    ),
    "no mpirun": _in_host(
        "readlink -f $(command -v orted) >/run/orted; mount --bind /dev/null $(cat /run/orted)",
        "umount -l $(cat /run/orted)",
        of_launch=True,
    ),
    "few open files": _in_host(
        "for p in $(pgrep -x sshd); do prlimit -p $p --nofile=12:; done",
        "for p in $(pgrep -x sshd); do prlimit -p $p --nofile=1024:; done",
    ),
    "a foreign hog": _in_host(
        "for i in 1 2 3; do sh -c 'while :; do :; done' & echo $! >>/run/hogs; done",
        "kill $(cat /run/hogs); rm /run/hogs",
    ),
}
