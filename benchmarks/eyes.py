"""`inv top` on 4 and 64 lab hosts: how long a frame takes, what a second of it costs, when a slow host is marked; and
the page of a job of 100,000 steps: how long it takes to make, and its size.

    PYTHONPATH=. python benchmarks/eyes.py                 # as root: it makes labs of its own
    PYTHONPATH=. python benchmarks/eyes.py --sizes 4       # only some; the other rows keep what they have
    PYTHONPATH=. python benchmarks/eyes.py --page          # only the page of a job; needs no root
    PYTHONPATH=. python benchmarks/eyes.py --picture       # docs/top.svg: four hosts that train, one of them slow

A frame is the time from the first question to the last byte of what is drawn of the answers, on a terminal of 200
columns and 80 rows. Cores are processor time of the process over a minute of a frame a second, also with its ssh.
Everything runs on this machine: the hosts share its cores, which real ones do not.
"""

import argparse
import io
import json
import os
import pty
import re
import select
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from cluster.inventory import ROOT, Cluster, load_cluster
from cluster.jobs.master.facts import read_facts
from cluster.report.page import MOST_BYTES, page
from lab import lab as labs
from lab.record import Lab
from cluster.ssh import connections
from cluster.ssh.fanout import Executor
from cluster.top.collector import FRAME_S, SPREAD_S, Gatherer
from cluster.top.snapshot import ClusterSnapshot
from cluster.top.table import View, lines
from tests.cluster.made_job import made_job, write_metrics

sys.path.insert(0, str(Path(__file__).parent))
from rounds import RESULTS, Runs, row, write

LAB = "beyes"
COLUMNS, ROWS = 200, 80
FRAMES, EVERY_S = 60, 1.0
GOAL_FRAME_S, GOAL_CORES = 0.3, 0.25
TRIALS, TRIAL_FRAMES = 5, 10
PAGE_STEPS, PAGE_RUNS = 100_000, 5
TRAINING = (
    *("--model", "resnet18", "--image-size", "32", "--batch-size", "4", "--classes", "10", "--synthetic"),
    *("--threads", "1", "--num-batches", "1000000", "--display-every", "2", "--checkpoint-every", "100000"),
)
PICTURE = ROOT / "docs/top.svg"
PICTURE_COLUMNS = 158
MBIT = 20  # of the slowed host


