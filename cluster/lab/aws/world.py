"""Everything the fake remembers beyond moto: one lock, one signal for any change, scaled time."""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

ACCOUNT = "123456789012"


@dataclass
class FaultRule:
    """An error to give instead of an answer."""

    service: str
    action: str  # regular expression over operation names
    code: str
    status: int = 400
    message: str = ""
    times: int = 1  # how often
    skip: int = 0  # matching calls to let pass before
    delay_s: float = 0.0  # wait before answering; with an empty code the answer is the true one


class World:
    """The state of the fake; every reader and writer holds `lock`."""

    def __init__(
        self, scale: float = 1.0, resource_seconds: float = 0.0, nodes: str = "ready", tag_prefix: str = ""
    ) -> None:
        self.scale = scale  # our seconds for one of AWS's
        self.resource_seconds = resource_seconds  # AWS's seconds that one resource takes
        self.lock = threading.RLock()
        self.changed = threading.Condition(self.lock)
        self.closed = False
        self.nodes = nodes
        self.tag_prefix = tag_prefix  # of the tags `role`, `boot` and `host-key` on instances
        self.clear()

    def clear(self) -> None:
        """Forget everything but the settings."""
        with self.lock:
            self.stacks: dict[str, Any] = {}  # by id
            self.groups: dict[tuple[str, str], Any] = {}  # by region and name
            self.placement_groups: dict[tuple[str, str], dict[str, Any]] = {}
            self.reservations: dict[str, dict[str, Any]] = {}
            self.links: dict[str, dict[str, Any]] = {}  # FSx data repository associations
            self.capacity: dict[str, int] = {}  # instance type -> how many more can be launched
            self.quotas: dict[str, float] = {}
            self.prices: dict[str, float] = {}
            self.amis: dict[str, str] = {}  # SSM parameter -> AMI
            self.faults: list[FaultRule] = []
            self.log: list[dict[str, Any]] = []
            self.node_rules: list[dict[str, Any]] = []
            self.page_size = 100
            self.delete_failures: dict[str, str] = {}  # logical id -> reason, once
            self.version = 0
            self.rounds = 0  # how often all groups were looked at
            self.changed.notify_all()

    def moved_on(self, seen: int) -> bool:
        """Whether anything changed since that version."""
        return self.version != seen or self.closed

    def touch(self) -> None:
        """Say that something changed: who waits looks again."""
        with self.lock:
            self.version += 1
            self.changed.notify_all()

    def wait_until(self, condition: Callable[[], bool], aws_seconds: float) -> bool:
        """Whether `condition` came true within so many of AWS's seconds. Not to be called with the lock held by
        others.
        """
        with self.changed:
            return (
                self.changed.wait_for(lambda: condition() or self.closed, timeout=max(0.0, aws_seconds * self.scale))
                and condition()
            )

    def pass_time(self, aws_seconds: float) -> None:
        """Let scaled time go by, unless the fake is stopped meanwhile."""
        if aws_seconds * self.scale > 0:
            end = time.monotonic() + aws_seconds * self.scale
            with self.changed:
                self.changed.wait_for(lambda: self.closed or time.monotonic() >= end, timeout=aws_seconds * self.scale)


@dataclass
class Made:
    """A physical resource: its id, and what Fn::GetAtt may ask."""

    id: str
    attributes: dict[str, Any] = field(default_factory=dict)
