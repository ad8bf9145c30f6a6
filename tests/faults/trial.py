"""One fault tried: the command begun on a lab, the fault at its moment, and what is promised of every command.

`python -m tests.faults.trial --seed 1 --count 60` (as root) draws trials, prints a line for each, and ends with 1 if a
promise was broken. The promises:

1. The command ends by itself within `LIMIT_S`.
2. It never ends in a traceback.
3. Exit code 0 means that all of it was done, and a failure says something; a host that failed is named.
4. When the fault is gone the same command does its work.
5. No process of ours, and no half-written file, is left on a host that can be asked.
"""

import argparse
import functools
import hashlib
import json
import os
import pty
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from cluster.inventory import ROOT, Cluster, load_cluster
from cluster.lab import lab as labs
from cluster.lab.record import Lab, LabHost
from cluster.ssh import connections
from cluster.ssh.fanout import Reach
from cluster.ssh.limits import Limits
from tests.faults.grid import FAULTS, OPERATOR, TAGGED, Cell, drawn, inside

LIMIT_S = 300
STEPS = 16
COPY_MBIT = 150  # so that 63 MB take five seconds, and there is a midway
TRAINING = (
    "--synthetic", "--model", "resnet18", "--image-size", "32", "--batch-size", "2", "--num-batches", str(STEPS),
    "--threads", "1", "--display-every", "2", "--checkpoint-every", "4",
)  # fmt: skip
_ENDED = ("succeeded", "failed", "stopped", "lost")


@dataclass
class Trial:
    """What came of one cell."""

    cell: Cell
    seconds: float = 0.0
    code: int | None = None
    said: str = ""
    came_late: bool = False  # the command had ended before the fault
    broken: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        verdict = "; ".join(self.broken) or ("the command had ended before" if self.came_late else "held")
        tail = next((line for line in reversed(self.said.strip().splitlines()) if line.strip()), "")
        return f"{self.cell} | exit {self.code} in {self.seconds:.0f} s | {verdict} | {tail[:140]}"


class Bench:
    """A lab of four hosts, and commands on it as an operator types them."""

    def __init__(self, lab: Lab, folder: Path) -> None:
        self.lab, self.folder = lab, folder
        self.cluster: Cluster = load_cluster(f"lab:{lab.name}")
        self.source = lab.shared / "source"
        self.source.mkdir(exist_ok=True)
        if not (self.source / "large").exists():
            (self.source / "large").write_bytes(os.urandom(1 << 20) * 60)
            for n in range(200):
                (self.source / f"small-{n}").write_text(str(n))

    def host(self, place: str) -> LabHost:
        return self.lab.hosts[{"master": 0, "worker": 1, "last": 3}[place]]

    def start(self, *words: str, **more: object) -> "subprocess.Popen[bytes]":
        """`inv WORDS` in a session of its own, its output in a file."""
        environment = {**os.environ, "CLUSTER": f"lab:{self.lab.name}", "XDG_CACHE_HOME": str(self.folder / "cache")}
        out = more.pop("stdout", None) or (self.folder / "out").open("wb")
        return subprocess.Popen(
            [sys.executable, "-c", "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); "
             "from invoke.main import program; program.run()", *words],
            cwd=ROOT, env=environment, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT,
            start_new_session=True, **more,  # type: ignore[call-overload]
        )  # fmt: skip

    def output(self) -> str:
        return (self.folder / "out").read_text(errors="replace")

    def jobs(self) -> dict[str, dict[str, object]]:
        """State of each job, by id, as its folder has it."""
        return {p.parent.name: json.loads(p.read_text() or "{}") for p in self.lab.shared.glob("jobs/*/state.json")}

    def job(self) -> str:
        return max(self.jobs(), key=lambda j: (self.lab.shared / "jobs" / j).stat().st_mtime)

    def finished_steps(self, job: str) -> int:
        lines = (self.lab.shared / "jobs" / job / "metrics.jsonl").read_text().splitlines()
        return max((json.loads(line).get("step", 0) for line in lines if line.startswith("{")), default=0)

    def wait(self, holds: Callable[[], bool], limit_s: float) -> bool:
        deadline = time.monotonic() + limit_s
        while not holds():
            if time.monotonic() > deadline:
                return False
            time.sleep(0.1)
        return True

    def ask(self, *words: str, limit_s: float = LIMIT_S) -> tuple[int | None, str]:
        """A command to its end; None if it had to be killed."""
        process = self.start(*words)
        try:
            return process.wait(limit_s), self.output()
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            return None, self.output()


