"""CloudFormation change sets: the changes of an update, and the refusal of dangerous ones."""

import uuid
from dataclasses import dataclass
from typing import Any

from cfn.aws import Aws, asking, pages
from cfn.create import parameters
from cfn.plan import ClusterPlan
from cfn.progress import wait_for
from cfn.stack import Stack, StackError
from cluster.errors import ConfigError, NothingToDo

# Replacing or removing one of these would end running nodes, or lose data or addresses.
PRECIOUS = (
    "AWS::EC2::VPC",
    "AWS::EC2::Subnet",
    "AWS::EC2::NetworkInterface",
    "AWS::EC2::NatGateway",
    "AWS::EC2::EIP",
    "AWS::EC2::SecurityGroup",
    "AWS::EC2::PlacementGroup",
    "AWS::EFS::FileSystem",
    "AWS::EFS::MountTarget",
    "AWS::FSx::FileSystem",
    "AWS::AutoScaling::AutoScalingGroup",
    "AWS::EC2::LaunchTemplate",
)


@dataclass(frozen=True, kw_only=True)
class ResourceChange:
    """Change of one resource in a change set."""

    action: str  # Add, Modify, Remove
    resource: str
    kind: str
    replacement: str  # True, False, Conditional, or ''
    properties: tuple[str, ...]

    @property
    def is_dangerous(self) -> bool:
        """Return True if the change ends nodes or loses data or addresses, or might."""
        if self.kind not in PRECIOUS:
            return False
        return self.action == "Remove" or self.replacement == "True" or self.may_be_replaced

    @property
    def may_be_replaced(self) -> bool:
        """Return True if CloudFormation decides only during the update whether it replaces the resource.

        Auto Scaling groups with a new launch template are excluded. CloudFormation reports them as 'Conditional', but
        replaces them only under an update policy with WillReplace, which our groups do not have.
        """
        return self.replacement == "Conditional" and self.kind != "AWS::AutoScaling::AutoScalingGroup"

    def __str__(self) -> str:
        sign = {"Add": "+", "Remove": "-"}.get(self.action, "~")
        how = "  REPLACED" if self.replacement == "True" else "  may be replaced" if self.may_be_replaced else ""
        return f"{sign} {self.resource} ({self.kind}){how}  {', '.join(self.properties)}".rstrip()


@dataclass(frozen=True, kw_only=True)
class ChangeSet:
    """Change set that waits to be executed or deleted."""

    id: str
    stack: Stack
    changes: tuple[ResourceChange, ...]
    cost: str = ""
    """Cost of the cluster after the update, as text."""

    def __str__(self) -> str:
        return "\n".join(map(str, self.changes))

    def as_json(self) -> list[dict[str, Any]]:
        return [
            {
                "action": c.action,
                "resource": c.resource,
                "type": c.kind,
                "replacement": c.replacement,
                "properties": list(c.properties),
            }
            for c in self.changes
        ]


def difference(aws: Aws, plan: ClusterPlan, stack: Stack) -> ChangeSet | None:
    """Return the change set from the running stack to the plan, or None if they are equal.

    Raises ConfigError as `propose` does.
    """
    try:
        return propose(aws, plan, stack)
    except NothingToDo:
        return None


def propose(aws: Aws, plan: ClusterPlan, stack: Stack) -> ChangeSet:
    """Create the change set from the running stack to the plan.

    Raises NothingToDo if they are equal. Raises ConfigError if the update would replace storage, network or nodes; the
    change set is deleted in both cases.
    """
    cloudformation = aws.client("cloudformation")
    with asking(f"preparing the update of {stack.name}"):
        made = cloudformation.create_change_set(
            StackName=stack.id,
            ChangeSetName=f"update-{uuid.uuid4().hex[:12]}",
            TemplateBody=plan.body,
            Capabilities=["CAPABILITY_IAM"],
            Parameters=parameters(plan),
        )
        _wait(aws, made["Id"], stack)
        described = cloudformation.describe_change_set(ChangeSetName=made["Id"], StackName=stack.id)
        rows = pages(cloudformation, "describe_change_set", "Changes", ChangeSetName=made["Id"], StackName=stack.id)
    found = ChangeSet(
        id=made["Id"],
        stack=stack,
        changes=tuple(_change(r["ResourceChange"]) for r in rows if r["Type"] == "Resource"),
        cost=plan.cost,
    )
    if described["Status"] == "FAILED":
        drop(aws, found)
        reason = described.get("StatusReason", "")
        if "didn't contain changes" in reason or "No updates" in reason:
            raise NothingToDo(f"stack {stack.name} is already as the cluster file says")
        raise StackError(f"the update of {stack.name} cannot be prepared: {reason}")
    if dangerous := [c for c in found.changes if c.is_dangerous]:
        drop(aws, found)
        raise ConfigError(
            f"this update of {stack.name} would replace or remove what must stay:\n"
            + "\n".join(f"  {c}" for c in dangerous)
            + "\nNothing was changed. Undo that part of the cluster file, or make another cluster under a new name."
        )
    return found


def _wait(aws: Aws, change_set: str, stack: Stack) -> None:
    def done() -> bool:
        status = aws.client("cloudformation").describe_change_set(ChangeSetName=change_set, StackName=stack.id)[
            "Status"
        ]
        return status in ("CREATE_COMPLETE", "FAILED")

    if not wait_for(done, 300, lambda: None):
        raise StackError(f"CloudFormation has not prepared the change set of {stack.name} in 5 minutes; run this again")


def _change(row: dict[str, Any]) -> ResourceChange:
    names = {d["Target"].get("Name", d["Target"].get("Attribute", "")) for d in row.get("Details", [])}
    return ResourceChange(
        action=row["Action"],
        resource=row["LogicalResourceId"],
        kind=row["ResourceType"],
        replacement=row.get("Replacement", ""),
        properties=tuple(sorted(n for n in names if n)),
    )


def drop(aws: Aws, change_set: ChangeSet) -> None:
    """Delete a change set without executing it."""
    with asking("dropping a change set"):
        aws.client("cloudformation").delete_change_set(ChangeSetName=change_set.id, StackName=change_set.stack.id)


def only_new_nodes(change_set: ChangeSet) -> bool:
    """Return True if launch templates change. Running nodes keep the old template until they are replaced."""
    return any(c.kind == "AWS::EC2::LaunchTemplate" for c in change_set.changes)
