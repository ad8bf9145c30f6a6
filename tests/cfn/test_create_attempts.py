"""Tries and their ends, without an account: where there is room, what stands in a create's way, what a task is told."""

import datetime
from dataclasses import replace as with_
from pathlib import Path
from typing import Any

import pytest
from designs import design

from cfn import create, failover
from cfn.aws import AwsError
from cfn.capacity import NoCapacity, Tried
from cfn.checkout import Checkout
from cfn.failover import where_there_is_room
from cfn.hosts import GroupMember
from cfn.plan import ClusterPlan
from cfn.stack import Stack, StackError
from cfn.template.design import Design
from cluster.clusterfile.model import Guard, Ssh, Storage
from tests.cfn.answers import answering, refused
from tests.cfn.conftest import cluster
from tests.typed_words import typed

A, B = (with_(design("g5.xlarge", 1), zone=f"us-east-1{zone}") for zone in "ab")


def quiet(_: str) -> None:
    """Shows nothing."""


class Attempts:
    """An attempt that finds room at its n-th time, and never at 0."""

    def __init__(self, succeeds: int) -> None:
        self.left = succeeds

    def __call__(self, chosen: Design) -> str:
        self.left -= 1
        if self.left == 0:
            return chosen.zone
        raise NoCapacity((Tried(design=chosen, said=f"no room in {chosen.zone}"),), "wait longer")


def test_places_are_tried_round_after_round() -> None:
    """With a line between that says until when."""
    told: list[str] = []
    until = datetime.datetime.now() + datetime.timedelta(hours=6)
    assert "us-east-1a" == where_there_is_room((A, B), Attempts(3), told.append, wait_s=6 * 3600, pause_s=0.0)
    assert told[2].startswith(f"2 tried in vain; again in 0 s, and so on until {until:%Y-%m-%d}")
    assert 4 == len(told)


def test_nowhere_is_told_with_all_of_the_last_round() -> None:
    """And what the last attempt advises."""
    with pytest.raises(NoCapacity) as error:
        where_there_is_room((A, B), Attempts(0), quiet, wait_s=0.0)
    assert ["us-east-1a", "us-east-1b"] == [one.design.zone for one in error.value.tried]
    assert "wait longer" == error.value.advice
    assert str(error.value).split("\n") == [
        "there is no room for the cluster; nothing was left running. Tried:",
        "  g5.xlarge in us-east-1a: no room in us-east-1a",
        "  g5.xlarge in us-east-1b: no room in us-east-1b",
        "wait longer",
    ]


def plan_of(status: str = "", *choices: Design) -> ClusterPlan:
    stack = Stack(id="id-1", name="demo", status=status) if status else None
    return ClusterPlan(design=A, body='{"Parameters": {}}', stack=stack, usd_per_hour=None, choices=choices or (A,))


REFUSING = answering(cloudformation={"create_stack": refused("LimitExceeded", "too many")})


def test_one_place_is_waited_for_by_aws_itself() -> None:
    """Unless it is to be tried again: then each try is said."""
    told: list[str] = []
    with pytest.raises(AwsError, match=r"creating stack demo: .*too many"):
        failover.create_where_there_is_room(REFUSING, plan_of(), told.append)
    assert [] == told
    priced = with_(A, file=with_(A.file, nodes=with_(A.file.nodes, usd_per_hour=1.0)))
    with pytest.raises(AwsError, match="too many"):
        failover.create_where_there_is_room(REFUSING, plan_of("", priced), told.append, wait_s=60.0)
    assert ["trying g5.xlarge in us-east-1a"] == told
    with pytest.raises(AwsError, match="too many"):
        failover.create_where_there_is_room(REFUSING, plan_of("", priced, B), told.append)
    assert 2 == len(told)


@pytest.mark.parametrize(
    ("status", "said"),
    [
        ("ROLLBACK_COMPLETE", "an earlier create failed and was rolled back"),
        ("ROLLBACK_FAILED", "an earlier create failed, so did its roll-back"),
        ("CREATE_FAILED", "an earlier create failed and was kept"),
        ("DELETE_FAILED", "an earlier delete failed"),
    ],
)
def test_what_stands_in_a_creates_way_has_to_be_deleted_first(status: str, said: str) -> None:
    """By the task of its kind."""
    with pytest.raises(StackError, match=rf"stack demo is {status}: {said}; run `inv stack.delete` first"):
        create.begin(REFUSING, plan_of(status), False)
    with pytest.raises(StackError, match=r"run `inv eks.delete` first"):
        create.begin(REFUSING, plan_of(status), False, "eks")


def test_a_create_that_is_under_way_is_followed() -> None:
    """Nothing is asked for again; a new one has its pinned choices as parameters, in order."""
    there = plan_of("CREATE_IN_PROGRESS")
    assert there.stack is create.begin(REFUSING, there, False)
    pinned = with_(plan_of(), body='{"Parameters": {"Zone": {"Default": "z"}, "Image": {"Default": "ami"}}}')
    assert [
        {"ParameterKey": "Image", "ParameterValue": "ami"},
        {"ParameterKey": "Zone", "ParameterValue": "z"},
    ] == create.parameters(pinned)

    asked: dict[str, Any] = {}

    def made(**of: Any) -> Any:
        asked.update(of)
        return {"StackId": "id-9"}

    described = {"StackId": "id-9", "StackName": "demo", "StackStatus": "CREATE_IN_PROGRESS"}
    account = answering(cloudformation={"create_stack": made, "describe_stacks": {"Stacks": [described]}})
    open_ = with_(A, file=with_(A.file, access=with_(A.file.access, protect=False)))
    for plan, keep_failed, wanted in (
        (pinned, False, ("ROLLBACK", True)),
        (with_(pinned, design=open_), True, ("DO_NOTHING", False)),
    ):
        assert "id-9" == create.begin(account, plan, keep_failed).id
        assert wanted == (asked["OnFailure"], asked["EnableTerminationProtection"])
    assert [{"Key": "dlami-cluster:cluster", "Value": "demo"}] == asked["Tags"]


