"""Cost of growing: speed, waiting and memory of 1 to 8 ranks over limited links, beside what the estimate predicts.

ResNet-18 at 32 pixels, the least that the trainers train: 47 MB of gradients a step, and batches that eight ranks of a
small machine compute in seconds. Each rank has a lab host of its own, all share the machine's processors. Links change
between steps of one launch, in turn; the estimate (`cfn/estimate/slower_links.py`) is given what was measured without
limits and what plain sockets reach over each link, and predicts the step.
As root: it makes a lab of its own. Writes results/scaling.json.
"""

import argparse
import json
import os
import platform
import re
import statistics
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks import rounds, scaling_rank, yardstick  # noqa: E402
from cfn.estimate.layers import network  # noqa: E402
from cfn.estimate.slower_links import GRADIENT_BYTES, Parts, step_s  # noqa: E402
from cluster.hosts import Host, hostfile  # noqa: E402
from cluster.inventory import Cluster, load_cluster  # noqa: E402
from lab import lab as labs  # noqa: E402
from lab.record import Lab  # noqa: E402
from cluster.launch.facts import survey  # noqa: E402
from cluster.launch.mpirun import command_line, plan_launch  # noqa: E402
from cluster.ssh import connections  # noqa: E402
from cluster.ssh.fanout import Executor  # noqa: E402
from cluster.ssh.limits import Limits  # noqa: E402

LAB = "bgrow"
RANKS, BATCHES = (1, 2, 4, 8), (16, 32, 64)
LINKS = {"0.2 Gbit/s": 200.0, "1 Gbit/s": 1000.0, "10 Gbit/s": 10_000.0}
WITHIN = 1.15  # of prediction and measurement the larger over the smaller
Probed = dict[tuple[int, str], list[float]]  # by ranks and link: bytes a second of each try
LAUNCH_S, PROBE_S, LOOK_S = 900.0, 120.0, 0.05
PROBES, PROBE_PORT = 3, 5201


@dataclass(frozen=True, kw_only=True)
class Found:
    """What the ranks of one launch found."""

    ranks: int
    batch: int
    steps: Mapping[str, list[float]]
    """Seconds of each step by link, the mean over the ranks."""
    waited: Mapping[str, list[float]]
    """Of each, until all was reduced after a rank's own gradients were there."""
    parts: Parts
    large_s: Mapping[str, list[float]]
    """Of all-reduces of all gradients, nothing computed, by link; of two ranks over all links."""
    peak_bytes: Sequence[int]
    """Of each rank."""

    @classmethod
    def of(cls, everyone: Sequence[Mapping[str, Any]], batch: int) -> "Found":
        """From what each rank wrote."""
        first = everyone[0]
        steps, waited = (
            {
                link: [statistics.fmean(e["steps"][link][n][which] for e in everyone) for n in range(len(own))]
                for link, own in first["steps"].items()
            }
            for which in (0, 1)
        )
        parts = Parts(
            ranks=len(everyone),
            step_s=statistics.median(steps[scaling_rank.FREE]),
            small_s=statistics.median(first["small_s"] or [0.0]),
            large_s=statistics.median(first["large_s"][scaling_rank.FREE] or [0.0]),
        )
        return cls(
            ranks=len(everyone),
            batch=batch,
            steps=steps,
            waited=waited,
            parts=parts,
            large_s=first["large_s"],
            peak_bytes=[e["peak_bytes"] for e in everyone],
        )


class Links:
    """The lab's cables, which ranks ask to be changed."""

    def __init__(self, lab: Lab) -> None:
        self._lab = lab

    def limit(self, link: str) -> None:
        """All of them alike."""
        if link == scaling_rank.FREE:
            labs.heal(self._lab, self._lab.hosts)
            return
        for host in self._lab.hosts:
            labs.slow(self._lab, host, mbit=LINKS[link], delay_ms=None)

    def serve(self, folder: Path, ranks: "Future[Any]") -> None:
        """Until the ranks have ended: what they ask for."""
        number, pause = 0, threading.Event()
        while not ranks.done():
            asked = folder / f"{number}.asked"
            if asked.exists() and (link := asked.read_text()):
                self.limit(link)
                (folder / f"{number}.set").touch()
                number += 1
            pause.wait(LOOK_S)


