"""`mpirun hostname` over many lab hosts, one rank each: plain, and over connections opened by this project.

As root: it makes a lab of its own. mpirun runs on the lab's master, where this file runs itself again.
"""

import json
import os
import sys
from pathlib import Path

from cluster.ssh import connections
from cluster.hosts import read_hostfile
from cluster.inventory import ROOT, Cluster, load_cluster
from lab import lab as labs
from cluster.ssh.fanout import Executor
from cluster.ssh.options import agent_command, way_to

sys.path.insert(0, str(Path(__file__).parent))
from rounds import rounds, row, seconds_of, write

LAB = "bmpi"
HOSTFILE = "/shared/hosts"


def main(times: int = 5, size: int = 64) -> None:
    """Measure, compare, write results/mpirun_start.json."""
    lab = labs.up(LAB, size, 1)
    try:
        cluster = load_cluster(f"lab:{LAB}")
        (lab.shared / "hosts").write_text((lab.folder / "hosts").read_text())
        script = f"cd {ROOT} && PYTHONPATH={ROOT} exec {cluster.python} {Path(__file__).resolve()} {times}"
        with Executor(cluster) as reach:
            runs = json.loads(reach.run([cluster.master], script).check()[cluster.master].stdout)
    finally:
        connections.disconnect()
        labs.down(LAB)
    write(
        "mpirun_start",
        [
            row(runs, "connect, then mpirun", "mpirun", 0.5, label=f"{size} hosts: connect all, then mpirun hostname"),
            row(
                runs,
                "mpirun over open connections",
                "mpirun",
                0.5,
                label=f"{size} hosts: mpirun hostname, connections open",
            ),
            row(runs, "mpirun, curve25519", "mpirun", label=f"{size} hosts: mpirun hostname, curve25519"),
        ],
    )


def on_master(times: int) -> None:
    """Print the seconds of each way as JSON."""
    hosts = read_hostfile(Path(HOSTFILE))
    cluster = Cluster(name="bench", hosts=hosts, folder=Path("/shared"), shared="/shared", project=str(ROOT))
    agent = " ".join(agent_command(way_to(hosts[-1], cluster.access)))  # mpirun splits it at blanks
    words = [
        "mpirun",
        "--allow-run-as-root",
        "--hostfile",
        HOSTFILE,
        "--map-by",
        "ppr:1:node",
        "--mca",
        "btl",
        "tcp,self",
        "--mca",
        "plm_rsh_no_tree_spawn",
        "1",
        "hostname",
    ]

    def plain(agent: str = "ssh") -> float:
        return seconds_of(words, env={**os.environ, "OMPI_MCA_plm_rsh_agent": agent})

    def connect_first() -> float:
        connections.disconnect()
        connect = [sys.executable, "-c", f"import {Path(__file__).stem} as b; b.connect()"]
        seconds = seconds_of(connect, env={**os.environ, "PYTHONPATH": f"{ROOT}:{Path(__file__).parent}"})
        return seconds + plain(agent)

    runs = rounds(
        {
            "mpirun": plain,
            "mpirun, curve25519": lambda: plain("ssh -o KexAlgorithms=curve25519-sha256"),
            "connect, then mpirun": connect_first,
            "mpirun over open connections": lambda: plain(agent),
        },
        times,
    )
    connections.disconnect()
    print(json.dumps(runs))


def connect() -> None:
    """Open the connections to every host."""
    hosts = read_hostfile(Path(HOSTFILE))
    with Executor(Cluster(name="bench", hosts=hosts, folder=Path("/shared"), shared="/shared", project="")) as reach:
        reach.connect(hosts).check()


if __name__ == "__main__":
    on_master(int(sys.argv[1])) if len(sys.argv) > 1 else main()