def words_of(bench: Bench, command: str) -> tuple[str, ...]:
    """The command line of a cell's command; jobs that it needs are begun."""
    train = ("train.resnet50", "--unchecked", "--name", "fault", "--", *TRAINING)
    if command in ("resume", "stop", "logs"):
        code, said = bench.ask("train.resnet50", "--detach", *train[1:])
        assert code == 0, said
        job = bench.job()
        progressed = functools.partial(_has_metrics, bench, job)
        bench.wait(progressed, 120)
        if command == "resume":
            bench.ask("jobs.stop", job)
    return {
        "run": ("run", "--timeout", "40", "--", "echo begun; sleep 4; echo done"),
        "copy": ("copy", str(bench.source), "/var/tmp/fault-copy"),
        "health": ("health",),
        "kill": ("kill", "--yes"),
        "train": train,
        "resume": ("jobs.resume", "last", "--unchecked"),
        "stop": ("jobs.stop", "last"),
        "logs": ("jobs.logs", "last", "--follow"),
    }[command]


def _has_metrics(bench: Bench, job: str) -> bool:
    path = bench.lab.shared / "jobs" / job / "metrics.jsonl"
    return (path.exists() and path.stat().st_size > 0) or bench.jobs()[job].get("state") in _ENDED


def _nothing() -> None:
    """There is nothing to undo."""


def attempt(bench: Bench, cell: Cell) -> Trial:
    """Try one cell. The lab is as it was afterwards, whatever happened."""
    trial = Trial(cell)
    if cell.command == "copy":
        for host in bench.lab.hosts:
            inside(bench.lab, host, "rm -rf /var/tmp/fault-copy")
            labs.slow(bench.lab, host, mbit=COPY_MBIT, delay_ms=None)
    words = words_of(bench, cell.command)
    undo: Callable[[], object] = _nothing
    began = time.monotonic()
    try:
        if cell.moment == "before" and cell.fault in FAULTS:
            undo = FAULTS[cell.fault](bench.lab, bench.host(cell.place))
        began = time.monotonic()
        if cell.fault == "output closed":
            reader, writer = os.pipe()
            process = bench.start(*words, stdout=os.fdopen(writer, "wb"))
            os.close(reader)
        elif cell.fault == "terminal gone":
            master, slave = pty.openpty()
            process = bench.start(*words, stdout=os.fdopen(slave, "wb"))
        else:
            process = bench.start(*words)
        pause = {"before": 0.0, "at once": 0.6, "midway": 12.0 if cell.command in ("train", "resume") else 2.5}
        time.sleep(pause[cell.moment])  # the moment of the fault is part of the trial
        trial.came_late = process.poll() is not None
        if cell.moment != "before" and cell.fault in FAULTS:
            undo = FAULTS[cell.fault](bench.lab, bench.host(cell.place))
        elif cell.fault in OPERATOR:
            _strike(process, cell.fault, master if cell.fault == "terminal gone" else -1)
        try:
            trial.code = process.wait(LIMIT_S)
        except subprocess.TimeoutExpired:
            trial.broken.append(f"did not end in {LIMIT_S} s")
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        trial.seconds = time.monotonic() - began
        trial.said = bench.output() if cell.fault not in ("output closed", "terminal gone") else ""
        _judge(bench, trial)
    finally:
        undo()
        labs.heal(bench.lab, bench.lab.hosts)
        for host in bench.lab.hosts:
            inside(bench.lab, host, "pkill -CONT -x sshd; mountpoint -q /shared || true")
        if "/shared gone" == cell.fault:
            labs.crash(bench.lab, bench.host(cell.place))
            labs.heal(bench.lab, bench.lab.hosts)
    _judge_afterwards(bench, trial)
    return trial


def _strike(process: "subprocess.Popen[bytes]", fault: str, terminal: int) -> None:
    if fault == "terminal gone":
        os.close(terminal)
        process.send_signal(signal.SIGHUP)
    elif fault != "output closed":
        process.send_signal(signal.SIGKILL if fault == "killed" else signal.SIGINT)
        if fault == "Ctrl-C twice":
            time.sleep(0.3)
            process.send_signal(signal.SIGINT)


def _judge(bench: Bench, trial: Trial) -> None:
    """What must hold while the fault is still there."""
    if "Traceback" in trial.said:
        trial.broken.append("traceback: " + trial.said.strip().splitlines()[-1][:120])
    failed = trial.code not in (0, None)
    if failed and trial.cell.fault in FAULTS and not trial.said.strip():
        trial.broken.append("failed without a word")
    if trial.code == 0:
        trial.broken += _not_done(bench, trial)
    address = bench.host(trial.cell.place).address if trial.cell.fault in FAULTS else ""
    if failed and trial.cell.command in ("run", "copy") and address and address not in trial.said:
        trial.broken.append(f"{address} is not named")


