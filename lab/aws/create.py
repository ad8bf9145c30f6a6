"""Creation of a stack's resources: each as soon as its dependencies exist, and complete once it is stable."""

import functools
import re
import threading
import time
from collections.abc import Callable
from typing import Any

from botocore.exceptions import ClientError

from lab.aws.intrinsics import references
from lab.aws.kinds import Site, find
from lab.aws.protocol import AwsFault
from lab.aws.stacks import FakeStack, LogicalResource
from lab.aws.state import FakeState

GROUP = "AWS::AutoScaling::AutoScalingGroup"
NODE_GROUP = "AWS::EKS::Nodegroup"
NODES_JOIN_S = 35 * 60  # of AWS's seconds: so long EKS waits for its nodes
Check = Callable[[], str | None]  # 'complete', a failure's reason, or None for not yet


class ResourceFailed(Exception):
    """Failure to create or change a resource. The text is the reason shown in its event."""


class OperationStopped(Exception):
    """End of an operation without result: the fake was stopped, the stack was forgotten, or a deletion took it over."""


def go_on(world: FakeState, stack: FakeStack) -> None:
    """Raise OperationStopped if this thread must do nothing more for the stack.

    Call it with the lock held, and keep the lock until the next change is done. A reset in between would start a new
    account that does not know this stack.
    """
    if world.closed or world.stacks.get(stack.id) is not stack or stack.worker is not threading.current_thread():
        raise OperationStopped


class Making:
    """Creator of a stack's resources. `active` maps those in progress to the function that checks their outcome."""

    def __init__(self, world: FakeState, stack: FakeStack) -> None:
        self.world, self.stack = world, stack
        self.active: dict[str, Check] = {}

    def make(self, order: list[str], first: bool) -> None:
        """Create the named resources. If one fails, cancel those in progress and raise ResourceFailed.

        Raises OperationStopped.
        """
        bodies = self.stack.template["Resources"]
        while order or self.active:
            seen = self.world.version
            try:
                progressed = self._start_ready(order, bodies, first) + self._finish_stable()
            except ResourceFailed as e:
                self._cancel()
                raise ResourceFailed(f"The following resource(s) failed to create: [{e}].") from e
            if not progressed:
                with self.world.changed:
                    self.world.changed.wait_for(functools.partial(self.world.moved_on, seen), timeout=0.02)
            go_on(self.world, self.stack)

    def _start_ready(self, order: list[str], bodies: dict[str, Any], first: bool) -> int:
        started = 0
        for logical in list(order):
            body = bodies[logical]
            needs = (references(body.get("Properties", {})) | listed(body.get("DependsOn", []))) & set(bodies)
            if all(n in self.stack.resources and self.stack.resources[n].status.endswith("_COMPLETE") for n in needs):
                self.active[logical] = self.create_one(logical, body, first)
                order.remove(logical)
                started += 1
        return started

    def create_one(self, logical: str, body: dict[str, Any], first: bool) -> Check:
        with self.world.lock:
            go_on(self.world, self.stack)
            resource = LogicalResource(logical, body["Type"], deletion_policy=body.get("DeletionPolicy", "Delete"))
            self.stack.resources[logical] = resource
            self.stack.say("CREATE_IN_PROGRESS", resource=resource)
            try:
                resource.properties = self.stack.resolved(body.get("Properties", {}))
                made = find(resource.kind).create(site_of(self.world, self.stack, logical), resource.properties)
            except (ClientError, AwsFault) as e:
                self.stack.say("CREATE_FAILED", reason_of(e), resource)
                raise ResourceFailed(logical) from e
            resource.physical, resource.attributes = made.id, made.attributes
            self.stack.say("CREATE_IN_PROGRESS", "Resource creation Initiated", resource)
            check = self._stable(resource, body, first)
        self.world.touch()
        return check

    def _stable(self, resource: LogicalResource, body: dict[str, Any], first: bool) -> Check:
        """Return the check of a new resource: it returns 'complete', a failure's reason, or None while not stable."""
        not_before = time.monotonic() + self.world.resource_seconds * self.world.scale
        policy = body.get("CreationPolicy", {}).get("ResourceSignal") if first else None
        if resource.kind == NODE_GROUP:
            join_by = time.monotonic() + NODES_JOIN_S * self.world.scale
            return lambda: self._nodes_joined(resource.attributes["group"], join_by)
        if resource.kind != GROUP:
            return lambda: "complete" if time.monotonic() >= not_before else None
        if policy is None:
            return lambda: "complete" if self._group_is_full(resource.physical) else None
        wanted, seconds = int(policy.get("Count", 1)), seconds_of(policy.get("Timeout", "PT5M"))
        deadline = time.monotonic() + seconds * self.world.scale
        self.stack.signals[resource.logical] = {}
        self.stack.waiting.add(resource.logical)
        return lambda: self._signalled(resource.logical, wanted, deadline)

    def _nodes_joined(self, name: str, join_by: float) -> str | None:
        """Return a node group's outcome as EKS reports it, from its Auto Scaling group's state; None if pending."""
        group = self.world.groups.get((self.stack.region, name))
        if group is None or group.removing:
            return f'Resource handler returned message: "Nodegroup of {name} is DELETING" (NotStabilized)'
        if self._group_is_full(name):
            return "complete"
        if time.monotonic() < join_by:
            return None
        failed = [a.message for a in self.world.groups[self.stack.region, name].activities if a.status == "Failed"]
        why = f"Could not launch On-Demand Instances. {failed[0]}" if failed else "Instances failed to join"
        issue = f"Issue(Code=AsgInstanceLaunchFailures, Message={why}, ResourceIds=[{name}])"
        return f'Resource handler returned message: "[{issue}] (Service: null, Status Code: 0, Request ID: null)"'

    def _group_is_full(self, name: str) -> bool:
        group = self.world.groups.get((self.stack.region, name))
        return group is not None and len(group.in_service) >= group.settings["desired"]

    def _signalled(self, logical: str, wanted: int, deadline: float) -> str | None:
        got = self.stack.signals[logical]
        bad = [i for i, s in got.items() if s == "FAILURE"]
        if bad:
            said = f"Received {len(bad)} FAILURE signal(s) out of {wanted}."
            return f"{said} Unable to satisfy 100% MinSuccessfulInstancesPercent requirement"
        if len(got) >= wanted:
            return "complete"
        if time.monotonic() >= deadline:
            return f"Failed to receive {wanted - len(got)} resource signal(s) within the specified duration"
        return None

    def _finish_stable(self) -> int:
        finished = 0
        with self.world.lock:
            for logical, check in list(self.active.items()):
                outcome = check()
                if outcome is None:
                    continue
                del self.active[logical]
                self.stack.waiting.discard(logical)
                finished += 1
                if outcome != "complete":
                    self.stack.say("CREATE_FAILED", outcome, self.stack.resources[logical])
                    raise ResourceFailed(logical)
                self.stack.say("CREATE_COMPLETE", resource=self.stack.resources[logical])
        return finished

    def _cancel(self) -> None:
        with self.world.lock:
            for logical in self.active:
                self.stack.waiting.discard(logical)
                self.stack.say("CREATE_FAILED", "Resource creation cancelled", self.stack.resources[logical])
        self.active.clear()


