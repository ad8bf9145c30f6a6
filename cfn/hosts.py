"""The cluster's instances in hostfile order, computed alike on laptop and master.

A replacement takes the dead host's place.
"""

import datetime
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from typing import Any

from botocore.exceptions import ClientError

from cfn.aws import Aws, asking, code_of, pages
from cfn.stack import StackError
from cfn.template.design import TAG


@dataclass(frozen=True, kw_only=True)
class GroupMember:
    """Instance in the master's or the workers' Auto Scaling group."""

    instance_id: str
    role: str  # master or worker
    address: str  # private IPv4; '' before EC2 has assigned one
    launched: datetime.datetime
    lifecycle: str  # Auto Scaling's lifecycle state: Pending, InService, Terminating
    health: str  # Healthy or Unhealthy
    boot: str = ""  # '' or 'running <step>' while booting, 'ready', or 'failed <step>: <last line>'
    host_key: str = ""  # '<type> <key>' as known_hosts wants it
    rank: int | None = None
    """Place in the hostfile, kept as a tag of the instance; 0 is the master."""

    @property
    def is_usable(self) -> bool:
        """Return True if it is InService, healthy, has finished first boot and has an address."""
        return (
            self.lifecycle == "InService" and self.health == "Healthy" and self.boot == "ready" and bool(self.address)
        )

    def as_json(self) -> dict[str, Any]:
        return {**asdict(self), "launched": self.launched.isoformat(), "usable": self.is_usable}


def ranked(members: Iterable[GroupMember]) -> list[GroupMember]:
    """Return the members in rank order, each with a rank.

    Members that have a rank keep it. New ones get the lowest free ranks, oldest first. The function is pure: laptop and
    master compute the same order from the same members, whichever writes the tags first.
    """
    known = sorted(members, key=lambda m: (m.launched, m.instance_id))
    taken: dict[int, GroupMember] = {}
    waiting = []
    for one in known:
        wanted = 0 if one.role == "master" else one.rank
        if wanted is None or wanted in taken or (wanted == 0 and one.role != "master"):
            waiting.append(one)
        else:
            taken[wanted] = replace(one, rank=wanted)
    free = (n for n in range(1, len(known) + len(taken) + max(taken, default=0) + 1) if n not in taken)
    for one, rank in zip(waiting, free, strict=False):
        taken[rank] = replace(one, rank=rank)
    return [taken[n] for n in sorted(taken)]


def read(aws: Aws, outputs: dict[str, str]) -> list[GroupMember]:
    """Return all instances of both groups in rank order, unusable ones included."""
    with asking("listing the cluster's instances"):
        groups = {
            g["AutoScalingGroupName"]: g
            for g in pages(
                aws.client("autoscaling"),
                "describe_auto_scaling_groups",
                "AutoScalingGroups",
                AutoScalingGroupNames=[outputs["MasterGroup"], outputs["WorkerGroup"]],
            )
        }
        held = [
            (role, i)
            for role, key in (("master", "MasterGroup"), ("worker", "WorkerGroup"))
            for i in groups.get(outputs[key], {}).get("Instances", [])
        ]
        described = _describe(aws, [i["InstanceId"] for _, i in held])
    return ranked(_member(role, i, described[i["InstanceId"]]) for role, i in held if i["InstanceId"] in described)


def _describe(aws: Aws, ids: list[str]) -> dict[str, dict[str, Any]]:
    """Return EC2's descriptions by instance id. Instances that vanished since they were listed are left out."""
    ec2 = aws.client("ec2")
    try:
        return (
            {
                i["InstanceId"]: i
                for r in pages(ec2, "describe_instances", "Reservations", InstanceIds=ids)
                for i in r["Instances"]
            }
            if ids
            else {}
        )
    except ClientError as e:
        if code_of(e) != "InvalidInstanceID.NotFound":
            raise
    found = pages(ec2, "describe_instances", "Reservations", Filters=[{"Name": "instance-id", "Values": ids}])
    return {i["InstanceId"]: i for r in found for i in r["Instances"]}


def _member(role: str, held: dict[str, Any], described: dict[str, Any]) -> GroupMember:
    tags = {t["Key"]: t["Value"] for t in described.get("Tags", [])}
    rank = tags.get(f"{TAG}rank", "")
    return GroupMember(
        instance_id=held["InstanceId"],
        role=role,
        address=described.get("PrivateIpAddress", ""),
        launched=described["LaunchTime"],
        lifecycle=held["LifecycleState"],
        health=held["HealthStatus"],
        boot=tags.get(f"{TAG}boot", ""),
        host_key=tags.get(f"{TAG}host-key", ""),
        rank=int(rank) if rank.isdigit() else None,
    )


def keep_ranks(aws: Aws, members: Iterable[GroupMember]) -> None:
    """Write the ranks to the instances' tags, so that they do not change when other instances come and go."""
    ec2 = aws.client("ec2")
    with asking("writing the ranks of the hosts"):
        for one in members:
            ec2.create_tags(Resources=[one.instance_id], Tags=[{"Key": f"{TAG}rank", "Value": str(one.rank)}])


def hosts(aws: Aws, outputs: dict[str, str]) -> list[GroupMember]:
    """Return the usable hosts, master first. Raises StackError if the master is not usable."""
    members = read(aws, outputs)
    keep_ranks(aws, (m for m in members if m.lifecycle == "InService"))
    usable = [m for m in members if m.is_usable]
    if not usable or usable[0].role != "master":
        master = next((m for m in members if m.role == "master"), None)
        state = (
            f"{master.instance_id} is {master.lifecycle}, {master.health}, boot {master.boot or 'running'}"
            if master
            else "there is none"
        )
        raise StackError(f"the master cannot be used: {state}; wait for it, or see `inv stack.status`")
    return usable


def pick(members: list[GroupMember], name: str) -> GroupMember:
    """Return the member with this rank, address or instance id. Raises StackError with the known members otherwise."""
    for one in members:
        if name in (str(one.rank), one.address, one.instance_id):
            return one
    known = ", ".join(f"{m.rank} {m.address} {m.instance_id}" for m in members)
    raise StackError(f"no host {name!r} in this cluster; there are: {known}")
