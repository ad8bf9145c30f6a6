"""What is left in an account: which of it is ours and nobody's stack's, what it costs, what removes it."""

import io
from typing import Any

import pytest

from cfn import orphan_kinds, orphans, progress
from cfn.aws import AwsError
from cfn.fixed_costs import DailyCost
from cfn.orphan_kinds import STACK_ID, Tagged
from cfn.orphans import Found, Orphan
from cfn.prices import PriceList
from cfn.removal import ApiCall
from cluster import terminal
from cluster.errors import ConfigError
from dlami.tasks import cost_actions
from tests.cfn.answers import Account, account, refused, tags

OURS = tags(cluster="demo")
NOTHING: dict[str, Any] = {
    "describe_auto_scaling_groups": {},
    "describe_instances": {},
    "describe_nat_gateways": {},
    "describe_addresses": {"Addresses": []},
    "describe_network_interfaces": {},
    "fsx.describe_file_systems": {},
    "efs.describe_file_systems": {},
    "describe_volumes": {},
    "describe_snapshots": {},
    "describe_capacity_reservations": {},
    "describe_launch_templates": {},
    "get_resources": {},
    "describe_placement_groups": {"PlacementGroups": []},
    "describe_vpcs": {},
    "describe_stacks": {},
}


@pytest.fixture(autouse=True)
def no_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who waits for what never comes has waited at once, after a few tries; of Kubernetes nothing is left."""
    clock = iter(range(0, 10**9, 250))
    monkeypatch.setattr(progress.time, "monotonic", lambda: float(next(clock)))
    monkeypatch.setattr(progress.time, "sleep", lambda _: None)
    monkeypatch.setattr(orphans, "KINDS", orphan_kinds.KINDS)


def left(**said: Any) -> list[str]:
    """What is found of all kinds, a line each with what removes it."""
    aws = account(**{**NOTHING, **said})
    price_list = PriceList(aws, {("on-demand", "g5.xlarge"): 1.0, ("on-demand", "new.xlarge"): None})
    found = [t for kind in orphan_kinds.KINDS for t in kind.find(aws, price_list)]
    return [f"{t.item} of {t.cluster}: {' '.join(s.operation for s in t.steps)}" for t in found]


@pytest.mark.parametrize(
    ("said", "found"),
    [
        (
            {
                "describe_auto_scaling_groups": {
                    "AutoScalingGroups": [
                        {"AutoScalingGroupName": "demo-workers", "DesiredCapacity": 2, "Tags": OURS},
                        {"AutoScalingGroupName": "others", "DesiredCapacity": 2, "Tags": []},
                    ]
                }
            },
            [
                "Auto Scaling group demo-workers: 0.00 USD per day (keeps 2 instances running: what is ended comes back "
                "until it is removed) of demo: delete_auto_scaling_group"
            ],
        ),
        (
            {
                "describe_instances": {
                    "Reservations": [
                        {
                            "Instances": [
                                {"InstanceId": f"i-{n}", "InstanceType": kind, "State": {"Name": state}, "Tags": own}
                                for n, (kind, state, own) in enumerate(
                                    (
                                        ("g5.xlarge", "running", OURS),
                                        ("g5.xlarge", "pending", OURS),
                                        ("g5.xlarge", "stopped", OURS),
                                        ("new.xlarge", "running", OURS),
                                        ("g5.xlarge", "terminated", OURS),
                                        ("g5.xlarge", "shutting-down", OURS),
                                        ("g5.xlarge", "running", []),
                                    )
                                )
                            ]
                        }
                    ]
                }
            },
            [
                "instance i-0: 24.00 USD per day (g5.xlarge, running, price on demand) of demo: terminate_instances",
                "instance i-1: 24.00 USD per day (g5.xlarge, pending, price on demand) of demo: terminate_instances",
                "instance i-2: 0.00 USD per day (g5.xlarge, stopped, price on demand) of demo: terminate_instances",
                "instance i-3: price unknown (new.xlarge, running, price on demand) of demo: terminate_instances",
            ],
        ),
        (
            {
                "describe_nat_gateways": {
                    "NatGateways": [
                        {"NatGatewayId": f"nat-{state}", "State": state, "Tags": OURS}
                        for state in ("available", "pending", "deleted", "deleting", "failed")
                    ]
                }
            },
            [
                "NAT gateway nat-available: 1.08 USD per day of demo: delete_nat_gateway",
                "NAT gateway nat-pending: 1.08 USD per day of demo: delete_nat_gateway",
            ],
        ),
        (
            {"describe_addresses": {"Addresses": [{"AllocationId": "a-1", "PublicIp": "1.2.3.4", "Tags": OURS}]}},
            ["public address a-1: 0.12 USD per day (1.2.3.4) of demo: release_address"],
        ),
        (
            {
                "describe_network_interfaces": {
                    "NetworkInterfaces": [
                        {"NetworkInterfaceId": "eni-1", "PrivateIpAddress": "10.0.0.9", "TagSet": OURS}
                    ]
                }
            },
            ["network interface eni-1: 0.00 USD per day (10.0.0.9) of demo: delete_network_interface"],
        ),
        (
            {
                "fsx.describe_file_systems": {
                    "FileSystems": [
                        {"FileSystemId": "fs-1", "StorageCapacity": 1200, "Tags": OURS},
                        {"FileSystemId": "fs-2", "StorageCapacity": 1200, "Tags": OURS, "Lifecycle": "DELETING"},
                        {"FileSystemId": "fs-3", "StorageCapacity": 1200, "Tags": []},
                    ]
                }
            },
            ["FSx fs-1: price unknown (1,200 GiB with what is on it) of demo: delete_file_system"],
        ),
        (
            {
                "efs.describe_file_systems": {
                    "FileSystems": [
                        {
                            "FileSystemId": f"fs-{state}-{len(own)}",
                            "LifeCycleState": state,
                            "SizeInBytes": {"Value": 10 * 2**30},
                            "Tags": own,
                        }
                        for state in ("available", "deleting", "deleted")
                        for own in (OURS, [])
                    ]
                },
                "describe_mount_targets": {"MountTargets": [{"MountTargetId": "t-1"}, {"MountTargetId": "t-2"}]},
            },
            [
                "EFS fs-available-1: 0.10 USD per day (10.0 GiB: the files, keys and checkpoints of demo) of demo: "
                "delete_mount_target delete_mount_target delete_file_system"
            ],
        ),
        (
            {
                "describe_volumes": {
                    "Volumes": [
                        {"VolumeId": "v-1", "Size": 365, "VolumeType": "gp3", "Tags": OURS},
                        {"VolumeId": "v-2", "Size": 5, "Tags": OURS, "Attachments": [{"InstanceId": "i-1"}]},
                    ]
                }
            },
            [
                "volume v-1: 0.96 USD per day (365 GiB) of demo: delete_volume",
                "volume v-2: price unknown (5 GiB, of i-1) of demo: delete_volume",
            ],
        ),
        (
            {"describe_snapshots": {"Snapshots": [{"SnapshotId": "s-1", "VolumeSize": 730, "Tags": OURS}]}},
            ["snapshot s-1: 1.20 USD per day (of 730 GiB, at most) of demo: delete_snapshot"],
        ),
        (
            {
                "describe_capacity_reservations": {
                    "CapacityReservations": [
                        {
                            "CapacityReservationId": f"cr-{state}-{kind}-{len(own)}",
                            "InstanceType": "g5.xlarge",
                            "AvailableInstanceCount": 2,
                            "State": state,
                            "ReservationType": kind,
                            "Tags": own,
                        }
                        for state, kind, own in (
                            ("active", "default", OURS),
                            ("active", "capacity-block", OURS),
                            ("active", "default", []),
                            ("cancelled", "default", OURS),
                            ("expired", "default", OURS),
                            ("failed", "default", OURS),
                        )
                    ]
                }
            },
            [
                "capacity reservation cr-active-default-1: 48.00 USD per day (2 x g5.xlarge unused) of demo: "
                "cancel_capacity_reservation",
                "capacity block cr-active-capacity-block-1: 0.00 USD per day (g5.xlarge, paid in advance; for a cluster "
                "whose file names it as nodes.reservation) of demo: ",
            ],
        ),
        (
            {
                "describe_launch_templates": {
                    "LaunchTemplates": [{"LaunchTemplateId": "lt-1", "LaunchTemplateName": "demo-x", "Tags": OURS}]
                }
            },
            ["launch template lt-1: 0.00 USD per day (demo-x) of demo: delete_launch_template"],
        ),
        (
            {
                "get_resources": {
                    "ResourceTagMappingList": [
                        {"ResourceARN": "arn:aws:logs:us-east-1:1:log-group:/aws/demo:*", "Tags": OURS},
                        {"ResourceARN": "arn:aws:logs:us-east-1:1:log-group:/aws/gone", "Tags": OURS},
                    ]
                },
                "describe_log_groups": {
                    "logGroups": [
                        {"logGroupName": "/aws/demo-2", "storedBytes": 0},
                        {"logGroupName": "/aws/demo", "storedBytes": 730 * 2**30},
                    ]
                },
            },
            ["log group /aws/demo: 0.72 USD per day of demo: delete_log_group"],
        ),
        (
            {"describe_placement_groups": {"PlacementGroups": [{"GroupName": "pg-1", "Tags": OURS}]}},
            ["placement group pg-1: 0.00 USD per day of demo: delete_placement_group"],
        ),
        (
            {
                "describe_vpcs": {
                    "Vpcs": [
                        {"VpcId": "vpc-1", "CidrBlock": "10.0.0.0/16", "Tags": OURS},
                        {"VpcId": "vpc-2", "CidrBlock": "10.0.0.0/16"},
                    ]
                },
                "describe_vpc_endpoints": {
                    "VpcEndpoints": [
                        {"VpcEndpointId": "e-1", "VpcEndpointType": "Gateway"},
                        {"VpcEndpointId": "e-2", "VpcEndpointType": "Interface"},
                        {"VpcEndpointId": "e-3", "VpcEndpointType": "Interface", "Tags": OURS},
                    ]
                },
                "describe_internet_gateways": {"InternetGateways": [{"InternetGatewayId": "igw-1"}]},
                "describe_subnets": {"Subnets": [{"SubnetId": "sn-1", "Tags": OURS}, {"SubnetId": "sn-2"}]},
                "describe_route_tables": {"RouteTables": [{"RouteTableId": "rt-1", "Tags": OURS}]},
                "describe_security_groups": {"SecurityGroups": [{"GroupId": "sg-1", "Tags": OURS}]},
            },
            [
                "VPC vpc-1: 0.00 USD per day (10.0.0.0/16) of demo: delete_vpc_endpoints delete_vpc_endpoints "
                "detach_internet_gateway delete_internet_gateway delete_subnet delete_route_table "
                "delete_security_group delete_vpc"
            ],
        ),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_each_kind_is_found_where_it_is_ours(said: dict[str, Any], found: list[str]) -> None:
    """With its price by the day and what removes it, what holds it first; what is others', or going, is left alone."""
    assert left(**said) == found


