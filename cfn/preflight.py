"""Looks up what a cluster file leaves open, and refuses what AWS would refuse later, each with its field and a
remedy.
"""

import difflib
from typing import Any

from botocore.exceptions import ClientError

from cfn import account, source
from cfn.aws import Aws, asking, code_of, pages
from cfn.clusterfile.fields import ClusterFile
from cfn.instances import InstanceType, check_capacity, instance_type
from cfn.template.design import Design
from cluster.settings import FieldError

# vCPU quotas by family and market; several public sources agree on the codes.
QUOTAS = {
    ("P", False): "L-417A185B",
    ("P", True): "L-7212CCBC",
    ("G", False): "L-DB2E81BA",
    ("G", True): "L-3819A6DF",
}


def design_for(aws: Aws, file: ClusterFile, pinned: dict[str, str] | None = None) -> Design:
    """The complete design of a cluster file, every reference in it checked against the account; nothing is changed.

    Args:
        pinned: outputs of the running stack, whose AMI, zone and source stay as they are.
    Raises ConfigError for what the user can correct, AwsError if AWS cannot be asked.
    """
    with asking("checking the cluster file"):
        kind = _type(aws, file)
        check_capacity(kind, file.nodes.capacity)
        subnets = account.subnets(aws, file, file.nodes.workers + 4 if pinned is None else 0)
        reservation = account.reservation(aws, file)
        zone = (pinned or {}).get("Zone") or _zone(aws, file, kind, subnets, reservation)
        ami, device = _image(aws, file, kind, (pinned or {}).get("Ami") or "")
        _key_pair(aws, file)
        account.check_buckets(aws, file)
        vpc, cidr = file.network.vpc, file.network.cidr
        if vpc:
            cidr = aws.client("ec2").describe_vpcs(VpcIds=[vpc])["Vpcs"][0]["CidrBlock"]
        address, group = account.mount_target(aws, file, zone, vpc, pinned)
        _quota(aws, file, kind)
        source_version = source.version(aws, file, pinned)
        return Design(
            file=file,
            ami=ami,
            zone=zone,
            instance=kind,
            vpc_cidr=cidr,
            root_device=device,
            efs_address=address,
            efs_group=group,
            source_version=source_version,
        )


def _type(aws: Aws, file: ClusterFile) -> InstanceType:
    name, ec2 = file.nodes.instance_type, aws.client("ec2")
    try:
        return instance_type(ec2.describe_instance_types(InstanceTypes=[name])["InstanceTypes"][0])
    except ClientError as e:
        if code_of(e) != "InvalidInstanceType":
            raise
    known = sorted({o["InstanceType"] for o in pages(ec2, "describe_instance_type_offerings", "InstanceTypeOfferings")})
    near = difflib.get_close_matches(name, known, n=3, cutoff=0.4)
    raise FieldError(
        "nodes.instance_type",
        f"EC2 has no {name!r} in {file.region}",
        f"choose one that it has, such as {', '.join(near)}" if near else "choose another type or region",
    )


def _zone(aws: Aws, file: ClusterFile, kind: InstanceType, subnets: dict[str, Any], reservation: dict[str, Any]) -> str:
    offers = pages(
        aws.client("ec2"),
        "describe_instance_type_offerings",
        "InstanceTypeOfferings",
        LocationType="availability-zone",
        Filters=[{"Name": "instance-type", "Values": [kind.name]}],
    )
    zones = sorted(o["Location"] for o in offers)
    if not zones:
        raise FieldError(
            "nodes.instance_type",
            f"{kind.name} is offered in no zone of {file.region}",
            "choose another type or region",
        )
    given = file.network.zone
    fixed = {s["AvailabilityZone"] for s in subnets.values()}
    if len(fixed) > 1:
        raise FieldError(
            "network.private_subnet",
            f"the subnets are in different zones ({', '.join(sorted(fixed))})",
            "choose two of one zone",
        )
    if given and fixed and given not in fixed:
        raise FieldError("network.zone", f"is {given} but the subnets are in {fixed.pop()}", "leave it empty")
    zone = given or (fixed.pop() if fixed else reservation.get("AvailabilityZone") or zones[0])
    if reservation and reservation["AvailabilityZone"] != zone:
        raise FieldError(
            "nodes.reservation",
            f"is in {reservation['AvailabilityZone']}, the cluster in {zone}",
            "set network.zone to the reservation's",
        )
    if zone not in zones:
        raise FieldError(
            "network.zone" if given else "network.private_subnet",
            f"{kind.name} is not offered in {zone}",
            f"use one of {', '.join(zones)}",
        )
    return zone


