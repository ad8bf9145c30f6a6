"""Whether a zone has room for a cluster: AWS says no by failed launches, while CloudFormation goes on waiting."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from botocore.exceptions import ClientError

from cfn.aws import asking
from cfn.groups import group_names
from cfn.progress import NODE_GROUPS, Watch
from cfn.stack import StackError
from cfn.template.design import Design

# Auto Scaling's words for it, on demand and on spot, as its user guide ("Troubleshoot: EC2 instance launch failures")
# and EC2's error codes have them. A quota is another thing: no zone helps there.
_NO_ROOM = re.compile(
    r"sufficient (\S+ )?capacity|insufficient.{0,20}capacity|no spot capacity|capacity-not-available|"
    r"UnfulfillableCapacity|unable to fulfill capacity|not enough capacity|"
    r"not supported in your requested availability zone|capacity is not available",
    re.IGNORECASE,
)


@dataclass(frozen=True, kw_only=True)
class Tried:
    """One zone and instance type that had no room."""

    design: Design
    said: str  # in AWS's words
    role: str = "worker"  # whose instance it was

    def __str__(self) -> str:
        return f"{self.design.instance_of(self.role).name} in {self.design.zone}: {self.said}"


ADVICE = (
    "try again with --wait 6h, name more types in nodes.instance_type, begin with fewer by nodes.min_nodes, or buy a "
    "block: `inv stack.blocks`"
)


class NoCapacity(StackError):
    """Nowhere was there room for the cluster; nothing is left of what was begun."""

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
    """Whether these words of a failed launch mean that another zone or type may help."""
    return bool(_NO_ROOM.search(said))


@dataclass
class Room:
    """One create that is given up as soon as AWS refuses instances that it cannot begin without."""

    watch: Watch
    design: Design
    refusal: str = ""  # AWS's words, once it is given up
    role: str = ""  # for whose instances

    def look(self) -> None:
        """Ends the create if it waits for what will not come: by a signal of failure, at which it rolls back."""
        if self.refusal:
            return
        for group, resource in self._groups():
            said = self.watch.refused.get(group, "")
            if said and is_for_lack_of_room(said) and self._is_short(group) and self._fail(resource):
                self.refusal, self.role = said, "master" if group.endswith("-master") else "worker"
                self.watch.show = lambda _: None  # what follows is the roll-back
                return

    def _groups(self) -> Iterable[tuple[str, str]]:
        """Each Auto Scaling group and the resource that waits for it."""
        return zip(group_names(self.design.file), NODE_GROUPS, strict=True)

    def _least(self, group: str) -> int:
        """Instances without which the cluster does not begin."""
        return 1 if group.endswith("-master") else self.design.file.nodes.least - 1

    def _is_short(self, group: str) -> bool:
        """Whether it has fewer instances than the cluster begins with."""
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
        """Whether CloudFormation has taken the signal: it does while it waits for this group's nodes."""
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
