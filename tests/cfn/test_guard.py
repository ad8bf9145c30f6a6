"""A forgotten cluster ends within idle_minutes + 5 minutes under each of eight faults: the guard's own program, on the
fake AWS whose clock is moved on minute by minute.
"""

import contextlib
import json
import os
import select
import shlex
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace as with_
from pathlib import Path
from typing import Any

import boto3
import pytest

from cfn import cost, create, guard_deadline, plan, stop
from cfn.aws import Aws
from cfn.progress import wait_for
from cluster.clusterfile.model import ClusterFile, Guard
from cluster.guard.onhost import activity, renew
from cluster.guard.onhost.activity import ProcessUsage, busy, typed
from cluster.guard.onhost.api import ACTION, Api
from cluster.guard.onhost.renew import GuardPaths
from cluster.inventory import ROOT
from lab.aws import FakeAws
from tests.cfn.conftest import cluster
from tests.conftest import PATIENCE_S

Scene = Callable[..., Any]
STEP = 240.0  # seconds of AWS's from one look to the next
WORK_MINUTES, IDLE_MINUTES = 100, 60


class Cluster:
    """A stack on the fake, its master's guard, and a job on its shared folder."""

    def __init__(self, fake: FakeAws, shared: Path) -> None:
        self.fake, self.shared = fake, shared
        self.place = GuardPaths(name="demo", shared=str(shared), run=str(shared / "run.json"))
        self.job = shared / "jobs" / "a"
        self.job.mkdir(parents=True)
        (shared / ".dlami-cluster/demo/guard/keep").mkdir(parents=True)
        self.steps, self.off_s = 0, 0.0
        self.is_guarded = True
        self.began = fake.world.now()  # of the time in which nobody does anything
        self.outcomes: list[renew.GuardReport] = []
        self.write_job()

    def write_job(self) -> None:
        (self.job / "state.json").write_text(json.dumps({"state": "running", "attempt": 1}))
        last = {"number": 1, "step": self.steps, "alive_at": None}
        (self.job / "attempts.json").write_text(json.dumps({"attempts": [last]}))

    def work(self) -> None:
        """A job trains for a while: nothing ends."""
        for _ in range(int(WORK_MINUTES * 60 / STEP)):
            self.steps += 10
            self.write_job()
            self.pass_time()
        assert self.instances == 4
        assert not any(o.save for o in self.outcomes)

    def minutes_until_nothing_costs(self) -> float:
        """From now on nobody does anything."""
        self.began = began = self.fake.world.now()
        for _ in range(int(3 * IDLE_MINUTES * 60 / STEP)):
            self.pass_time()
            if not any(g.settings["max"] for g in self.fake.world.groups.values()):
                assert wait_for(lambda: self.instances == 0, 300, lambda: None)
                return (self.fake.world.now() - began).total_seconds() / 60
        raise AssertionError("it goes on for ever")

    def pass_time(self) -> None:
        """AWS's clock goes on, all that is scheduled until then is done, and the guard looks."""
        with self.fake.world.lock:
            self.fake.world.ahead_s += STEP
            due = any(
                a.at <= self.fake.world.now() for g in self.fake.world.groups.values() for a in g.schedule.values()
            )
            self.fake.world.touch()
        if due:
            ended = lambda: not any(g.schedule for g in self.fake.world.groups.values())  # noqa: E731
            assert wait_for(ended, 300, lambda: None)
        elif self.is_guarded:
            began = self.fake.world.ahead_s
            self.outcomes.append(
                renew.check_once(Api("us-east-1", "demo"), self.place, lambda: time.monotonic() + began)
            )

    @property
    def instances(self) -> int:
        return sum(len(g.members) for g in self.fake.world.groups.values())


@pytest.fixture
def file(file: ClusterFile) -> ClusterFile:
    """A small cluster with a guard: its AMI has the project."""
    return with_(file, guard=Guard(idle_minutes=IDLE_MINUTES))


@pytest.fixture
def guarded(fake: FakeAws, file: ClusterFile, account: Aws, tmp_path: Path) -> Cluster:
    create.create(account, plan.make(account, file), lambda _: None)
    return Cluster(fake, tmp_path)


def nothing(cluster: Cluster, scene: Scene) -> contextlib.AbstractContextManager[Any]:
    return contextlib.nullcontext()


def gone(cluster: Cluster, scene: Scene) -> contextlib.AbstractContextManager[Any]:
    """A master that was killed, one whose init is stopped, a timer that was disabled: nothing of ours runs."""
    cluster.is_guarded = False
    return contextlib.nullcontext()


@contextlib.contextmanager
def clock_off(cluster: Cluster, scene: Scene) -> Iterator[None]:
    """The master's clock is an hour ahead from its boot on; AWS refuses what it signs."""
    true = time.time
    scene("settings", {"strict_time": True})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(time, "time", lambda: true() + 3600)
        yield