def _not_done(bench: Bench, trial: Trial) -> list[str]:
    """What a command that ended with 0 has not done."""
    command = trial.cell.command
    if trial.cell.fault in OPERATOR:
        return []
    if command == "run" and not re.search(r"\(4\)\s+begun\n\s+done", trial.said):
        return ["exit 0, but not every host answered"]
    if command in ("train", "resume"):
        job = bench.job()
        if bench.jobs()[job]["state"] != "succeeded":
            return [f"exit 0, but the job is {bench.jobs()[job]['state']}"]
        if bench.finished_steps(job) < STEPS - 2:  # every second one is written, counted from where the attempt began
            return [f"succeeded after {bench.finished_steps(job)} of {STEPS} steps"]
    if command == "stop":
        with Reach(bench.cluster) as reach:
            r = reach.run(bench.cluster.hosts, "grep -lz ^DLAMI_JOB= /proc/[0-9]*/environ", limits=Limits(total_s=30))
        return [f"stopped, but processes of it are on {h}" for h, one in r.items() if one.ok and one.text.strip()]
    return []


def _digest_here(folder: Path) -> str:
    names = sorted(p.name for p in folder.iterdir())
    return " ".join(f"{n}:{hashlib.sha256((folder / n).read_bytes()).hexdigest()}" for n in names)


def _copies_differ(bench: Bench) -> list[str]:
    script = "cd /var/tmp/fault-copy && for f in $(ls | LC_ALL=C sort); do sha256sum $f; done | sha256sum; ls -A | grep -c part"
    with Reach(bench.cluster) as reach:
        results = reach.run(bench.cluster.hosts, script, limits=Limits(total_s=60))
    seen = {r.text for r in results.values() if r.exit_code is not None}
    return (
        [] if len(seen) == 1 and all(r.exit_code is not None for r in results.values()) else ["exit 0, copies differ"]
    )


def _judge_afterwards(bench: Bench, trial: Trial) -> None:
    """What must hold once the fault is gone: jobs come to an end, nothing is left, the same command works."""
    connections.disconnect()
    if trial.cell.command == "copy" and trial.code == 0:
        trial.broken += _copies_differ(bench)
    for job, state in bench.jobs().items():
        if state.get("state") not in _ENDED:
            ended = functools.partial(lambda j: bench.jobs()[j].get("state") in _ENDED, job)
            if not bench.wait(ended, 120):
                code, said = bench.ask("jobs.stop", job)
                if bench.jobs()[job].get("state") not in _ENDED:
                    trial.broken.append(
                        f"{job} is still {bench.jobs()[job].get('state')} after jobs.stop ({code}): {said[-100:]}"
                    )
    code, said = bench.ask("jobs.list")
    if code != 0 or "Traceback" in said:
        trial.broken.append(f"afterwards jobs.list ends with {code}: {said.strip()[-160:]}")
    if trial.cell.command in ("run", "copy", "health"):
        code, said = bench.ask(*words_of(bench, trial.cell.command))
        if code != 0:
            trial.broken.append(f"again, without the fault: exit {code}: {said.strip()[-160:]}")
        elif trial.cell.command == "copy":
            trial.broken += _copies_differ(bench)
    else:
        code, said = bench.ask("kill", "--yes")
        if code != 0:
            trial.broken.append(f"afterwards kill ends with {code}: {said.strip()[-160:]}")
    trial.broken += _end_what_is_left(bench)


def _end_what_is_left(bench: Bench) -> list[str]:
    """Our processes still on the hosts, which is a broken promise; ended, so that the next trial is not blamed."""
    found = []
    for host in bench.lab.hosts:
        listed = inside(bench.lab, host, f"for p in $({TAGGED}); do ps -o pid=,args= -p $p; done; kill -9 $({TAGGED})")
        lines = [line for line in listed.splitlines() if "DLAMI_RUN|JOB" not in line]
        found += [f"left on {host.address}: {lines[0].strip()[:100]}"] if lines else []
    return found


def main() -> None:
    """Draw and try; a line per trial."""
    parser = argparse.ArgumentParser(prog="python -m tests.faults.trial", description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, default=60)
    parser.add_argument("--from", dest="first", type=int, default=0, help="leave so many of the drawn ones out")
    parser.add_argument("--only", default="", help="only cells whose text has this in it")
    asked = parser.parse_args()
    name = f"x{os.getpid() % 10_000_000}"
    lab = labs.up(name, num_hosts=4, slots=1, may_mount=True)
    broken = 0
    try:
        with tempfile.TemporaryDirectory(prefix="faults-") as folder:
            os.environ["XDG_RUNTIME_DIR"] = folder
            bench = Bench(lab, Path(folder))
            for n, cell in enumerate(drawn(asked.seed, asked.count)):
                if n >= asked.first and asked.only in str(cell):
                    trial = attempt(bench, cell)
                    broken += bool(trial.broken)
                    print(f"{n:3} {trial}", flush=True)
            connections.disconnect()
    finally:
        labs.down(name)
    print(f"{broken} broke a promise")
    raise SystemExit(bool(broken))


if __name__ == "__main__":
    main()
