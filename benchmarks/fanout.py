"""`hostname` on many lab hosts: `inv run` beside pdsh and clush, cold and over open connections, whole processes.

Peers, for measuring only: apt-get install pdsh clustershell. As root: it makes a lab of its own.
"""

import os
import shutil
import sys
import time
from collections.abc import Callable
from pathlib import Path

from cluster.ssh import connections
from cluster.inventory import ROOT, Cluster, load_cluster
from lab import lab as labs, nodes
from lab.record import Lab
from cluster.ssh.fanout import Executor, wait_until
from cluster.ssh.options import agent_command, way_to

sys.path.insert(0, str(Path(__file__).parent))
from rounds import Runs, rounds, row, seconds_of, write

LAB = "bfan"
INV = str(ROOT / ".venv/bin/inv")
CURVE = ("-o", "KexAlgorithms=curve25519-sha256")
CORES = len(os.sched_getaffinity(0))
IN_PROCESS = 10  # fan-outs one after another in one process
PROCESSES = 3  # of a lab host to which nobody is connected: its first one, sshd and a sleeper


def main(times: int = 5, sizes: tuple[int, ...] = (16, 64, 256)) -> None:
    """Measure every size, compare, write results/fanout.json."""
    rows = []
    per_host: dict[int, Runs] = {}
    for size in sizes:
        lab = labs.up(LAB, size, 1)
        try:
            runs = measure(load_cluster(f"lab:{LAB}"), lab, times, peers=size <= 64)
        finally:
            connections.disconnect()
            labs.down(LAB)
        rows += compared(runs, size)
        per_host[size] = {name: [s / size * 1000 for s in seconds] for name, seconds in runs.items()}
    if 256 in per_host and 64 in per_host:
        for name in ("inv run, cold", "inv run, again"):
            rows.append(
                row(
                    {"256": per_host[256][name], "64 hosts": per_host[64][name]},
                    "256",
                    "64 hosts",
                    1.15,
                    label=f"256 hosts: {name}, per host",
                    unit="ms",
                )
            )
    write("fanout", rows)


def measure(cluster: Cluster, lab: Lab, times: int, *, peers: bool) -> Runs:
    """Seconds of every tool, round by round."""
    environment = {**os.environ, "CLUSTER": f"lab:{LAB}"}
    inv = [INV, "run", "--fanout", "64", "--", "hostname"]
    known = f"UserKnownHostsFile={lab.folder}/known_hosts"
    login = ["-l", "root", "-i", str(lab.key), "-o", known, "-o", "BatchMode=yes"]
    hosts = ",".join(h.address for h in cluster.hosts)
    open_sockets = agent_command(way_to(cluster.master, cluster.access))[1:]

    def cold() -> float:
        connections.disconnect()
        return seconds_of(inv, env=environment)

    def pdsh(*options: str) -> float:
        given = {**os.environ, "PDSH_SSH_ARGS": " ".join(options) + " %h", "PDSH_RCMD_TYPE": "ssh"}
        return seconds_of(["pdsh", "-f", "64", "-w", hosts, "hostname"], env=given)

    def clush(*options: str) -> float:
        return seconds_of(["clush", "-f", "64", "-o", " ".join(options), "-w", hosts, "hostname"])

    candidates = {"inv run, cold": cold, "inv run, again": lambda: seconds_of(inv, env=environment)}
    if peers and shutil.which("pdsh"):
        candidates |= {
            "pdsh": lambda: pdsh(*login),
            "pdsh, curve25519": lambda: pdsh(*login, *CURVE),
            "pdsh over the open sockets": lambda: pdsh("-l", "root", *open_sockets),
        }
    if peers and shutil.which("clush"):
        candidates |= {"clush": lambda: clush(*login), "clush, curve25519": lambda: clush(*login, *CURVE)}
    runs = rounds(candidates, times)
    return runs | floors(cluster, times)


def floors(cluster: Cluster, times: int) -> Runs:
    """Fan-outs in one process, and what the hosts' own sshd used of the CPU for them: nobody can be faster."""
    runs: Runs = {"cold, in process": [], "again, in process": [], "floor, cold": [], "floor, warm": []}
    connections.disconnect()
    wait_until(lambda: len(used_s()) <= PROCESSES * len(cluster.hosts), 30)
    idle = len(used_s())
    for _ in range(times):
        cold_s = hosts_s(lambda: fan_outs(cluster, runs, 0), idle)
        runs["floor, cold"].append(cold_s / CORES)
        runs["floor, warm"].append(
            (hosts_s(lambda: fan_outs(cluster, runs, IN_PROCESS), idle) - cold_s) / IN_PROCESS / CORES
        )
    return runs


def fan_outs(cluster: Cluster, runs: Runs, again: int) -> None:
    """One over new connections and so many over the same; how long each took is added to the runs."""
    with Executor(cluster) as reach:
        for name in ("cold, in process", *["again, in process"] * again):
            began = time.perf_counter()
            reach.run(cluster.hosts, "hostname").check()
            runs[name].append(time.perf_counter() - began)


def hosts_s(do: Callable[[], None], idle: int) -> float:
    """CPU seconds that the lab's hosts use for something, the end of its connections with it.

    What still runs is told in whole ticks of 10 ms, rounded down, for each of hundreds of processes; what has ended is
    added up exactly in the few that outlive it. So all sessions must have ended when one looks, before and after.
    """
    before = sum(used_s())
    do()
    connections.disconnect()
    if not wait_until(lambda: len(used_s()) <= idle, 60):
        raise RuntimeError(f"{len(used_s())} processes in the lab, {idle} when nobody is connected")
    return sum(used_s()) - before


def used_s() -> list[float]:
    """CPU seconds of each process in the lab, with those of its children that have ended."""
    used = []
    spaces = lab_namespaces()
    for process in Path("/proc").iterdir():
        if process.name.isdigit():
            try:
                if str((process / "ns/pid").readlink()) in spaces:
                    ticks = sum(map(int, (process / "stat").read_text().rpartition(")")[2].split()[11:15]))
                    used.append(ticks / os.sysconf("SC_CLK_TCK"))
            except OSError:
                continue
    return used


def lab_namespaces() -> set[str]:
    """The PID namespaces of the lab's hosts: sshd overwrites its environment, so that tells nothing of it."""
    return {str(Path(f"/proc/{pid}/ns/pid").readlink()) for pid in nodes.running(LAB).values()}


def compared(runs: Runs, size: int) -> list[dict[str, object]]:
    """The rows of one size, with the goals that hold there."""

    def line(what: str, against: str, goal: float | None = None) -> dict[str, object]:
        return row(runs, what, against, goal, label=f"{size} hosts: {what}")

    lines = [
        line("again, in process", "floor, warm", 1.3 if size == 64 else None),
        line("cold, in process", "floor, cold"),
    ]
    if size > 64:
        return [line("inv run, cold", "floor, cold"), line("inv run, again", "floor, warm"), *lines]
    if size == 16:
        return [
            line("inv run, cold", "pdsh, curve25519", 1.3),
            line("inv run, again", "pdsh over the open sockets"),
            *lines,
        ]
    return [
        line("inv run, cold", "pdsh", 0.45),
        line("inv run, cold", "clush", 0.45),
        line("inv run, cold", "pdsh, curve25519", 1.0),
        line("inv run, cold", "clush, curve25519", 1.0),
        line("inv run, again", "pdsh", 0.12),
        line("inv run, again", "pdsh over the open sockets", 0.8),
        *lines,
    ]


if __name__ == "__main__":
    main()
