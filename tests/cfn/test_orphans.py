"""What was left behind in the account is found, whatever it is, and nothing of others; what removes it works."""

from collections.abc import Callable
from typing import Any

import boto3
import pytest
from botocore.parsers import ResponseParserError

from cfn import create, orphans, plan, stop
from cfn.aws import Aws, AwsError, asking
from cfn.removal import ApiCall
from cluster.clusterfile.model import ClusterFile
from lab.aws import FakeAws
from tests.cfn.conftest import cluster

HERE, THERE = "us-east-1", "eu-west-1"
KINDS = {
    *("instance", "volume", "snapshot", "public address", "NAT gateway", "network interface", "EFS", "FSx"),
    *("capacity reservation", "launch template", "log group", "placement group", "VPC"),
}


def tags(cluster: str) -> list[dict[str, str]]:
    """Ours for a cluster; somebody else's without one."""
    return [{"Key": "dlami-cluster:cluster", "Value": cluster}] if cluster else [{"Key": "team", "Value": "other"}]


def left_by_hand(fake: FakeAws, region: str, cluster: str) -> dict[str, str]:
    """One of everything, made by hand: id by kind."""
    ec2 = boto3.client("ec2", region_name=region)

    def marked(kind: str) -> dict[str, Any]:
        return {"TagSpecifications": [{"ResourceType": kind, "Tags": tags(cluster)}]}

    vpc = ec2.create_vpc(CidrBlock="10.9.0.0/16", **marked("vpc"))["Vpc"]["VpcId"]
    subnet = ec2.create_subnet(VpcId=vpc, CidrBlock="10.9.0.0/24", **marked("subnet"))["Subnet"]["SubnetId"]
    gateway = ec2.create_internet_gateway(**marked("internet-gateway"))["InternetGateway"]["InternetGatewayId"]
    ec2.attach_internet_gateway(InternetGatewayId=gateway, VpcId=vpc)
    image = ec2.register_image(Name=f"image{cluster}", RootDeviceName="/dev/sda1")["ImageId"]
    instance = ec2.run_instances(
        ImageId=image, MinCount=1, MaxCount=1, InstanceType="g5.xlarge", SubnetId=subnet, **marked("instance")
    )["Instances"][0]["InstanceId"]
    volume = ec2.create_volume(
        AvailabilityZone=f"{region}a", Size=500, VolumeType="gp3", **marked("volume")
    )["VolumeId"]  # fmt: skip
    snapshot = ec2.create_snapshot(VolumeId=volume, **marked("snapshot"))["SnapshotId"]
    address = ec2.allocate_address(Domain="vpc", **marked("elastic-ip"))["AllocationId"]
    nat = ec2.create_nat_gateway(SubnetId=subnet, AllocationId=address, **marked("natgateway"))["NatGateway"]
    interface = ec2.create_network_interface(SubnetId=subnet, **marked("network-interface"))["NetworkInterface"]
    template = ec2.create_launch_template(
        LaunchTemplateName=f"t{cluster}", LaunchTemplateData={"InstanceType": "g5.xlarge"}, **marked("launch-template")
    )["LaunchTemplate"]
    ec2.create_placement_group(GroupName=f"p{cluster}", Strategy="cluster", **marked("placement-group"))
    reservation = f"cr-{len(fake.world.reservations):017x}"
    fake.world.reservations[reservation] = {
        "CapacityReservationId": reservation,
        "InstanceType": "g5.xlarge",
        "AvailabilityZone": f"{region}a",
        "State": "active",
        "TotalInstanceCount": 3,
        "AvailableInstanceCount": 2,
        "Tags": tags(cluster),
    }
    efs = boto3.client("efs", region_name=region).create_file_system(Encrypted=True, Tags=tags(cluster))["FileSystemId"]
    boto3.client("efs", region_name=region).create_mount_target(FileSystemId=efs, SubnetId=subnet)
    fsx = boto3.client("fsx", region_name=region).create_file_system(
        FileSystemType="LUSTRE",
        StorageCapacity=1200,
        SubnetIds=[subnet],
        LustreConfiguration={"DeploymentType": "PERSISTENT_2", "PerUnitStorageThroughput": 125},
        Tags=tags(cluster),
    )["FileSystem"]["FileSystemId"]
    logs = f"/nodes/{cluster or 'other'}"
    boto3.client("logs", region_name=region).create_log_group(
        logGroupName=logs, tags={t["Key"]: t["Value"] for t in tags(cluster)}
    )
    return {
        "instance": instance,
        "volume": volume,
        "snapshot": snapshot,
        "public address": address,
        "NAT gateway": nat["NatGatewayId"],
        "network interface": interface["NetworkInterfaceId"],
        "EFS": efs,
        "FSx": fsx,
        "capacity reservation": reservation,
        "launch template": template["LaunchTemplateId"],
        "log group": logs,
        "placement group": f"p{cluster}",
        "VPC": vpc,
    }


