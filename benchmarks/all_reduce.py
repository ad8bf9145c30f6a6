"""All-reduces of a ResNet-18's gradients over limited links: the jobs' own mpirun beside Open MPI's default.

A large message over TCP is one put by default, which holds up the go-ahead for the message that comes the other way, so
that the ranks of a ring may send in turn and not at once; a job's `btl_tcp_flags` (docs/launch.md) sends it in parts.
Both sides are launched in every round, in turn, each over all links; nothing is computed meanwhile. As root: it makes a
lab of its own. Writes results/all_reduce.json.
"""

import argparse
import json
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks import rounds, scaling, scaling_rank, yardstick  # noqa: E402
from cluster.files import write_atomically  # noqa: E402
from cluster.inventory import load_cluster  # noqa: E402
from lab import lab as labs  # noqa: E402
from cluster.ssh import connections  # noqa: E402
from cluster.ssh.fanout import Executor  # noqa: E402

LAB = "bsum"
RANKS = (2, 4, 8)
OURS, DEFAULT = "ours", "default"
LEFT_OUT = {OURS: (), DEFAULT: ("btl_tcp_flags",)}
PEER = "Open MPI's default flags"
LINKS = (scaling_rank.FREE, *scaling.LINKS)
Seconds = dict[str, list[float]]  # by link
Found = dict[int, dict[str, Seconds]]  # by ranks and side


def main() -> None:
    """As one of the ranks, or all of them."""
    parser = argparse.ArgumentParser(description="All-reduces over limited links.")
    parser.add_argument("folder", type=Path, nargs="?", help="of a launch, to be one of its ranks")
    parser.add_argument("--ranks", type=int, nargs="+", default=RANKS)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--times", type=int, default=5, help="of each link in each launch")
    a = parser.parse_args()
    if a.folder:
        be_a_rank(a.folder, a.times)
    else:
        measure(a)


def be_a_rank(folder: Path, times: int) -> None:
    """Rank 0 keeps its seconds."""
    from trainer.common.ranks.horovod_rank import Gather, start

    ranks = start(1)
    gather = Gather(ranks.threads)
    found: Seconds = {}
    for _, link in scaling_rank.linked(folder, list(LINKS), ranks, gather):
        found[link] = scaling_rank.all_reduces(scaling_rank.parameters_of_model(), times)
    if ranks.is_first:
        write_atomically(folder / "found.json", json.dumps(found))


def measure(a: argparse.Namespace) -> None:
    """Launches, and writes the rows."""
    lab = labs.up(LAB, max(a.ranks), 1)
    found: Found = {n: {side: {link: [] for link in LINKS} for side in LEFT_OUT} for n in a.ranks}
    try:
        cluster = load_cluster(f"lab:{LAB}")
        links = scaling.Links(lab)
        with Executor(cluster) as reach:
            reach.connect(cluster.hosts).check()
            for number in range(a.rounds):
                for ranks in a.ranks:
                    for side, left_out in LEFT_OUT.items():
                        folder = lab.shared / f"{side}-{ranks}-{number}"
                        flags = ["--times", str(a.times)]
                        program = "benchmarks/all_reduce.py"
                        scaling.run_ranks(reach, cluster, links, folder, ranks, program, flags, left_out=left_out)
                        for link, seconds in json.loads((folder / "found.json").read_text()).items():
                            found[ranks][side][link] += seconds
                        print(f"{ranks} ranks, {side}: done", flush=True)
    finally:
        connections.disconnect()
        labs.down(LAB)
    rounds.write("all_reduce", [*rows(found), yardstick.row()])


def rows(found: Found) -> list[dict[str, Any]]:
    """The medians' ratio of each number of ranks over each link."""
    return [
        rounds.row(
            {OURS: sides[OURS][link], PEER: sides[DEFAULT][link]},
            OURS,
            PEER,
            label=f"{ranks} ranks, {'no limit' if link == scaling_rank.FREE else link}: an all-reduce of 47 MB",
        )
        for ranks, sides in found.items()
        for link in sides[OURS]
    ]


if __name__ == "__main__":
    main()