@contextlib.contextmanager
def disk_full(cluster: Cluster, scene: Scene) -> Iterator[None]:
    """No file can be written, on any disk."""

    def full(path: str, text: str) -> None:
        raise OSError(28, "No space left on device")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(renew, "write", full)
        yield


def throttled(cluster: Cluster, scene: Scene) -> contextlib.AbstractContextManager[Any]:
    """The API refuses every request of the guard's from now on."""
    scene("faults", {"service": "autoscaling", "action": "Put.*|Describe.*", "code": "Throttling", "times": 100000})
    return contextlib.nullcontext()


@contextlib.contextmanager
def ssh_open(cluster: Cluster, scene: Scene) -> Iterator[None]:
    """A terminal on which nobody types, and on which something prints all the time."""
    ours, theirs = os.openpty()
    hosts = cluster.shared / ".dlami-cluster/demo/guard/hosts"
    hosts.mkdir(parents=True, exist_ok=True)
    watch = activity.UsefulWork()
    true = cluster.pass_time

    def pass_time() -> None:
        os.write(theirs, b"12:00 up 3 days\n")
        os.read(ours, 100)
        report = watch.look()
        report["signs"].pop("processors", None)  # this machine's own
        report["signs"].pop("a GPU", None)
        report["signs"].pop("steps of a job", None)
        report["signs"].pop("staging or preparation", None)
        (hosts / "h.json").write_text(json.dumps(report))
        true()

    with pytest.MonkeyPatch.context() as patch:
        mine = os.ttyname(theirs)
        patch.setattr(activity, "terminals", lambda: {mine: int(Path(mine).stat().st_atime)})
        watch = activity.UsefulWork()
        patch.setattr(cluster, "pass_time", pass_time)
        try:
            yield
        finally:
            os.close(ours)
            os.close(theirs)


