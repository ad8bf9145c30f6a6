"""Checks of the account's quotas for vCPUs, VPCs and public addresses against what a cluster needs."""

from typing import Any

from botocore.exceptions import ClientError

from cfn.aws import Aws
from cfn.instances import InstanceType
from cfn.template.design import Design
from cluster.clusterfile.checks import FieldError
from cluster.clusterfile.model import ClusterFile
from cluster.terminal import counted

# Quota codes by (family, is spot). Several public sources agree on them.
QUOTAS = {
    ("P", False): "L-417A185B",
    ("P", True): "L-7212CCBC",
    ("G", False): "L-DB2E81BA",
    ("G", True): "L-3819A6DF",
    ("standard", False): "L-1216C47A",
    ("standard", True): "L-34B43A08",
}


def check_quotas(aws: Aws, design: Design) -> None:
    """Raise FieldError if a vCPU quota of the account is below what the cluster needs.

    Spot and on-demand instances count against different quotas, and so do types of different families. Unknown quotas
    are not checked.
    """
    file = design.file
    wanted: dict[str, list[tuple[InstanceType, int, str]]] = {}
    for role, number in (("master", 1), ("worker", file.nodes.pool)):
        kind, market = design.instance_of(role), file.market(role)
        quota = QUOTAS.get((kind.quota, market == "spot")) if market != "capacity-block" else None
        if quota and number:
            wanted.setdefault(quota, []).append((kind, number, role))
    for quota, parts in wanted.items():
        if (limit := _limit(aws, quota)) is not None:
            _check_quota(file, quota, parts, limit)


def check_network_quotas(aws: Aws, file: ClusterFile) -> None:
    """Raise FieldError if the account has no room for a new stack's VPC and public addresses."""
    ec2 = aws.client("ec2")
    wanted = [("vpc", "L-F678F1CE", 1, "describe_vpcs", "Vpcs", "VPC")] if not file.network.vpc else []
    addresses = (not file.network.vpc) + (file.access.mode == "ssh")  # one for the NAT gateway, one for the master
    if addresses:
        wanted.append(("ec2", "L-0263D0A3", addresses, "describe_addresses", "Addresses", "public address"))
    for service, quota, number, operation, key, noun in wanted:
        limit = _limit(aws, quota, service)
        if limit is None:
            continue
        used = len(getattr(ec2, operation)()[key])
        if used + number > limit["Value"]:
            raise FieldError(
                "network.vpc" if noun == "VPC" else "access.mode",
                f"{counted(number, noun)} more would be needed, {used} of the account's {limit['Value']:g} in "
                f"{file.region} are used",
                f"ask for more of {quota} in Service Quotas, or "
                + ("name an existing VPC" if noun == "VPC" else "release some: 'aws ec2 describe-addresses'"),
            )


def _limit(aws: Aws, quota: str, service: str = "ec2") -> dict[str, Any] | None:
    """Return a quota, or None if it does not exist or may not be read. EC2 enforces it anyway."""
    try:
        found: dict[str, Any] = aws.client("service-quotas").get_service_quota(ServiceCode=service, QuotaCode=quota)
    except ClientError:
        return None
    return dict(found["Quota"])


def _check_quota(
    file: ClusterFile, quota: str, parts: list[tuple[InstanceType, int, str]], limit: dict[str, Any]
) -> None:
    needed = sum(kind.vcpus * number for kind, number, _ in parts)
    if needed <= limit["Value"]:
        return
    masters = sum(kind.vcpus for kind, _, role in parts if role == "master")
    worker = next((kind for kind, _, role in parts if role == "worker"), None)
    fits = int(limit["Value"] - masters) // worker.vcpus if worker else -1
    remedy = f"ask for more of {quota} in Service Quotas"
    if fits >= 0:
        remedy = f"use at most {counted(fits, 'worker')}{' and spares' if file.nodes.spares else ''}, or {remedy}"
    counts: dict[str, int] = {}
    for kind, number, _ in parts:
        counts[kind.name] = counts.get(kind.name, 0) + number
    said = " and ".join(f"{number} x {name}" for name, number in counts.items())
    raise FieldError(
        "nodes.workers" if worker else "master.instance_type" if file.master.instance_type else "master.capacity",
        f"{said} are {counted(needed, 'vCPU')}, the account's limit ({limit['QuotaName']}) is {limit['Value']:.0f}",
        remedy,
    )
