"""State of the fake AWS beyond moto's: one lock, one condition that signals any change, and scaled time."""

import datetime
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

ACCOUNT = "123456789012"


@dataclass
class FaultRule:
    """Rule that answers matching calls with an error or a delay."""

    service: str
    action: str  # regular expression over operation names
    code: str
    status: int = 400
    message: str = ""
    times: int = 1  # how often
    skip: int = 0  # matching calls to let pass before
    delay_s: float = 0.0  # wait before answering; with an empty code the answer is the true one
    who: str = ""  # only calls with this access key (a node's contains its instance id); "" for all


class FakeState:
    """State of the fake AWS. Every reader and writer holds `lock`."""

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
            self.kubernetes: dict[tuple[str, str], dict[str, Any]] = {}  # what moto's EKS lacks, by region and name
            self.kubernetes_api: dict[str, str] = {}  # where kubectl reaches every cluster, if anywhere
            self.caller = f"arn:aws:iam::{ACCOUNT}:user/operator"  # identity that STS reports for every caller
            self.addon_states: dict[str, str] = {}  # add-on -> its state, where that is not ACTIVE
            self.links: dict[str, dict[str, Any]] = {}  # FSx data repository associations
            self.capacity: dict[str, int] = {}  # instance type, or type@zone -> how many more can be had
            self.kills: dict[str, str] = {}  # instance type -> why EC2 ends each of them before it is in service
            self.quotas: dict[str, float] = {}
            self.prices: dict[str, float] = {}
            self.block_offers: list[dict[str, Any]] = []  # capacity blocks to buy, as EC2 describes them
            self.spot_prices: dict[str, float] = {}  # instance type -> USD per hour
            self.amis: dict[str, str] = {}  # SSM parameter -> AMI
            self.faults: list[FaultRule] = []
            self.log: list[dict[str, Any]] = []
            self.calls: list[dict[str, Any]] = []  # CloudFormation's calls to other services
            self.node_rules: list[dict[str, Any]] = []
            self.metadata: dict[str, dict[str, str]] = {}  # instance -> additional metadata by path
            self.imds_tokens = 0  # how often the metadata services forgot the tokens they gave
            self.page_size = 100
            self.ahead_s = 0.0  # how far AWS's clock is ahead of this machine's, after a test has advanced it
            self.strict_time = False  # whether a request that was signed by a wrong clock is refused
            self.delete_failures: dict[str, str] = {}  # logical id -> reason, once
            self.update_failures: dict[str, int] = {}  # logical id -> how many changes of it fail
            self.version = 0
            self.rounds = 0  # passes over all groups
            self.changed.notify_all()

    def now(self) -> datetime.datetime:
        """Return the time of AWS's clock."""
        return datetime.datetime.now(datetime.UTC) + datetime.timedelta(seconds=self.ahead_s)

    def moved_on(self, seen: int) -> bool:
        """Return True if anything has changed since that version, or the fake is stopped."""
        return self.version != seen or self.closed

    def touch(self) -> None:
        """Notify all waiting threads that something has changed."""
        with self.lock:
            self.version += 1
            self.changed.notify_all()

    def wait_until(self, condition: Callable[[], bool], aws_seconds: float) -> bool:
        """Wait up to this many of AWS's seconds for `condition`. Return True if it came true.

        Call it without the lock.
        """
        with self.changed:
            return (
                self.changed.wait_for(lambda: condition() or self.closed, timeout=max(0.0, aws_seconds * self.scale))
                and condition()
            )

    def pass_time(self, aws_seconds: float) -> None:
        """Wait for this many of AWS's seconds, scaled, or until the fake is stopped."""
        if aws_seconds * self.scale > 0:
            end = time.monotonic() + aws_seconds * self.scale
            with self.changed:
                self.changed.wait_for(lambda: self.closed or time.monotonic() >= end, timeout=aws_seconds * self.scale)


@dataclass
class Made:
    """Physical resource: its id and the attributes for Fn::GetAtt."""

    id: str
    attributes: dict[str, Any] = field(default_factory=dict)
