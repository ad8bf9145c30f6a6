"""What is said of a cluster as it is: its health, its nodes, what it costs while none of them runs."""

import datetime
from dataclasses import replace
from typing import Any

import pytest

from cfn import fixed_costs, prices, status
from cfn.fixed_costs import DailyCost
from cfn.hosts import GroupMember
from cfn.stack import Stack, StackEvent
from cfn.status import ClusterStatus, GroupStatus
from cluster.clusterfile.model import Access, ClusterFile, Guard, Nodes
from tests.cfn.answers import BEGAN, account, member, nodes, refused, resources, stack_of

DEMO = ClusterFile(name="demo", nodes=Nodes(workers=2), access=Access(ssh_from="203.0.113.7/32"))
MADE = Stack(id="s", name="demo", status="CREATE_COMPLETE", outputs={"MasterAddress": "1.2.3.4", "FileSystem": "fs-1"})
WORKERS = GroupStatus(
    name="demo-workers", wanted=2, desired=2, most=2, in_service=2, healthy=2, suspended=(), failed_launch=""
)
NO_NODE = replace(WORKERS, desired=0, most=0, in_service=0, healthy=0)
DISK = DailyCost(kind="EFS", id="fs-1", usd_per_day=0.5)


def now(**more: Any) -> ClusterStatus:
    """A cluster without trouble, but for what is given."""
    made: dict[str, Any] = {"stack": MADE, "groups": (WORKERS,), "members": (member(0),), "cause": None, "boots": ()}
    return ClusterStatus(**{**made, **more})


@pytest.mark.parametrize(
    ("groups", "missing", "is_stopped"),
    [
        ((NO_NODE, NO_NODE), (), True),
        ((NO_NODE, WORKERS), (), False),
        ((NO_NODE,), ("demo-master",), False),
        ((), (), False),
    ],
)
def test_stopped_is_who_has_both_groups_and_may_have_no_node(
    groups: tuple[GroupStatus, ...], missing: tuple[str, ...], is_stopped: bool
) -> None:
    """A group that is gone, or may have a node, is no stopped cluster; a stopped one tells its price by the day."""
    one = now(groups=groups, missing_groups=missing, billed=(DISK,))

    assert one.is_stopped is is_stopped
    assert (one.as_json()["stopped"], one.as_json()["usd_per_day"]) == (is_stopped, 0.5 if is_stopped else None)


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({}, []),
        (
            {"stack": replace(MADE, status="ROLLBACK_COMPLETE")},
            [
                "stack demo is ROLLBACK_COMPLETE: an earlier create failed and was rolled back; run `inv stack.delete` first"
            ],
        ),
        ({"groups": (NO_NODE,), "members": ()}, ["it is stopped: `inv stack.start` brings it back"]),
        ({"groups": (NO_NODE,)}, ["it is stopped: `inv stack.start` brings it back; still ending: 1 instance"]),
        ({"missing_groups": ("demo-master",)}, ["group demo-master is gone: `inv stack.delete`, then create it anew"]),
        (
            {"groups": (replace(WORKERS, desired=1),)},
            [
                "demo-workers was told to have 1, the stack says 2: aws autoscaling set-desired-capacity "
                "--auto-scaling-group-name demo-workers --desired-capacity 2"
            ],
        ),
        (
            {"groups": (replace(WORKERS, healthy=1),)},
            ["demo-workers has 1 healthy of 2; it goes on trying"],
        ),
        (
            {"members": (member(1, boot=""), member(2))},
            [
                "i-1 (10.0.0.1), rank 1, cannot be used: InService, Healthy, boot running; if that stays, "
                "`inv stack.replace i-1`"
            ],
        ),
        ({"guard_trouble": "its guard is lost"}, ["its guard is lost"]),
    ],
)
def test_each_trouble_is_told_with_its_remedy(more: dict[str, Any], said: list[str]) -> None:
    """What is wrong is a sentence of its own, shown and in the JSON; nothing wrong is healthy."""
    one = now(**more)

    assert one.problems == said == one.as_json()["problems"]
    assert one.is_healthy is (not said) is one.as_json()["healthy"]
    shown = [line.removeprefix("wrong    ") for line in str(one).splitlines() if line.startswith("wrong")]
    assert shown == said


