"""Deletion of a stack's resources, dependants first, without those that are to be kept."""

from collections.abc import Callable

from botocore.exceptions import ClientError

from lab.aws import groups
from lab.aws.create import GROUP, NODE_GROUP, go_on, is_gone, listed, reason_of, site_of
from lab.aws.intrinsics import creation_order
from lab.aws.kinds import find
from lab.aws.protocol import AwsFault
from lab.aws.stacks import FakeStack, LogicalResource
from lab.aws.state import FakeState


def unmake(
    world: FakeState, stack: FakeStack, resources: list[LogicalResource], keep: Callable[[LogicalResource], bool]
) -> bool:
    """Delete resources, dependants first. Return True if all of them were deleted. Raises OperationStopped."""
    names = {r.logical for r in resources}
    bodies = {n: stack.template["Resources"].get(n, {}) for n in names}
    order = creation_order(
        {n: {**b, "DependsOn": sorted(names & listed(b.get("DependsOn", [])))} for n, b in sorted(bodies.items())}
    )
    by_name = {r.logical: r for r in resources}
    blocked: set[str] = set()
    for logical in reversed(order):
        resource = by_name[logical]
        if not resource.physical or resource.status == "DELETE_COMPLETE":
            continue
        if keep(resource):
            with world.lock:
                stack.say("DELETE_SKIPPED", resource=resource)
        elif not _delete_one(world, stack, resource):
            blocked.add(logical)
    return not blocked


def _delete_one(world: FakeState, stack: FakeStack, resource: LogicalResource) -> bool:
    with world.lock:
        go_on(world, stack)
        stack.say("DELETE_IN_PROGRESS", resource=resource)
        try:
            if resource.logical in world.delete_failures:
                raise AwsFault("DependencyViolation", world.delete_failures.pop(resource.logical))
            find(resource.kind).delete(site_of(world, stack, resource.logical), resource.physical, resource.properties)
        except (ClientError, AwsFault) as e:
            if not is_gone(e):
                stack.say("DELETE_FAILED", reason_of(e), resource)
                return False
    if resource.kind in (GROUP, NODE_GROUP):
        name = resource.physical if resource.kind == GROUP else resource.attributes["group"]
        world.wait_until(
            lambda: groups.gone(world, stack.region, name),
            3600 / max(world.scale, 1e-4),
        )
    world.pass_time(world.resource_seconds)
    with world.lock:
        stack.say("DELETE_COMPLETE", resource=resource)
    return True
