"""What befalls a forgotten cluster, made for real on the lab host that is its only node; and its guard meanwhile."""

import contextlib
import datetime
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cfn import guard_deadline
from cfn.aws import Aws
from cluster.clusterfile.model import ClusterFile
from cluster.guard.onhost.activity import BOOT
from cluster.guard.onhost.policy import BOOTING
from cluster.inventory import ROOT
from cluster.ssh.fanout import wait_until
from lab import nodes
from lab.aws.driver import LabDriver
from lab.aws.imds import NODE
from lab.record import SHARED
from tests.conftest import PATIENCE_S, wait_for

HOUR_S = 3600.0
_QUIET_RENEWALS = 4  # of a lease: a host's word of a rank's last step, which may be late, is in the job's record then
_ACTIVITY_S = "1"  # between two looks of a host at itself, where the test's hours are seconds

# A clock of its own for one program: the kernel has none per host.
CLOCK = """\
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <time.h>
int clock_gettime(clockid_t id, struct timespec *now) {
    int (*kernels)(clockid_t, struct timespec *) = dlsym(RTLD_NEXT, "clock_gettime");
    int code = kernels(id, now);
    if (code == 0 && id == CLOCK_REALTIME) now->tv_sec += atol(getenv("AHEAD_S"));
    return code;
}
"""

# Two ranks in lockstep; each waits for the other as MPI does, spinning, with what nobody else on the machine needs.
RANKS = """\
import contextlib, os, pathlib, time
from dlami import job

os.nice(19)
with contextlib.suppress(OSError):  # where the kernel shares among sessions, niceness counts within one only
    pathlib.Path("/proc/self/autogroup").write_text("19")
rank = int(os.environ["RANK"])
mine, other = (pathlib.Path(f"/dev/shm/lockstep.{n}") for n in (rank, 1 - rank))
for step in range(1, 1 << 40):
    time.sleep(0.1)
    with mine.open("ab") as file:
        file.write(b".")
    while not other.exists() or other.stat().st_size < step:
        pass
    job.beat(step)
"""

ORPHAN = """\
(DLAMI_JOB=some python3 -S -c 'import time
while time.process_time() < 1: pass
open("/run/orphan", "w")' </dev/null >/dev/null 2>&1 &)
until [ -e /run/orphan ]; do sleep 0.1; done
"""