def main() -> None:
    """Measures, predicts, writes the rows."""
    parser = argparse.ArgumentParser(description="Cost of growing.")
    parser.add_argument("--ranks", type=int, nargs="+", default=RANKS)
    parser.add_argument("--batches", type=int, nargs="+", default=BATCHES)
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--steps", type=int, default=2, help="of each link in each round")
    a = parser.parse_args()
    loads: list[float] = []
    ended = threading.Event()
    watching = threading.Thread(target=_watch, args=(loads, ended), daemon=True)
    watching.start()
    lab = labs.up(LAB, max(*a.ranks, 2), 1)
    try:
        cluster = load_cluster(f"lab:{LAB}")
        links = Links(lab)
        with Executor(cluster) as reach:
            reach.connect(cluster.hosts).check()
            probed: Probed = {}
            found = []
            for ranks in a.ranks:
                if ranks > 1:
                    probed |= {(ranks, link): probe(reach, cluster, links, ranks, link) for link in LINKS}
                for batch in a.batches:
                    found.append(launch(reach, cluster, lab, links, ranks, batch, a))
                    print(f"{ranks} ranks, batch {batch}: {found[-1].parts}", flush=True)
    finally:
        ended.set()
        connections.disconnect()
        labs.down(LAB)
    rounds.write("scaling", [*rows(found, probed), *_conditions(loads), yardstick.row()])


