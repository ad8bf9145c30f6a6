"""Where there is room: zone after zone, then the next type, with fewer hosts when asked, and again until it is there."""

import json
import time
from dataclasses import replace as with_
from pathlib import Path

import boto3
import pytest
from moto.ec2 import ec2_backends

from cfn import capacity, create, disks, failover, hosts, in_stack, plan, stack, status, update
from cfn.aws import Aws
from cluster.clusterfile import text
from cluster.clusterfile.model import Access, ClusterFile, Network
from cluster.errors import ConfigError
from lab.aws import FakeAws
from lab.aws.state import ACCOUNT
from tests.cfn.command_line import inv
from tests.cfn.conftest import cluster
from tests.cfn.scenes import FIRST, SECOND, Scene, quiet
from tests.conftest import PATIENCE_S, wait_for


def zones(account: Aws, kind: str) -> list[str]:
    """The zones that offer a type, in the order in which they are tried."""
    return [c.zone for c in plan.make(account, cluster(instance_type=kind)).choices]


def test_no_zone_has_the_first_type_so_the_second_is_taken_in_one_command(
    fake: FakeAws, account: Aws, scene: Scene
) -> None:
    """Three zones without room: all of it, from the first try to the last node, in at most 5 s more than without."""
    file = cluster(instance_type=(FIRST, SECOND))
    tried = zones(account, FIRST)
    made = plan.make(account, file)
    assert 3 <= len(tried)
    scene("capacity", {f"{FIRST}@{zone}": n for n, zone in enumerate(tried)})  # none, one, two …: never four
    told: list[str] = []

    found = failover.create_where_there_is_room(account, made, told.append)

    outputs = stack.outputs(account, "demo")
    assert (4, SECOND, made.choices[len(tried)].zone, "4") == (
        len(found), outputs["InstanceType"], outputs["Zone"], outputs["Slots"]
    )  # fmt: skip
    assert [f"trying {c.instance.name} in {c.zone}" for c in made.choices[: len(tried) + 1]] == [
        line for line in told if line.startswith("trying")
    ]
    for zone in tried:
        assert any(
            f"sufficient {FIRST} capacity in the Availability Zone you requested ({zone})" in line for line in told
        )
    assert status.read_status(account, file).is_healthy
    assert 1 == len(boto3.client("efs").describe_file_systems()["FileSystems"])  # of those before nothing is left
    assert {"demo"} == {s.name for s in fake.world.stacks.values() if s.status != "DELETE_COMPLETE"}


def test_instances_that_ec2_ends_as_they_start_are_told_with_the_reason(
    hurried: FakeAws, account: Aws, scene: Scene
) -> None:
    """In the story, in the error, in the status, and of a successor: Auto Scaling calls such a launch Cancelled."""
    why = "Client.VolumeLimitExceeded: Volume limit exceeded"
    file = with_(cluster(workers=1), network=Network(zone="us-east-1a"))
    scene("kills", {SECOND: why})
    told: list[str] = []
    with pytest.raises(stack.StackError) as error:
        failover.create_where_there_is_room(account, plan.make(account, file), told.append)
    assert why in str(error.value) and any("no instance yet" in line and why in line for line in told)

    create.delete(account, file, quiet)
    scene("kills", {SECOND: ""})
    hosts = create.create(account, plan.make(account, file), quiet)
    scene("kills", {SECOND: why})
    boto3.client("ec2").terminate_instances(InstanceIds=[hosts[1].instance_id])
    worker = "demo-workers"
    told_so = lambda: any(why in g.failed_launch for g in status.read_status(account, file).groups if g.name == worker)  # noqa: E731
    wait_for(told_so, 30, "the status has the reason")


def test_a_zone_where_instances_die_for_lack_of_room_is_left(fake: FakeAws, account: Aws, scene: Scene) -> None:
    """EC2 may say so after it has taken the launch."""
    first, second = zones(account, SECOND)[:2]
    scene("kills", {f"{SECOND}@{first}": "Server.InsufficientInstanceCapacity: Insufficient capacity"})
    failover.create_where_there_is_room(account, plan.make(account, cluster(workers=1)), quiet)

    assert second == stack.outputs(account, "demo")["Zone"]


