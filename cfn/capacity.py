"""Capacity checks during a create: give up when launches fail for lack of capacity, which CloudFormation waits out."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from botocore.exceptions import ClientError

from cfn.aws import asking
from cfn.groups import group_names
from cfn.progress import NODE_GROUPS, StackWatch
from cfn.stack import StackError
from cfn.template.design import Design

# Messages of Auto Scaling for lack of capacity, as its user guide ("Troubleshoot: EC2 instance launch failures")
# and EC2's error codes have them. Exceeded quotas are excluded, because no other zone helps there.
_NO_ROOM = re.compile(
    r"sufficient (\S+ )?capacity|insufficient.{0,20}capacity|no spot capacity|capacity-not-available|"
    r"UnfulfillableCapacity|unable to fulfill capacity|not enough capacity|"
    r"not supported in your requested availability zone|capacity is not available",
    re.IGNORECASE,
)


@dataclass(frozen=True, kw_only=True)
class Tried:
    """Zone and instance type that had no capacity."""

    design: Design
    said: str  # AWS's message
    role: str = "worker"  # whose instance it was

    def __str__(self) -> str:
        return f"{self.design.instance_of(self.role).name} in {self.design.zone}: {self.said}"


ADVICE = (
    "try again with --wait 6h, name more types in nodes.instance_type, begin with fewer by nodes.min_nodes, or buy a "
    "block: `inv stack.blocks`"
)


class NoCapacity(StackError):
    """Error: no zone or instance type had capacity for the cluster. Everything that was begun has been removed."""

    def __init__(self, tried: Sequence[Tried], advice: str = ADVICE) -> None:
        super().__init__(
            "\n".join(
                [
                    "there is no room for the cluster; nothing was left running. Tried:",
                    *(f"  {one}" for one in tried),
                    advice,
                ]
            )
        )
        self.tried, self.advice = tuple(tried), advice


def is_for_lack_of_room(said: str) -> bool:
    """Return True if a launch failed for lack of capacity, so that another zone or type may help."""
    return bool(_NO_ROOM.search(said))


@dataclass
class Room:
    """Capacity check of a create, which it ends once AWS refuses instances that the cluster cannot begin without."""

    watch: StackWatch
    design: Design
    refusal: str = ""  # AWS's message, once the create is given up
    role: str = ""  # for whose instances

    def look(self) -> None:
        """End the create if it waits for instances that AWS refuses.

        It signals a failure to CloudFormation, which then rolls back.
        """
        if self.refusal:
            return
        for group, resource in self._groups():
            said = self.watch.refused.get(group, "")
            if said and is_for_lack_of_room(said) and self._is_short(group) and self._fail(resource):
                self.refusal, self.role = said, "master" if group.endswith("-master") else "worker"
                self.watch.show = lambda _: None  # the events that follow belong to the roll-back
                return

    def _groups(self) -> Iterable[tuple[str, str]]:
        """Return each Auto Scaling group and the resource that waits for it."""
        return zip(group_names(self.design.file), NODE_GROUPS, strict=True)

    def _least(self, group: str) -> int:
        """Return the number of instances that the cluster needs in this group to begin."""
        return 1 if group.endswith("-master") else self.design.file.nodes.least - 1

    def _is_short(self, group: str) -> bool:
        """Return True if the group has fewer instances than the cluster needs to begin."""
        with asking(f"looking at {group}"):
            found = self.watch.aws.client("autoscaling").describe_auto_scaling_groups(AutoScalingGroupNames=[group])
        held: list[Any] = [
            i
            for g in found["AutoScalingGroups"]
            for i in g["Instances"]
            if not i["LifecycleState"].startswith("Terminat")
        ]
        return len(held) < self._least(group)

    def _fail(self, resource: str) -> bool:
        """Return True if CloudFormation accepted the failure signal. It does while it waits for this group's nodes."""
        try:
            self.watch.aws.client("cloudformation").signal_resource(
                StackName=self.watch.stack.id,
                LogicalResourceId=resource,
                UniqueId="no-room",
                Status="FAILURE",
            )
        except ClientError:
            return False
        return True