@dataclass
class One:
    """A cluster of one node."""

    driver: LabDriver
    folder: Path
    file: ClusterFile
    forgotten_at: datetime.datetime = field(default=datetime.datetime.max)  # when useful work ended, by AWS's clock
    off_s: float = 0.0  # its clock from AWS's
    is_full: bool = False  # its disk
    sessions: list["subprocess.Popen[bytes]"] = field(default_factory=list)
    timer: list[str] = field(default_factory=list)  # what its timer starts, where the test is the timer

    def inv(self, *words: str) -> str:
        """What a task says that an operator types in the cluster's folder."""
        done = subprocess.run(
            [sys.executable, "-m", "invoke", *words], cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE_S,
            env={**os.environ, "CLUSTER": str(self.folder), "XDG_CACHE_HOME": str(self.folder)},
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        return done.stdout

    @property
    def guards(self) -> Path:
        """Its guard's folder on the shared folder."""
        return self.driver.lab.shared / ".dlami-cluster" / self.file.name / "guard"

    @property
    def state(self) -> dict[str, Any]:
        """What its guard remembers."""
        path = self.guards / "state.json"
        return dict(json.loads(path.read_text())["state"]) if path.exists() else {}

    @property
    def end(self) -> datetime.datetime:
        return min(guard_deadline.ends(Aws("us-east-1"), self.file).values())

    @property
    def instance(self) -> str:
        return str(self.state["instances"][0])

    @property
    def init(self) -> int:
        return nodes.running(self.driver.lab.name)[self.driver.hosts[self.instance].name]

    @property
    def has_booted(self) -> bool:
        """Whether its first boot is over."""
        said = json.loads(Path(f"/proc/{self.init}/root{BOOT}").read_text())
        return bool(said["status"] != "running")

    def processes(self, said: bytes = b"") -> list[int]:
        """All of its host's with these words in their command, by their PID namespace; its init is the first."""
        own = Path(f"/proc/{self.init}/ns/pid").readlink()
        found = []
        for entry in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                if (entry / "ns/pid").readlink() == own and said in _command(int(entry.name)):
                    found.append(int(entry.name))
        return sorted(found, key=lambda pid: pid != self.init)

    def on_host(self, *words: str) -> None:
        """Done by root of its host."""
        nsenter = ["nsenter", "-t", str(self.init), "--all"]
        done = subprocess.run([*nsenter, *words], stdin=subprocess.DEVNULL, capture_output=True, timeout=PATIENCE_S)
        assert done.returncode == 0, done.stderr.decode()

    def ends_program(self, module: bytes) -> list[str]:
        """How a service of its host's was started, which now is ended."""
        (pid,) = self.processes(b"cluster.guard.onhost." + module)
        words = _command(pid).decode().rstrip("\0").split("\0")
        environment = Path(f"/proc/{pid}/environ").read_bytes().decode().rstrip("\0").split("\0")
        os.kill(pid, signal.SIGKILL)
        return ["env", "-i", *environment, *words]

    def takes_the_timer(self) -> None:
        """From now on the test is the timer that starts the guard's looks, and its host looks at itself oftener."""
        self.timer = self.ends_program(b"renew")[:-1]
        watch = [*self.ends_program(b"activity"), _ACTIVITY_S]
        self.on_host("bash", "-c", f"setsid {shlex.join(watch)} </dev/null >/dev/null 2>&1 &")
        self.host_has_looked(2)
        self.look()
        self.is_forgotten()

    def is_forgotten(self) -> None:
        """Since its guard saw the last useful work, which must have been before this."""
        self.forgotten_at = datetime.datetime.fromtimestamp(self.state["useful_at"], datetime.UTC)
        assert self.forgotten_at <= forward(self.driver)

    def look(self) -> None:
        """What its timer does every minute. A host has AWS's time, but for what its own clock is off."""
        ahead_s = (forward(self.driver) - datetime.datetime.now(datetime.UTC)).total_seconds() + self.off_s
        clock = [f"LD_PRELOAD={SHARED}/clock.so", f"AHEAD_S={ahead_s:.0f}"]
        try:
            self.on_host(*self.timer[:2], *clock, *self.timer[2:])
        except (AssertionError, KeyError):
            assert self.has_ended, "its guard could not look"

    @property
    def has_ended(self) -> bool:
        """Whether AWS has ended its node, if only just now."""
        return bool(wait_until(lambda: self.instance not in self.driver.hosts, 120))

    def work_ends(self, what: str = "") -> None:
        """Now; its guard has seen that there was some."""
        self.host_has_looked(2)
        self.look()
        assert self.state["what"].startswith(what), self.state["what"]
        self.forgotten_at = forward(self.driver)

    def host_has_looked(self, times: int = 1) -> None:
        """So often from now on, where it has room to say so."""
        for _ in range(0 if self.is_full else times):
            before = self._said_at

            def said(before: tuple[int, ...] = before) -> bool:
                return self._said_at != before or self.instance not in self.driver.hosts

            wait_for(said, 120, f"{self.file.name} looks at itself")

    @property
    def _said_at(self) -> tuple[int, ...]:
        return tuple(path.stat().st_mtime_ns for path in sorted((self.guards / "hosts").glob("*.json")))

    def opens_a_session(self, command: str) -> None:
        """Over SSH with a terminal, of which nothing but the command's own words is heard again."""
        host, known = self.driver.hosts[self.instance], self.guards.parent / "known_hosts"
        options = [
            "ServerAliveInterval=5",
            f"UserKnownHostsFile={known}",
            "BatchMode=yes",
            f"IdentityFile={self.driver.lab.key}",
        ]
        words = ["ssh", "-tt", "-F", "none", *(f"-o{o}" for o in options), f"root@{host.address}", command]
        one = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        self.sessions.append(one)


def forward(driver: LabDriver, seconds: float = 0.0) -> datetime.datetime:
    """AWS's clock after it was moved on."""
    return datetime.datetime.fromisoformat(fake(driver, "clock", {"forward_s": seconds})["now"])


def fake(driver: LabDriver, what: str, said: dict[str, Any]) -> Any:
    """Sets something on the fake AWS by its own door."""
    with urllib.request.urlopen(
        f"{driver.url}/_fake/{what}", data=json.dumps(said).encode(), timeout=PATIENCE_S
    ) as answer:
        return json.load(answer)


def hung(one: One) -> None:
    """Every process of the host is stopped, its init too."""
    stopped: set[int] = set()
    while running := set(one.processes()) - stopped:  # begun meanwhile by those that still ran
        for pid in sorted(running, key=lambda pid: pid != one.init):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGSTOP)
        stopped |= running
    one.is_forgotten()


def killed(one: One) -> None:
    """The host loses its power, and its group starts another one, which boots and goes on."""
    old, worked_at = one.instance, one.state["useful_at"]  # perhaps by its own first boot, in its first hour
    one.driver.crash(old)
    wait_for(lambda: one.instance != old, 180, "the successor's guard has looked")
    wait_for(lambda: one.has_booted, PATIENCE_S, "what its boot does after its guard is done, too")
    one.takes_the_timer()
    assert worked_at == one.state["useful_at"] or BOOTING not in one.state["what"], (
        "a successor's first boot is no work"
    )


