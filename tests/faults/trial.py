"""One fault tried: the command begun on a lab, the fault at its moment, and what is promised of every command.

`python -m tests.faults.trial --seed 1 --count 60` (as root) draws trials, prints a line for each, and ends with 1 if a
promise was broken; `judge` has the promises. A trial whose fault met nothing, or whose command had ended before, does
not count: the next cell that was drawn takes its place.
"""

import argparse
import itertools
import os
import pty
import re
import signal
import subprocess
import tempfile
import time
import traceback
import zlib
from pathlib import Path

from cluster.ssh import connections
from lab import lab as labs
from tests.faults import judge, odd_trial
from tests.faults.bench import ENDED, LIMIT_S, LIMITS_S, TARGET, Bench, opened, wait
from tests.faults.breaking import FAULTS, MPIRUN, TAGGED, NothingThere, Undo, inside
from tests.faults.grid import OPERATOR, Cell, drawn
from tests.faults.judge import BYSTANDER, LEFTOVER, Trial
from tests.faults.odd import odd_drawn

COPY_MBIT = 60  # so that there is a midway
STEPS = {"train": 16, "resume": 16, "stop": 400, "logs": 40}


def training(steps: int, rank: int) -> tuple[str, ...]:
    """The command line of a training so long, on the master and this host, or another."""
    flags = (
        "--synthetic", "--model", "resnet18", "--image-size", "32", "--batch-size", "2", "--num-batches", str(steps),
        "--threads", "1", "--display-every", "2", "--checkpoint-every", "4", "--keep", "2",
    )  # fmt: skip
    return ("--unchecked", "--hosts", f"0,{max(1, rank)}", "--name", "fault", "--", *flags)


def prepare(bench: Bench, cell: Cell, trial: Trial) -> tuple[str, ...]:
    """The command line of a cell's command; what it needs is there: a job, leftovers, an older copy."""
    rank = bench.host(cell.place).rank
    only_once = () if trial.heals else ("--no-heal",)
    if zlib.crc32(str(cell).encode()) % 2:  # connections that are open already break in other ways
        bench.ask("run", "--", "true")
    if cell.command == "copy":
        for host in bench.lab.hosts:
            inside(bench.lab, host, f"mkdir -p {TARGET}; for n in 0 1 2 3; do echo old >{TARGET}/small-$n; done")
            labs.slow(bench.lab, host, mbit=COPY_MBIT, delay_ms=None)
    trial.steps = STEPS.get(cell.command, 0)
    if cell.command == "logs" and cell.fault == "slow line":
        trial.steps = 8  # each takes twenty seconds
    if cell.command in ("resume", "stop", "logs", "kill"):
        code, said = bench.ask("train.resnet50", "--detach", *only_once, *training(trial.steps or 4, rank))
        assert code == 0, said
        trial.job = bench.jobs()[-1]
        if cell.command != "kill":
            wait(lambda: bench.steps(trial.job) > 0 or bench.recorded(trial.job).get("state") in ENDED, 200)
    if cell.command in ("resume", "kill"):
        bench.ask("jobs.stop", trial.job)
    if cell.command == "kill":
        for host in bench.lab.hosts:
            inside(bench.lab, host, LEFTOVER.format(job=trial.job) + BYSTANDER)
    return {
        "run": ("run", "--timeout", "40", "--", "echo begun; sleep 4; echo done"),
        "copy": ("copy", str(bench.source), TARGET),
        "health": ("health",),
        "kill": ("kill", "--yes"),
        "train": ("train.resnet50", *only_once, *training(STEPS["train"], rank)),
        "resume": ("jobs.resume", "last", "--unchecked", *only_once),
        "stop": ("jobs.stop", "last"),
        "logs": ("jobs.logs", "last", "--follow"),
    }[cell.command]


def has_come(bench: Bench, cell: Cell, trial: Trial) -> bool:
    """Whether the cell's moment is now, by what is seen on the hosts."""
    host = bench.host(cell.place)
    if cell.moment == "launching":
        return bool(inside(bench.lab, bench.lab.hosts[0], MPIRUN))
    if cell.command == "copy":
        return int(inside(bench.lab, host, f"du -sm {TARGET} | cut -f1") or 0) > 8
    if cell.command in ("train", "resume"):
        job = (bench.jobs() or [""])[-1]
        return bench.steps(job) >= max(4, trial.checkpoint + 2)
    if cell.command == "stop":
        return bench.recorded(trial.job).get("state") == "stopping"
    if cell.command == "logs":
        return bool(bench.said())
    return bool(inside(bench.lab, host, TAGGED.replace("RUN|JOB", "RUN")))  # not the leftovers of `kill`


