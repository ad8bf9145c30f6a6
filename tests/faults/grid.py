"""The grid of faults: every combination of what breaks, on which host, at which moment, under which command.

A drawn trial is one `Cell`. Nothing here knows what the right message is; `trial` holds each command to promises that
are the same for all of them.
"""

import itertools
import random
import subprocess
import tempfile
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from cluster.lab import lab as labs
from cluster.lab import nodes
from cluster.lab.record import Lab, LabHost

COMMANDS = ("run", "copy", "health", "kill", "train", "resume", "stop", "logs")
PLACES = ("master", "worker", "last")
MOMENTS = ("before", "at once", "midway")

Undo = Callable[[], object]


@dataclass(frozen=True, order=True)
class Cell:
    """One trial."""

    command: str
    fault: str
    place: str
    moment: str

    def __str__(self) -> str:
        return f"{self.command}: {self.fault} on {self.place}, {self.moment}"


def inside(lab: Lab, host: LabHost, script: str) -> str:
    """Run shell text in a lab host, as its root, and what it prints; what it starts in the background stays there."""
    pid = nodes.running(lab.name).get(host.name)
    if pid is None:
        return ""
    words = ["nsenter", "-t", str(pid), "--all", "env", f"DLAMI_LAB={lab.name}", "sh", "-c", script]
    with tempfile.TemporaryFile("w+") as out:
        subprocess.run(words, timeout=30, check=False, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.DEVNULL)
        out.seek(0)
        return out.read()


def _in_host(do: str, undo: str) -> Callable[[Lab, LabHost], Undo]:
    def fault(lab: Lab, host: LabHost) -> Undo:
        inside(lab, host, do)
        return lambda: inside(lab, host, undo)

    return fault


def _crash(lab: Lab, host: LabHost) -> Undo:
    labs.crash(lab, host)
    return lambda: labs.heal(lab, [host])


def _reboot(lab: Lab, host: LabHost) -> Undo:
    labs.crash(lab, host)
    labs.heal(lab, [host])
    return lambda: None


def _cut(lab: Lab, host: LabHost) -> Undo:
    labs.cut(lab, host)
    return lambda: labs.heal(lab, [host])


def _slow(lab: Lab, host: LabHost) -> Undo:
    labs.slow(lab, host, mbit=100, delay_ms=None)
    return lambda: labs.heal(lab, [host])


def _interrupted(lab: Lab, host: LabHost) -> Undo:
    """Silence for three seconds: too short to be dead, long enough for packets to be lost."""
    labs.cut(lab, host)
    timer = threading.Timer(3, labs.heal, (lab, [host]))
    timer.start()
    return timer.join


TAGGED = r"grep -lzE '^DLAMI_(RUN|JOB)=' /proc/[0-9]*/environ 2>/dev/null | cut -d/ -f3"

FAULTS: dict[str, Callable[[Lab, LabHost], Undo]] = {
    "power cut": _crash,
    "power cut and back": _reboot,
    "network cut": _cut,
    "slow line": _slow,
    "network gone for 3 s": _interrupted,
    "sshd frozen": _in_host("pkill -STOP -x sshd", "pkill -CONT -x sshd"),
    "sshd's sessions killed": _in_host("pkill -9 -f 'sshd: .*(notty|pts|root)'", "true"),
    "our processes frozen": _in_host(f"kill -STOP $({TAGGED}); true", f"kill -CONT $({TAGGED}); true"),
    "our processes get TERM": _in_host(f"kill -TERM $({TAGGED}); true", "true"),
    "our processes killed": _in_host(f"kill -KILL $({TAGGED}); true", "true"),
    "/tmp full": _in_host("mount -t tmpfs -o size=64k tmpfs /tmp && head -c 1m /dev/zero >/tmp/full", "umount -l /tmp"),
    "/shared gone": _in_host("umount -l /shared", "umount -l /shared; true"),
    "/shared read-only": _in_host("mount -o remount,bind,ro /shared", "mount -o remount,bind,rw /shared"),
    "/shared full": _in_host(
        "mount -t tmpfs -o size=256k tmpfs /shared && head -c 1m /dev/zero >/shared/full", "umount -l /shared"
    ),
    "no python": _in_host(
        "for p in /usr/bin/python3 $(readlink -f /usr/bin/python3); do mount --bind /dev/null $p; done",
        "for p in $(readlink -f /usr/bin/python3) /usr/bin/python3; do umount -l $p; done",
    ),
    "a talkative .bashrc": _in_host(
        "cp -n ~/.bashrc ~/.bashrc.kept; { echo 'echo hello from bashrc'; cat ~/.bashrc.kept; } >~/.bashrc",
        "mv ~/.bashrc.kept ~/.bashrc",
    ),
    "no mpirun": _in_host(
        "mount --bind /dev/null $(readlink -f $(command -v orted))", "umount -l $(readlink -f $(command -v orted))"
    ),
    "few open files": _in_host(
        "for p in $(pgrep -x sshd); do prlimit -p $p --nofile=12:12; done",
        "for p in $(pgrep -x sshd); do prlimit -p $p --nofile=1024:4096; done",
    ),
    "a foreign hog": _in_host("for i in 1 2 3 4 5 6; do (timeout 60 sh -c 'while :; do :; done' &) ; done", "true"),
}
OPERATOR = ("Ctrl-C", "Ctrl-C twice", "killed", "terminal gone", "output closed")


def cells() -> Iterator[Cell]:
    """All of the grid: faults of hosts in every place, and what can happen to the operator's own command."""
    for command, fault, place, moment in itertools.product(COMMANDS, FAULTS, PLACES, MOMENTS):
        yield Cell(command, fault, place, moment)
    for command, fault, moment in itertools.product(COMMANDS, OPERATOR, MOMENTS[1:]):
        yield Cell(command, fault, "operator", moment)


def drawn(seed: int, count: int) -> list[Cell]:
    """So many different cells: as many of each fault as can be, in a random order that the seed decides."""
    chance = random.Random(seed)
    by_fault: dict[str, list[Cell]] = {}
    for cell in cells():
        by_fault.setdefault(cell.fault, []).append(cell)
    piles = [chance.sample(pile, len(pile)) for pile in by_fault.values()]
    chance.shuffle(piles)
    return list(itertools.islice((c for layer in itertools.zip_longest(*piles) for c in layer if c), count))
