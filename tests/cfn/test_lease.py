"""The end that is set on a cluster's groups while its stack is still being made, told, and left alone by an update."""

import contextlib
import datetime
import threading
import tomllib
from collections.abc import Callable
from dataclasses import replace as with_
from pathlib import Path
from typing import Any

import boto3
import pytest

from cfn import create, lease, plan, status, stop, tasks, update
from cfn.aws import Aws
from cfn.clusterfile import in_stack, text
from cfn.clusterfile.fields import ClusterFile, Guard
from cfn.progress import wait_for
from cfn.stack import find
from cluster.errors import ClusterError, ConfigError
from cluster.guard.onhost import api
from cluster.lab.aws import FakeAws
from cluster.settings import FieldError

Scene = Callable[..., Any]
DAY = 24 * 60  # minutes


@pytest.fixture
def file(file: ClusterFile) -> ClusterFile:
    """A small cluster with a guard: its AMI has the project."""
    return with_(file, guard=Guard(idle_minutes=60))


def made(account: Aws, file: ClusterFile) -> None:
    create.create(account, plan.make(account, file), lambda _: None)


def sizes(fake: FakeAws) -> list[int]:
    return sorted(g.settings["desired"] for g in fake.world.groups.values())


def minutes_left(account: Aws, file: ClusterFile) -> list[float]:
    now = datetime.datetime.now(datetime.UTC)
    return [(at - now).total_seconds() / 60 for at in lease.ends(account, file).values()]


def test_each_group_has_its_end_while_the_stack_is_still_being_made(
    fake: FakeAws, scene: Scene, file: ClusterFile, account: Aws
) -> None:
    """A laptop that dies then leaves nothing that costs for ever: no node has ever said a word here."""
    scene("settings", {"nodes": "none"})

    def make() -> None:
        with contextlib.suppress(ClusterError):
            made(account, file)

    making = threading.Thread(target=make, daemon=True)
    making.start()
    assert wait_for(lambda: len(lease.ends(account, file)) == 2, 300, lambda: None)
    assert "CREATE_IN_PROGRESS" == find(account, file.name).status
    assert all(DAY - 5 < left <= DAY for left in minutes_left(account, file))  # nobody says that it has a source
    scene("clock", {"forward_s": (DAY + 1) * 60})
    assert wait_for(lambda: sizes(fake) == [0, 0], 300, lambda: None)
    scene("settings", {"scale": 0.0001})  # its create times out
    making.join(300)


def test_an_end_that_could_not_be_set_is_set_at_the_next_look(
    fake: FakeAws, scene: Scene, file: ClusterFile, account: Aws
) -> None:
    said: list[str] = []
    action = "PutScheduledUpdateGroupAction"
    scene("faults", {"service": "autoscaling", "action": action, "code": "ValidationError", "times": 1})
    create.create(account, plan.make(account, file), said.append)
    assert 2 == len(lease.ends(account, file))
    assert [] != [line for line in said if "the guard could not be set" in line]


def test_a_cluster_without_a_guard_has_no_end(fake: FakeAws, file: ClusterFile, account: Aws) -> None:
    """Nor may its master set one."""
    off = with_(file, guard=Guard(idle_minutes=0))
    body = plan.make(account, off).body
    assert "PutScheduledUpdateGroupAction" not in body
    assert "PutScheduledUpdateGroupAction" in plan.make(account, file).body
    made(account, off)
    assert {} == lease.ends(account, off)


def test_an_update_that_turns_the_guard_off_takes_the_end_away(fake: FakeAws, file: ClusterFile, account: Aws) -> None:
    made(account, file)
    off = with_(file, guard=Guard(idle_minutes=0))
    update.execute(account, update.prepare(account, off), off, lambda _: None)
    assert {} == lease.ends(account, off)
    said = boto3.client("autoscaling").describe_auto_scaling_groups()["AutoScalingGroups"]
    tags = {t["Value"] for g in said for t in g["Tags"] if t["Key"] == api.TAG}
    assert {"idle_minutes=0 max_hours=0 budget_usd=0"} == tags


def test_a_cluster_at_zero_stays_so_through_an_update_which_says_it(
    fake: FakeAws, file: ClusterFile, account: Aws, tmp_path: Path, capsys: pytest.CaptureFixture[str], scene: Scene
) -> None:
    made(account, file)
    scene("clock", {"forward_s": (DAY + 1) * 60})
    assert wait_for(lambda: not any(g.members for g in fake.world.groups.values()), 300, lambda: None)
    where = tmp_path / "cluster.toml"
    where.write_text(text.render({**in_stack.values(file), "name": file.name, "guard.max_hours": 9.0}))
    tasks.change_stack(str(where), "", "", True, False, False)
    told = capsys.readouterr()
    assert "is at zero: its nodes were ended" in told.err
    assert "still at zero" in told.out
    assert [0, 0] == sizes(fake)
    where.write_text(where.read_text().replace("workers = 3", "workers = 2"))
    with pytest.raises(ConfigError, match="another number of nodes would start some of them"):
        tasks.change_stack(str(where), "", "", True, False, False)
    assert [0, 0] == sizes(fake)


