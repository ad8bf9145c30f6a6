"""`hostname` on many lab hosts in one process: our fan-out beside Fabric's ThreadingGroup, in alternating runs.

What docs/architecture.md says of the two. As root: it makes a lab of its own.
"""

import sys
import time
from collections.abc import Callable
from pathlib import Path

from fabric import ThreadingGroup

from cluster.inventory import Cluster, load_cluster
from lab import lab as labs
from lab.record import Lab
from cluster.ssh import connections
from cluster.ssh.fanout import Executor

sys.path.insert(0, str(Path(__file__).parent))
from rounds import Runs, rounds, row, write

LAB = "bfabric"


def main(times: int = 7, sizes: tuple[int, ...] = (16, 64)) -> None:
    """Measure every size, compare, write results/fabric_group.json."""
    rows = []
    for size in sizes:
        lab = labs.up(LAB, size, 1)
        try:
            runs = measure(load_cluster(f"lab:{LAB}"), lab, times)
        finally:
            connections.disconnect()
            labs.down(LAB)
        new, kept = "new connections", "open connections"
        for what, ours, fabric, goal in (
            ("the first task", new, new, None),
            ("each task after it", kept, new, 0.5),  # a task is a process, with which Fabric's connections end
            ("again in the same process", kept, kept, None),
        ):
            label = f"{size} hosts, {what}: our fan-out"
            rows.append(row(runs, f"ours, {ours}", f"Fabric, {fabric}", goal, label=label))
    write("fabric_group", rows)


def measure(cluster: Cluster, lab: Lab, times: int) -> Runs:
    """Seconds of both, over new connections and over those that are open, round by round."""
    addresses = [h.address for h in cluster.hosts]
    login = {"user": "root", "connect_kwargs": {"key_filename": str(lab.key), "allow_agent": False}}
    kept = ThreadingGroup(*addresses, **login)
    kept.run("hostname", hide=True)

    def fabric_anew() -> None:
        with ThreadingGroup(*addresses, **login) as group:
            group.run("hostname", hide=True)

    with Executor(cluster) as reach:

        def ours() -> None:
            reach.run(cluster.hosts, "hostname").check()

        candidates = {
            "ours, new connections": lambda: seconds(ours, before=connections.disconnect),
            "Fabric, new connections": lambda: seconds(fabric_anew),
            "ours, open connections": lambda: seconds(ours),
            "Fabric, open connections": lambda: seconds(lambda: kept.run("hostname", hide=True)),
        }
        runs = rounds(candidates, times)
    kept.close()
    return runs


def seconds(do: Callable[[], object], before: Callable[[], object] = lambda: None) -> float:
    """How long it takes, without what is done before."""
    before()
    began = time.perf_counter()
    do()
    return time.perf_counter() - began


if __name__ == "__main__":
    main()