def thing(name: str, usd: float | None = 0.5, **more: Any) -> Tagged:
    step = ApiCall("ec2", "delete_volume", {"VolumeId": name})
    made = {
        "item": DailyCost(kind="volume", id=name, usd_per_day=usd),
        "tags": {orphan_kinds.CLUSTER: "demo"},
        "steps": (step,),
    }
    return Tagged(**{**made, **more})


def orphan(name: str, **more: Any) -> Orphan:
    return Orphan(region="us-east-1", thing=thing(name, **more))


@pytest.mark.parametrize(
    ("more", "is_living"),
    [
        ({}, False),
        ({orphan_kinds.CLUSTER: "living"}, True),
        ({orphan_kinds.CLUSTER: "living", STACK_ID: "id-of-an-earlier-one"}, False),
        ({STACK_ID: "id-of-living"}, True),
        ({orphans.OF_EKS: "living"}, True),
        ({orphans.OF_EKS: "gone"}, False),
        ({"alpha.eksctl.io/cluster-name": "by-eksctl"}, True),
        ({"alpha.eksctl.io/cluster-name": ""}, False),
    ],
)
def test_what_a_living_stack_has_is_no_orphan(more: dict[str, str], is_living: bool) -> None:
    """By CloudFormation's tag, by its cluster's name, or by the name of its Kubernetes."""
    stacks = [
        {"StackId": "id-of-living", "StackName": "living", "StackStatus": "CREATE_COMPLETE"},
        {
            "StackId": "e",
            "StackName": "eksctl-x",
            "StackStatus": "CREATE_COMPLETE",
            "Tags": [{"Key": "alpha.eksctl.io/cluster-name", "Value": "by-eksctl"}],
        },
    ]
    own = [{"Key": k, "Value": v} for k, v in {orphan_kinds.CLUSTER: "demo", **more}.items()]
    there = [{"SnapshotId": "s-1", "VolumeSize": 1, "Tags": own}]
    aws = account(**{**NOTHING, "describe_stacks": {"Stacks": stacks}, "describe_snapshots": {"Snapshots": there}})

    found = orphans.find(aws, ["us-east-1"])

    assert [o.thing.item.id for o in found.orphans] == ([] if is_living else ["s-1"])


