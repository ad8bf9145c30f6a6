"""One file from the master to 4, 8 and 16 lab hosts whose links carry 200 Mbit/s each way: `inv copy` beside its peers.

Everything runs on the lab's master, whole processes. Peers, for measuring only: apt-get install pdsh clustershell.
As root: it makes a lab of its own; /tmp of its hosts is memory.
"""

import shutil
import sys
import time
from pathlib import Path

from cluster.ssh import connections
from cluster.inventory import ROOT, Cluster, load_cluster
from lab import lab as labs
from lab.record import Lab
from cluster.ssh.fanout import Executor

sys.path.insert(0, str(Path(__file__).parent))
from rounds import Runs, row, write

LAB = "bcast"
MBIT = 200
BYTES = 256_000_000
GOALS = {4: 1.10, 8: 1.12, 16: 1.15}
PEERS = {
    "rsync, one after another (copyclust)": "for h in {hosts}; do rsync -a /tmp/src/ $h:{dst}/; done",
    "rsync, in parallel": "for h in {hosts}; do rsync -a /tmp/src/ $h:{dst}/ & done; wait",
    "clush --copy": "clush -w {listed} --copy /tmp/src --dest {dst}",
    "pdcp": "PDSH_RCMD_TYPE=ssh pdcp -r -w {listed} /tmp/src {dst}",
}
FILES = "i=0; while [ $i -lt 2000 ]; do head -c 20000 /dev/urandom >/tmp/src/f$i; i=$((i+1)); done"


def main(times: int = 3, sizes: tuple[int, ...] = (4, 8, 16), peers_at: tuple[int, ...] = (4,)) -> None:
    """Measure, compare, write results/broadcast.json."""
    lab = labs.up(LAB, max(sizes) + 1, 1)
    rows = []
    try:
        cluster = load_cluster(f"lab:{LAB}")
        with Executor(cluster) as reach:
            shape(lab, MBIT)
            source(reach, cluster, f"head -c {BYTES} /dev/urandom >/tmp/src/file")
            for size in sizes:
                rows += large(reach, cluster, size, times, peers=size in peers_at)
            rows.append(unchanged(reach, cluster, 16, times))
            rows.append(small(reach, cluster, 8, times))
            labs.heal(lab, lab.hosts)
            source(reach, cluster, f"head -c {BYTES} /dev/urandom >/tmp/src/file")
            runs = {"16 hosts, links unshaped": [ours(reach, cluster, 16) for _ in range(times)]}
            rows.append(row(runs, "16 hosts, links unshaped"))
    finally:
        connections.disconnect()
        labs.down(LAB)
    write("broadcast", rows)


def large(reach: Executor, cluster: Cluster, size: int, times: int, *, peers: bool) -> list[dict[str, object]]:
    """One size: ours, and each peer once (they take minutes), as multiples of size / bandwidth."""
    runs: Runs = {
        "inv copy": [ours(reach, cluster, size) for _ in range(times)],
        "size / bandwidth": [BYTES * 8 / MBIT / 1e6],
    }
    rows = [row(runs, "inv copy", "size / bandwidth", GOALS[size], label=f"{size} hosts: inv copy, 256 MB")]
    for name, script in PEERS.items() if peers else ():
        if name.split()[0] in ("clush", "pdcp") and not shutil.which(name.split()[0]):
            continue
        runs[name] = [theirs(reach, cluster, size, script)]
        if not has_arrived(reach, cluster, size):
            print(f"{name}: the file is not on every host, so its time says nothing")
            continue
        rows.append(row(runs, name, "size / bandwidth", label=f"{size} hosts: {name}"))
    return rows


def unchanged(reach: Executor, cluster: Cluster, size: int, times: int) -> dict[str, object]:
    """A copy of what is there already."""
    ours(reach, cluster, size)
    runs = {"nothing changed": [ours(reach, cluster, size, fresh=False) for _ in range(times)], "1 s": [1.0]}
    return row(runs, "nothing changed", "1 s", 1.0, label=f"{size} hosts: inv copy, nothing changed")


def small(reach: Executor, cluster: Cluster, size: int, times: int) -> dict[str, object]:
    """2000 files of 20 kB, against the same bytes in one."""
    source(reach, cluster, "head -c 40000000 /dev/urandom >/tmp/src/file")
    runs: Runs = {"one file": [ours(reach, cluster, size) for _ in range(times)]}
    source(reach, cluster, FILES)
    runs["2000 files"] = [ours(reach, cluster, size) for _ in range(times)]
    return row(runs, "2000 files", "one file", 1.3, label=f"{size} hosts: inv copy, 2000 files of 20 kB")


def source(reach: Executor, cluster: Cluster, script: str) -> None:
    """What is copied, in memory on the master; nothing of it on the others."""
    reach.run([cluster.master], f"rm -rf /tmp/src && mkdir /tmp/src && {script}").check()
    clean(reach, cluster)


def clean(reach: Executor, cluster: Cluster) -> None:
    """No copy anywhere."""
    reach.run(cluster.hosts, "rm -rf /tmp/copy").check()


def ours(reach: Executor, cluster: Cluster, size: int, *, fresh: bool = True) -> float:
    """Seconds of `inv copy` from the master's shell."""
    if fresh:
        clean(reach, cluster)
    hosts = "\\n".join(f"{h.address} slots=1" for h in cluster.hosts[: size + 1])
    reach.run([cluster.master], f"mkdir -p /tmp/m && printf '{hosts}\\n' >/tmp/m/hosts").check()
    return timed(reach, cluster, f"cd {ROOT} && CLUSTER=/tmp/m .venv/bin/inv copy /tmp/src /tmp/copy --hosts @workers")


def theirs(reach: Executor, cluster: Cluster, size: int, script: str) -> float:
    """Seconds of a peer from the master's shell."""
    clean(reach, cluster)
    names = [h.address for h in cluster.hosts[1 : size + 1]]
    return timed(reach, cluster, script.format(hosts=" ".join(names), listed=",".join(names), dst="/tmp/copy"))


def has_arrived(reach: Executor, cluster: Cluster, size: int) -> bool:
    """Whether every host has as many bytes as there were; some peers fail and say that all went well."""
    kept = reach.run(cluster.hosts[1 : size + 1], "du -sb /tmp/copy 2>/dev/null | cut -f1")
    return all(int(r.text or 0) >= BYTES for r in kept.values())


def timed(reach: Executor, cluster: Cluster, script: str) -> float:
    """Seconds of a script on the master."""
    began = time.perf_counter()
    reach.run([cluster.master], script).check()
    return time.perf_counter() - began


def shape(lab: Lab, mbit: float) -> None:
    """Every host's link, both ways."""
    for host in lab.hosts:
        labs.slow(lab, host, mbit=mbit, delay_ms=None)


if __name__ == "__main__":
    main()