def test_disks_whose_key_auto_scaling_may_not_use_are_refused_before_anything_is_made(
    fake: FakeAws, account: Aws, scene: Scene
) -> None:
    """EC2 would end every instance as it starts. A grant mends it; a key that is off does not."""
    kms = boto3.client("kms")
    key = kms.create_key(Description="ours")["KeyMetadata"]["Arn"]
    ec2_backends[ACCOUNT]["us-east-1"].default_kms_key_id = key
    file = with_(cluster(workers=1), network=Network(zone="us-east-1a"))
    with pytest.raises(ConfigError, match=r"aws kms create-grant .*AWSServiceRoleForAutoScaling") as error:
        plan.make(account, file)
    assert key in str(error.value)

    kms.create_grant(KeyId=key, GranteePrincipal=f"arn:aws:iam::{ACCOUNT}:role/{disks.ROLE}", Operations=["Decrypt"])
    assert 2 == len(create.create(account, plan.make(account, file), quiet))
    create.delete(account, file, quiet)
    kms.disable_key(KeyId=key.rpartition("/")[2])
    with pytest.raises(ConfigError, match="which is Disabled: enable it"):
        plan.make(account, file)


@pytest.mark.parametrize(("wait", "seconds"), [("", 0), ("30m", 1800), ("6h", 21600), ("2d", 172800)])
def test_a_time_to_wait(wait: str, seconds: float) -> None:
    assert seconds == failover.seconds_of(wait)


@pytest.mark.parametrize("wait", ["6", "6 h", "h", "-1h", "six", "1w", "0.5h"])
def test_what_is_no_time_to_wait(wait: str) -> None:
    with pytest.raises(ConfigError, match="write a time like 30m, 6h or 2d"):
        failover.seconds_of(wait)


def test_who_is_named_is_told_how_the_waiting_ended(fake: FakeAws, tmp_path: Path, scene: Scene) -> None:
    """By the task: the hook gets the message on its stdin, from where the task runs."""
    hook = tmp_path / "tell"
    hook.write_text(f"#!/bin/sh\ncat >>{tmp_path}/told\n")
    hook.chmod(0o755)
    values = {"name": "demo", "nodes.workers": 1, "access.ssh_from": "203.0.113.7/32", "notify": str(hook)}
    text.write(tmp_path / "cluster.toml", text.render(values))
    bad = inv(tmp_path, "stack.create", "--yes", "--wait", "soon")
    assert (2, True) == (bad.returncode, "--wait 'soon': write a time" in bad.stderr)
    made = inv(tmp_path, "stack.create", "--yes", "--wait", "6h")

    assert 0 == made.returncode, made.stderr
    told = json.loads((tmp_path / "told").read_text())
    assert ("capacity", "demo", "the cluster has its hosts: 2 of 2 are ready") == (
        told["event"], told["job"], told["text"]
    )  # fmt: skip


def test_a_cluster_may_begin_with_fewer_and_grows(fake: FakeAws, account: Aws, scene: Scene) -> None:
    """1 + 3 asked for, 3 there are: the group goes on trying, and whoever comes gets the free rank."""
    first = zones(account, SECOND)[0]
    file = cluster(min_nodes=2)
    scene("capacity", {f"{SECOND}@{first}": 3})
    told: list[str] = []

    found = failover.create_where_there_is_room(account, plan.make(account, file), told.append)

    assert [0, 1, 2] == [h.rank for h in found]
    assert "demo begins with 3 of 4 hosts" in told[-1]
    assert any("goes on trying" in p for p in status.read_status(account, file).problems)
    outputs = stack.outputs(account, "demo")
    scene("capacity", {f"{SECOND}@{first}": 3})

    def all_ready() -> bool:
        return sum(m.is_usable for m in hosts.read(account, outputs)) == 4

    deadline = time.monotonic() + PATIENCE_S
    while not all_ready():
        assert time.monotonic() < deadline
    after = hosts.hosts(account, outputs)
    assert [h.instance_id for h in found] == [h.instance_id for h in after[:3]]
    assert [0, 1, 2, 3] == [h.rank for h in after]
    assert status.read_status(account, file).is_healthy


