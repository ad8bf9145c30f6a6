"""Labs that the tests of health may break."""

import os
import shutil
from collections.abc import Callable, Iterator, Sequence

import pytest

from cluster.health.places import NEARLY_FULL_SHARE
from cluster.hosts import Host
from cluster.locate import LABS
from cluster.ssh.fanout import Executor
from lab import lab as labs
from lab.record import Lab

# Lab hosts share this machine's kernel log, memory and disk. The first two are replaced on them; that the disk is full
# here is said of every host, and is no matter of these tests.
_DISK = shutil.disk_usage(next(p for p in (LABS, *LABS.parents) if p.is_dir()))
OWN_DISK_IS_FULL = 1 - _DISK.free / _DISK.total > 0.98 * NEARLY_FULL_SHARE

_CALM = """\
printf '%s\\n' '#!/bin/sh' 'echo "[    0.000000] Linux version"; echo "[    0.000000] Command line"' >/usr/local/bin/dmesg
chmod 755 /usr/local/bin/dmesg
printf 'MemTotal: 64000000 kB\\nMemFree: 60000000 kB\\nMemAvailable: 60000000 kB\\n' >/run/meminfo
printf 'full avg10=0.00 avg60=0.00 avg300=0.00 total=0\\n' >/run/pressure
mount --bind /run/meminfo /proc/meminfo
[ ! -e /proc/pressure/memory ] || mount --bind /run/pressure /proc/pressure/memory"""
_AS_BEFORE = """\
rm /usr/local/bin/dmesg; umount /proc/meminfo; ! mountpoint -q /proc/pressure/memory || umount /proc/pressure/memory"""


def make_calm(reach: Executor, hosts: Sequence[Host]) -> None:
    """Kernel log and memory of these lab hosts are well, whatever this machine's are."""
    reach.run(hosts, _CALM).check()


def make_as_before(reach: Executor, hosts: Sequence[Host]) -> None:
    """They say what this machine's are again."""
    reach.run(hosts, _AS_BEFORE).check()


@pytest.fixture(scope="module")
def new_lab(lab_allowed: None) -> Iterator[Callable[[int], Lab]]:
    """Makes a lab of so many hosts of one slot, for this module only; nothing of it is left afterwards."""
    name = f"h{os.getpid() % 10_000_000}"

    yield lambda num_hosts: labs.up(name, num_hosts=num_hosts, slots=1, may_mount=True)
    if labs.is_anything_left(name):
        labs.down(name)