def test_every_region_is_looked_at_and_told() -> None:
    """A service that a region lacks is not asked there; one that refuses is said, and the others are looked at."""
    heard: list[str] = []
    said = {
        **NOTHING,
        "describe_snapshots": {"Snapshots": [{"SnapshotId": "s-1", "VolumeSize": 730, "Tags": OURS}]},
        "describe_volumes": refused("UnauthorizedOperation", "you may not"),
    }
    del said["fsx.describe_file_systems"]
    aws = Account("us-east-1", said=said, missing=("fsx",))

    found = orphans.find(aws, ["us-east-1", "eu-west-1"], heard.append)

    assert sorted(heard) == ["eu-west-1", "us-east-1"]
    assert [o.region for o in found.orphans] == ["us-east-1", "eu-west-1"]
    assert sorted(found.unasked) == [
        f"{region}: Asked was refused: you may not (UnauthorizedOperation)" for region in ("eu-west-1", "us-east-1")
    ]
    assert (found.regions, round(found.usd_per_day, 2)) == (2, 2.4)


def test_where_stacks_cannot_be_listed_nothing_is_an_orphan() -> None:
    """Whatever is there may be theirs."""
    found = orphans.find(
        account(
            **{
                **NOTHING,
                "describe_stacks": refused("AccessDenied", "no"),
                "describe_snapshots": {"Snapshots": [{"SnapshotId": "s-1", "VolumeSize": 730, "Tags": OURS}]},
            }
        ),
        ["us-east-1"],
    )

    assert (found.orphans, found.unasked) == ((), ("us-east-1: Asked was refused: no (AccessDenied)",))
    assert str(found) == "nothing of ours is left without a stack in 1 region"


