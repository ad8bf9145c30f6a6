"""This checkout beside another one of an earlier revision, alternating in one run: start-up, fan-out, broadcast.

`BEFORE=/path/of/the/other/checkout inv bench --name revisions` (as root; the other one installed as this one is). A
ratio over 1 means that this one is slower; up to 1.15 is noise on a shared machine.
"""

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from cluster.inventory import ROOT, Cluster, load_cluster
from lab import lab as labs
from cluster.ssh import connections
from cluster.ssh.fanout import Executor

sys.path.insert(0, str(Path(__file__).parent))
from rounds import row, rounds, seconds_of, write

LAB = "brev"
HOSTS = 64
COPIED = 8  # hosts that a copy goes to
MBIT = 200
BYTES = 128_000_000
NOISE = 1.15
Row = dict[str, Any]


def main(times: int = 5) -> None:
    """Measure both, compare, write results/revisions.json."""
    before = os.environ.get("BEFORE", "")
    if not (Path(before) / ".venv/bin/inv").exists():
        raise SystemExit("set BEFORE to the folder of another checkout that is installed")
    folders = {"now": ROOT, f"before ({revision(before)})": Path(before)}
    rows = compared("inv --list", folders, lambda folder: seconds_of(inv(folder, "--list"), cwd=folder), 11)
    lab = labs.up(LAB, HOSTS, 1)
    try:
        cluster = load_cluster(f"lab:{LAB}")
        rows += compared(f"inv run on {HOSTS} hosts, cold", folders, lambda folder: run(folder, 1)[0], times)
        rows += compared(f"inv run on {HOSTS} hosts, again", folders, lambda folder: run(folder, 3)[-1], times)
        for host in lab.hosts[: COPIED + 1]:
            labs.slow(lab, host, mbit=MBIT, delay_ms=None)
        with Executor(cluster) as reach:
            reach.run([cluster.master], f"mkdir -p /tmp/src && head -c {BYTES} /dev/urandom >/tmp/src/file").check()
            label = f"inv copy, {BYTES // 1_000_000} MB to {COPIED} hosts at {MBIT} Mbit/s"
            rows += compared(label, folders, lambda folder: copy(reach, cluster, folder), 3)
    finally:
        connections.disconnect()
        labs.down(LAB)
    write("revisions", rows)


def compared(what: str, folders: dict[str, Path], seconds: Callable[[Path], float], times: int) -> list[Row]:
    """A row: this checkout's median, and its ratio to the other's."""
    runs = rounds({name: (lambda folder=folder: seconds(folder)) for name, folder in folders.items()}, times)
    now, before = folders
    return [row(runs, now, before, NOISE, label=what)]


def inv(folder: Path, *words: str) -> list[str]:
    """The command line of a checkout."""
    return [str(folder / ".venv/bin/inv"), *words]


def run(folder: Path, times: int) -> list[float]:
    """Seconds of `inv run -- hostname` so many times after one another, the first without an open connection."""
    with tempfile.TemporaryDirectory(prefix="rev-") as sockets:
        environment = {**os.environ, "CLUSTER": f"lab:{LAB}", "XDG_RUNTIME_DIR": sockets}
        try:
            return [seconds_of(inv(folder, "run", "--", "hostname"), cwd=folder, env=environment) for _ in range(times)]
        finally:
            subprocess.run(inv(folder, "disconnect"), cwd=folder, env=environment, check=True, capture_output=True)


def copy(reach: Executor, cluster: Cluster, folder: Path) -> float:
    """Seconds of a copy from the master's shell; nothing of it was there before."""
    reach.run(cluster.hosts[: COPIED + 1], "rm -rf /tmp/copy").check()
    hosts = "\\n".join(f"{h.address} slots=1" for h in cluster.hosts[: COPIED + 1])
    reach.run([cluster.master], f"mkdir -p /tmp/m && printf '{hosts}\\n' >/tmp/m/hosts").check()
    script = f"cd {folder} && CLUSTER=/tmp/m .venv/bin/inv copy /tmp/src /tmp/copy --hosts @workers"
    return float(reach.run([cluster.master], script).check()[cluster.master].seconds)


def revision(folder: str) -> str:
    """The short name of a checkout's commit."""
    words = ["git", "-C", folder, "rev-parse", "--short", "HEAD"]
    return subprocess.run(words, capture_output=True, text=True, check=True).stdout.strip()


if __name__ == "__main__":
    main()