def main() -> None:
    """Measure what was asked for; rows that were not measured stay as they are."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", type=int, nargs="*", default=[4, 64])
    parser.add_argument("--slow", action="store_true", help="only when a slow host is marked")
    parser.add_argument("--picture", action="store_true", help="only the picture for the docs")
    parser.add_argument("--page", action="store_true", help="only the page of a job")
    parser.add_argument("--hosts", type=int, default=4, help="of the lab in which two train")
    asked = parser.parse_args()
    rows = [] if asked.picture or asked.slow else a_job_s_page()
    if asked.page:
        asked.sizes = []
    if asked.picture or asked.slow:
        with training_lab(asked.hosts) as (lab, cluster):
            rows = slowed(lab, cluster) if asked.slow else []
            if asked.picture:
                take_picture(lab, cluster)
    else:
        for size in asked.sizes:
            rows += watched(size)
    if rows:
        kept = json.loads((RESULTS / "eyes.json").read_text()) if (RESULTS / "eyes.json").exists() else []
        new = {r["what"] for r in rows}
        write("eyes", [*(r for r in kept if r["what"] not in new), *rows])


def a_job_s_page() -> list[dict[str, Any]]:
    """The rows of the page of a job of 100,000 steps, eight ranks and ten attempts, a record of each step."""
    found: Runs = {"read": [], "drawn": [], "size": [], "limit 500 kB": [MOST_BYTES / 1000]}
    with tempfile.TemporaryDirectory() as folder:
        paths = made_job(Path(folder), steps=PAGE_STEPS, attempts=10)
        write_metrics(paths, PAGE_STEPS, ranks=8)
        for _ in range(PAGE_RUNS):
            began = time.process_time()
            facts = read_facts(paths)
            found["read"].append(time.process_time() - began)
            began = time.process_time()
            made = page(facts)
            found["drawn"].append(time.process_time() - began)
            found["size"].append(len(made.encode()) / 1000)
    what = "a job's page of 100,000 steps"
    return [
        row(found, "size", "limit 500 kB", 1.0, label=f"{what}: size", unit="kB"),
        row(found, "read", label=f"{what}: reading the job, processor time"),
        row(found, "drawn", label=f"{what}: making the page, processor time"),
    ]


def watched(size: int) -> list[dict[str, Any]]:
    """The rows of so many hosts: all there, then one of them dead."""
    lab = labs.up(LAB, size, 1)
    try:
        cluster = load_cluster(f"lab:{LAB}")
        subprocess.run(inv("run", "--", "true"), check=True, capture_output=True, env=environment())
        once = [timed(inv("top", "--once")) for _ in range(3)]
        calm = measured(cluster, lambda: None)
        sick = measured(cluster, lambda: labs.crash(lab, lab.hosts[-1]))
    finally:
        connections.disconnect()
        labs.down(LAB)
    limits: Runs = {"limit 0.3 s": [GOAL_FRAME_S], "limit 0.25 of a core": [GOAL_CORES]}
    loads: Runs = {"load": [os.getloadavg()[0] / (os.cpu_count() or 1)]}

    def line(name: str, values: list[float], against: str, unit: str, label: str) -> dict[str, Any]:
        text = f"{size} hosts: {label}"
        return row({**limits, name: values}, name, against, 1.0 if against else None, label=text, unit=unit)

    return [
        line("frame", calm["frame"], "limit 0.3 s", "s", "a frame, from the questions to what is drawn"),
        line("dead", sick["frame"], "limit 0.3 s", "s", "a frame while a host is dead"),
        line("drawing", calm["drawing"], "", "s", "of that, comparing and drawing"),
        line("cores", calm["cores"], "limit 0.25 of a core", "cores", "processor of a frame a second"),
        line("ssh", calm["with ssh"], "", "cores", "the same with the connections' ssh"),
        line("once", once, "", "s", "inv top --once, whole process"),
        row(loads, "load", label=f"{size} hosts: load per core of this machine meanwhile", unit=""),
    ]


def measured(cluster: Cluster, fault: Callable[[], None]) -> Runs:
    """A minute of frames, drawn on a terminal that somebody reads."""
    seen: list[int] = []
    found: Runs = {"frame": [], "drawing": [], "cores": [], "with ssh": []}
    with terminal() as screen, Executor(cluster) as reach, Gatherer(reach, cluster, cluster.hosts) as gatherer:
        gatherer.first_answers(60)
        fault()
        gatherer.listen(5)
        began, spent, of_ssh = time.monotonic(), time.process_time(), ssh_s(cluster)
        for n in range(FRAMES):
            asked = time.perf_counter()
            gatherer.ask()
            gatherer.listen_until_answered(FRAME_S - SPREAD_S)
            drawing = time.perf_counter()
            screen(frame := gatherer.frame())
            found["frame"].append(time.perf_counter() - asked)
            found["drawing"].append(time.perf_counter() - drawing)
            seen.append(sum(h.is_seen for h in frame.hosts))
            gatherer.listen(max(0.0, began + (n + 1) * EVERY_S - time.monotonic()))
        if statistics.median(seen) < len(cluster.hosts) - 1:
            raise RuntimeError(f"only {statistics.median(seen)} hosts are seen")
        wall = time.monotonic() - began
        own = time.process_time() - spent
        theirs = sum(seconds - of_ssh.get(pid, 0.0) for pid, seconds in ssh_s(cluster).items())
        found["cores"], found["with ssh"] = [own / wall], [(own + theirs) / wall]
    return found


@contextmanager
def terminal() -> Iterator[Callable[[ClusterSnapshot], None]]:
    """Draws frames on a terminal, as `inv top` does."""
    from rich.console import Console

    from cluster.top.command import Screen

    ours, theirs = pty.openpty()
    os.set_blocking(ours, False)
    over = threading.Event()

    def read() -> None:
        while not over.is_set():
            if select.select([ours], [], [], 0.1)[0]:
                os.read(ours, 1 << 16)

    reader = threading.Thread(target=read)
    reader.start()
    before, sys.stdout = sys.stdout, os.fdopen(theirs, "w")
    os.environ |= {"COLUMNS": str(COLUMNS), "LINES": str(ROWS), "TERM": "xterm-256color"}
    try:
        yield Screen(Console(highlight=False), View()).show
    finally:
        sys.stdout, screen = before, sys.stdout
        over.set()
        reader.join()
        screen.close()
        os.close(ours)


def slowed(lab: Lab, cluster: Cluster) -> list[dict[str, Any]]:
    """Frames until a slowed host is marked, and frames in which a host that is well is."""
    until, wrong = [], 0
    with Executor(cluster) as reach, Gatherer(reach, cluster, cluster.hosts) as gatherer:
        gatherer.first_answers(60)

        def frame() -> ClusterSnapshot:
            gatherer.listen(EVERY_S - SPREAD_S)
            gatherer.ask()
            gatherer.listen_until_answered(FRAME_S - SPREAD_S)
            return gatherer.frame()

        for n in range(TRIALS):
            slow = n % 2  # one of the two that train
            wrong += sum(bool(h.odd) for _ in range(TRIAL_FRAMES) for h in frame().hosts)
            labs.slow(lab, lab.hosts[slow], mbit=MBIT, delay_ms=None)
            shown = [frame() for _ in range(TRIAL_FRAMES)]
            labs.heal(lab, [lab.hosts[slow]])
            marked = [k + 1 for k, f in enumerate(shown) if f.hosts[slow].odd]
            until.append(float(marked[0]) if marked else float(TRIAL_FRAMES))
            wrong += sum(bool(h.odd) for f in shown for h in f.hosts if h.host.rank != slow)
            for _ in range(3):
                frame()
    runs: Runs = {"until": until, "limit 2 frames": [2.0]}
    text = f"frames until a host that trains and has {MBIT} Mbit/s is marked, {len(lab.hosts)} hosts, a training on two"
    calm = f"marks of hosts that are well, in {2 * TRIALS * TRIAL_FRAMES} frames of {len(lab.hosts)} hosts"
    marks = row({"wrong": [float(wrong)]}, "wrong", label=calm, unit="marks")
    return [row(runs, "until", "limit 2 frames", 1.0, label=text, unit="frames"), marks]


@contextmanager
def training_lab(hosts: int) -> Iterator[tuple[Lab, Cluster]]:
    """So many hosts, on two of which a training runs."""
    lab = labs.up(LAB, hosts, 1)
    try:
        words = inv("train.resnet50", "--np", "2", "--detach", "--", *TRAINING)
        subprocess.run(words, check=True, capture_output=True, env=environment())
        cluster = load_cluster(f"lab:{LAB}")
        with Executor(cluster) as reach, Gatherer(reach, cluster, cluster.hosts) as gatherer:
            deadline = time.monotonic() + 300
            while not any(job.images_per_s for job in gatherer.frame().jobs):
                if time.monotonic() > deadline:
                    raise RuntimeError("the training has not begun within 300 s")
                gatherer.ask()
                gatherer.listen(EVERY_S)
        yield lab, cluster
        subprocess.run(inv("jobs.stop", "last"), check=True, capture_output=True, env=environment())
    finally:
        connections.disconnect()
        labs.down(LAB)


def take_picture(lab: Lab, cluster: Cluster) -> None:
    """The first frame in which the slowed host is marked and a dead one is grey."""
    with Executor(cluster) as reach, Gatherer(reach, cluster, cluster.hosts) as gatherer:
        gatherer.first_answers(60)
        labs.slow(lab, lab.hosts[1], mbit=MBIT, delay_ms=None)
        labs.crash(lab, lab.hosts[3])
        for _ in range(60):
            gatherer.ask()
            gatherer.listen(EVERY_S)
            frame = gatherer.frame()
            if frame.hosts[1].odd and frame.hosts[1].rates and not frame.hosts[3].is_seen:
                break
    PICTURE.write_text(picture_of(frame))


def picture_of(frame: ClusterSnapshot) -> str:
    """The frame as `inv top` draws it, as SVG that asks nobody for a font."""
    from rich.console import Console

    console = Console(record=True, width=PICTURE_COLUMNS, file=io.StringIO(), force_terminal=True, highlight=False)
    for line in lines(frame, View(), PICTURE_COLUMNS, 10):
        console.print(line)
    drawn = console.export_svg(title="inv top")
    return re.sub(r"@font-face \{.*?\}\s*", "", drawn, flags=re.S)


def ssh_s(cluster: Cluster) -> dict[str, float]:
    """Processor seconds of each open connection to these hosts, by its process."""
    spent = {}
    addresses = {h.address.encode() for h in cluster.hosts}
    for process in Path("/proc").iterdir():
        if process.name.isdigit():
            try:
                words = (process / "cmdline").read_bytes().split(b"\0")
                if words[0].endswith(b"ssh") and addresses & {*words}:
                    spent[process.name] = int((process / "schedstat").read_text().split()[0]) / 1e9
            except OSError:
                continue
    return spent


def inv(*words: str) -> list[str]:
    """The command line."""
    return [sys.executable, "-m", "invoke", *words]


def environment() -> dict[str, str]:
    """In which it means the lab."""
    return {**os.environ, "CLUSTER": f"lab:{LAB}"}


def timed(words: list[str]) -> float:
    """How long it takes."""
    began = time.perf_counter()
    subprocess.run(words, check=False, capture_output=True, env=environment(), cwd=ROOT)
    return time.perf_counter() - began


if __name__ == "__main__":
    main()