def test_a_running_stack_keeps_its_type_and_zone(fake: FakeAws, account: Aws, scene: Scene) -> None:
    """The list is for the create; what its file says afterwards is what the stack says."""
    file = cluster(instance_type=(FIRST, SECOND), workers=1)
    scene("capacity", {FIRST: 0})
    failover.create_where_there_is_room(account, plan.make(account, file), quiet)

    assert () == status.read_status(account, file).differs
    assert file.nodes.types == in_stack.file_of(account, "demo").nodes.types
    again = plan.make(account, file)
    assert [(SECOND, stack.outputs(account, "demo")["Zone"])] == [(c.instance.name, c.zone) for c in again.choices]
    more = with_(file, nodes=with_(file.nodes, workers=2))
    changed = update.prepare(account, more)
    assert ["WorkerNodes"] == [c.resource for c in changed.changes]


def test_subnets_of_several_zones_are_tried_in_their_order(fake: FakeAws, account: Aws, scene: Scene) -> None:
    """An existing VPC's subnets, a public and a private one in each of two zones."""
    ec2 = boto3.client("ec2")
    vpc = ec2.create_vpc(CidrBlock="10.0.0.0/16")["Vpc"]["VpcId"]
    gateway = ec2.create_internet_gateway()["InternetGateway"]["InternetGatewayId"]
    ec2.attach_internet_gateway(InternetGatewayId=gateway, VpcId=vpc)
    order = list(reversed(zones(account, SECOND)[:2]))

    def subnet(number: int, zone: str) -> str:
        made = ec2.create_subnet(VpcId=vpc, CidrBlock=f"10.0.{number}.0/24", AvailabilityZone=zone)
        return str(made["Subnet"]["SubnetId"])

    public = tuple(subnet(n, zone) for n, zone in enumerate(reversed(order)))
    private = tuple(subnet(n + 9, zone) for n, zone in enumerate(order))
    file = ClusterFile(
        name="demo",
        nodes=cluster(workers=1).nodes,
        access=Access(ssh_from="203.0.113.7/32"),
        network=Network(vpc=vpc, public_subnet=public, private_subnet=private),
    )
    scene("capacity", {f"{SECOND}@{order[0]}": 0})
    made = plan.make(account, file)
    assert order == [c.zone for c in made.choices]
    found = failover.create_where_there_is_room(account, made, quiet)

    assert (2, private[1]) == (len(found), stack.outputs(account, "demo")["PrivateSubnet"])
    with pytest.raises(ConfigError, match="the subnets are in different zones"):
        plan.make(account, with_(file, name="other", network=with_(file.network, public_subnet=public[:1])))


@pytest.mark.parametrize(
    "said",
    [
        "We currently do not have sufficient p5.48xlarge capacity in the Availability Zone you requested (us-east-1a). Our "
        "system will be working on provisioning additional capacity. Launching EC2 instance failed.",
        "There is no Spot capacity available that matches your request. Launching EC2 instance failed.",
        "Your requested instance type (p5.48xlarge) is not supported in your requested Availability Zone (us-east-1a).",
        "We have insufficient capacity for instance type p4d.24xlarge. Launching EC2 instance failed.",
        "We currently do not have sufficient capacity to launch all of the additional requested instances into Placement Group "
        "'x'. Launching EC2 instance failed.",
        "We currently do not have sufficient capacity in the Availability Zone you requested (us-east-1a).",
        "There is not enough capacity to fulfill your request. Launching EC2 instance failed.",
        "Could not launch Spot Instances. UnfulfillableCapacity - Unable to fulfill capacity due to your request configuration. "
        "Please adjust your request and try again. Launching EC2 instance failed.",
    ],
)
def test_words_that_mean_another_zone_may_help(said: str) -> None:
    assert capacity.is_for_lack_of_room(said)


@pytest.mark.parametrize(
    "said",
    [
        "You have requested more vCPU capacity than your current vCPU limit of 0 allows for the instance bucket",
        "The key pair 'mine' does not exist. Launching EC2 instance failed.",
        "Max spot instance count exceeded",
    ],
)
def test_words_that_mean_no_zone_helps(said: str) -> None:
    assert not capacity.is_for_lack_of_room(said)
