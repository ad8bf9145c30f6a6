"""A lab of three hosts whose shared folder can be filled, and commands on it as an operator types them."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from cluster.inventory import ROOT, Cluster, load_cluster
from lab import lab as labs
from lab.record import Lab, LabHost
from tests.faults.breaking import TAGGED, inside

LIMITS_S = {"run": 120, "health": 150, "kill": 150, "stop": 200, "copy": 240}  # of a command; a training gets more
LIMIT_S = 300
ENDED = ("succeeded", "failed", "stopped", "lost")
HOSTS = 3
TARGET = "/var/tmp/fault-copy"


class Bench:
    """The lab, what is copied from it, and what is typed."""

    def __init__(self, lab: Lab, folder: Path) -> None:
        self.lab, self.folder = lab, folder
        self.cluster: Cluster = load_cluster(f"lab:{lab.name}")
        self.source = lab.shared / "source"
        self.source.mkdir(exist_ok=True)
        (self.source / "large").write_bytes(os.urandom(60 << 20))
        for n in range(200):
            (self.source / f"small-{n}").write_text(f"new {n}")

    def host(self, place: str) -> LabHost:
        """The host of a place of the grid."""
        return self.lab.hosts[{"worker": 1, "last": -1}.get(place, 0)]

    def everywhere(self, script: str) -> dict[LabHost, str]:
        """What a script prints in each host, however its network is."""
        return {host: inside(self.lab, host, script) for host in self.lab.hosts}

    def start(self, *words: str, stdout: Any = None, before: str = "") -> "subprocess.Popen[bytes]":
        """`inv WORDS` in a session of its own, after shell text; its output and its errors each in a file."""
        shell = ["bash", "-c", f'{before}\nexec "$@"', "operator"] if before else []
        environment = {**os.environ, "CLUSTER": f"lab:{self.lab.name}", "XDG_CACHE_HOME": str(self.folder / "cache")}
        with (self.folder / "out").open("wb") as out, (self.folder / "err").open("wb") as err:
            return subprocess.Popen(
                [*shell, sys.executable, "-c", "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); "
                 "from invoke.main import program; program.run()", *words],
                cwd=ROOT, env=environment, stdin=subprocess.DEVNULL, stdout=stdout or out, stderr=err,
                start_new_session=True,
            )  # fmt: skip

    def said(self) -> str:
        """What the last command printed, errors at the end."""
        return "".join((self.folder / name).read_text(errors="replace") for name in ("out", "err"))

    def ask(self, *words: str, limit_s: float = LIMIT_S) -> tuple[int | None, str]:
        """A command to its end; None if it had to be killed."""
        process = self.start(*words)
        try:
            return process.wait(limit_s), self.said()
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            return None, self.said()

    def jobs(self) -> list[str]:
        """Ids, oldest first."""
        return sorted(path.parent.name for path in self.lab.shared.glob("jobs/*/job.json"))

    def recorded(self, job: str) -> dict[str, Any]:
        """A job's state as its folder has it."""
        try:
            return dict(json.loads((self.lab.shared / "jobs" / job / "state.json").read_text()))
        except (OSError, ValueError):
            return {}

    def shown(self, job: str) -> dict[str, Any]:
        """A job as `inv jobs.show` tells it; nothing if it does not."""
        code, said = self.ask("jobs.show", job, "--json")
        try:
            return dict(json.loads(said[: said.rindex("}") + 1])) if code == 0 else {}
        except ValueError:
            return {}

    def steps(self, job: str) -> int:
        """The last step in a job's metrics."""
        path = self.lab.shared / "jobs" / job / "metrics.jsonl"
        lines = path.read_text().splitlines() if path.exists() else []
        return max((json.loads(line).get("step", 0) for line in lines if line.endswith("}")), default=-1)

    def checkpoint(self, job: str) -> int:
        """The step of a job's newest checkpoint, -1 without one."""
        found = (self.lab.shared / "jobs" / job / "checkpoints").glob("step-*.json")
        return max((int(path.stem.rpartition("-")[2]) for path in found), default=-1)

    def left(self, host: LabHost) -> list[str]:
        """Processes of ours on a host."""
        listed = inside(self.lab, host, f"for p in $({TAGGED}); do ps -o pid=,stat=,args= -p $p; done")
        return [line.strip() for line in listed.splitlines() if "DLAMI_(RUN" not in line and "defunct" not in line]

    def fresh(self) -> None:
        """Every host booted anew, no job on record, nothing copied: no trial is blamed for the one before."""
        self.everywhere(f"rm -rf {TARGET}")
        for host, running in labs.statuses(self.lab):
            if running != "down":
                labs.crash(self.lab, host)
        labs.heal(self.lab, self.lab.hosts)
        subprocess.run(["rm", "-rf", str(self.lab.shared / "jobs")], check=True, timeout=60)


def wait(holds: Callable[[], object], limit_s: float) -> bool:
    """Whether it came true in time."""
    deadline = time.monotonic() + limit_s
    while not holds():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


@contextmanager
def opened(folder: Path) -> Iterator[Bench]:
    """A bench on a lab of its own. The shared folder is in memory, so that it has an end that can be reached."""
    name = f"tf{os.getpid() % 10_000_000}"
    lab = labs.up(name, num_hosts=HOSTS, slots=1, may_mount=True)
    try:
        subprocess.run(["mount", "-t", "tmpfs", "-o", "size=900m", "tmpfs", str(lab.shared)], check=True, timeout=60)
        bench = Bench(lab, folder)
        bench.fresh()
        yield bench
    finally:
        for host, running in labs.statuses(lab):
            if running != "down":
                labs.crash(lab, host)
        subprocess.run(["umount", "-l", str(lab.shared)], check=False, timeout=60)
        labs.down(name)
