"""Kinds of resources that may be left in an account: how each is listed, what it costs by the day, how it is removed.

Only resources with our tag are listed.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from cfn import fixed_costs, prices
from cfn.aws import Aws, pages
from cfn.fixed_costs import DailyCost
from cfn.prices import PriceList
from cfn.removal import ApiCall
from cfn.template.design import TAG
from cluster.terminal import counted

CLUSTER = f"{TAG}cluster"
STACK_ID = "aws:cloudformation:stack-id"  # CloudFormation's own tag of what it makes
OURS: Any = [{"Name": "tag-key", "Values": [CLUSTER]}]
_Tags = Iterable[Mapping[str, str]]


@dataclass(frozen=True, kw_only=True)
class Tagged:
    """Resource that carries our tag."""

    item: DailyCost
    tags: Mapping[str, str]
    steps: tuple[ApiCall, ...]  # that remove it, in this order; () if it only expires by itself

    @property
    def cluster(self) -> str:
        """Return the name of the cluster that it was made for."""
        return self.tags[CLUSTER]


@dataclass(frozen=True)
class OrphanKind:
    """Kind of resource: its AWS service, and how those with our tag are listed."""

    service: str
    find: Callable[[Aws, PriceList], Iterable[Tagged]]


def tags_of(of: _Tags, key: str = "Key", value: str = "Value") -> dict[str, str]:
    """Return a service's list of tags as a dict."""
    return {t[key]: t[value] for t in of}


def made(
    kind: str, name: str, usd: float | None, tags: Mapping[str, str], *steps: ApiCall, note: str = ""
) -> list[Tagged]:
    """Return the resource as a list of one, or [] if it lacks our tag."""
    if CLUSTER not in tags:
        return []
    return [Tagged(item=DailyCost(kind=kind, id=name, usd_per_day=usd, note=note), tags=tags, steps=steps)]


def _groups(aws: Aws, price_list: PriceList) -> Iterable[Tagged]:
    for g in pages(aws.client("autoscaling"), "describe_auto_scaling_groups", "AutoScalingGroups"):
        name = g["AutoScalingGroupName"]
        end = ApiCall("autoscaling", "delete_auto_scaling_group", {"AutoScalingGroupName": name, "ForceDelete": True})
        note = (
            f"keeps {counted(g['DesiredCapacity'], 'instance')} running: what is ended comes back until it is removed"
        )
        yield from made("Auto Scaling group", name, 0.0, tags_of(g["Tags"]), end, note=note)


def _instances(aws: Aws, price_list: PriceList) -> Iterable[Tagged]:
    for r in pages(aws.client("ec2"), "describe_instances", "Reservations", Filters=OURS):
        for i in r["Instances"]:
            state, kind = i["State"]["Name"], i["InstanceType"]
            if state in ("terminated", "shutting-down"):
                continue
            each = price_list.on_demand(kind) if state in ("pending", "running") else 0.0
            end = ApiCall("ec2", "terminate_instances", {"InstanceIds": [i["InstanceId"]]})
            usd = None if each is None else prices.per_day(each)
            tags = tags_of(i.get("Tags", []))
            yield from made("instance", i["InstanceId"], usd, tags, end, note=f"{kind}, {state}, price on demand")


def _nats(aws: Aws, price_list: PriceList) -> Iterable[Tagged]:
    for n in pages(aws.client("ec2"), "describe_nat_gateways", "NatGateways", Filters=OURS):
        if n["State"] not in ("deleted", "deleting", "failed"):
            end = ApiCall("ec2", "delete_nat_gateway", {"NatGatewayId": n["NatGatewayId"]})
            usd = prices.per_day(prices.NAT)
            yield from made("NAT gateway", n["NatGatewayId"], usd, tags_of(n.get("Tags", [])), end)


def _addresses(aws: Aws, price_list: PriceList) -> Iterable[Tagged]:
    for a in aws.client("ec2").describe_addresses(Filters=OURS)["Addresses"]:
        end = ApiCall("ec2", "release_address", {"AllocationId": a["AllocationId"]})
        usd, tags = prices.per_day(prices.ADDRESS), tags_of(a.get("Tags", []))
        yield from made("public address", a["AllocationId"], usd, tags, end, note=a.get("PublicIp", ""))