def disabled(one: One) -> None:
    """The guard's own program runs no more; all else of the host does."""
    one.ends_program(b"renew")
    one.is_forgotten()


def late(one: One) -> None:
    """Nothing is wrong; this one's AMI did not have the project."""
    one.takes_the_timer()


def misdated(one: One) -> None:
    """Its clock is an hour ahead of AWS's, and then somebody logs in and types nothing."""
    one.takes_the_timer()
    one.off_s = HOUR_S
    one.opens_a_session("sleep infinity")
    one.work_ends("a terminal on")


def full(one: One) -> None:
    """No byte more can be written where the guard remembers, nor read: it has booted since, say."""
    one.takes_the_timer()
    one.is_full = True
    for folder in ("/run", f"{SHARED}/.dlami-cluster/{one.file.name}/guard"):
        room = f"mount -t tmpfs -o size=64k tmpfs {folder}; ! head -c 1M /dev/zero >{folder}/fill 2>/dev/null"
        one.on_host("bash", "-ec", f"{room}; [ -s {folder}/fill ]")


def throttled(one: One) -> None:
    """AWS answers none of the guard's questions any more, and of its requests only the first few not."""
    one.takes_the_timer()
    one.opens_a_session("sleep infinity")
    one.work_ends("a terminal on")
    for action, times in (("Describe.*", 1_000_000), ("Put.*", 3)):
        rule = {"service": "autoscaling", "action": action, "code": "Throttling", "times": times}
        fake(one.driver, "faults", {**rule, "who": f"{NODE}{one.instance}"})


def stuck(one: One) -> None:
    """Of its job's two ranks one is stopped; the other waits for it as busily as it can. Nobody ends the job.

    A process of it that nobody waited for has ended after a second of work: that is the job's, and not its init's.
    """
    one.takes_the_timer()
    (one.driver.lab.shared / "ranks.py").write_text(RANKS)
    one.inv("hosts.write", "--file", str(one.folder / "cluster.toml"))
    how = ("--detach", "--unchecked", "--no-code", "--no-heal", "--hang-after", "0", "--np", "2")
    one.inv("train.run", *how, "--", "python", f"{SHARED}/ranks.py")
    beats = Path(f"/proc/{one.init}/root/dev/shm/lockstep.0")
    wait_for(lambda: beats.exists() and beats.stat().st_size > 3, 180, "the job's ranks go on")
    one.work_ends()
    assert any(sign.startswith("steps of a job on ") for sign in one.state["signs"]), one.state
    stopped, spinning = (p for p in one.processes(b"ranks.py") if _command(p).startswith(b"python\0"))
    os.kill(stopped, signal.SIGSTOP)
    before = _cpu_s(spinning)
    wait_for(lambda: _cpu_s(spinning) > before + 0.5, 120, "the other one is busy")
    watches = re.compile(rb"\0DLAMI_SERVICE=1\0.*\0SSH_CONNECTION=|\0SSH_CONNECTION=.*\0DLAMI_SERVICE=1\0", re.DOTALL)
    wait_for(
        lambda: any(watches.search(_variables(p)) for p in one.processes()), 120, "its ranks are watched, as no work"
    )
    (held,) = one.driver.lab.shared.glob("jobs/*/lease.json")
    quiet, written = 0, ""
    while quiet < _QUIET_RENEWALS:
        renewed = held.stat().st_mtime_ns
        wait_for(lambda at=renewed: held.stat().st_mtime_ns != at, 120, "the supervisor goes on")
        earlier, written = written, held.with_name("attempts.json").read_text()
        quiet = quiet + 1 if written == earlier else 0
    one.work_ends()
    one.on_host("sh", "-c", ORPHAN)
    one.host_has_looked(2)


def idle_ssh(one: One) -> None:
    """Somebody has left a session open, in which something is printed all the time."""
    one.takes_the_timer()
    one.opens_a_session("while :; do date; sleep 1; done")
    one.work_ends("a terminal on")


def _variables(pid: int) -> bytes:
    with contextlib.suppress(OSError):
        return b"\0" + Path(f"/proc/{pid}/environ").read_bytes() + b"\0"
    return b""


def _command(pid: int) -> bytes:
    return Path(f"/proc/{pid}/cmdline").read_bytes()


def _cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return sum(map(int, fields[11:13])) / os.sysconf("SC_CLK_TCK")


FAULTS: tuple[Callable[[One], None], ...] = (
    hung, killed, disabled, late, misdated, full, throttled, stuck, idle_ssh,
)  # fmt: skip
