"""Hangs of programs without heartbeats: seconds until one is named, with its rank and class; false alarms.

    PYTHONPATH=. python benchmarks/verdicts.py --python .torch/bin/python [--times 1] [--together 3]    # as root

Each case of `verdicts_program.py` is a job of six ranks on three lab hosts. The time counts from the last line, which
comes before the fault, to the warning in the job's console. A healthy case must end by itself without one.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from cluster.inventory import ROOT
from lab import lab as labs
from lab.record import Lab

sys.path.insert(0, str(Path(__file__).parent))
import verdicts_program
from rounds import write

LAB, HOSTS_EACH, SLOTS = "bverdict", 3, 2
GOAL_S, PATIENCE_S = 45.0, 240.0
WORD = "the program stands still ("
CLASSES = {
    "stopped rank": "stopped",
    "native code": "stuck in user code",
    "endless loop": "computes in one line",
    "dead data loader": "waits for input",
    "swallowed exception": "diverged collectives",
    "uneven last batch": "diverged collectives",
    "evaluation on rank 0": "diverged collectives",
}


def inv(*words: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run a task from a folder of code."""
    environment = {**os.environ, "CLUSTER": f"lab:{LAB}", "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "invoke", "--search-root", str(ROOT), *words]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=300)


def tried(lab: Lab, case: str, hosts: str, python: str, folder: Path) -> dict[str, Any]:
    """Start the case, and return what its console said of it, and after how many seconds."""
    name = f"v-{case.replace(' ', '-')}"
    words = (
        "train.run",
        "--name",
        name,
        "--hosts",
        hosts,
        "--no-heal",
        "--unchecked",
        "--include",
        ".",
        "--detach",
        "--",
    )
    done = inv(*words, python, "verdicts_program.py", case, folder=folder)
    if done.returncode:
        raise SystemExit(done.stdout + done.stderr)
    job = max((lab.shared / "jobs").glob(f"*-{name}-*"))
    console, last, told = job / "logs/attempt-1/console.log", time.monotonic(), ""
    lines, until = 0, time.monotonic() + PATIENCE_S
    while time.monotonic() < until and not told:
        text = console.read_text() if console.exists() else ""
        if len(text.splitlines()) != lines and WORD not in text:
            lines, last = len(text.splitlines()), time.monotonic()
        told = next((line for line in text.splitlines() if WORD in line), "")
        if json.loads((job / "state.json").read_text() or "{}").get("state") not in ("starting", "running", None):
            break
        time.sleep(0.2)
    found = {"case": case, "told": told, "seconds": time.monotonic() - last}
    inv("jobs.stop", job.name, folder=folder)
    return found


def is_right(found: dict[str, Any]) -> bool:
    """Return True if the rank and the class are those of the case."""
    rank, _ = verdicts_program.HANGS[found["case"]]
    kind = CLASSES.get(found["case"], "stuck in user code")
    return f"({kind})" in found["told"] and f"rank {rank} " in found["told"]


def main() -> None:
    """Every case so many times, and the rows."""
    words = argparse.ArgumentParser()
    words.add_argument("--python", default=str(ROOT / ".torch/bin/python"))
    words.add_argument("--times", type=int, default=1)
    words.add_argument("--together", type=int, default=3)
    words.add_argument("--only", default="")
    told = words.parse_args()
    cases = [c for c in (*verdicts_program.HANGS, *verdicts_program.HEALTHY) if told.only in c] * told.times
    lab = labs.up(LAB, HOSTS_EACH * told.together, SLOTS)
    free: SimpleQueue[str] = SimpleQueue()
    for n in range(told.together):
        free.put(f"{n * HOSTS_EACH}-{n * HOSTS_EACH + HOSTS_EACH - 1}")

    def one(case: str) -> dict[str, Any]:
        hosts = free.get()
        try:
            found = tried(lab, case, hosts, told.python, folder)
        finally:
            free.put(hosts)
        print(f"{case}: {found['seconds']:.1f} s: {found['told'] or 'nothing was said'}", flush=True)
        return found

    try:
        with tempfile.TemporaryDirectory() as name, ThreadPoolExecutor(told.together) as pool:
            folder = Path(name)
            (folder / "verdicts_program.py").write_text(Path(verdicts_program.__file__).read_text())
            found = list(pool.map(one, cases))
    finally:
        labs.down(LAB)
    hangs = [f for f in found if f["case"] in verdicts_program.HANGS]
    healthy = [f for f in found if f["case"] in verdicts_program.HEALTHY]
    seconds = sorted(f["seconds"] for f in hangs if f["told"])
    rows = [
        {"what": "hangs named with the right rank and class", "value": sum(map(is_right, hangs)), "unit": "hangs",
         "against": f"{len(hangs)} hangs", "ratio": None, "goal": None, "runs": len(hangs), "spread": None},
        {"what": "from the last line to the verdict", "value": statistics.median(seconds), "unit": "s",
         "against": "the goal", "ratio": statistics.median(seconds) / GOAL_S, "goal": 1.0, "runs": len(seconds),
         "spread": [seconds[0], seconds[-1]]},
        {"what": "false alarms", "value": sum(bool(f["told"]) for f in healthy), "unit": "alarms",
         "against": f"{len(healthy)} healthy programs", "ratio": None, "goal": None, "runs": len(healthy),
         "spread": None},
    ]  # fmt: skip
    if not told.only:
        write("verdicts", rows)


if __name__ == "__main__":
    main()
