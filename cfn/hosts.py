"""The cluster's instances in the order of the hostfile, the same from laptop and master: a successor takes the
dead host's place.
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
class Member:
    """One instance of the master's or the workers' group."""

    instance_id: str
    role: str  # master or worker
    address: str  # private IPv4; '' while EC2 has none for it
    launched: datetime.datetime
    lifecycle: str  # Auto Scaling's word: Pending, InService, Terminating
    health: str  # Healthy or Unhealthy
    boot: str = ""  # '' or 'running <step>' while booting, 'ready', or 'failed <step>: <last line>'
    host_key: str = ""  # '<type> <key>' as known_hosts wants it
    rank: int | None = None
    """Place in the hostfile, kept as a tag of the instance; 0 is the master."""

    @property
    def is_usable(self) -> bool:
        """InService, healthy and through with its first boot."""
        return (
            self.lifecycle == "InService" and self.health == "Healthy" and self.boot == "ready" and bool(self.address)
        )

    def as_json(self) -> dict[str, Any]:
        return {**asdict(self), "launched": self.launched.isoformat(), "usable": self.is_usable}


def ranked(members: Iterable[Member]) -> list[Member]:
    """Members with a rank each, in order. Who has one keeps it; newcomers take the lowest free ones, the oldest first.

    Pure, so that laptop and master see the same order in the same members, whichever writes the tags first.
    """
    known = sorted(members, key=lambda m: (m.launched, m.instance_id))
    taken: dict[int, Member] = {}
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


def read(aws: Aws, outputs: dict[str, str]) -> list[Member]:
    """All instances of both groups as they are now, in order, unusable ones included."""
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
    """EC2's description by id; an instance that went away between list and describe is left out."""
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


def _member(role: str, held: dict[str, Any], described: dict[str, Any]) -> Member:
    tags = {t["Key"]: t["Value"] for t in described.get("Tags", [])}
    rank = tags.get(f"{TAG}rank", "")
    return Member(
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


def keep_ranks(aws: Aws, members: Iterable[Member]) -> None:
    """Writes the ranks on the instances, so that they stay when others come and go."""
    ec2 = aws.client("ec2")
    with asking("writing the ranks of the hosts"):
        for one in members:
            ec2.create_tags(Resources=[one.instance_id], Tags=[{"Key": f"{TAG}rank", "Value": str(one.rank)}])


def hosts(aws: Aws, outputs: dict[str, str]) -> list[Member]:
    """The hosts that can be used now, master first. Raises StackError if the master is not among them."""
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


def pick(members: list[Member], name: str) -> Member:
    """The member of that rank, address or instance id. Raises StackError naming those there are."""
    for one in members:
        if name in (str(one.rank), one.address, one.instance_id):
            return one
    known = ", ".join(f"{m.rank} {m.address} {m.instance_id}" for m in members)
    raise StackError(f"no host {name!r} in this cluster; there are: {known}")