def site_of(world: FakeState, stack: FakeStack, logical: str) -> Site:
    """Return the context for a resource's handler."""
    policy = stack.template["Resources"].get(logical, {}).get("UpdatePolicy", {})
    return Site(world, stack.region, stack.name, stack.id, logical, policy)


def listed(depends: str | list[str]) -> set[str]:
    """Return the names in a DependsOn, which is one name or a list."""
    return {depends} if isinstance(depends, str) else set(depends)


def seconds_of(duration: str) -> int:
    """Return the seconds of an ISO 8601 duration, such as 'PT1H30M'."""
    match = re.fullmatch(r"PT(?:(\d+)H)?(?:(\d+)M)?(?:(\d+)S)?", duration)
    if not match:
        raise AwsFault("ValidationError", f"Invalid timeout {duration}")
    hours, minutes, seconds = (int(g or 0) for g in match.groups())
    return hours * 3600 + minutes * 60 + seconds


def reason_of(e: ClientError | AwsFault) -> str:
    """Return a failed call as the reason of an event."""
    if isinstance(e, AwsFault):
        return f"{e.message} (Status Code: {e.status}; Error Code: {e.code})"
    said = e.response["Error"]
    return f"{said.get('Message')} (Service: {e.operation_name}; Status Code: 400; Error Code: {said.get('Code')})"


def is_gone(e: ClientError | AwsFault) -> bool:
    """Return True if a deletion failed only because the resource does not exist any more."""
    return isinstance(e, ClientError) and "NotFound" in e.response["Error"].get("Code", "")