def _image(aws: Aws, file: ClusterFile, kind: InstanceType, pinned: str) -> tuple[str, str]:
    """AMI id and the name of its root device."""
    ami = pinned or file.nodes.ami
    if ami.startswith("/"):
        try:
            ami = aws.client("ssm").get_parameter(Name=ami)["Parameter"]["Value"]
        except ClientError as e:
            if code_of(e) != "ParameterNotFound":
                raise
            raise FieldError(
                "nodes.ami",
                f"there is no SSM parameter {ami!r} in {file.region}",
                "copy the name from the DLAMI release notes",
            ) from e
    try:
        images = aws.client("ec2").describe_images(ImageIds=[ami])["Images"]
    except ClientError as e:
        if not code_of(e).startswith("InvalidAMIID"):
            raise
        images = []
    if not images:
        raise FieldError(
            "nodes.ami",
            f"{ami} does not exist in {file.region}, or not for this account",
            "AMI ids differ by region: use one of this",
        )
    image = images[0]
    if image.get("Architecture", kind.architecture) != kind.architecture:
        raise FieldError(
            "nodes.ami",
            f"{ami} is for {image['Architecture']}, {kind.name} is {kind.architecture}",
            "choose the AMI of that architecture",
        )
    return ami, image.get("RootDeviceName") or "/dev/sda1"


def _key_pair(aws: Aws, file: ClusterFile) -> None:
    if not file.access.key_pair:
        return
    ec2 = aws.client("ec2")
    names = [k["KeyName"] for k in ec2.describe_key_pairs()["KeyPairs"]]
    if file.access.key_pair not in names:
        raise FieldError(
            "access.key_pair",
            f"there is no key pair {file.access.key_pair!r} in {file.region}",
            f"use one of {', '.join(sorted(names)[:5])}, or leave it empty for EC2 Instance Connect"
            if names
            else "import one with `aws ec2 import-key-pair`, or leave it empty for EC2 Instance Connect",
        )


def _quota(aws: Aws, file: ClusterFile, kind: InstanceType) -> None:
    """Raises ConfigError if the account's vCPU limit is below what the cluster needs; an unknown limit passes."""
    quota = QUOTAS.get((kind.gpu_quota, file.nodes.capacity == "spot"))
    if quota is None or file.nodes.capacity == "capacity-block":
        return
    try:
        limit = aws.client("service-quotas").get_service_quota(ServiceCode="ec2", QuotaCode=quota)["Quota"]
    except ClientError:
        return  # no permission to ask, or no such quota here: EC2 will say
    needed = kind.vcpus * (file.nodes.workers + 1)
    if needed > limit["Value"]:
        fits = int(limit["Value"]) // kind.vcpus
        remedy = (
            f"use at most {fits - 1} workers, or ask for more of {quota} in Service Quotas"
            if fits
            else f"ask for more of {quota} in Service Quotas"
        )
        raise FieldError(
            "nodes.workers",
            f"{file.nodes.workers + 1} x {kind.name} are {needed} vCPUs, the account's limit "
            f"({limit['QuotaName']}) is {limit['Value']:.0f}",
            remedy,
        )