def _interfaces(aws: Aws, price_list: PriceList) -> Iterable[Tagged]:
    for i in pages(aws.client("ec2"), "describe_network_interfaces", "NetworkInterfaces", Filters=OURS):
        end = ApiCall("ec2", "delete_network_interface", {"NetworkInterfaceId": i["NetworkInterfaceId"]})
        tags = tags_of(i.get("TagSet", []))
        yield from made(
            "network interface", i["NetworkInterfaceId"], 0.0, tags, end, note=i.get("PrivateIpAddress", "")
        )


def _fsx(aws: Aws, price_list: PriceList) -> Iterable[Tagged]:
    for f in pages(aws.client("fsx"), "describe_file_systems", "FileSystems"):
        if f.get("Lifecycle") != "DELETING":
            end = ApiCall("fsx", "delete_file_system", {"FileSystemId": f["FileSystemId"]})
            tags, note = tags_of(f.get("Tags", [])), f"{f['StorageCapacity']:,} GiB with what is on it"
            yield from made("FSx", f["FileSystemId"], prices.fsx(f), tags, end, note=note)


def _efs(aws: Aws, price_list: PriceList) -> Iterable[Tagged]:
    efs = aws.client("efs")
    for f in pages(efs, "describe_file_systems", "FileSystems"):
        name, tags = f["FileSystemId"], tags_of(f.get("Tags", []))
        if CLUSTER not in tags or f["LifeCycleState"] in ("deleting", "deleted"):
            continue
        targets = pages(efs, "describe_mount_targets", "MountTargets", FileSystemId=name)
        steps = [
            ApiCall("efs", "delete_mount_target", {"MountTargetId": t["MountTargetId"]}, then_waits_s=90)
            for t in targets
        ]
        end = ApiCall("efs", "delete_file_system", {"FileSystemId": name})
        note = f"{f['SizeInBytes']['Value'] / prices.GIB:,.1f} GiB: the files, keys and checkpoints of {tags[CLUSTER]}"
        yield from made("EFS", name, prices.efs(f), tags, *steps, end, note=note)


def _volumes(aws: Aws, price_list: PriceList) -> Iterable[Tagged]:
    for v in pages(aws.client("ec2"), "describe_volumes", "Volumes", Filters=OURS):
        end = ApiCall("ec2", "delete_volume", {"VolumeId": v["VolumeId"]})
        holders = ", ".join(a["InstanceId"] for a in v.get("Attachments", []))
        note = f"{v['Size']} GiB" + (f", of {holders}" if holders else "")
        yield from made("volume", v["VolumeId"], prices.volume(v), tags_of(v.get("Tags", [])), end, note=note)


def _snapshots(aws: Aws, price_list: PriceList) -> Iterable[Tagged]:
    for s in pages(aws.client("ec2"), "describe_snapshots", "Snapshots", OwnerIds=["self"], Filters=OURS):
        end = ApiCall("ec2", "delete_snapshot", {"SnapshotId": s["SnapshotId"]})
        note = f"of {s['VolumeSize']} GiB, at most"
        yield from made("snapshot", s["SnapshotId"], prices.snapshot(s), tags_of(s.get("Tags", [])), end, note=note)


def _reservations(aws: Aws, price_list: PriceList) -> Iterable[Tagged]:
    found = pages(aws.client("ec2"), "describe_capacity_reservations", "CapacityReservations", Filters=OURS)
    for r in found:
        tags = tags_of(r.get("Tags", []))
        if CLUSTER not in tags or r["State"] in ("cancelled", "expired", "failed"):
            continue
        is_block = r.get("ReservationType") == "capacity-block"
        cancel = ApiCall("ec2", "cancel_capacity_reservation", {"CapacityReservationId": r["CapacityReservationId"]})
        item = fixed_costs.reservation(price_list, r)
        if is_block:  # a block that was just bought is not in a stack yet
            item = replace(item, note=f"{item.note}; for a cluster whose file names it as nodes.reservation")
        yield Tagged(item=item, tags=tags, steps=() if is_block else (cancel,))


def _templates(aws: Aws, price_list: PriceList) -> Iterable[Tagged]:
    for t in pages(aws.client("ec2"), "describe_launch_templates", "LaunchTemplates", Filters=OURS):
        name = t["LaunchTemplateId"]
        end = ApiCall("ec2", "delete_launch_template", {"LaunchTemplateId": name})
        yield from made("launch template", name, 0.0, tags_of(t.get("Tags", [])), end, note=t["LaunchTemplateName"])