def by_kind(found: orphans.Found, region: str = HERE) -> dict[str, str]:
    return {o.thing.item.kind: o.thing.item.id for o in found.orphans if o.region == region}


def test_everything_that_was_left_is_found_and_nothing_of_others(
    fake: FakeAws, file: ClusterFile, account: Aws, scene: Callable[..., Any]
) -> None:
    """Of each kind one is ours without a stack, one is a living stack's, one is somebody else's; in two regions."""
    scene("prices", {"g5.xlarge": 1.0})
    create.create(account, plan.make(account, file), lambda _: None)  # its own things, all of them
    left_by_hand(fake, HERE, "demo")  # made by hand for the stack that lives
    left_by_hand(fake, HERE, "")
    left = left_by_hand(fake, HERE, "gone")
    far = left_by_hand(fake, THERE, "demo")  # whose stack is in another region

    found = orphans.find(account, [HERE, THERE])

    assert ((), KINDS) == (found.unasked, set(left))
    assert left == by_kind(found)
    assert far == by_kind(found, THERE)
    assert 2 * len(KINDS) == len(found.orphans)
    usd = {o.thing.item.kind: o.thing.item.usd_per_day for o in found.orphans if o.region == HERE}
    month = 730 / 24
    dear = {
        "instance": 24.0, "capacity reservation": 48.0, "NAT gateway": 1.08, "public address": 0.12,
        "volume": 40 / month, "snapshot": 25 / month, "FSx": 174 / month,
    }  # fmt: skip
    assert {**dict.fromkeys(KINDS, 0.0), **dear} == pytest.approx(usd)
    assert all(f"--region {o.region}" in o.command for o in found.orphans)
    assert (
        f"{HERE}  instance {left['instance']}: 24.00 USD per day (g5.xlarge, running, price on demand), of gone"
        in str(found)
    )


def test_with_a_vpc_go_its_own_endpoints_and_no_interface_of_others(fake: FakeAws, account: Aws) -> None:
    """A gateway endpoint is a line in its route table and holds it fast, whoever made it; an interface is a way that
    somebody pays for.
    """
    vpc = left_by_hand(fake, HERE, "gone")["VPC"]
    ec2 = boto3.client("ec2", region_name=HERE)

    def endpoint(service: str, kind: str, cluster: str) -> str:
        marked = [{"ResourceType": "vpc-endpoint", "Tags": tags(cluster)}]
        made = ec2.create_vpc_endpoint(
            VpcId=vpc, ServiceName=f"com.amazonaws.{HERE}.{service}", VpcEndpointType=kind, TagSpecifications=marked
        )
        return str(made["VpcEndpoint"]["VpcEndpointId"])

    gateways = {endpoint("s3", "Gateway", ""), endpoint("dynamodb", "Gateway", "gone")}
    ours, theirs = endpoint("ssm", "Interface", "gone"), endpoint("ec2", "Interface", "")
    (found,) = (o for o in orphans.find(account, [HERE]).orphans if o.thing.item.id == vpc)
    removed = [s.arguments["VpcEndpointIds"] for s in found.thing.steps if s.operation == "delete_vpc_endpoints"]

    assert sorted([[one] for one in {*gateways, ours}]) == sorted(removed)
    assert [theirs] not in removed


