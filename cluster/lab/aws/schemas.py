"""What CloudFormation's published schemas say of a resource type: unknown properties, required ones, and what a
change replaces.
"""

from functools import cache
from typing import Any

from cfnlint.schema.manager import PROVIDER_SCHEMA_MANAGER

from cluster.lab.aws.wire import AwsFault


@cache
def schema(kind: str, region: str) -> dict[str, Any]:
    """The resource type's schema. Raises AwsFault for a type that CloudFormation does not have."""
    try:
        return PROVIDER_SCHEMA_MANAGER.get_resource_schema(region, kind).schema
    except Exception as e:
        raise AwsFault("ValidationError", f"Template format error: Unrecognized resource types: [{kind}]") from e


def check(logical: str, kind: str, properties: dict[str, Any], region: str) -> None:
    """Raises AwsFault if a property is unknown, read-only or missing."""
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
    """The top-level properties whose change makes a new physical resource."""
    return _named(kind, region, "createOnlyProperties")


def perhaps_replacing(kind: str, region: str) -> set[str]:
    """The top-level properties of which a change set says that their change may make a new physical resource."""
    return _named(kind, region, "conditionalCreateOnlyProperties")


def _named(kind: str, region: str, which: str) -> set[str]:
    return {p.removeprefix("/properties/").split("/")[0] for p in schema(kind, region).get(which, [])}
