"""A stack: its template, resources, events and signals, and the changes that a new template would make."""

import datetime
import json
import threading
import uuid
from dataclasses import dataclass, field
from typing import Any

from lab.aws import kinds_eks, kinds_network, kinds_nodes, schemas
from lab.aws.intrinsics import creation_order, references, resolve
from lab.aws.kinds import check_modelled
from lab.aws.protocol import AwsFault
from lab.aws.state import ACCOUNT

MODELLED = (kinds_network, kinds_nodes, kinds_eks)  # importing them registers their types
UNKNOWN = "{{known after the change}}"


def now() -> datetime.datetime:
    return datetime.datetime.now(datetime.UTC)


@dataclass
class LogicalResource:
    """Logical resource and the physical one behind it."""

    logical: str
    kind: str
    properties: dict[str, Any] = field(default_factory=dict)  # resolved
    physical: str = ""
    attributes: dict[str, Any] = field(default_factory=dict)
    status: str = ""
    reason: str = ""
    time: datetime.datetime = field(default_factory=now)
    deletion_policy: str = "Delete"


@dataclass
class FakeStack:
    """CloudFormation stack."""

    name: str
    region: str
    template: dict[str, Any]
    text: str
    parameters: dict[str, str]
    tags: list[dict[str, str]] = field(default_factory=list)
    on_failure: str = "ROLLBACK"
    protected: bool = False
    status: str = "REVIEW_IN_PROGRESS"
    reason: str = ""
    token: str = ""
    id: str = ""
    created: datetime.datetime = field(default_factory=now)
    resources: dict[str, LogicalResource] = field(default_factory=dict)
    events: list[dict[str, Any]] = field(default_factory=list)
    signals: dict[str, dict[str, str]] = field(default_factory=dict)
    waiting: set[str] = field(default_factory=set)  # resources that take signals now
    change_sets: dict[str, dict[str, Any]] = field(default_factory=dict)
    outputs: list[dict[str, str]] = field(default_factory=list)
    worker: threading.Thread | None = None  # runs the newest operation; an older one stops when it finds a new worker

    def __post_init__(self) -> None:
        self.id = f"arn:aws:cloudformation:{self.region}:{ACCOUNT}:stack/{self.name}/{uuid.uuid4()}"

    def say(self, status: str, reason: str = "", resource: LogicalResource | None = None) -> None:
        """Set a new status of the stack or of one of its resources, and record it as an event."""
        if resource is None:
            self.status, self.reason = status, reason
        else:
            resource.status, resource.reason, resource.time = status, reason, now()
        self.events.insert(
            0,
            {
                "StackId": self.id,
                "EventId": str(uuid.uuid4()),
                "StackName": self.name,
                "Timestamp": now(),
                "ResourceStatus": status,
                "LogicalResourceId": resource.logical if resource else self.name,
                "PhysicalResourceId": resource.physical if resource else self.id,
                "ResourceType": resource.kind if resource else "AWS::CloudFormation::Stack",
                "ClientRequestToken": self.token,
                **({"ResourceStatusReason": reason} if reason else {}),
            },
        )

    def pseudo(self, name: str) -> str:
        """Return the value of a pseudo parameter."""
        known = {
            "AWS::Region": self.region,
            "AWS::AccountId": ACCOUNT,
            "AWS::StackName": self.name,
            "AWS::StackId": self.id,
            "AWS::Partition": "aws",
            "AWS::URLSuffix": "amazonaws.com",
        }
        if name not in known:
            raise AwsFault(
                "ValidationError",
                f"Template format error: Unresolved resource dependencies [{name}] in the Resources block",
            )
        return known[name]

    def ref(self, name: str) -> str:
        if name in self.parameters:
            return self.parameters[name]
        return self.resources[name].physical if name in self.resources else self.pseudo(name)

    def attribute(self, logical: str, name: str) -> Any:
        if logical not in self.resources:
            raise AwsFault(
                "ValidationError", f"Template error: instance of Fn::GetAtt references undefined resource {logical}"
            )
        if name not in self.resources[logical].attributes:
            raise AwsFault(
                "ValidationError",
                f"Template error: resource {logical} does not support attribute type {name} in Fn::GetAtt",
            )
        return self.resources[logical].attributes[name]

    def resolved(self, value: Any) -> Any:
        return resolve(value, self.ref, self.attribute, self.template.get("Mappings", {}))

    def make_outputs(self) -> None:
        self.outputs = [
            {"OutputKey": k, "OutputValue": str(self.resolved(v["Value"]))}
            for k, v in self.template.get("Outputs", {}).items()
        ]