def event(resource: str, reason: str) -> StackEvent:
    kind = "AWS::EC2::VPC"
    return StackEvent(id=resource, time=BEGAN, resource=resource, kind=kind, status="CREATE_FAILED", reason=reason)


def test_all_of_it_is_a_page() -> None:
    """Stack, guard, groups, hosts, nodes that are still no hosts, what is billed and where the file differs."""
    ends = datetime.datetime.now(datetime.UTC) + datetime.timedelta(minutes=90, seconds=10)
    shown = str(
        now(
            stack=replace(MADE, reason="by hand"),
            ends=ends,
            is_bare=True,
            cause=event("Vpc", "not now"),
            groups=(
                replace(
                    WORKERS, in_service=1, suspended=("AZRebalance", "AlarmNotification"), failed_launch="no capacity"
                ),
            ),
            boots=(("i-0 (master)", "failed setup: no"), ("i-9 (worker)", "failed nfs: lost")),
            billed=(DISK,),
            differs=("nodes.workers is 3 here, 2 in the stack",),
        )
    )

    assert shown.splitlines() == [
        "stack    demo  CREATE_COMPLETE  by hand",
        "master   1.2.3.4  file system fs-1",
        f"guard    all nodes end at {ends:%Y-%m-%d %H:%M} UTC, in 90 minutes, unless it is put off; nodes without this "
        "project do not, until `inv sync` brings it",
        "group    demo-workers  2 healthy, 1 in service of 2  suspended: AZRebalance, AlarmNotification  no capacity",
        "host 0   10.0.0.0        i-0  master  InService  Healthy  boot ready",
        "node     i-9 (worker)  first boot failed nfs: lost",
        "billed   EFS fs-1: 0.50 USD per day",
        "billed   0.50 USD per day in all, by prices of us-east-1 for all but instances",
        "file     nodes.workers is 3 here, 2 in the stack; `inv stack.update` would change the stack",
    ]


def look(
    file: ClusterFile, *members: GroupMember, most: int = 9, made_from: ClusterFile = DEMO, **said: Any
) -> ClusterStatus:
    return status.read_status(account(**{**stack_of(made_from), **nodes(*members, most=most), **said}), file)


def ending(name: str, minutes: int) -> dict[str, Any]:
    return {"AutoScalingGroupName": name, "StartTime": BEGAN + datetime.timedelta(minutes=minutes)}


def test_a_look_at_a_cluster_that_runs() -> None:
    """Its groups against what the stack was made for, the earliest end, boots that failed, and nothing billed."""
    whole = [member(0), member(1), member(2, lifecycle="Pending"), member(3, health="Unhealthy")]
    ends = [ending("demo-workers", 5), ending("demo-master", 3), ending("other-master", 1)]
    found = look(
        replace(DEMO, nodes=Nodes(workers=3)),
        *whole,
        made_from=replace(DEMO, guard=Guard(idle_minutes=60)),
        describe_scheduled_actions={"ScheduledUpdateGroupActions": ends},
        describe_scaling_activities={
            "Activities": [
                {"ActivityId": "2", "StatusCode": "Failed", "StatusMessage": "newest", "Description": "d"},
                {"ActivityId": "1", "StatusCode": "Failed", "StatusMessage": "older", "Description": "d"},
                {"ActivityId": "0", "StatusCode": "Successful", "StatusMessage": "fine", "Description": "d"},
            ]
        },
    )

    master, workers = found.groups
    assert (master.wanted, workers.wanted) == (1, 2)
    assert (workers.desired, workers.in_service, workers.healthy, workers.most) == (3, 2, 1, 9)
    assert workers.failed_launch == "newest"
    assert found.ends == BEGAN + datetime.timedelta(minutes=3)
    assert (found.billed, found.cause, found.missing_groups, found.guard_trouble) == ((), None, (), "")
    assert any("nodes.workers is 3 here, 2 in the stack" in d for d in found.differs)
    assert found.is_bare


