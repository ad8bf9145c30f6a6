"""Lookups of AWS resources that the cluster file names and that must exist: subnets, reservation, EFS, buckets."""

import datetime
import math
from typing import Any

from botocore.exceptions import ClientError

from cfn.aws import Aws, code_of, pages
from cfn.template.design import TAG, bucket_and_prefix
from cluster.clusterfile.checks import FieldError
from cluster.clusterfile.model import ClusterFile
from cluster.terminal import counted

UTC = "%Y-%m-%dT%H:%M:%SZ"


def subnets(aws: Aws, file: ClusterFile, addresses: int) -> dict[str, tuple[str, str]]:
    """Return the existing (public, private) subnet ids by zone, in the file's order; {} where the stack makes them.

    Raises FieldError if the VPC or a subnet does not exist, or the zones of the subnets differ. Raises it also if a
    private subnet has fewer than `addresses` free addresses.
    """
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
    public = [_subnet(ec2, file, "public_subnet", name) for name in network.public_subnets]
    private = [_subnet(ec2, file, "private_subnet", name) for name in network.private_subnets]
    by_zone = {s["AvailabilityZone"]: s["SubnetId"] for s in public}
    for one in private:
        if by_zone and one["AvailabilityZone"] not in by_zone:
            zones = sorted({*by_zone, *(s["AvailabilityZone"] for s in private)})
            raise FieldError(
                "network.private_subnet",
                f"the subnets are in different zones ({', '.join(zones)})",
                "choose two of one zone",
            )
        free = one.get("AvailableIpAddressCount", 10**6)
        if free < addresses:
            raise FieldError(
                "network.private_subnet",
                f"{one['SubnetId']} has {free} free addresses, {addresses} are needed",
                "use a larger one",
            )
    return {s["AvailabilityZone"]: (by_zone.get(s["AvailabilityZone"], ""), s["SubnetId"]) for s in private}


def _subnet(ec2: Any, file: ClusterFile, field: str, name: str) -> dict[str, Any]:
    """Return EC2's description of the subnet that a field names. Raises FieldError if it is not in the file's VPC."""
    try:
        found: dict[str, Any] = ec2.describe_subnets(SubnetIds=[name])["Subnets"][0]
    except ClientError as e:
        if code_of(e) != "InvalidSubnetID.NotFound":
            raise
        raise FieldError(
            f"network.{field}", f"{name} does not exist in {file.region}", f"give a subnet of {file.network.vpc}"
        ) from e
    if found["VpcId"] != file.network.vpc:
        raise FieldError(
            f"network.{field}",
            f"{name} is in {found['VpcId']}, outside network.vpc {file.network.vpc}",
            "give a subnet of that VPC",
        )
    return found


def reservation(aws: Aws, file: ClusterFile) -> dict[str, Any]:
    """Return EC2's description of the file's capacity reservation; {} if the file names none.

    Raises FieldError if the reservation does not match the nodes, or has no room for the nodes that are not yet in it.
    """
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
    if found["InstanceType"] not in nodes.types:
        raise FieldError(
            "nodes.reservation",
            f"{nodes.reservation} is for {found['InstanceType']}, not {nodes.types[0]}",
            "make them agree",
        )
    if found["State"] not in ("active", "scheduled"):
        raise FieldError("nodes.reservation", f"{nodes.reservation} is {found['State']}", "use one that is active")
    kind = "capacity-block" if found.get("ReservationType") == "capacity-block" else "reservation"
    if kind != nodes.capacity:
        raise FieldError(
            "nodes.capacity", f"is {nodes.capacity!r}, but {nodes.reservation} is a {kind}", f"write {kind!r}"
        )
    total = found["TotalInstanceCount"]  # before it begins, EC2 reports none as available
    room = (
        total
        if found["State"] == "scheduled"
        else found["AvailableInstanceCount"] + in_it(_instances(aws, file), nodes.reservation)
    )
    if room < file.reserved:
        others = f" that others do not use, of {total}" if room < total else ""
        raise FieldError(
            "nodes.workers",
            f"{nodes.reservation} has {counted(room, 'instance')}{others}, {file.reserved} are needed",
            f"use at most {counted(room - file.master_trains, 'worker')}{' and spares' if nodes.spares else ''}"
            if room > file.master_trains
            else "end what uses it, or use another",
        )
    return found


def in_it(instances: list[dict[str, Any]], reservation: str) -> int:
    """Return how many of the instances occupy the reservation. A terminating instance frees its slot minutes later."""
    there = [i for i in instances if i.get("CapacityReservationId") == reservation]
    return sum(i["State"]["Name"] != "terminated" for i in there)


def _instances(aws: Aws, file: ClusterFile) -> list[dict[str, Any]]:
    """Return EC2's descriptions of this cluster's instances."""
    ours = [{"Name": f"tag:{TAG}cluster", "Values": [file.name]}]
    found = pages(aws.client("ec2"), "describe_instances", "Reservations", Filters=ours)
    return [one for some in found for one in some["Instances"]]


def reserved_group(reservation: dict[str, Any]) -> str:
    """Return the placement group of a reservation, or "". Only instances in that group can use the reservation."""
    return str(reservation.get("PlacementGroupArn", "")).rpartition("/")[2]


def begins(reservation: dict[str, Any]) -> str:
    """Return the UTC start time of a reservation, or "" if it has already begun."""
    start = reservation.get("StartDate") if reservation.get("State") == "scheduled" else None
    return f"{start.astimezone(datetime.UTC):{UTC}}" if start else ""


def check_begun(begins_at: str, name: str, wait_s: float = 0.0) -> float:
    """Return the seconds until a reservation begins. Raises FieldError if these are more than `wait_s`.

    Args:
        begins_at: the start time, as `begins` returns it.
        name: id of the reservation.
    """
    if not begins_at:
        return 0.0
    at = datetime.datetime.strptime(begins_at, UTC).replace(tzinfo=datetime.UTC)
    left_s = max(0.0, (at - datetime.datetime.now(datetime.UTC)).total_seconds())
    if left_s > wait_s:
        hours = math.ceil(left_s / 3600)
        raise FieldError(
            "nodes.reservation",
            f"{name} begins at {at:%Y-%m-%d %H:%M} UTC, and no instance starts in it before",
            f"run this again then, or now with '--wait {hours}h'" if hours < 10_000 else "run this again then",
        )
    return left_s


def block_ends(reservation: dict[str, Any]) -> str:
    """Return the UTC end time of a capacity block, or "" for a reservation that does not end its instances."""
    ends = reservation.get("EndDate") if reservation.get("ReservationType") == "capacity-block" else None
    return f"{ends.astimezone(datetime.UTC):{UTC}}" if ends else ""


def mount_target(aws: Aws, file: ClusterFile, zone: str, vpc: str, pinned: dict[str, str] | None) -> tuple[str, str]:
    """Return the IP address and security group of an existing EFS mount target in the zone.

    Returns ("", "") where the stack makes its own mount target.

    Raises FieldError if the file system does not exist, is not encrypted, or is mounted in another VPC.
    """
    name, efs = file.storage.efs, aws.client("efs")
    if not name or (pinned and "MountTarget" in pinned):  # none named, or the stack has its own mount target
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
    """Raise FieldError if a bucket that the file names does not exist or cannot be reached."""
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