def _log_groups(aws: Aws, price_list: PriceList) -> Iterable[Tagged]:
    found = pages(
        aws.client("resourcegroupstaggingapi"),
        "get_resources",
        "ResourceTagMappingList",
        TagFilters=[{"Key": CLUSTER}],
        ResourceTypeFilters=["logs:log-group"],
    )
    for one in found:
        name = one["ResourceARN"].partition(":log-group:")[2].removesuffix(":*")
        described = aws.client("logs").describe_log_groups(logGroupNamePrefix=name)["logGroups"]
        if sizes := [d for d in described if d["logGroupName"] == name]:
            end = ApiCall("logs", "delete_log_group", {"logGroupName": name})
            yield from made("log group", name, prices.logs(sizes[0]), tags_of(one["Tags"]), end)


def _placements(aws: Aws, price_list: PriceList) -> Iterable[Tagged]:
    for p in aws.client("ec2").describe_placement_groups(Filters=OURS)["PlacementGroups"]:
        end = ApiCall("ec2", "delete_placement_group", {"GroupName": p["GroupName"]})
        yield from made("placement group", p["GroupName"], 0.0, tags_of(p.get("Tags", [])), end)


def _vpcs(aws: Aws, price_list: PriceList) -> Iterable[Tagged]:
    for v in pages(aws.client("ec2"), "describe_vpcs", "Vpcs", Filters=OURS):
        tags = tags_of(v.get("Tags", []))
        if CLUSTER in tags:
            end = ApiCall("ec2", "delete_vpc", {"VpcId": v["VpcId"]})
            yield from made("VPC", v["VpcId"], 0.0, tags, *_inside(aws, v["VpcId"]), end, note=v["CidrBlock"])


def _inside(aws: Aws, vpc: str) -> list[ApiCall]:
    """Return the calls that remove our parts of a VPC, which would block its deletion.

    AWS refuses to delete the VPC if resources of others are in it.
    """
    ec2, here = aws.client("ec2"), [{"Name": "vpc-id", "Values": [vpc]}, *OURS]
    steps = [
        ApiCall("ec2", "delete_vpc_endpoints", {"VpcEndpointIds": [e["VpcEndpointId"]]})
        for e in pages(ec2, "describe_vpc_endpoints", "VpcEndpoints", Filters=here[:1])
        if e.get("VpcEndpointType", "Gateway") == "Gateway" or CLUSTER in tags_of(e.get("Tags", []))
    ]
    attached = [{"Name": "attachment.vpc-id", "Values": [vpc]}, *OURS]
    for g in pages(ec2, "describe_internet_gateways", "InternetGateways", Filters=attached):
        gateway = {"InternetGatewayId": g["InternetGatewayId"]}
        steps += [
            ApiCall("ec2", "detach_internet_gateway", {**gateway, "VpcId": vpc}),
            ApiCall("ec2", "delete_internet_gateway", gateway),
        ]
    for operation, key, remove, name in (
        ("describe_subnets", "Subnets", "delete_subnet", "SubnetId"),
        ("describe_route_tables", "RouteTables", "delete_route_table", "RouteTableId"),
        ("describe_security_groups", "SecurityGroups", "delete_security_group", "GroupId"),
    ):
        steps += [
            ApiCall("ec2", remove, {name: one[name]})
            for one in pages(ec2, operation, key, Filters=here)
            if CLUSTER in tags_of(one.get("Tags", []))
        ]
    return steps


# In the order of removal: resources that block the deletion of others come first.
KINDS = (
    OrphanKind("autoscaling", _groups),
    OrphanKind("ec2", _instances),
    OrphanKind("ec2", _nats),
    OrphanKind("ec2", _addresses),
    OrphanKind("ec2", _interfaces),
    OrphanKind("fsx", _fsx),
    OrphanKind("efs", _efs),
    OrphanKind("ec2", _volumes),
    OrphanKind("ec2", _snapshots),
    OrphanKind("ec2", _reservations),
    OrphanKind("ec2", _templates),
    OrphanKind("resourcegroupstaggingapi", _log_groups),
    OrphanKind("ec2", _placements),
    OrphanKind("ec2", _vpcs),
)