FOUND = Found(
    orphans=(orphan("v-1"), orphan("v-2", usd=None), orphan("v-3", steps=())), unasked=("x: not asked",), regions=2
)


def test_what_is_left_is_shown_with_its_price_and_its_command() -> None:
    """What ends by itself has none; a price that nobody knows counts as nothing."""
    command = "aws ec2 delete-volume --region us-east-1 --volume-id v-1"

    assert str(FOUND).splitlines() == [
        "us-east-1  volume v-1: 0.50 USD per day, of demo",
        f"    {command}",
        "us-east-1  volume v-2: price unknown, of demo",
        "    aws ec2 delete-volume --region us-east-1 --volume-id v-2",
        "us-east-1  volume v-3: 0.50 USD per day, of demo",
        "    ends by itself: nothing removes it before",
        "in all  1.00 USD per day, by prices of us-east-1 for all but instances",
    ]
    said = FOUND.as_json()
    assert (said["usd_per_day"], said["unasked"], len(said["orphans"])) == (1.0, ["x: not asked"], 3)
    assert said["orphans"][0] == {
        "region": "us-east-1",
        "cluster": "demo",
        "kind": "volume",
        "id": "v-1",
        "usd_per_day": 0.5,
        "note": "",
        "command": command,
    }


@pytest.mark.parametrize("code", ["InvalidVolume.NotFound", "UnknownVolume", "NoSuchEntity"])
def test_what_is_gone_is_removed(code: str) -> None:
    """Somebody was quicker."""
    orphans.remove(account(delete_volume=refused(code)), orphan("v-1"))


