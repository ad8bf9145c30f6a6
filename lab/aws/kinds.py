"""Registry of resource types: how each is created, updated and deleted, by the calls that CloudFormation would make."""

import zlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from lab.aws.moto_client import client
from lab.aws.protocol import AwsFault
from lab.aws.state import FakeState, Made


@dataclass(frozen=True)
class _Noted:
    """Client that records its calls. CloudFormation makes them with the rights of the stack's creator."""

    client: Any
    service: str
    calls: list[dict[str, Any]]

    def __getattr__(self, name: str) -> Any:
        def call(**parameters: Any) -> Any:
            self.calls.append({"service": self.service, "operation": name, "parameters": parameters})
            return getattr(self.client, name)(**parameters)

        return call


@dataclass(frozen=True)
class Site:
    """Context of a resource handler: the fake's state, region, stack, logical id and update policy."""

    world: FakeState
    region: str
    stack_name: str
    stack_id: str
    logical: str
    update_policy: dict[str, Any] = field(default_factory=dict)  # of the resource, in the template that it comes to

    def api(self, service: str) -> Any:
        return _Noted(client(service, self.region), service, self.world.calls)

    def note(self, service: str, operation: str, **parameters: Any) -> None:
        """Record a call that a service makes for another call, with the caller's rights, on an untagged resource."""
        call = {"service": service, "operation": operation, "parameters": parameters, "untagged": True}
        self.world.calls.append(call)

    @property
    def generated_name(self) -> str:
        base = f"{self.stack_name}-{self.logical}"
        return f"{base}-FAKE{zlib.crc32(base.encode()):08X}"


Properties = dict[str, Any]


@dataclass(frozen=True)
class ResourceKind:
    """Handler of one resource type. Only the listed properties are modelled; any other is an error, never ignored."""

    properties: frozenset[str]
    create: Callable[[Site, Properties], Made]
    delete: Callable[[Site, str, Properties], None]
    update: Callable[[Site, str, Properties, Properties], Made | None] | None = None
    """Changes in place; None: nothing of it can be changed without a new resource."""


KINDS: dict[str, ResourceKind] = {}


def ended_by(service: str, operation: str, argument: str) -> Any:
    """Return a type's `delete` that consists of one call with the resource's id."""

    def delete(site: Site, physical: str, p: Properties) -> None:
        getattr(site.api(service), operation)(**{argument: physical})

    return staticmethod(delete)


def kind(name: str, properties: str) -> Callable[[type], type]:
    """Register a class with static `create`, `delete` and optionally `update` as the handler of a type."""

    def register(body: Any) -> type:
        KINDS[name] = ResourceKind(
            frozenset(properties.split()), body.create, body.delete, getattr(body, "update", None)
        )
        return body

    return register


def find(name: str) -> ResourceKind:
    """Return the handler of a type. Raises AwsFault for a type that this fake does not model."""
    if name not in KINDS:
        raise AwsFault("ValidationError", f"this fake does not model the resource type {name}")
    return KINDS[name]


def check_modelled(logical: str, name: str, properties: Properties) -> None:
    """Raise AwsFault for a property that would otherwise be ignored silently."""
    for extra in sorted(set(properties) - find(name).properties):
        raise AwsFault("ValidationError", f"this fake does not model {name}.{extra}, which {logical} sets")


def tag_specification(resource: str, tags: list[dict[str, str]] | None) -> dict[str, Any]:
    """Return tags as EC2's create calls take them."""
    return (
        {
            "TagSpecifications": [
                {"ResourceType": resource, "Tags": [{"Key": t["Key"], "Value": t["Value"]} for t in tags]}
            ]
        }
        if tags
        else {}
    )


def retag(site: Site, physical: str, new: Properties) -> None:
    """Set EC2 tags of an existing resource."""
    if new.get("Tags"):
        site.api("ec2").create_tags(
            Resources=[physical], Tags=[{"Key": t["Key"], "Value": t["Value"]} for t in new["Tags"]]
        )
