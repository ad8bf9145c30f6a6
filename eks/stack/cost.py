"""Cost of an EKS cluster so far: nodes by the history of their groups, the control plane since its creation."""

import datetime
from dataclasses import replace
from typing import Any

from botocore.exceptions import ClientError

from cfn import fixed_costs, prices
from cfn.aws import Aws, asking, code_of, pages
from cfn.cost import ControlPlane, Cost, HostCost, activities, host_cost
from cfn.stack import StackError, find
from cluster.clusterfile.model import ClusterFile
from cluster.guard.onhost.history import spans
from eks.stack.groups import scaling_groups


def cluster_cost(aws: Aws, file: ClusterFile, *, until: datetime.datetime | None = None) -> Cost:
    """Return the cost of the EKS cluster that the file describes.

    A node that is gone is priced by the stack's instance type, because the history does not record the node's own.
    Raises StackError if there is no such stack, AwsError if AWS cannot be queried.
    """
    stack = find(aws, file.eks_stack)
    if stack is None:
        raise StackError(f"there is no stack {file.eks_stack} in {aws.region}; `inv eks.create` makes it")
    now = until or datetime.datetime.now(datetime.UTC)
    with asking(f"looking at {stack.name}"):
        plane = _control_plane(aws, stack.name, now)
        groups = scaling_groups(aws, stack.name) if plane else set()
        held = _instances(aws, groups)
    price_list = prices.PriceList(aws)
    kind, zone = (stack.outputs.get(name, "") for name in ("InstanceType", "Zone"))
    hosts: list[HostCost] = []
    for group in sorted(groups):
        own = {name: one for name, one in held.items() if one["group"] == group}
        for span in spans(activities(aws, group), {name: one["LaunchTime"] for name, one in own.items()}):
            there = own.get(span.instance_id, {})
            one = host_cost(
                file, price_list, "node", span, span.seconds(now) / 3600, there.get("InstanceType", kind), zone
            )
            hosts.append(replace(one, address=there.get("PrivateIpAddress", "")))
    items = tuple(i for i in fixed_costs.standing(aws, file, stack) if i.kind != "Kubernetes")
    order = sorted(hosts, key=lambda h: (h.span.ends is not None, h.span.begins))
    return Cost(cluster=stack.name, hosts=tuple(order), items=items, control_plane=plane)


def _control_plane(aws: Aws, name: str, now: datetime.datetime) -> ControlPlane | None:
    """Return the control plane's hours and price since its creation, or None if there is none."""
    try:
        found = aws.client("eks").describe_cluster(name=name)["cluster"]
    except ClientError as e:
        if code_of(e) == "ResourceNotFoundException":
            return None
        raise
    begins = found["createdAt"]
    hours = max(0.0, (now - begins).total_seconds() / 3600)
    return ControlPlane(name=name, begins=begins, hours=hours, usd_per_hour=prices.EKS)


def _instances(aws: Aws, groups: set[str]) -> dict[str, dict[str, Any]]:
    """Return the running and pending instances of the groups as EC2 describes them, each with its group's name."""
    if not groups:
        return {}
    wanted = [
        {"Name": "tag:aws:autoscaling:groupName", "Values": sorted(groups)},
        {"Name": "instance-state-name", "Values": ["pending", "running"]},
    ]
    found = pages(aws.client("ec2"), "describe_instances", "Reservations", Filters=wanted)
    return {i["InstanceId"]: {**i, "group": _group(i)} for r in found for i in r["Instances"]}


def _group(instance: dict[str, Any]) -> str:
    return next(t["Value"] for t in instance["Tags"] if t["Key"] == "aws:autoscaling:groupName")