def read(
    text: str, region: str, given: list[dict[str, Any]], previous: dict[str, str], capabilities: list[str]
) -> tuple[dict[str, Any], dict[str, str]]:
    """Return a template and its parameters, checked as CloudFormation does before it starts. Raises AwsFault."""
    if len(text.encode()) > 51_200:
        raise AwsFault(
            "ValidationError",
            "1 validation error detected: Value at 'templateBody' failed to satisfy constraint: "
            "Member must have length less than or equal to 51200",
        )
    try:
        template = json.loads(text)
    except ValueError as e:
        raise AwsFault("ValidationError", f"Template format error: JSON not well-formed. ({e})") from e
    unknown = set(template) - {
        "AWSTemplateFormatVersion",
        "Description",
        "Parameters",
        "Mappings",
        "Resources",
        "Outputs",
        "Metadata",
    }
    if unknown or not template.get("Resources"):
        raise AwsFault(
            "ValidationError",
            f"Invalid template property or properties {sorted(unknown)}"
            if unknown
            else "Template format error: At least one Resources member must be defined.",
        )
    kinds = {r["Type"] for r in template["Resources"].values()}
    if any(k.startswith("AWS::IAM::") for k in kinds) and not {"CAPABILITY_IAM", "CAPABILITY_NAMED_IAM"} & set(
        capabilities
    ):
        raise AwsFault("InsufficientCapabilitiesException", "Requires capabilities : [CAPABILITY_IAM]")
    parameters = _parameters(template.get("Parameters", {}), given, previous)
    names = set(template["Resources"]) | set(parameters)
    for logical, body in template["Resources"].items():
        schemas.schema(body["Type"], region)
        schemas.check(logical, body["Type"], body.get("Properties", {}), region)
        check_modelled(logical, body["Type"], body.get("Properties", {}))
        missing = {n for n in references(body.get("Properties", {})) if not n.startswith("AWS::")} - names
        if missing:
            raise AwsFault(
                "ValidationError",
                f"Template format error: Unresolved resource dependencies {sorted(missing)} in the "
                "Resources block of the template",
            )
    creation_order(template["Resources"])
    return template, parameters


def _parameters(declared: dict[str, Any], given: list[dict[str, Any]], previous: dict[str, str]) -> dict[str, str]:
    values = {}
    for entry in given:
        name = entry["ParameterKey"]
        if name not in declared:
            raise AwsFault("ValidationError", f"Parameters: [{name}] do not exist in the template")
        values[name] = (
            previous[name] if entry.get("UsePreviousValue") and name in previous else entry.get("ParameterValue", "")
        )
    for name, body in declared.items():
        if name not in values:
            if "Default" not in body:
                raise AwsFault("ValidationError", f"Parameters: [{name}] must have values")
            values[name] = str(body["Default"])
    return values


def differences(stack: FakeStack, template: dict[str, Any], parameters: dict[str, str]) -> list[dict[str, Any]]:
    """Return a change set's changes: additions, removals, modifications, and whether these replace the resource."""
    changes, moved = [], set()  # moved: resources whose id will be another one

    def ref(name: str) -> Any:
        if name in parameters:
            return parameters[name]
        if name in template["Resources"]:
            return UNKNOWN if name in moved or name not in stack.resources else stack.resources[name].physical
        return stack.pseudo(name)

    versions = set()

    def attribute(logical: str, name: str) -> Any:
        if (
            logical in moved
            or logical not in stack.resources
            or (logical in versions and name == "LatestVersionNumber")
        ):
            return UNKNOWN
        return stack.attribute(logical, name)

    for logical in creation_order(template["Resources"]):
        body = template["Resources"][logical]
        if logical not in stack.resources:
            changes.append(_change("Add", logical, body["Type"], "", "", []))
            continue
        old = stack.resources[logical]
        new = resolve(body.get("Properties", {}), ref, attribute, template.get("Mappings", {}))
        differing = sorted(k for k in old.properties.keys() | new.keys() if old.properties.get(k) != new.get(k))
        if not differing:
            continue
        recreate = schemas.replacing(old.kind, stack.region) & set(differing)
        if recreate:
            moved.add(logical)
        versions.add(logical)
        perhaps = schemas.perhaps_replacing(old.kind, stack.region)
        recreation = ["Always" if k in recreate else "Conditionally" if k in perhaps else "Never" for k in differing]
        details = [_detail(k, how) for k, how in zip(differing, recreation, strict=True)]
        replacement = "True" if recreate else "Conditional" if "Conditionally" in recreation else "False"
        changes.append(_change("Modify", logical, old.kind, old.physical, replacement, details))
    for logical, old in stack.resources.items():
        if logical not in template["Resources"]:
            changes.append(_change("Remove", logical, old.kind, old.physical, "", []))
    return changes


def _detail(name: str, recreation: str) -> dict[str, Any]:
    """Return the description of one modified property."""
    return {
        "Target": {
            "Attribute": "Properties",
            "Name": name,
            "RequiresRecreation": recreation,
        },
        "Evaluation": "Static",
        "ChangeSource": "DirectModification",
    }


def _change(
    action: str, logical: str, kind: str, physical: str, replacement: str, details: list[Any]
) -> dict[str, Any]:
    body: dict[str, Any] = {
        "Action": action,
        "LogicalResourceId": logical,
        "ResourceType": kind,
        "Details": details,
        "Scope": ["Properties"] if details else [],
    }
    if physical:
        body["PhysicalResourceId"] = physical
    if replacement:
        body["Replacement"] = replacement
    return {"Type": "Resource", "ResourceChange": body}
