"""Background operations on a stack: create, update, delete, and rollback if one fails."""

import contextlib
import threading
from collections.abc import Callable, Sequence
from typing import Any

from botocore.exceptions import ClientError

from lab.aws import schemas
from lab.aws.create import Making, OperationStopped, ResourceFailed, go_on, reason_of, site_of
from lab.aws.delete import unmake
from lab.aws.intrinsics import creation_order
from lab.aws.kinds import find
from lab.aws.protocol import AwsFault
from lab.aws.stacks import FakeStack, LogicalResource
from lab.aws.state import FakeState


class OperationRunner:
    """Runner of one operation on one stack, in its own thread."""

    def __init__(self, world: FakeState, stack: FakeStack) -> None:
        self.world, self.stack = world, stack
        self.making = Making(world, stack)

    def start(self, operation: Callable[..., None], *args: Any) -> None:
        """Start an operation in a new thread. It first waits until a running operation has stopped, unfinished.

        AWS allows only a deletion to interrupt another operation.
        """
        with self.world.lock:
            before = self.stack.worker
            self.stack.worker = threading.Thread(
                target=self._guarded, args=(before, operation, *args), daemon=True, name=f"stack {self.stack.name}"
            )
        self.world.touch()
        self.stack.worker.start()

    def _guarded(self, before: threading.Thread | None, operation: Callable[..., None], *args: Any) -> None:
        if before:
            before.join()
        with contextlib.suppress(OperationStopped):
            operation(*args)
        self.world.touch()

    def create(self) -> None:
        """Create all resources, or roll back."""
        try:
            self.making.make(list(creation_order(self.stack.template["Resources"])), first=True)
        except ResourceFailed as e:
            self._roll_back_create(str(e))
            return
        with self.world.lock:
            go_on(self.world, self.stack)
            self.stack.make_outputs()
            self.stack.say("CREATE_COMPLETE")

    def _roll_back_create(self, reason: str) -> None:
        with self.world.lock:
            go_on(self.world, self.stack)
            if self.stack.on_failure == "DO_NOTHING":
                self.stack.say("CREATE_FAILED", reason)
                return
            self.stack.say("ROLLBACK_IN_PROGRESS", f"{reason} Rollback requested by user.")
        deleted = unmake(self.world, self.stack, list(self.stack.resources.values()), keep=_kept_always)
        with self.world.lock:
            self.stack.say("ROLLBACK_COMPLETE" if deleted else "ROLLBACK_FAILED")

    def delete(self, retain: list[str]) -> None:
        """Delete all resources except those that are retained."""
        with self.world.lock:
            self.stack.say("DELETE_IN_PROGRESS", "User Initiated")
        deleted = unmake(
            self.world,
            self.stack,
            list(self.stack.resources.values()),
            keep=lambda r: _kept(r) or r.logical in retain,
        )
        failed = sorted(r.logical for r in self.stack.resources.values() if r.status == "DELETE_FAILED")
        with self.world.lock:
            self.stack.say(
                "DELETE_COMPLETE" if deleted else "DELETE_FAILED",
                "" if deleted else f"The following resource(s) failed to delete: [{', '.join(failed)}].",
            )

    def update(self, template: dict[str, Any], text: str, parameters: dict[str, str]) -> None:
        """Update to a new template in place, or roll back to the old one."""
        old = (self.stack.template, self.stack.text, self.stack.parameters)
        with self.world.lock:
            self.stack.say("UPDATE_IN_PROGRESS", "User Initiated")
        try:
            leftovers = self._move_to(template, text, parameters)
        except ResourceFailed as e:
            with self.world.lock:
                self.stack.say("UPDATE_ROLLBACK_IN_PROGRESS", f"The following resource(s) failed to update: [{e}].")
            self._roll_back_update(old)
            return
        with self.world.lock:
            self.stack.say("UPDATE_COMPLETE_CLEANUP_IN_PROGRESS")
        unmake(self.world, self.stack, leftovers, keep=_kept)
        with self.world.lock:
            self.stack.make_outputs()
            self.stack.say("UPDATE_COMPLETE")

    def continue_roll_back(self, skip: list[str]) -> None:
        """Retry the rollback of an update. Skipped resources count as rolled back."""
        with self.world.lock:
            self.stack.say("UPDATE_ROLLBACK_IN_PROGRESS", "User Initiated")
            for name in skip:
                self.stack.say("UPDATE_COMPLETE", resource=self.stack.resources[name])
        self._roll_back_update((self.stack.template, self.stack.text, self.stack.parameters), skip)

    def _roll_back_update(self, old: tuple[dict[str, Any], str, dict[str, str]], skip: Sequence[str] = ()) -> None:
        try:
            leftovers = self._move_to(*old, skip)
        except ResourceFailed as e:
            with self.world.lock:
                self.stack.say("UPDATE_ROLLBACK_FAILED", f"The following resource(s) failed to update: [{e}].")
            return
        unmake(self.world, self.stack, leftovers, keep=_kept_always)
        with self.world.lock:
            self.stack.say("UPDATE_ROLLBACK_COMPLETE")

    def _move_to(
        self, template: dict[str, Any], text: str, parameters: dict[str, str], skip: Sequence[str] = ()
    ) -> list[LogicalResource]:
        """Apply a template. Return the resources that are no longer needed and must be deleted."""
        with self.world.lock:
            self.stack.template, self.stack.text, self.stack.parameters = template, text, parameters
            leftovers = [r for n, r in self.stack.resources.items() if n not in template["Resources"]]
            for gone in leftovers:
                del self.stack.resources[gone.logical]
        for logical in creation_order(template["Resources"]):
            if logical in skip:
                continue
            body = template["Resources"][logical]
            if logical not in self.stack.resources:
                self.making.make([logical], first=True)
            elif replaced := self._change_one(self.stack.resources[logical], body):
                leftovers.append(replaced)
        return leftovers

    def _change_one(self, resource: LogicalResource, body: dict[str, Any]) -> LogicalResource | None:
        """Update one resource. If that creates a new physical resource, return the old one for deletion."""
        with self.world.lock:
            go_on(self.world, self.stack)
            new = self.stack.resolved(body.get("Properties", {}))
            differing = {k for k in resource.properties.keys() | new.keys() if resource.properties.get(k) != new.get(k)}
            if not differing and resource.status != "UPDATE_FAILED":
                return None
            if schemas.replacing(resource.kind, self.stack.region) & differing:
                self.stack.say(
                    "UPDATE_IN_PROGRESS",
                    "Requested update requires the creation of a new physical resource; hence creating one.",
                    resource,
                )
                self.making.create_one(resource.logical, body, first=False)
                self.stack.say("UPDATE_COMPLETE", resource=self.stack.resources[resource.logical])
                return resource
            self.stack.say("UPDATE_IN_PROGRESS", resource=resource)
            handler = find(resource.kind)
            try:
                if self.world.update_failures.get(resource.logical, 0) > 0:
                    self.world.update_failures[resource.logical] -= 1
                    raise AwsFault("InternalFailure", f"{resource.logical} cannot be changed now")
                if handler.update is None:
                    raise AwsFault(
                        "ValidationError", f"this fake cannot change {sorted(differing)} of {resource.kind} in place"
                    )
                made = handler.update(
                    site_of(self.world, self.stack, resource.logical), resource.physical, resource.properties, new
                )
            except (ClientError, AwsFault) as e:
                self.stack.say("UPDATE_FAILED", reason_of(e), resource)
                raise ResourceFailed(resource.logical) from e
            resource.properties = new
            resource.attributes = made.attributes if made else resource.attributes
            self.stack.say("UPDATE_COMPLETE", resource=resource)
        self.world.touch()
        return None


def _kept(resource: LogicalResource) -> bool:
    """Return True if the resource's deletion policy keeps it in the account when its stack is deleted."""
    return resource.deletion_policy in ("Retain", "RetainExceptOnCreate")


def _kept_always(resource: LogicalResource) -> bool:
    """Return True if the resource is kept even when the operation that created it is rolled back."""
    return resource.deletion_policy == "Retain"
