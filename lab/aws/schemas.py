"""Checks by CloudFormation's published schemas: unknown and required properties, changes that replace a resource."""

from functools import cache
from typing import Any

from cfnlint.schema.manager import PROVIDER_SCHEMA_MANAGER

from lab.aws.protocol import AwsFault


@cache
def schema(kind: str, region: str) -> dict[str, Any]:
    """Return the resource type's schema. Raises AwsFault for a type that CloudFormation does not have."""
    try:
        return PROVIDER_SCHEMA_MANAGER.get_resource_schema(region, kind).schema
    except Exception as e:
        raise AwsFault("ValidationError", f"Template format error: Unrecognized resource types: [{kind}]") from e


def check(logical: str, kind: str, properties: dict[str, Any], region: str) -> None:
    """Raise AwsFault if a property is unknown, read-only or missing."""
    known = schema(kind, region)
    read_only = {p.removeprefix("/properties/") for p in known.get("readOnlyProperties", [])}
    for name in properties:
        if name not in known["properties"] or name in read_only:
            raise AwsFault(
                "ValidationError",
                f"Properties validation failed for resource {logical} with message: "
                f"#: extraneous key [{name}] is not permitted",
            )
    for name in known.get("required", []):
        if name not in properties:
            raise AwsFault(
                "ValidationError",
                f"Properties validation failed for resource {logical} with message: #: required key [{name}] not found",
            )


def replacing(kind: str, region: str) -> set[str]:
    """Return the top-level properties whose change creates a new physical resource."""
    return _named(kind, region, "createOnlyProperties")


def perhaps_replacing(kind: str, region: str) -> set[str]:
    """Return the top-level properties for which a change set reports a conditional replacement."""
    return _named(kind, region, "conditionalCreateOnlyProperties")


def _named(kind: str, region: str, which: str) -> set[str]:
    return {p.removeprefix("/properties/").split("/")[0] for p in schema(kind, region).get(which, [])}
