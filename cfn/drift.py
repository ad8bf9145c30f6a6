"""Drift: resources that were deleted outside CloudFormation, which still reports them as complete."""

from collections.abc import Iterable
from typing import Any

from botocore.exceptions import ClientError

from cfn.aws import DENIED, Aws, AwsError, code_of
from cfn.stack import Stack, StackError, StackResource, resources

# By type: service, operation that describes one, argument, whether that is a list, what an operator calls it.
_KINDS: dict[str, tuple[str, str, str, bool, str]] = {
    "AWS::AutoScaling::AutoScalingGroup": (
        "autoscaling", "describe_auto_scaling_groups", "AutoScalingGroupNames", True, "group",
    ),
    "AWS::EC2::EIP": ("ec2", "describe_addresses", "PublicIps", True, "address"),
    "AWS::EC2::InternetGateway": ("ec2", "describe_internet_gateways", "InternetGatewayIds", True, "internet gateway"),
    "AWS::EC2::LaunchTemplate": ("ec2", "describe_launch_templates", "LaunchTemplateIds", True, "launch template"),
    "AWS::EC2::NatGateway": ("ec2", "describe_nat_gateways", "NatGatewayIds", True, "NAT gateway"),
    "AWS::EC2::NetworkInterface": ("ec2", "describe_network_interfaces", "NetworkInterfaceIds", True, "interface"),
    "AWS::EC2::RouteTable": ("ec2", "describe_route_tables", "RouteTableIds", True, "route table"),
    "AWS::EC2::SecurityGroup": ("ec2", "describe_security_groups", "GroupIds", True, "security group"),
    "AWS::EC2::Subnet": ("ec2", "describe_subnets", "SubnetIds", True, "subnet"),
    "AWS::EC2::VPC": ("ec2", "describe_vpcs", "VpcIds", True, "VPC"),
    "AWS::EFS::FileSystem": ("efs", "describe_file_systems", "FileSystemId", False, "file system"),
    "AWS::EFS::MountTarget": ("efs", "describe_mount_targets", "MountTargetId", False, "mount target"),
    "AWS::FSx::FileSystem": ("fsx", "describe_file_systems", "FileSystemIds", True, "file system"),
}  # fmt: skip
_NOT_THERE = ("NotFound", "Unknown", "DoesNotExist")
_ENDED = ("deleted", "deleting", "DELETING")


def gone(aws: Aws, stack: Stack) -> list[StackResource]:
    """Return the stack's resources that are no longer in the account. Those AWS gives no answer about count as present.

    A node's role may not make these queries. On a node nothing is reported as missing.
    """
    try:
        made = resources(aws, stack)
    except AwsError as e:
        if e.code not in DENIED:
            raise
        return []
    return [r for r in made if not is_there(aws, r)]


def is_there(aws: Aws, resource: StackResource) -> bool:
    """Return False if AWS reports that the resource does not exist or was deleted."""
    known = _KINDS.get(resource.kind)
    if known is None:
        return True
    service, operation, argument, is_list, _ = known
    try:
        said = getattr(aws.client(service), operation)(**{argument: [resource.id] if is_list else resource.id})
    except ClientError as e:
        return not any(word in code_of(e) for word in _NOT_THERE)
    found: list[dict[str, Any]] = next((v for v in said.values() if isinstance(v, list)), [])
    return any(one.get("State", one.get("LifeCycleState", one.get("Lifecycle"))) not in _ENDED for one in found)


def text(resource: StackResource) -> str:
    """Return the name of a missing resource, as an operator would call it."""
    return f"{_KINDS[resource.kind][4]} {resource.id} ({resource.logical})"


def problem(lost: Iterable[StackResource]) -> str:
    """Return which resources were deleted outside the stack and the remedy; "" if there are none."""
    named = ", ".join(map(text, lost))
    if not named:
        return ""
    return f"deleted outside the stack: {named}; nothing brings it back but `inv stack.delete`, then `inv stack.create`"


def check_complete(aws: Aws, stack: Stack) -> None:
    """Raise StackError if a resource of the stack was deleted outside it."""
    if said := problem(gone(aws, stack)):
        raise StackError(f"stack {stack.name}: {said}")