def test_a_start_sets_the_end_before_there_is_a_node(fake: FakeAws, file: ClusterFile, account: Aws) -> None:
    """Its master may never come up."""
    made(account, file)
    stop.stop(account, file, lambda _: None)
    for name in lease.ends(account, file):
        boto3.client("autoscaling").delete_scheduled_action(AutoScalingGroupName=name, ScheduledActionName=api.ACTION)
    before = len(fake.world.log)
    stop.start(account, file, lambda _: None)
    assert 2 == len(lease.ends(account, file))
    asked = [c["operation"] for c in fake.world.log[before:]]
    assert asked.index("PutScheduledUpdateGroupAction") < asked.index("UpdateAutoScalingGroup")


def test_status_and_plan_tell_when_it_ends(fake: FakeAws, file: ClusterFile, account: Aws) -> None:
    assert "all nodes end after 60 minutes without useful work" in str(plan.make(account, file))
    made(account, file)
    now = status.look(account, file)
    assert "guard    all nodes end at " in str(now)
    assert "unless it is put off; nodes without this project do not, until `inv sync` brings it" in str(now)
    assert "until `inv sync`" not in str(with_(now, is_bare=False))
    assert now.as_json()["ends"]


def test_a_budget_needs_a_price(fake: FakeAws, file: ClusterFile, account: Aws, scene: Scene) -> None:
    limited = with_(file, guard=Guard(budget_usd=100))
    with pytest.raises(FieldError, match=r"guard.budget_usd: needs a price.*set nodes.usd_per_hour"):
        plan.make(account, limited)
    scene("prices", {"g5.12xlarge": 5.672})
    assert "budget_usd=100 usd_per_hour=5.672" in plan.make(account, limited).body


@pytest.mark.parametrize(
    ("values", "minutes"),
    [
        ({"nodes": {"source": "https://example.org/ours.git"}}, 60),
        ({}, 60),  # also where no node has the project at first
        ({"guard": {"idle_minutes": 0}}, 0),
        ({"guard": {"idle_minutes": 90}}, 90),
        ({"nodes": {"capacity": "capacity-block", "reservation": "cr-0123456789abcdef0"}}, 0),
        (
            {
                "nodes": {"capacity": "capacity-block", "reservation": "cr-0123456789abcdef0"},
                "guard": {"idle_minutes": 60},
            },
            60,
        ),
    ],
)
def test_what_is_not_set_follows_from_the_capacity_and_comes_back_from_the_stack(
    values: dict[str, Any], minutes: int
) -> None:

    file = text.parse({"access": {"mode": "ssm"}, **values})
    again = text.parse(tomllib.loads(text.render(in_stack.values(file))))
    assert (minutes, minutes) == (file.idle_minutes, again.idle_minutes)


@pytest.mark.parametrize(
    ("source", "guard", "hours"),
    [
        (True, {}, 1.5),
        (False, {}, 24),
        (False, {"idle_minutes": 3 * 24 * 60}, 72.5),
        (False, {"max_hours": 5}, 5),
        (True, {"max_hours": 0.1}, 0.5),  # not before it may have booted
        (False, {"idle_minutes": 0, "max_hours": 100}, 100),  # nobody has to put that off
        (True, {"idle_minutes": 0, "max_hours": 100}, 1),
        (False, {"idle_minutes": 0, "budget_usd": 9}, 24),
    ],
)
def test_the_first_end_is_a_day_off_where_nobody_may_be_there_to_put_it_off(
    source: bool, guard: dict[str, Any], hours: float
) -> None:
    """Nodes that start without this project have no guard before `inv sync` brings it."""
    nodes = {"nodes": {"source": "https://example.org/ours.git"}} if source else {}
    file = text.parse({"access": {"mode": "ssm"}, "guard": guard, **nodes})
    now = datetime.datetime(2027, 1, 1, tzinfo=datetime.UTC)
    assert hours == (lease.first_end(file, now) - now).total_seconds() / 3600
    is_said = not source and bool(file.idle_minutes or file.guard.budget_usd)
    assert is_said == (f"nodes without this project end {hours:g} h after their start" in lease.terms(file))


@pytest.mark.parametrize("guard", [{"idle_minutes": 10}, {"idle_minutes": -1}, {"max_hours": -1.0}])
def test_a_guard_that_cannot_be_is_refused(guard: dict[str, Any]) -> None:
    with pytest.raises(FieldError, match=r"guard\."):
        Guard(**guard)
