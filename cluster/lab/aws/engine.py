"""The life of a stack in the background: create, update, delete, roll back, each resource as soon as what it
needs is there.
"""

import functools
import re
import threading
import time
from collections.abc import Callable
from typing import Any

from botocore.exceptions import ClientError

from cluster.lab.aws import groups, schemas
from cluster.lab.aws.intrinsics import creation_order, references
from cluster.lab.aws.kinds import Site, find
from cluster.lab.aws.stacks import Resource, Stack
from cluster.lab.aws.wire import AwsFault
from cluster.lab.aws.world import World

GROUP = "AWS::AutoScaling::AutoScalingGroup"


class Failed(Exception):
    """A resource could not be made: the text is the reason that its event gives."""


class Engine:
    """One operation on one stack, in a thread of its own."""

    def __init__(self, world: World, stack: Stack) -> None:
        self.world, self.stack = world, stack

    def start(self, operation: Callable[..., None], *args: Any) -> None:
        threading.Thread(
            target=self._guarded, args=(operation, *args), daemon=True, name=f"stack {self.stack.name}"
        ).start()

    def _guarded(self, operation: Callable[..., None], *args: Any) -> None:
        operation(*args)
        self.world.touch()

    # create

    def create(self) -> None:
        """Makes everything, or rolls back."""
        try:
            self._make(list(creation_order(self.stack.template["Resources"])), first=True)
        except Failed as e:
            self._roll_back_create(str(e))
            return
        with self.world.lock:
            self.stack.make_outputs()
            self.stack.say("CREATE_COMPLETE")

    def _roll_back_create(self, reason: str) -> None:
        if self.stack.on_failure == "DO_NOTHING":
            with self.world.lock:
                self.stack.say("CREATE_FAILED", reason)
            return
        with self.world.lock:
            self.stack.say("ROLLBACK_IN_PROGRESS", f"{reason} Rollback requested by user.")
        deleted = self._unmake(list(self.stack.resources.values()), keep=lambda r: r.deletion_policy == "Retain")
        with self.world.lock:
            self.stack.say("ROLLBACK_COMPLETE" if deleted else "ROLLBACK_FAILED")

    def _make(self, order: list[str], first: bool) -> None:
        """Creates the named resources. Raises Failed after cancelling what was still in progress."""
        active: dict[str, Callable[[], str | None]] = {}
        bodies = self.stack.template["Resources"]
        while order or active:
            seen = self.world.version
            try:
                progressed = self._start_ready(order, active, bodies, first) + self._finish_stable(active)
            except Failed as e:
                self._cancel(active)
                raise Failed(f"The following resource(s) failed to create: [{e}].") from e
            if not progressed:
                with self.world.changed:
                    self.world.changed.wait_for(functools.partial(self.world.moved_on, seen), timeout=0.02)
            if self.world.closed:
                raise Failed("the fake was stopped")

    def _start_ready(
        self, order: list[str], active: dict[str, Callable[[], str | None]], bodies: dict[str, Any], first: bool
    ) -> int:
        started = 0
        for logical in list(order):
            body = bodies[logical]
            needs = (references(body.get("Properties", {})) | _listed(body.get("DependsOn", []))) & set(bodies)
            if all(n in self.stack.resources and self.stack.resources[n].status.endswith("_COMPLETE") for n in needs):
                active[logical] = self._create_one(logical, body, first)
                order.remove(logical)
                started += 1
        return started

    def _create_one(self, logical: str, body: dict[str, Any], first: bool) -> Callable[[], str | None]:
        with self.world.lock:
            resource = Resource(logical, body["Type"], deletion_policy=body.get("DeletionPolicy", "Delete"))
            self.stack.resources[logical] = resource
            self.stack.say("CREATE_IN_PROGRESS", resource=resource)
            try:
                resource.properties = self.stack.resolved(body.get("Properties", {}))
                made = find(resource.kind).create(self._site(logical), resource.properties)
            except (ClientError, AwsFault) as e:
                self.stack.say("CREATE_FAILED", _reason(e), resource)
                raise Failed(logical) from e
            resource.physical, resource.attributes = made.id, made.attributes
            self.stack.say("CREATE_IN_PROGRESS", "Resource creation Initiated", resource)
            check = self._stable(resource, body, first)
        self.world.touch()
        return check

    def _stable(self, resource: Resource, body: dict[str, Any], first: bool) -> Callable[[], str | None]:
        """What says 'complete', a failure's reason, or None for not yet."""
        not_before = time.monotonic() + self.world.resource_seconds * self.world.scale
        policy = body.get("CreationPolicy", {}).get("ResourceSignal") if first else None
        if resource.kind != GROUP:
            return lambda: "complete" if time.monotonic() >= not_before else None
        if policy is None:
            return lambda: "complete" if self._group_is_full(resource.physical) else None
        wanted, seconds = int(policy.get("Count", 1)), _seconds(policy.get("Timeout", "PT5M"))
        deadline = time.monotonic() + seconds * self.world.scale
        self.stack.signals[resource.logical] = {}
        self.stack.waiting.add(resource.logical)
        return lambda: self._signalled(resource.logical, wanted, deadline)

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

    def _finish_stable(self, active: dict[str, Callable[[], str | None]]) -> int:
        finished = 0
        with self.world.lock:
            for logical, check in list(active.items()):
                outcome = check()
                if outcome is None:
                    continue
                del active[logical]
                self.stack.waiting.discard(logical)
                finished += 1
                if outcome != "complete":
                    self.stack.say("CREATE_FAILED", outcome, self.stack.resources[logical])
                    raise Failed(logical)
                self.stack.say("CREATE_COMPLETE", resource=self.stack.resources[logical])
        return finished

    def _cancel(self, active: dict[str, Callable[[], str | None]]) -> None:
        with self.world.lock:
            for logical in active:
                self.stack.waiting.discard(logical)
                self.stack.say("CREATE_FAILED", "Resource creation cancelled", self.stack.resources[logical])

    # delete

    def delete(self, retain: list[str]) -> None:
        """Ends everything that is not to be kept."""
        with self.world.lock:
            self.stack.say("DELETE_IN_PROGRESS", "User Initiated")
        deleted = self._unmake(
            list(self.stack.resources.values()),
            keep=lambda r: r.deletion_policy in ("Retain", "RetainExceptOnCreate") or r.logical in retain,
        )
        failed = sorted(r.logical for r in self.stack.resources.values() if r.status == "DELETE_FAILED")
        with self.world.lock:
            self.stack.say(
                "DELETE_COMPLETE" if deleted else "DELETE_FAILED",
                "" if deleted else f"The following resource(s) failed to delete: [{', '.join(failed)}].",
            )

    def _unmake(self, resources: list[Resource], keep: Callable[[Resource], bool]) -> bool:
        """Deletes resources, dependants first; whether all went."""
        names = {r.logical for r in resources}
        bodies = {n: self.stack.template["Resources"].get(n, {}) for n in names}
        order = creation_order(
            {n: {**b, "DependsOn": sorted(names & _listed(b.get("DependsOn", [])))} for n, b in sorted(bodies.items())}
        )
        by_name = {r.logical: r for r in resources}
        blocked: set[str] = set()
        for logical in reversed(order):
            resource = by_name[logical]
            if not resource.physical or resource.status == "DELETE_COMPLETE":
                continue
            if keep(resource):
                with self.world.lock:
                    self.stack.say("DELETE_SKIPPED", resource=resource)
            elif not self._delete_one(resource):
                blocked.add(logical)
        return not blocked

    def _delete_one(self, resource: Resource) -> bool:
        with self.world.lock:
            self.stack.say("DELETE_IN_PROGRESS", resource=resource)
            try:
                if resource.logical in self.world.delete_failures:
                    raise AwsFault("DependencyViolation", self.world.delete_failures.pop(resource.logical))
                find(resource.kind).delete(self._site(resource.logical), resource.physical, resource.properties)
            except (ClientError, AwsFault) as e:
                if not _is_gone(e):
                    self.stack.say("DELETE_FAILED", _reason(e), resource)
                    return False
        if resource.kind == GROUP:
            self.world.wait_until(
                lambda: groups.gone(self.world, self.stack.region, resource.physical),
                3600 / max(self.world.scale, 1e-4),
            )
        self.world.pass_time(self.world.resource_seconds)
        with self.world.lock:
            self.stack.say("DELETE_COMPLETE", resource=resource)
        return True

    # update

    def update(self, template: dict[str, Any], text: str, parameters: dict[str, str]) -> None:
        """Moves to a new template in place, or back to the old one."""
        old = (self.stack.template, self.stack.text, self.stack.parameters)
        with self.world.lock:
            self.stack.say("UPDATE_IN_PROGRESS", "User Initiated")
        try:
            leftovers = self._move_to(template, text, parameters)
        except Failed as e:
            with self.world.lock:
                self.stack.say("UPDATE_ROLLBACK_IN_PROGRESS", f"The following resource(s) failed to update: [{e}].")
            self._roll_back_update(old)
            return
        with self.world.lock:
            self.stack.say("UPDATE_COMPLETE_CLEANUP_IN_PROGRESS")
        self._unmake(leftovers, keep=lambda r: r.deletion_policy in ("Retain", "RetainExceptOnCreate"))
        with self.world.lock:
            self.stack.make_outputs()
            self.stack.say("UPDATE_COMPLETE")

    def _roll_back_update(self, old: tuple[dict[str, Any], str, dict[str, str]]) -> None:
        try:
            leftovers = self._move_to(*old)
        except Failed as e:
            with self.world.lock:
                self.stack.say("UPDATE_ROLLBACK_FAILED", f"The following resource(s) failed to update: [{e}].")
            return
        self._unmake(leftovers, keep=lambda r: r.deletion_policy == "Retain")
        with self.world.lock:
            self.stack.say("UPDATE_ROLLBACK_COMPLETE")

    def _move_to(self, template: dict[str, Any], text: str, parameters: dict[str, str]) -> list[Resource]:
        """Applies a template; what it left over is returned, to be deleted."""
        with self.world.lock:
            self.stack.template, self.stack.text, self.stack.parameters = template, text, parameters
            leftovers = [r for n, r in self.stack.resources.items() if n not in template["Resources"]]
            for gone in leftovers:
                del self.stack.resources[gone.logical]
        for logical in creation_order(template["Resources"]):
            body = template["Resources"][logical]
            if logical not in self.stack.resources:
                self._make([logical], first=True)
            elif replaced := self._change_one(self.stack.resources[logical], body):
                leftovers.append(replaced)
        return leftovers

    def _change_one(self, resource: Resource, body: dict[str, Any]) -> Resource | None:
        """Changes one resource; the old physical one if there is a new one now."""
        with self.world.lock:
            new = self.stack.resolved(body.get("Properties", {}))
            differing = {k for k in resource.properties.keys() | new.keys() if resource.properties.get(k) != new.get(k)}
            if not differing:
                return None
            if schemas.replacing(resource.kind, self.stack.region) & differing:
                self.stack.say(
                    "UPDATE_IN_PROGRESS",
                    "Requested update requires the creation of a new physical resource; hence creating one.",
                    resource,
                )
                self._create_one(resource.logical, body, first=False)
                self.stack.say("UPDATE_COMPLETE", resource=self.stack.resources[resource.logical])
                return resource
            self.stack.say("UPDATE_IN_PROGRESS", resource=resource)
            handler = find(resource.kind)
            try:
                if handler.update is None:
                    raise AwsFault(
                        "ValidationError", f"this fake cannot change {sorted(differing)} of {resource.kind} in place"
                    )
                made = handler.update(self._site(resource.logical), resource.physical, resource.properties, new)
            except (ClientError, AwsFault) as e:
                self.stack.say("UPDATE_FAILED", _reason(e), resource)
                raise Failed(resource.logical) from e
            resource.properties = new
            resource.attributes = made.attributes if made else resource.attributes
            self.stack.say("UPDATE_COMPLETE", resource=resource)
        self.world.touch()
        return None

    def _site(self, logical: str) -> Site:
        return Site(self.world, self.stack.region, self.stack.name, logical)


def _listed(depends: str | list[str]) -> set[str]:
    return {depends} if isinstance(depends, str) else set(depends)


def _seconds(duration: str) -> int:
    match = re.fullmatch(r"PT(?:(\d+)H)?(?:(\d+)M)?(?:(\d+)S)?", duration)
    if not match:
        raise AwsFault("ValidationError", f"Invalid timeout {duration}")
    hours, minutes, seconds = (int(g or 0) for g in match.groups())
    return hours * 3600 + minutes * 60 + seconds


def _reason(e: ClientError | AwsFault) -> str:
    if isinstance(e, AwsFault):
        return f"{e.message} (Status Code: {e.status}; Error Code: {e.code})"
    said = e.response["Error"]
    return f"{said.get('Message')} (Service: {e.operation_name}; Status Code: 400; Error Code: {said.get('Code')})"


def _is_gone(e: ClientError | AwsFault) -> bool:
    return isinstance(e, ClientError) and "NotFound" in e.response["Error"].get("Code", "")
