"""Preflight checks: look up what a cluster file leaves open, and reject what AWS would reject later.

Each error names the field and the remedy.
"""

import difflib
from dataclasses import replace
from pathlib import Path
from typing import Any

from botocore.exceptions import ClientError

from cfn import named_resources, source
from cfn.aws import Aws, asking, code_of, pages
from cfn.disks import check_default_key
from cfn.frameworks import check_image
from cfn.image import image
from cfn.instances import InstanceType, check_capacity, instance_type
from cfn.quotas import check_network_quotas, check_quotas
from cfn.template.design import Design
from cluster.clusterfile.checks import FieldError
from cluster.clusterfile.model import ClusterFile
from cluster.setup.script import read_script


def design_for(aws: Aws, file: ClusterFile, pinned: dict[str, str] | None = None) -> Design:
    """Return the first of the file's `choices`."""
    return choices(aws, file, pinned)[0]


def choices(
    aws: Aws, file: ClusterFile, pinned: dict[str, str] | None = None, *, with_image: bool = True
) -> tuple[Design, ...]:
    """Return all designs that the file allows, in the order in which they are tried for capacity.

    These are all zones with the first instance type, then with the next. Every reference is checked against the
    account. Nothing is changed.

    Args:
        pinned: outputs of the running stack, whose AMI, type, zone and source stay as they are.
        with_image: look up the file's image; False for nodes that get their image from EKS.
    Raises ConfigError for what the user can correct, AwsError if AWS cannot be queried.
    """
    with asking("checking the cluster file"):
        kinds = [_type(aws, file, name) for name in file.nodes.types]
        if pinned:
            kinds = [k for k in kinds if k.name == pinned.get("InstanceType")] or kinds[:1]
        for kind in kinds:
            check_capacity(kind, file.nodes.capacity)
            if pinned is None and with_image:
                check_image(kind.name, file.nodes.ami)
        master = _master(aws, file)
        subnets = named_resources.subnets(aws, file, file.nodes.pool + 4 if pinned is None else 0)
        reservation = named_resources.reservation(aws, file)
        _key_pair(aws, file)
        if pinned is None:
            check_default_key(aws, file)
            check_network_quotas(aws, file)
        named_resources.check_buckets(aws, file)
        vpc, cidr = file.network.vpc, file.network.cidr
        if vpc:
            cidr = aws.client("ec2").describe_vpcs(VpcIds=[vpc])["Vpcs"][0]["CidrBlock"]
        first = Design(
            file=file,
            ami="",
            zone="",
            instance=kinds[0],
            master=master,
            vpc_cidr=cidr,
            block_ends=named_resources.block_ends(reservation),
            reservation_begins=named_resources.begins(reservation),
            reserved_group=named_resources.reserved_group(reservation),
            source_version=source.version(aws, file, pinned),
            setup=read_script(Path(file.setup)) if file.setup else None,
        )
        designs = (replace(first, instance=kind) for kind in kinds)
        found = [_of_type(aws, design, reservation, subnets, pinned, with_image) for design in designs]
        return tuple(one for some in found for one in some)


def _of_type(
    aws: Aws,
    design: Design,
    reservation: dict[str, Any],
    subnets: dict[str, tuple[str, str]],
    pinned: dict[str, str] | None,
    with_image: bool,
) -> list[Design]:
    """Return the designs of one instance type, by zone."""
    file, kind = design.file, design.instance
    zones = [pinned["Zone"]] if pinned and "Zone" in pinned else _zones(aws, design, tuple(subnets), reservation)
    ami, device = image(aws, file, kind, (pinned or {}).get("Ami") or "") if with_image else ("", "")
    if design.master and design.master.architecture != kind.architecture:
        raise FieldError(
            "master.instance_type",
            f"{design.master.name} is {design.master.architecture}, the nodes' image is for {kind.architecture}",
            "choose a type of that architecture, such as m7i.large for x86_64",
        )
    check_quotas(aws, design)
    found = []
    for zone in zones:
        address, group = named_resources.mount_target(aws, file, zone, file.network.vpc, pinned)
        there = replace(design, zone=zone, subnets=subnets.get(zone, ("", "")), ami=ami, root_device=device)
        found.append(replace(there, efs_address=address, efs_group=group))
    return found


def _master(aws: Aws, file: ClusterFile) -> InstanceType | None:
    """Return the instance type of a master that does not train, or None if the master trains.

    Raises ConfigError if the type does not exist or is not sold in this market.
    """
    if file.master_trains:
        return None
    kind = _type(aws, file, file.master.instance_type, "master.instance_type")
    check_capacity(kind, file.market("master"), "master.instance_type")
    return kind


def _type(aws: Aws, file: ClusterFile, name: str, field: str = "nodes.instance_type") -> InstanceType:
    ec2 = aws.client("ec2")
    try:
        return instance_type(ec2.describe_instance_types(InstanceTypes=[name])["InstanceTypes"][0])
    except ClientError as e:
        if code_of(e) != "InvalidInstanceType":
            raise
    known = sorted({o["InstanceType"] for o in pages(ec2, "describe_instance_type_offerings", "InstanceTypeOfferings")})
    near = difflib.get_close_matches(name, known, n=3, cutoff=0.4)
    raise FieldError(
        field,
        f"EC2 has no {name!r} in {file.region}",
        f"choose one that it has, such as {', '.join(near)}" if near else "choose another type or region",
    )


def _offered(aws: Aws, file: ClusterFile, kind: InstanceType, field: str) -> list[str]:
    """Return the zones that offer the type. Raises FieldError if none does."""
    offers = pages(
        aws.client("ec2"),
        "describe_instance_type_offerings",
        "InstanceTypeOfferings",
        LocationType="availability-zone",
        Filters=[{"Name": "instance-type", "Values": [kind.name]}],
    )
    offered = sorted(o["Location"] for o in offers)
    if not offered:
        raise FieldError(field, f"{kind.name} is offered in no zone of {file.region}", "choose another type or region")
    return offered


def _zones(aws: Aws, design: Design, fixed: tuple[str, ...], reservation: dict[str, Any]) -> list[str]:
    """Return the zones to try, in order: the file's zone, else those of its subnets, else the reservation's zone.

    With none of these, return all zones that offer the type and the master's own type. Raises FieldError if no zone is
    left.
    """
    file, kind = design.file, design.instance
    offered = _offered(aws, file, kind, "nodes.instance_type")
    what = kind.name
    if design.master:
        there = _offered(aws, file, design.master, "master.instance_type")
        offered, what = [z for z in offered if z in there], f"{kind.name} with a {design.master.name}"
        if not offered:
            raise FieldError(
                "master.instance_type",
                f"no zone of {file.region} offers both {design.master.name} and {kind.name}",
                "choose another type for the master",
            )
    given, reserved = file.network.zone, reservation.get("AvailabilityZone")
    if given and fixed and given not in fixed:
        raise FieldError("network.zone", f"is {given} but the subnets are in {', '.join(fixed)}", "leave it empty")
    wanted = [given] if given else list(fixed) or ([reserved] if reserved else offered)
    if reserved and reserved not in wanted:
        raise FieldError(
            "nodes.reservation",
            f"is in {reserved}, the cluster in {' or '.join(wanted)}",
            "set network.zone to the reservation's",
        )
    zones = [z for z in wanted if z in offered and reserved in (None, z)]
    if not zones:
        raise FieldError(
            "network.zone" if given else "network.private_subnet",
            f"{what} is not offered in {' or '.join(wanted)}",
            f"use one of {', '.join(offered)}",
        )
    return zones


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
