"""State of a CloudFormation stack: status, outputs, resources, events, and the first cause of a failure."""

import datetime
import re
from dataclasses import dataclass, field
from typing import Any

from botocore.exceptions import ClientError

from cfn.aws import Aws, asking, code_of, message_of, pages
from cluster.errors import ClusterError


class StackError(ClusterError):
    """Error: the stack's state does not allow the operation, or an operation on it failed."""


@dataclass(frozen=True, kw_only=True)
class Stack:
    """Description of one stack at one moment."""

    id: str
    name: str
    status: str
    reason: str = ""
    outputs: dict[str, str] = field(default_factory=dict)
    protected: bool = False

    @property
    def is_busy(self) -> bool:
        return self.status.endswith("_IN_PROGRESS")

    @property
    def is_usable(self) -> bool:
        return self.status in ("CREATE_COMPLETE", "UPDATE_COMPLETE", "UPDATE_ROLLBACK_COMPLETE")


@dataclass(frozen=True, kw_only=True)
class StackEvent:
    """Event of a stack."""

    id: str
    time: datetime.datetime
    resource: str
    kind: str
    status: str
    reason: str

    @property
    def is_failure(self) -> bool:
        return self.status.endswith("_FAILED") and self.kind != "AWS::CloudFormation::Stack"


def find(aws: Aws, name: str) -> Stack | None:
    """Return the stack with this name or id, or None if it does not exist."""
    with asking(f"looking for stack {name}"):
        try:
            described = aws.client("cloudformation").describe_stacks(StackName=name)["Stacks"][0]
        except ClientError as e:
            if code_of(e) == "ValidationError" and "does not exist" in message_of(e):
                return None
            raise
    return _stack(described)


def get(aws: Aws, name: str) -> Stack:
    """Return the stack with this name. Raises StackError if it does not exist."""
    stack = find(aws, name)
    if stack is None:
        raise StackError(f"there is no stack {name} in {aws.region}; `inv stack.create` makes it")
    return stack


def outputs(aws: Aws, name: str) -> dict[str, str]:
    """Return the stack's outputs. Raises StackError if it does not exist or has none."""
    stack = get(aws, name)
    if not stack.outputs:
        raise StackError(f"stack {name} is {stack.status} and has no outputs; see `inv stack.status`")
    return stack.outputs


def _stack(described: dict[str, Any]) -> Stack:
    return Stack(
        id=described["StackId"],
        name=described["StackName"],
        status=described["StackStatus"],
        reason=described.get("StackStatusReason", ""),
        protected=described.get("EnableTerminationProtection", False),
        outputs={o["OutputKey"]: o["OutputValue"] for o in described.get("Outputs", [])},
    )


def events(aws: Aws, stack: Stack, after: str = "") -> list[StackEvent]:
    """Return the events newer than the one with id `after`, oldest first."""
    found: list[StackEvent] = []
    with asking(f"reading the events of {stack.name}"):
        for page in aws.client("cloudformation").get_paginator("describe_stack_events").paginate(StackName=stack.id):
            for e in page["StackEvents"]:
                if e["EventId"] == after:
                    return found[::-1]
                found.append(
                    StackEvent(
                        id=e["EventId"],
                        time=e["Timestamp"],
                        resource=e["LogicalResourceId"],
                        kind=e["ResourceType"],
                        status=e["ResourceStatus"],
                        reason=e.get("ResourceStatusReason", ""),
                    )
                )
    return found[::-1]


def first_cause(story: list[StackEvent]) -> StackEvent | None:
    """Return the failure that started the others: the earliest one that is not a cancellation. None without failures.

    Args:
        story: events, oldest first.
    """
    failures = [e for e in story if e.is_failure]
    real = [e for e in failures if not re.search(r"cancelled|following resource\(s\) failed", e.reason)]
    return (real or failures or [None])[0]  # type: ignore[list-item]


@dataclass(frozen=True, kw_only=True)
class StackResource:
    """Resource that the stack created."""

    logical: str
    kind: str
    id: str


def resource_ids(aws: Aws, stack: Stack) -> dict[str, str]:
    """Return the physical id of each logical resource. Rows without one are left out."""
    return {r.logical: r.id for r in resources(aws, stack)}


def resources(aws: Aws, stack: Stack) -> list[StackResource]:
    """Return all resources that the stack created. Rows without a physical id are left out."""
    with asking(f"listing the resources of {stack.name}"):
        rows = pages(
            aws.client("cloudformation"),
            "list_stack_resources",
            "StackResourceSummaries",
            StackName=stack.id,
        )
    return [
        StackResource(logical=r["LogicalResourceId"], kind=r["ResourceType"], id=r["PhysicalResourceId"])
        for r in rows
        if r.get("LogicalResourceId") and r.get("PhysicalResourceId")
    ]
