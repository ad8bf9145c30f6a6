"""The end that is set on a cluster's groups while its stack is still being made, told, and left alone by an update."""

import contextlib
import datetime
import os
import re
import subprocess
import threading
import tomllib
from collections.abc import Callable
from dataclasses import replace as with_
from typing import Any

import boto3
import pytest

from cfn import create, guard_deadline, in_stack, plan, update
from cfn.aws import Aws
from cfn.progress import wait_for
from cfn.stack import find
from cluster.clusterfile import text
from cluster.clusterfile.checks import FieldError
from cluster.clusterfile.model import ClusterFile, Guard
from cluster.errors import ClusterError
from cluster.guard.onhost import api
from cluster.inventory import ROOT
from lab.aws import FakeAws
from tests.conftest import PATIENCE_S

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
    return [(at - now).total_seconds() / 60 for at in guard_deadline.ends(account, file).values()]


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
    assert wait_for(lambda: len(guard_deadline.ends(account, file)) == 2, 300, lambda: None)
    assert "CREATE_IN_PROGRESS" == find(account, file.name).status
    assert all(DAY - 5 < left <= DAY for left in minutes_left(account, file))  # nobody says that it has a source
    scene("clock", {"forward_s": (DAY + 1) * 60})
    assert wait_for(lambda: sizes(fake) == [0, 0], 300, lambda: None)
    create.delete(account, file, lambda _: None)  # which ends its create
    making.join(PATIENCE_S)
    assert not making.is_alive()


def take_away(account: Aws, file: ClusterFile) -> None:
    for name in guard_deadline.ends(account, file):
        boto3.client("autoscaling").delete_scheduled_action(AutoScalingGroupName=name, ScheduledActionName=api.ACTION)


def boots(fake: FakeAws, role: str) -> None:
    """The step of first boot that is about the end, on a node of this role."""
    script = (ROOT / "scripts/first-boot.sh").read_text()
    parts = [
        re.search(pattern, script, re.S | re.M)
        for pattern in (r"^aws_call\(\).*?^PYTHON\n\}\n", r"^scaling\(\) [^\n]*\n", r"^first_end\(\) .*?^\}\n")
    ]
    own = fake.world.groups["us-east-1", f"demo-{role}"].members[0].id
    given = {
        "IMDS": f"{fake.url}/_fake/imds/{own}",
        "AWS_ENDPOINT_URL": fake.url,
        "REGION": "us-east-1",
        "NAME": "demo",
    }
    subprocess.run(
        ["bash", "-Eeuo", "pipefail", "-c", "".join(part[0] for part in parts if part) + "first_end"],
        env={"PATH": os.environ["PATH"], "DOMAIN": "amazonaws.com", "ROLE": role.removesuffix("s"), **given},
        check=True,
        timeout=PATIENCE_S,
    )


def test_the_masters_first_boot_sets_the_end_that_nobody_has_set(
    fake: FakeAws, file: ClusterFile, account: Aws
) -> None:
    """Who had typed stack.create was gone before there was a group; an end that is there stays where it is."""
    made(account, file)
    before = guard_deadline.ends(account, file)
    boots(fake, "master")
    assert before == guard_deadline.ends(account, file)
    take_away(account, file)
    boots(fake, "workers")
    assert {} == guard_deadline.ends(account, file)
    boots(fake, "master")
    assert 2 == len(guard_deadline.ends(account, file))
    assert all(DAY - 5 < left <= DAY for left in minutes_left(account, file))
    take_away(account, file)
    off = with_(file, guard=Guard(idle_minutes=0))
    update.execute(account, update.prepare(account, off), off, lambda _: None)
    boots(fake, "master")
    assert {} == guard_deadline.ends(account, file)


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
    assert hours == (guard_deadline.first_end(file, now) - now).total_seconds() / 3600
    is_said = not source and bool(file.idle_minutes or file.guard.budget_usd)
    assert is_said == (f"nodes without this project end {hours:g} h after their start" in guard_deadline.terms(file))


@pytest.mark.parametrize("guard", [{"idle_minutes": 10}, {"idle_minutes": -1}, {"max_hours": -1.0}])
def test_a_guard_that_cannot_be_is_refused(guard: dict[str, Any]) -> None:
    with pytest.raises(FieldError, match=r"guard\."):
        Guard(**guard)