def probe(reach: Executor, cluster: Cluster, links: Links, ranks: int, link: str) -> list[float]:
    """Bytes a second each way around a ring of so many hosts by plain sockets, of each try."""
    links.limit(link)
    size = int(GRADIENT_BYTES) * scaling_rank.parameters_of_model()
    hosts = cluster.hosts[:ranks]
    following = dict(zip(hosts, (*hosts[1:], hosts[0]), strict=True))
    program = f"{cluster.python} {ROOT}/benchmarks/socket_ring.py"

    def words(host: Host) -> str:
        flags = f"--hosts {ranks} --bytes {size} --times {PROBES}{' --first' * (host == hosts[0])}"
        return f"{program} {PROBE_PORT} {following[host].address}:{PROBE_PORT} {flags}"

    done = reach.run(hosts, words, limits=Limits(total_s=PROBE_S)).check()
    return [2 * (ranks - 1) * (size // ranks) / float(seconds) for seconds in done[hosts[0]].stdout.split()]


def launch(
    reach: Executor, cluster: Cluster, lab: Lab, links: Links, ranks: int, batch: int, a: argparse.Namespace
) -> Found:
    """All links in turn within one launch."""
    asked = [scaling_rank.FREE, *(LINKS if ranks > 1 else ())]
    flags = ["--batch", str(batch), "--rounds", str(a.rounds), "--steps", str(a.steps), "--links", *asked]
    folder = lab.shared / f"scaling-{ranks}-{batch}"
    run_ranks(reach, cluster, links, folder, ranks, "benchmarks/scaling_rank.py", flags)
    return Found.of(json.loads((folder / "found.json").read_text()), batch)


def run_ranks(
    reach: Executor,
    cluster: Cluster,
    links: Links,
    folder: Path,
    ranks: int,
    program: str,
    flags: Sequence[str],
    *,
    left_out: Sequence[str] = (),
) -> None:
    """One mpirun as the jobs' own is, but for the parameters left out: a rank on each of so many hosts.

    Args:
        folder: in the hosts' shared folder; it is made, and the program is given its path there first.
    """
    folder.mkdir()
    hosts, there = cluster.hosts[:ranks], f"{cluster.shared}/{folder.name}"
    (folder / "hosts").write_text(hostfile(hosts))
    links.limit(scaling_rank.FREE)
    facts = survey(reach, cluster, hosts)[1]
    words = command_line(
        plan_launch(hosts, facts, environment={"PYTHONPATH": str(ROOT)}),
        [cluster.python, str(ROOT / program), there, *flags],
        hostfile=f"{there}/hosts",
        workdir=str(ROOT),
    )
    words = without(words, left_out)
    with ThreadPoolExecutor(1) as pool:
        script = " ".join(f"'{word}'" for word in words)
        ran = pool.submit(reach.run, hosts[:1], script, limits=Limits(total_s=LAUNCH_S))
        links.serve(folder, ran)
        ran.result().check()


def without(words: Sequence[str], parameters: Sequence[str]) -> list[str]:
    """mpirun's words, each of these `--mca NAME VALUE` left out. Raises ValueError where there is none."""
    kept = list(words)
    for name in parameters:
        at = kept.index(name)
        del kept[at - 1 : at + 2]
    return kept


def rows(found: Sequence[Found], probed: Probed) -> list[dict[str, Any]]:
    """Speed, waiting and memory of each launch; the prediction beside each limited step, and how far off all are."""
    result = [
        _row(f"{ranks} ranks, {link}: a ring of plain sockets", [rate * 8e-9 for rate in rates], "Gbit/s")
        for (ranks, link), rates in probed.items()
    ]
    layers = network(scaling_rank.MODEL, scaling_rank.PIXELS)
    off: dict[str, list[float]] = {}
    for one in found:
        head = f"{one.ranks} rank{'s' * (one.ranks > 1)}, batch {one.batch}"
        mega = [size / 1e6 for size in one.peak_bytes]
        result.append(_row(f"{head}: peak memory of a rank", mega, "MB"))
        for link, seconds in one.steps.items():
            over = f"{head}, {'no limit' if link == scaling_rank.FREE else link}"
            result.append(_row(f"{over}: all ranks", [one.ranks * one.batch / s for s in seconds], "images/s"))
            shares = [100 * w / s for w, s in zip(one.waited[link], seconds, strict=True)]
            result.append(_row(f"{over}: of a step, waited for the others and gradients", shares, "%"))
            row = _row(f"{over}: a step", seconds, "s")
            if link != scaling_rank.FREE:
                took = statistics.median(seconds)
                ratio = step_s(one.parts, layers, statistics.median(probed[one.ranks, link])) / took
                off.setdefault(link, []).append(max(ratio, 1 / ratio) - 1)
                row["against"] = f"{ratio * took:.3f} s predicted, {100 * (ratio - 1):+.0f} %"
                row |= {"ratio": round(max(ratio, 1 / ratio), 3), "goal": WITHIN}
            result.append(row)
        if one.ranks > 1:
            result.append(_row(f"{head}: an all-reduce of one number", [one.parts.small_s], "s"))
            for link, seconds in one.large_s.items():
                over = "no limit" if link == scaling_rank.FREE else link
                if seconds:
                    result.append(
                        _row(f"{head}, {over}: an all-reduce of all gradients, nothing computed", seconds, "s")
                    )
    off["all links"] = [e for errors in off.values() for e in errors]
    for link, errors in sorted((link, errors) for link, errors in off.items() if errors):
        within = sum(e <= WITHIN - 1 for e in errors)
        what = f"error of the prediction over {link}: {within} of {len(errors)} within {100 * (WITHIN - 1):.0f} %"
        result.append(_row(what, [100 * e for e in errors], "%"))
    return result


def _row(what: str, values: Sequence[float], unit: str) -> dict[str, Any]:
    return rounds.row({what: list(values)}, what, unit=unit)


def _watch(loads: list[float], ended: threading.Event) -> None:
    """The machine's load, now and then."""
    while not ended.is_set():
        loads.append(os.getloadavg()[0])
        ended.wait(10)


def _conditions(loads: Sequence[float]) -> list[dict[str, Any]]:
    """On which machine, and beside how much."""
    named = re.search(r"^model name\s*: (.+)$", Path("/proc/cpuinfo").read_text(), re.M)
    processor = named[1] if named else platform.machine()
    day = time.strftime("%Y-%m-%d")
    return [
        _row(f"load of the machine meanwhile, its own ranks included, {day}", loads, "1 min"),
        _row(f"processors: {processor}", [os.cpu_count() or 1], "cores"),
    ]


if __name__ == "__main__":
    main()
