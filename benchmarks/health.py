"""A quick look at 64 lab hosts, well and then with one fault of each kind; ten slow cards: `inv bench --name health`.

Needs root. Everything runs on this machine: 64 hosts share its cores, which 64 real ones do not.
"""

import json
import statistics
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))  # run as a file, from anywhere

from cluster.health.quick_check import look_at_hosts  # noqa: E402
from cluster.health.net import measure_pairs  # noqa: E402
from cluster.health.pairing import pair_problems  # noqa: E402
from cluster.health.report import HealthReport  # noqa: E402
from cluster.inventory import Cluster, load_cluster  # noqa: E402
from lab import lab as labs  # noqa: E402
from cluster.ssh.fanout import Executor  # noqa: E402
from tests.health import faults  # noqa: E402

LAB, HOSTS, RUNS, LIMIT_S, SCREEN = "hbench", 64, 3, 10.0, 48
LIMIT = f"limit {LIMIT_S:g} s"
NET_RUNS = 5


def main() -> None:
    """Measure and write the rows; ends with an error if a look does not name exactly the faulty hosts."""
    lab = labs.up(LAB, num_hosts=HOSTS, slots=1)
    try:
        cluster = load_cluster(f"lab:{LAB}")
        well, floor = zip(*[(_timed(cluster), _floor(cluster)) for _ in range(RUNS)], strict=True)
        where = dict(zip(faults.EVERY, cluster.hosts[2::4], strict=False))
        faults.make(where, lab, cluster)
        sick = [_timed(cluster) for _ in range(RUNS)]
    finally:
        labs.down(LAB)
    report = sick[-1][1]
    print(report)
    named = {h for h, problems in report.problems.items() if problems}
    lines = len(str(report).splitlines())
    floor_s = statistics.median(floor)
    calm = "quick, 64 hosts that are well, connections kept open as between tasks"
    rows = [
        _row(calm, [s for s, _ in well], LIMIT, LIMIT_S),
        _row(calm, [s for s, _ in well], f"'true' on all of them, the same way ({floor_s:.2f} s)", floor_s, goal=None),
        _row("quick, 64 hosts with one fault of each kind", [s for s, _ in sick], LIMIT, LIMIT_S),
        {
            "what": "faulty hosts that quick does not name, and well ones that it names",
            "unit": "hosts",
            "value": len(named ^ set(where.values())),
            "against": f"{len(where)} faulty of {HOSTS}",
            "ratio": float(len(named ^ set(where.values()))),
            "goal": 0.0,
            "runs": 1,
            "spread": [0, 0],
        },
        {
            "what": "lines of that report",
            "value": lines,
            "unit": "lines",
            "against": f"a screen of {SCREEN}",
            "ratio": round(lines / SCREEN, 3),
            "goal": 1.0,
            "runs": 1,
            "spread": [lines, lines],
        },
        _net(),
    ]
    (ROOT / "benchmarks/results/health.json").write_text(json.dumps(rows, indent=1) + "\n")


def _timed(cluster: Cluster) -> tuple[float, HealthReport]:
    """A whole look: everything asked and judged, the history written. The first one makes the connections."""
    began = time.perf_counter()
    with Executor(cluster) as reach:
        report = look_at_hosts(reach, cluster, cluster.hosts)
    return time.perf_counter() - began, report


def _floor(cluster: Cluster) -> float:
    began = time.perf_counter()
    with Executor(cluster) as reach:
        reach.run(cluster.hosts, "true").check()
    return time.perf_counter() - began


def _net() -> dict[str, object]:
    """Runs of the pairs among 8 hosts, one card a tenth of the others, that do not name exactly it."""
    lab = labs.up(LAB, num_hosts=8, slots=1)
    try:
        cluster = load_cluster(f"lab:{LAB}")
        wrong = sum(not _names_exactly(lab, cluster, rank) for rank in range(NET_RUNS))
    finally:
        labs.down(LAB)
    return {
        "what": "net, 8 hosts, one card shaped to a tenth: runs that do not name exactly it",
        "value": wrong,
        "unit": "runs",
        "against": f"{NET_RUNS} runs, each another host",
        "ratio": wrong / NET_RUNS,
        "goal": 0.0,
        "runs": NET_RUNS,
        "spread": [wrong, wrong],
    }


def _names_exactly(lab: labs.Lab, cluster: Cluster, slow: int) -> bool:
    for host in lab.hosts:
        labs.slow(lab, host, mbit=40 if host.rank == slow else 400, delay_ms=None)
    with Executor(cluster) as reach:
        return [cluster.hosts[slow]] == list(pair_problems(measure_pairs(reach, cluster.hosts, way_s=0.5, streams=2)))


def _row(what: str, seconds: list[float], against: str, limit_s: float, goal: float | None = 1.0) -> dict[str, object]:
    middle = statistics.median(seconds)
    return {
        "what": what,
        "value": round(middle, 2),
        "unit": "s",
        "against": against,
        "ratio": round(middle / limit_s, 3),
        "goal": goal,
        "runs": len(seconds),
        "spread": [round(min(seconds), 2), round(max(seconds), 2)],
    }


if __name__ == "__main__":
    main()
