"""What the cluster file names and the account must have already: subnets, a reservation, a file system, buckets."""

from typing import Any

from botocore.exceptions import ClientError

from cfn.aws import Aws, code_of, pages
from cfn.clusterfile.fields import ClusterFile
from cfn.template.design import bucket_and_prefix
from cluster.settings import FieldError


def subnets(aws: Aws, file: ClusterFile, addresses: int) -> dict[str, Any]:
    """The existing subnets by field, the private one with so many free addresses; empty where the stack makes them."""
    network, ec2 = file.network, aws.client("ec2")
    if not network.vpc:
        return {}
    try:
        ec2.describe_vpcs(VpcIds=[network.vpc])
    except ClientError as e:
        if code_of(e) != "InvalidVpcID.NotFound":
            raise
        raise FieldError(
            "network.vpc", f"{network.vpc} does not exist in {file.region}", "give one that does, or leave it empty"
        ) from e
    found = {}
    for field in ("public_subnet", "private_subnet"):
        if not (name := getattr(network, field)):
            continue
        try:
            subnet = ec2.describe_subnets(SubnetIds=[name])["Subnets"][0]
        except ClientError as e:
            if code_of(e) != "InvalidSubnetID.NotFound":
                raise
            raise FieldError(
                f"network.{field}", f"{name} does not exist in {file.region}", f"give a subnet of {network.vpc}"
            ) from e
        if subnet["VpcId"] != network.vpc:
            raise FieldError(
                f"network.{field}",
                f"{name} is in {subnet['VpcId']}, outside network.vpc {network.vpc}",
                "give a subnet of that VPC",
            )
        found[field] = subnet
    free = found["private_subnet"].get("AvailableIpAddressCount", 10**6)
    if free < addresses:
        raise FieldError(
            "network.private_subnet",
            f"{network.private_subnet} has {free} free addresses, {addresses} are needed",
            "use a larger one",
        )
    return found


def reservation(aws: Aws, file: ClusterFile) -> dict[str, Any]:
    """The reservation as EC2 describes it; empty without one. Raises ConfigError where it does not fit the nodes."""
    nodes = file.nodes
    if not nodes.reservation:
        return {}
    try:
        found = aws.client("ec2").describe_capacity_reservations(CapacityReservationIds=[nodes.reservation])[
            "CapacityReservations"
        ][0]
    except ClientError as e:
        if not code_of(e).startswith("InvalidCapacityReservationId"):
            raise
        raise FieldError(
            "nodes.reservation", f"{nodes.reservation} does not exist in {file.region}", "give the id of yours"
        ) from e
    if found["InstanceType"] != nodes.instance_type:
        raise FieldError(
            "nodes.reservation",
            f"{nodes.reservation} is for {found['InstanceType']}, not {nodes.instance_type}",
            "make them agree",
        )
    if found["State"] not in ("active", "scheduled"):
        raise FieldError("nodes.reservation", f"{nodes.reservation} is {found['State']}", "use one that is active")
    kind = "capacity-block" if found.get("ReservationType") == "capacity-block" else "reservation"
    if kind != nodes.capacity:
        raise FieldError(
            "nodes.capacity", f"is {nodes.capacity!r}, but {nodes.reservation} is a {kind}", f"write {kind!r}"
        )
    if found["AvailableInstanceCount"] < nodes.workers + 1 and found["TotalInstanceCount"] < nodes.workers + 1:
        raise FieldError(
            "nodes.workers",
            f"{nodes.reservation} has {found['TotalInstanceCount']} instances, {nodes.workers + 1} are needed",
            f"use at most {found['TotalInstanceCount'] - 1} workers",
        )
    return found


def mount_target(aws: Aws, file: ClusterFile, zone: str, vpc: str, pinned: dict[str, str] | None) -> tuple[str, str]:
    """Address and security group of an existing file system's mount target in the zone; empty where the stack
    makes its own.
    """
    name, efs = file.storage.efs, aws.client("efs")
    if not name or (pinned and "MountTarget" in pinned):  # none given, or the stack has a mount target of its own
        return "", ""
    try:
        found = efs.describe_file_systems(FileSystemId=name)["FileSystems"][0]
    except ClientError as e:
        if code_of(e) != "FileSystemNotFound":
            raise
        raise FieldError(
            "storage.efs",
            f"{name} does not exist in {file.region}",
            "give one that does, or leave it empty to have one made",
        ) from e
    if not found.get("Encrypted"):
        raise FieldError(
            "storage.efs",
            f"{name} is not encrypted, and it holds the cluster's keys",
            "use an encrypted one, or leave it empty",
        )
    targets = pages(efs, "describe_mount_targets", "MountTargets", FileSystemId=name)
    elsewhere = {t["VpcId"] for t in targets} - {vpc}
    if elsewhere:
        raise FieldError(
            "storage.efs",
            f"{name} is mounted in {', '.join(sorted(elsewhere))}, a file system serves one VPC at a time",
            "set network.vpc to that VPC, or remove its mount targets there",
        )
    here = [t for t in targets if t.get("AvailabilityZoneName", zone) == zone]
    if not here:
        return "", ""
    groups = efs.describe_mount_target_security_groups(MountTargetId=here[0]["MountTargetId"])["SecurityGroups"]
    return here[0]["IpAddress"], groups[0]


def check_buckets(aws: Aws, file: ClusterFile) -> None:
    """Raises ConfigError for a bucket that cannot be reached."""
    for field in ("s3", "fsx_s3"):
        if not (url := getattr(file.storage, field)):
            continue
        bucket, _ = bucket_and_prefix(url)
        try:
            aws.client("s3").head_bucket(Bucket=bucket)
        except ClientError as e:
            reason = (
                "does not exist" if code_of(e) in ("404", "NoSuchBucket") else "cannot be reached with your credentials"
            )
            raise FieldError(
                f"storage.{field}", f"bucket {bucket!r} {reason}", "give an existing bucket of yours"
            ) from e