def attempt(bench: Bench, cell: Cell, *, heals: bool) -> Trial:
    """Try one cell. The lab is as it was afterwards, whatever happened. Raises NothingThere."""
    trial = Trial(cell, heals=heals)
    words = prepare(bench, cell, trial)
    trial.checkpoint = bench.checkpoint(trial.job) if trial.job else -1
    undo: list[Undo] = []
    try:
        if cell.moment == "before" and cell.fault in FAULTS:
            undo.append(FAULTS[cell.fault].strike(bench.lab, bench.host(cell.place)))
        began = time.monotonic()
        ends = {"terminal gone": pty.openpty, "output closed": os.pipe}.get(cell.fault, lambda: (-1, -1))()
        process = bench.start(*words, stdout=ends[1] if ends[1] >= 0 else None)
        if ends[1] >= 0:
            os.close(ends[1])
        try:
            if cell.moment == "at once" and cell.fault in FAULTS and FAULTS[cell.fault].of_processes:
                wait(lambda: process.poll() is not None or inside(bench.lab, bench.host(cell.place), TAGGED), LIMIT_S)
            elif cell.moment == "at once":
                time.sleep(0.8)  # while it looks at the hosts
            elif cell.moment != "before":
                wait(lambda: process.poll() is not None or has_come(bench, cell, trial), LIMIT_S)
            if process.poll() is not None and cell.moment != "before":
                raise NothingThere("the command had ended before")
            trial.job = trial.job or (bench.jobs() or [""])[-1]
            trial.checkpoint = max(trial.checkpoint, bench.checkpoint(trial.job)) if trial.job else -1
            if cell.fault in OPERATOR:
                _strike(process, cell.fault, ends[0])
            elif cell.moment != "before":
                undo.append(FAULTS[cell.fault].strike(bench.lab, bench.host(cell.place)))
            trial.code = process.wait(LIMITS_S.get(cell.command, LIMIT_S) * (1 + heals))
        except subprocess.TimeoutExpired:
            if not ("frozen" in cell.fault and "is stopped (SIGSTOP" in bench.said()):  # it follows on, and says why
                trial.broken.append("did not end in time")
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        trial.seconds = time.monotonic() - began
        trial.said = bench.said()
        judge.while_it_is_there(bench, trial)
    finally:
        for mend in undo:
            mend()
        labs.heal(bench.lab, bench.lab.hosts)
        connections.disconnect()
    judge.afterwards(bench, trial, words)
    return trial


def _strike(process: "subprocess.Popen[bytes]", fault: str, terminal: int) -> None:
    """As a terminal does it: Ctrl-C and its end go to everything that was started from it."""
    if fault in ("terminal gone", "output closed"):
        os.close(terminal)  # what is written from now on fails
    if fault == "terminal gone":
        os.killpg(process.pid, signal.SIGHUP)
    elif fault == "killed":
        process.kill()
    elif fault.startswith("Ctrl-C"):
        os.killpg(process.pid, signal.SIGINT)
        if fault == "Ctrl-C twice":
            time.sleep(0.3)
            os.killpg(process.pid, signal.SIGINT)


def main() -> None:
    """Draw and try; a line per trial."""
    parser = argparse.ArgumentParser(prog="python -m tests.faults.trial", description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--grid", choices=("first", "odd"), default="first", help="odd: networks, clocks, shells, programs"
    )
    parser.add_argument("--count", type=int, default=60)
    parser.add_argument("--from", dest="first", type=int, default=0, help="leave so many of the drawn ones out")
    parser.add_argument("--part", default="0/1", help="every so-manieth only: 0/3, 1/3, 2/3 are tried side by side")
    parser.add_argument("--only", default="", help="only cells whose text has this (a regular expression) in it")
    parser.add_argument("--heal", action="store_true", help="trainings go on by themselves; without it: --no-heal")
    parser.add_argument("--list", action="store_true", help="print the cells, try none")
    parser.add_argument("--keep", type=Path, help="a folder for what each command said")
    asked = parser.parse_args()
    for ending in (signal.SIGINT, signal.SIGTERM):  # the lab is taken down
        signal.signal(ending, signal.default_int_handler)
    part, parts = map(int, asked.part.split("/"))
    cells = [
        (n, cell)
        for n, cell in enumerate((odd_drawn if asked.grid == "odd" else drawn)(asked.seed, 2000))
        if n >= asked.first and n % parts == part and re.search(asked.only, str(cell))
    ]
    if asked.list:
        print("\n".join(f"{n:3} {cell}" for n, cell in itertools.islice(cells, asked.count)))
        return
    tried = broken = 0
    with tempfile.TemporaryDirectory(prefix="faults-") as folder:
        os.environ["XDG_RUNTIME_DIR"] = folder
        with opened(Path(folder)) as bench:
            for n, cell in cells:
                if tried == asked.count:
                    break
                try:
                    trial = (
                        odd_trial.attempt(bench, cell)
                        if asked.grid == "odd"
                        else attempt(bench, cell, heals=asked.heal)
                    )
                except NothingThere as e:
                    print(f"{n:3} {cell} | no trial: {str(e)[-120:]}", flush=True)
                    continue
                except Exception:
                    trial = Trial(cell, broken=[f"the trial itself failed: {traceback.format_exc()[-1500:]}"])
                finally:
                    connections.disconnect()
                    bench.fresh()
                tried, broken = tried + 1, broken + bool(trial.broken)
                print(f"{n:3} {trial}", flush=True)
                if asked.keep:
                    (asked.keep / f"{n}.txt").write_text(f"{trial}\n\n{trial.said}\n{trial.story}")
            connections.disconnect()
    print(f"{broken} of {tried} broke a promise")
    raise SystemExit(bool(broken))


if __name__ == "__main__":
    main()
