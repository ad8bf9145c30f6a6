"""From `train.run` to the first rank's first line, against mpirun's own: `inv bench --name launch`, as root.

Two lab hosts of two slots, a program that says one word. mpirun is started on the master by a command over the open
connection, with the hostfile and nothing else; `train.run` is a process of its own on the operator's machine, with
the look at the hosts that it takes by default, and without.
"""

import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks import rounds  # noqa: E402
from cluster.inventory import Cluster, load_cluster  # noqa: E402
from lab import lab as labs  # noqa: E402
from cluster.ssh import connections  # noqa: E402
from cluster.ssh.fanout import Executor  # noqa: E402

LAB = "blaunch"
LIMIT_S = 3.0  # over mpirun's own
WORD = "begun"
MPIRUN = (
    "mpirun --allow-run-as-root --hostfile /shared/hosts --mca btl tcp,self --mca btl_tcp_if_include eth0 "
    "--mca oob_tcp_if_include eth0 --mca plm_rsh_no_tree_spawn 1"
)


def ours(*options: str) -> float:
    """Seconds until the operator sees the first rank's word."""
    words = [sys.executable, "-m", "dlami.program", "train.run", "--no-code", *options, "--", "echo", WORD]
    environment = {**os.environ, "CLUSTER": f"lab:{LAB}", "PYTHONPATH": str(ROOT)}
    began = time.perf_counter()
    with subprocess.Popen(
        words, cwd="/", text=True, env=environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    ) as process:
        assert process.stdout
        next(line for line in process.stdout if WORD in line)
        seconds = time.perf_counter() - began
        process.stdout.read()
    return seconds


def plain(reach: Executor, cluster: Cluster) -> float:
    """The same of mpirun alone, over connections of its own."""
    first: list[float] = []

    def heard(_host: object, _stream: str, data: bytes) -> None:
        if WORD.encode() in data and not first:
            first.append(time.perf_counter())

    began = time.perf_counter()
    reach.run([cluster.master], f"{MPIRUN} echo {WORD}", on_output=heard).check()
    return first[0] - began


def main(times: int = 7) -> None:
    """Measure, alternating, and write the rows."""
    lab = labs.up(LAB, 2, 2)
    try:
        (lab.shared / "hosts").write_text((lab.folder / "hosts").read_text())
        cluster = load_cluster(f"lab:{LAB}")
        with Executor(cluster) as reach:
            candidates: dict[str, Callable[[], float]] = {
                "mpirun": lambda: plain(reach, cluster),
                "train.run": ours,
                "train.run --unchecked": lambda: ours("--unchecked"),
            }
            ours()  # the first one looks at more
            runs = rounds.rounds(candidates, times)
    finally:
        connections.disconnect()
        labs.down(LAB)
    rounds.write("launch", [rounds.row(runs, "mpirun", label="mpirun echo, to its first line"), *_over(runs)])


def _over(runs: rounds.Runs) -> list[dict[str, object]]:
    """What each of ours takes over mpirun in the same round, against the limit."""
    rows = []
    for name in ("train.run", "train.run --unchecked"):
        over = [a - b for a, b in zip(runs[name], runs["mpirun"], strict=True)]
        row = rounds.row({name: over}, name, label=f"{name} echo, over mpirun's own")
        ratio = round(statistics.median(over) / LIMIT_S, 3)
        rows.append({**row, "against": f"limit {LIMIT_S:g} s", "ratio": ratio, "goal": 1.0})
    return rows


if __name__ == "__main__":
    main()
