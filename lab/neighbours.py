"""Limits of the kernel's neighbour table (ARP), which all hosts of all labs share: one entry per pair of hosts.

Its usual limit, 1024, is reached by 33 hosts that all talk to each other. Beyond it packets to healthy hosts are lost.
Real hosts have a kernel each.
"""

import contextlib
import fcntl
import json
from collections.abc import Iterable, Iterator
from pathlib import Path

from cluster.errors import ConfigError
from cluster.files import write_json
from cluster.locate import LABS, lab_names
from lab.record import load_lab

LIMITS = Path("/proc/sys/net/ipv4/neigh/default")
NAMES = ("gc_thresh1", "gc_thresh2", "gc_thresh3")  # no eviction below the first; the last is the hard limit
BEFORE = LABS.parent / "neighbours.json"  # what the limits were before the first lab


def make_room(sizes: Iterable[int]) -> None:
    """Raise the limits to what labs of these sizes need. `restore` undoes that."""
    needed = sum(n * n for n in sizes)
    with _locked():
        now = _limits()
        if not now or now[NAMES[0]] >= needed:
            return
        if not BEFORE.exists():
            write_json(BEFORE, now)
        _set({name: max(value, needed * factor) for factor, (name, value) in zip((1, 2, 4), now.items(), strict=True)})


def restore() -> None:
    """Restore the original limits if they were raised and no lab is left."""
    if not BEFORE.exists():
        return
    with _locked():
        if BEFORE.exists() and not lab_names():
            _set(json.loads(BEFORE.read_text()))
            BEFORE.unlink()


def sizes() -> list[int]:
    """Return the number of hosts of each lab whose record can be read."""
    found = []
    for name in lab_names():
        with contextlib.suppress(ConfigError):
            found += [len(lab.hosts)] if (lab := load_lab(name)) else []
    return found


@contextlib.contextmanager
def _locked() -> Iterator[None]:
    """Hold the lock on the limits: one process may add hosts to a lab while another removes the last lab."""
    with BEFORE.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _limits() -> dict[str, int]:
    """Return the current limits. They are empty in a network namespace: only the kernel's first one shows them."""
    if not all((LIMITS / name).exists() for name in NAMES):
        return {}
    return {name: int((LIMITS / name).read_text()) for name in NAMES}


def _set(limits: dict[str, int]) -> None:
    for name in reversed(NAMES):
        (LIMITS / name).write_text(f"{limits[name]}\n")