MASTER = GroupMember(
    instance_id="i-0123456789abcdef0", role="master", address="10.0.0.1", lifecycle="Pending", health="Healthy",
    launched=datetime.datetime(2027, 1, 1, tzinfo=datetime.UTC), host_key="ssh-ed25519 AAAA",
)  # fmt: skip


@pytest.mark.parametrize(("public", "gateway"), [("198.51.100.7", "198.51.100.7"), ("", "10.0.0.1")])
def test_the_master_is_reached_before_there_are_outputs(public: str, gateway: str, tmp_path: Path) -> None:
    """By its public address if it has one, known by its own key under each address."""
    brought = Checkout.__new__(Checkout)
    file = with_(cluster(), ssh=Ssh(user="me", port=2222, key="/k"))
    brought._file = file
    found = brought._cluster(tmp_path, MASTER, public)

    assert ("demo", "10.0.0.1", 0, 1) == (found.name, found.master.address, found.master.rank, found.master.slots)
    assert (file.shared, file.project, tmp_path) == (found.shared, found.project, found.folder)
    known = {f"{name} ssh-ed25519 AAAA" for name in {"10.0.0.1", gateway}}
    assert known == set((tmp_path / "known_hosts").read_text().splitlines())
    assert (gateway, "me", 2222) == (found.access.gateway, found.access.user, found.access.port)
    assert "/k" == str(found.access.key)
    brought._file = with_(file, ssh=Ssh())
    assert not brought._cluster(tmp_path, MASTER, public).access.key


@pytest.mark.parametrize(
    "words",
    [
        ["stack.plan"], ["stack.create"], ["stack.status"], ["stack.update"], ["stack.replace", "1"], ["stack.delete"],
        ["stack.stop"], ["stack.start"], ["stack.cost"], ["stack.policy"], ["stack.blocks"],
        ["stack.blocks", "--buy", "cb-1", "--dry-run"], ["hosts.write", "--source", "stack"], ["ssh"],
        ["eks.plan"], ["eks.create"], ["eks.status"], ["eks.delete"],
    ],
)  # fmt: skip
def test_a_task_reads_the_file_that_it_is_given(
    words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """And says what writes one where there is none."""
    path = tmp_path / "none.toml"
    assert 2 == typed(*words, "--file", path)
    assert f"{path} does not exist; `inv stack.init` writes one" in capsys.readouterr().err


def stack_row(status: str, **more: Any) -> dict[str, Any]:
    return {"StackId": "id-1", "StackName": "demo", "StackStatus": status, **more}


def event(number: int, resource: str, kind: str, status: str, reason: str = "") -> dict[str, Any]:
    return {
        "EventId": f"e{number}", "Timestamp": MASTER.launched, "LogicalResourceId": resource, "ResourceType": kind,
        "ResourceStatus": status, "ResourceStatusReason": reason,
    }  # fmt: skip


def ending(status: str, *events: dict[str, Any], reason: str = "") -> Any:
    """An account whose stack is at this end already, with its story, the newest first."""
    told = [event(0, "demo", "AWS::CloudFormation::Stack", "CREATE_IN_PROGRESS"), *events]
    return answering(
        cloudformation={
            "describe_stacks": {"Stacks": [stack_row(status, StackStatusReason=reason)]},
            "describe_stack_events": {"StackEvents": told[::-1]},
        },
        ec2={"describe_instances": {"Reservations": []}},
        autoscaling={"describe_scaling_activities": {"Activities": []}},
    )


@pytest.mark.parametrize(
    ("keep_failed", "remedy"),
    [(False, "Nothing was left running. For about an hour"), (True, "The nodes are kept; their logs are in /efs/")],
)
def test_a_create_that_failed_says_why_and_what_is_left(keep_failed: bool, remedy: str) -> None:
    """Its first cause in AWS's words."""
    file = with_(A.file, guard=Guard(idle_minutes=0))
    plan = with_(plan_of("CREATE_IN_PROGRESS"), design=with_(A, file=file), body='{"Parameters": {}, "Resources": {}}')
    there = ending("ROLLBACK_COMPLETE", event(1, "Net", "AWS::EC2::VPC", "CREATE_FAILED", "too many VPCs"))
    with pytest.raises(StackError) as error:
        create.create(there, plan, quiet, keep_failed)
    said = str(error.value).split("\n")
    assert "create of stack demo failed (ROLLBACK_COMPLETE): Net (AWS::EC2::VPC): too many VPCs" == said[0]
    assert said[1].startswith(remedy)
    own = with_(file, storage=Storage(efs="fs-01234567"))
    with pytest.raises(
        StackError, match=r"left running; node logs are in /efs/\.dlami-cluster/demo/boot of fs-01234567\."
    ):
        create.create(there, with_(plan, design=with_(A, file=own)), quiet)