def test_each_can_be_removed_what_holds_it_first(fake: FakeAws, account: Aws) -> None:
    """In the order in which they are told, each by its own calls; twice is well."""
    left_by_hand(fake, HERE, "gone")
    others = left_by_hand(fake, HERE, "")
    found = orphans.find(account, [HERE])
    for orphan in found.orphans:
        orphans.remove(account, orphan, wait_s=0)

    assert () == orphans.find(account, [HERE]).orphans
    for orphan in found.orphans:
        orphans.remove(account, orphan, wait_s=0)
    ec2 = boto3.client("ec2")
    assert (
        "running"
        == ec2.describe_instances(InstanceIds=[others["instance"]])["Reservations"][0]["Instances"][0]["State"]["Name"]
    )
    assert ec2.describe_vpcs(VpcIds=[others["VPC"]])["Vpcs"]


def test_a_group_that_would_start_its_instances_again_comes_first(
    fake: FakeAws, account: Aws, file: ClusterFile
) -> None:
    """cfncluster#122: what is ended by hand comes back until its group is removed."""
    create.create(account, plan.make(account, file), lambda _: None)
    fake.world.stacks.clear()  # as after a delete that left everything

    found = orphans.find(account, [HERE])

    kinds = [o.thing.item.kind for o in found.orphans]
    assert ["Auto Scaling group"] * 2 == kinds[:2]
    assert {"instance", "NAT gateway", "public address", "network interface", "EFS", "launch template"} < set(kinds)
    assert {"placement group", "VPC"} < set(kinds)
    for orphan in found.orphans[:2]:
        orphans.remove(account, orphan, wait_s=0)
    assert fake.world.wait_until(lambda: not fake.world.groups, 300 / fake.world.scale)
    assert "instance" not in by_kind(orphans.find(account, [HERE]))


@pytest.mark.parametrize(
    ("step", "words"),
    [
        (
            ApiCall("ec2", "terminate_instances", {"InstanceIds": ["i-1"]}),
            "ec2 terminate-instances {} --instance-ids i-1",
        ),
        (
            ApiCall("autoscaling", "delete_auto_scaling_group", {"AutoScalingGroupName": "a b", "ForceDelete": True}),
            "autoscaling delete-auto-scaling-group {} --auto-scaling-group-name 'a b' --force-delete",
        ),
        (ApiCall("logs", "delete_log_group", {"logGroupName": "/x"}), "logs delete-log-group {} --log-group-name /x"),
        (
            ApiCall("efs", "delete_mount_target", {"MountTargetId": "fsmt-1"}, then_waits_s=90),
            "efs delete-mount-target {} --mount-target-id fsmt-1 && sleep 90",
        ),
    ],
)
def test_the_command_is_the_aws_clis(step: ApiCall, words: str) -> None:
    assert "aws " + words.format("--region eu-west-1") == step.command("eu-west-1")


def test_a_cluster_that_was_stopped_and_started_can_be_looked_for(fake: FakeAws, account: Aws) -> None:
    """A master that ended keeps no interface in EC2's answers, and an answer that is none of AWS's is told as that."""
    file = cluster(workers=1)
    create.create(account, plan.make(account, file), lambda _: None)
    stop.stop(account, file, lambda _: None)
    stop.start(account, file, lambda _: None)
    create.delete(account, file, lambda _: None)
    (left,) = orphans.find(account, ["us-east-1"]).orphans
    assert "EFS" == left.thing.item.kind

    with pytest.raises(AwsError, match="none of AWS's"), asking("looking"):
        raise ResponseParserError("<html>500</html>")