def test_a_look_at_a_cluster_without_nodes_says_what_is_billed_and_asks_for_no_end() -> None:
    """An end that is set on groups that may have no node ends nothing."""
    found = look(
        DEMO,
        most=0,
        describe_scheduled_actions={"ScheduledUpdateGroupActions": [ending("demo-master", 3)]},
        describe_addresses={"Addresses": [{"PublicIp": "eip-1"}]},
        **resources([("AWS::EC2::EIP", "eip-1")]),
    )

    assert found.is_stopped
    assert found.ends is None
    assert [i.id for i in found.billed] == ["eip-1"]


def test_what_stands_is_priced_the_dearest_first_and_the_unknown_before_it() -> None:
    """Each kind that is billed, by its size or by the day; what costs nothing is left out."""
    parts = [
        ("AWS::EC2::VPC", "vpc-1"),
        ("AWS::EFS::FileSystem", "fs-1"),
        ("AWS::FSx::FileSystem", "fs-2"),
        ("AWS::EC2::NatGateway", "nat-1"),
        ("AWS::EC2::EIP", "eip-1"),
        ("AWS::EKS::Cluster", "eks-1"),
        ("AWS::KMS::Key", "key-1"),
    ]
    aws = account(
        **resources(parts),
        **{
            "efs.describe_file_systems": {"FileSystems": [{"SizeInBytes": {"Value": 10 * 2**30}}]},
            "fsx.describe_file_systems": {
                "FileSystems": [{"StorageCapacity": 1200, "LustreConfiguration": {"PerUnitStorageThroughput": 125}}]
            },
        },
        describe_capacity_reservations=refused("InvalidCapacityReservationId.NotFound"),
    )
    file = replace(DEMO, nodes=Nodes(workers=2, capacity="reservation", reservation="cr-0123456789abcdef0"))

    assert [str(item) for item in fixed_costs.standing(aws, file, MADE)] == [
        "capacity reservation cr-0123456789abcdef0: price unknown (it cannot be looked at)",
        "FSx for Lustre fs-2: 5.72 USD per day (1,200 GiB)",
        "Kubernetes eks-1: 2.40 USD per day (its control plane)",
        "NAT gateway nat-1: 1.08 USD per day (and its traffic)",
        "public address eip-1: 0.12 USD per day",
        "EFS fs-1: 0.10 USD per day (10.0 GiB; its backups are billed apart)",
        "key key-1: 0.03 USD per day",
    ]


@pytest.mark.parametrize(
    ("said", "usd"),
    [
        (prices.per_day(0.5), 12.0),
        (prices.stored(730, 0.24), 5.76),
        (prices.volume({"VolumeType": "gp3", "Size": 730}), 1.92),
        (prices.volume({"VolumeType": "new", "Size": 730}), None),
        (prices.volume({"Size": 730}), None),
        (prices.snapshot({"VolumeSize": 730}), 1.2),
        (prices.snapshot({}), 0.0),
        (prices.efs({"SizeInBytes": {"Value": 730 * 2**30}}), 7.2),
        (prices.efs({"SizeInBytes": {"Value": 9, "ValueInStandard": 0, "ValueInIA": 730 * 2**30}}), 0.384),
        (prices.efs({}), 0.0),
        (prices.fsx({"StorageCapacity": 730, "LustreConfiguration": {"PerUnitStorageThroughput": 1000}}), 14.4),
        (prices.fsx({"StorageCapacity": 730}), None),
        (prices.logs({"storedBytes": 730 * 2**30}), 0.72),
        (prices.logs({}), 0.0),
    ],
)
def test_what_is_stored_is_billed_by_the_day(said: float | None, usd: float | None) -> None:
    """By its size and its kind: a day is 24 of the 730 hours of a month; a kind that nobody prices has no price."""
    assert said == (None if usd is None else pytest.approx(usd))