@pytest.mark.parametrize(
    "code", ["VolumeInUse", "DependencyViolation", "IncorrectState", "ResourceInUseFault", "ScalingActivityInProgress"]
)
def test_what_is_held_is_tried_again_until_its_time_is_over(code: str) -> None:
    """And then AWS's refusal is the error."""
    answers: list[Any] = [refused(code), {}]
    orphans.remove(account(delete_volume=lambda **_: answers.pop(0)), orphan("v-1"))
    assert answers == []

    with pytest.raises(AwsError, match=f"removing volume v-1: Asked was refused: held [(]{code}[)]"):
        orphans.remove(account(delete_volume=refused(code, "held")), orphan("v-1"))


class Desk:
    """A terminal or none, and an account with one snapshot that is left."""

    def __init__(self, patch: pytest.MonkeyPatch, said: pytest.CaptureFixture[str]) -> None:
        self.patch, self.said = patch, said
        self.gone: list[str] = []
        self.asked: list[str] = []
        self.trouble: dict[str, Any] = {}
        self.patch.setattr(cost_actions, "Aws", self._account)
        self.there: list[str] = ["s-1"]

    def _account(self, region: str) -> Account:
        self.asked.append(region)
        said = {
            **NOTHING,
            "describe_regions": {"Regions": [{"RegionName": "us-east-1"}]},
            "describe_snapshots": {
                "Snapshots": [{"SnapshotId": s, "VolumeSize": 730, "Tags": OURS} for s in self.there]
            },
            "delete_snapshot": lambda **given: self.gone.append(given["SnapshotId"]),
            **self.trouble,
        }
        return Account(region, said=said)

    def types(self, *lines: str) -> None:
        stdin = io.StringIO("".join(f"{line}\n" for line in lines))
        self.patch.setattr(stdin, "isatty", lambda: bool(lines), raising=False)
        self.patch.setattr(terminal.sys, "stdin", stdin)


@pytest.fixture
def desk(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Desk:
    made = Desk(monkeypatch, capsys)
    made.types()
    return made


def test_removing_asks_about_each_on_a_terminal(desk: Desk) -> None:
    """Not for a program, and not without a terminal."""
    with pytest.raises(ConfigError, match="--json answers and --delete asks about each: give one of them"):
        cost_actions.show_orphans("us-east-1", True, True)
    with pytest.raises(ConfigError, match="--delete asks about each: run it on a terminal"):
        cost_actions.show_orphans("us-east-1", True, False)
    desk.there = ["s-1", "s-2"]
    desk.types("n", "y")

    assert cost_actions.show_orphans("us-east-1", True, False) is False
    assert desk.gone == ["s-2"]
    assert desk.said.readouterr().out.endswith("1 left\n")
    desk.types("y", "y")
    assert cost_actions.show_orphans("us-east-1", True, False) is True
    assert desk.gone == ["s-2", "s-1", "s-2"]
    assert desk.said.readouterr().out.endswith("nothing is left that can be removed\n")


def test_what_could_not_be_removed_is_told_and_counted(desk: Desk) -> None:
    """The next is asked about all the same; where nobody could look not all is well."""
    desk.there = ["s-1", "s-2"]
    desk.trouble = {"delete_snapshot": refused("UnauthorizedOperation", "you may not")}
    desk.types("y", "y")
    assert cost_actions.show_orphans("us-east-1", True, False) is False
    out, err = desk.said.readouterr()
    assert out.endswith("2 left\n")
    assert err.count("you may not") == 2
    desk.there, desk.trouble = [], {"describe_volumes": refused("UnauthorizedOperation")}
    assert cost_actions.show_orphans("us-east-1", True, False) is False


def test_all_regions_are_looked_at_where_none_is_given(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of the account, asked in the operator's own; the first that is given is asked else."""
    monkeypatch.setattr(cost_actions.init_values, "region", lambda: "eu-west-1")
    cost_actions.show_orphans("", False, False)
    cost_actions.show_orphans("ap-east-1,us-east-1", False, False)

    assert desk.asked == ["eu-west-1", "ap-east-1"]
    assert desk.said.readouterr().err == "looking in 1 region\nlooking in 2 regions\n"