FAULTS: dict[str, Any] = {
    "nothing is wrong": nothing,
    "the master was killed, or hangs, or its timer is disabled": gone,  # it hangs on a host in test_guard_on_hosts.py
    "the clock is an hour off": clock_off,
    "the disk is full": disk_full,
    "the API throttles": throttled,
    "the job hangs": nothing,  # its record stays, and says that it runs
    "an SSH session is open, without input": ssh_open,
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_forgotten_cluster_costs_no_more_than_its_idle_minutes_and_five(
    guarded: Cluster, scene: Scene, fault: str, account: Aws, file: ClusterFile
) -> None:
    """From the last useful work on, whatever has happened to the master; and before it nothing ends. Its bill is that
    of its groups' own history.
    """
    guarded.work()
    if fault != "the job hangs":
        (guarded.job / "state.json").write_text(json.dumps({"state": "succeeded"}))
    with FAULTS[fault](guarded, scene):
        minutes = guarded.minutes_until_nothing_costs()
    assert IDLE_MINUTES - 5 <= minutes <= IDLE_MINUTES + 5, fault
    scene("prices", {"g5.12xlarge": 10.0})
    scene("settings", {"strict_time": False})
    guarded.fake.world.faults.clear()
    bill = cost.cluster_cost(account, file, since=guarded.began, until=guarded.fake.world.now(), besides=False)
    assert 4 * (IDLE_MINUTES - 5) / 60 <= bill.hours <= 4 * (IDLE_MINUTES + 5) / 60
    assert 10 * bill.hours == pytest.approx(bill.usd)


def test_a_single_master_that_is_replaced_goes_on_and_a_cluster_that_is_started_again_begins_anew(
    fake: FakeAws, scene: Scene, account: Aws, tmp_path: Path
) -> None:
    """A master that goes down every half hour keeps no forgotten cluster: its group's own words say whose successor it
    is.
    """
    alone = with_(cluster(workers=0), guard=Guard(idle_minutes=IDLE_MINUTES, max_hours=30))
    create.create(account, plan.make(account, alone), lambda _: None)
    guarded = Cluster(fake, tmp_path)
    guarded.pass_time()
    end, began = guard_deadline.ends(account, alone), remembered(tmp_path)["began"]
    for _ in range(8):
        guarded.pass_time()
    group = fake.world.groups["us-east-1", "demo-master"]
    (old,) = (m.id for m in group.members)
    scene(f"instances/{old}", {"health": "Unhealthy"})
    assert wait_for(lambda: [m.id for m in group.in_service] not in ([], [old]), 300, lambda: None)
    guarded.pass_time()
    state = remembered(tmp_path)
    assert [group.members[0].id] == state["instances"] != [old]
    assert (end, began) == (guard_deadline.ends(account, alone), state["began"])
    assert 9 * STEP / 3600 == pytest.approx(state["hours"], abs=0.1)

    guarded.minutes_until_nothing_costs()
    stop.start(account, alone, lambda _: None)
    guarded.pass_time()
    again = remembered(tmp_path)
    assert again["began"] > began + 3600
    assert min(guard_deadline.ends(account, alone).values()).timestamp() == pytest.approx(
        again["began"] + 3600, abs=300
    )
    assert again["hours"] >= 1, "the budget is for all runs"


def remembered(shared: Path) -> dict[str, Any]:
    """What the guard knows from one look to the next."""
    return dict(json.loads((shared / "run.json").read_text())["state"])


@pytest.mark.parametrize("off_s", [-3600.0, 3600.0])
def test_a_job_goes_on_though_the_masters_clock_is_wrong(
    guarded: Cluster, scene: Scene, off_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its requests are signed by AWS's clock, which a refusal has told."""
    true = time.time
    scene("settings", {"strict_time": True})
    monkeypatch.setattr(time, "time", lambda: true() + off_s)
    guarded.work()


def test_the_role_may_do_what_the_guard_does(guarded: Cluster) -> None:
    """One action, on two groups, beside what the master may look at anyway."""
    body = boto3.client("cloudformation").get_template(StackName="demo")["TemplateBody"]
    given = body["Resources"]["MasterRole"]["Properties"]["Policies"][0]["PolicyDocument"]["Statement"]
    (own,) = [s for s in given if s["Sid"] == "Guard"]
    assert "autoscaling:PutScheduledUpdateGroupAction" == own["Action"]
    assert 2 == len(own["Resource"])
    operations = {c["operation"] for c in guarded.fake.world.log}
    before = len(guarded.fake.world.log)
    renew.check_once(Api("us-east-1", "demo"), guarded.place)
    used = {c["operation"] for c in guarded.fake.world.log[before:]}
    assert used == {"DescribeAutoScalingGroups", "DescribeScalingActivities", "PutScheduledUpdateGroupAction"}
    assert ACTION
    assert operations


def process(cpu_s: float, **more: Any) -> ProcessUsage:
    return ProcessUsage(**{"cpu_s": cpu_s, "moved": 0, "is_job": False, "is_ours": False, "is_service": False, **more})


@pytest.mark.parametrize(
    ("one", "kinds"),
    [
        (process(10), {"processors"}),
        (process(1), set()),
        (process(30, is_job=True), set()),  # a hung job's ranks spin
        (process(30, is_service=True), set()),  # the distribution's own upgrades
        (process(0, moved=2 << 20, is_ours=True), {"staging or preparation"}),
        (process(0, moved=100, is_ours=True), set()),  # it hangs
        (process(0, moved=2 << 20), set()),
    ],
)
def test_what_keeps_a_host_busy(one: ProcessUsage, kinds: set[str]) -> None:
    assert kinds == busy({("1", "0"): process(0, is_job=one.is_job)}, {("1", "0"): one}, 30.0)


def test_input_is_a_read_of_the_terminal_and_output_is_none() -> None:
    assert not typed({"/dev/pts/1": 100}, {"/dev/pts/1": 100})
    assert typed({"/dev/pts/1": 100}, {"/dev/pts/1": 108})
    assert typed({}, {"/dev/pts/2": 5})
    assert not typed({"/dev/pts/1": 100}, {})


def test_a_host_says_what_it_sees(tmp_path: Path) -> None:
    """A look at this very machine: JSON, and counters that do not count without a reason."""
    report = activity.UsefulWork().look()
    assert {"host", "signs", "local"} == set(json.loads(json.dumps(report)))
    assert all(":" in value for value in report["signs"].values())


def test_a_warning_is_on_every_terminal(lab_allowed: None, tmp_path: Path) -> None:
    """By the system's own `wall`, on a terminal that somebody is logged in on."""
    ours, theirs = os.openpty()
    line = os.ttyname(theirs).removeprefix("/dev/")
    login = struct.pack("hi32s4s32s256s2h3i4i20s", 7, os.getpid(), line.encode(), b"0", b"root", b"", *[0] * 3,
                        int(time.time()), *[0] * 5, b"")  # fmt: skip
    (tmp_path / "utmp").write_bytes(login)
    say = "from cluster.guard.onhost.activity import wall; wall('all nodes of demo end at 12:00 UTC')"
    own = f"mount -t tmpfs none /run && cp {tmp_path}/utmp /run/utmp && exec {sys.executable} -c {shlex.quote(say)}"
    try:
        subprocess.run(["unshare", "--mount", "bash", "-ec", own], cwd=ROOT, check=True, timeout=PATIENCE_S)
        assert select.select([ours], [], [], 30)[0], "nothing is on the terminal"
        assert b"all nodes of demo end at 12:00 UTC" in os.read(ours, 4096)
    finally:
        os.close(ours)
        os.close(theirs)
