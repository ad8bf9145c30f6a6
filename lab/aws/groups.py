"""State of Auto Scaling groups: settings, instances, lifecycle hooks and activities."""

import datetime
import itertools
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from lab.aws.protocol import AwsFault
from lab.aws.state import FakeState

PROCESSES = (
    "Launch",
    "Terminate",
    "AddToLoadBalancer",
    "AlarmNotification",
    "AZRebalance",
    "HealthCheck",
    "InstanceRefresh",
    "ReplaceUnhealthy",
    "ScheduledActions",
)
Clock = Callable[[], datetime.datetime]


@dataclass
class LifecycleHook:
    """Lifecycle hook of a group."""

    transition: str
    timeout: int  # AWS's seconds
    default: str  # CONTINUE or ABANDON


@dataclass
class GroupInstance:
    """Instance of a group."""

    id: str
    type: str
    zone: str
    template: dict[str, Any]
    order: int
    state: str = "Pending"
    health: str = "Healthy"
    waits_for: dict[str, str] = field(default_factory=dict)  # hook -> result, "" while it waits
    protected: bool = False
    launch: "Activity | None" = None  # in progress until the instance is in service


@dataclass
class Activity:
    """Scaling activity, as the API lists it."""

    description: str
    cause: str
    status: str  # InProgress, Successful or Failed
    message: str
    clock: Clock
    id: str = field(default_factory=lambda: str(uuid.uuid4()))
    start: datetime.datetime = field(init=False)
    end: datetime.datetime | None = None

    def __post_init__(self) -> None:
        self.start = self.clock()

    def finish(self, status: str = "Successful") -> None:
        """Mark the activity as ended now. One that has ended already is not changed."""
        if self.end is None:
            self.status, self.end = status, self.clock()


@dataclass
class Group:
    """Auto Scaling group."""

    region: str
    name: str
    settings: dict[str, Any]
    own_tags: dict[str, str]
    clock: Clock  # AWS's
    members: list[GroupInstance] = field(default_factory=list)
    activities: list[Activity] = field(default_factory=list)
    hooks: dict[str, LifecycleHook] = field(default_factory=dict)
    schedule: dict[str, Any] = field(default_factory=dict)  # scheduled actions by name
    suspended: set[str] = field(default_factory=set)
    created: datetime.datetime = field(init=False)
    counter: Any = field(default_factory=itertools.count)
    removing: bool = False

    def __post_init__(self) -> None:
        self.created = self.clock()

    @property
    def arn(self) -> str:
        return f"arn:aws:autoscaling:{self.region}:123456789012:autoScalingGroup:fake:autoScalingGroupName/{self.name}"

    @property
    def in_service(self) -> list[GroupInstance]:
        return [m for m in self.members if m.state == "InService"]

    def say(self, description: str, cause: str, status: str = "Successful", message: str = "") -> Activity:
        """Record an activity as the newest. A failure that repeats the last one is not recorded again."""
        last = self.activities[0] if self.activities else None
        if last and last.status == status == "Failed" and last.message == message:
            return last
        self.activities.insert(0, Activity(description, cause, status, message, self.clock))
        if status != "InProgress":
            self.activities[0].finish(status)
        return self.activities[0]


def settings(p: dict[str, Any]) -> dict[str, Any]:
    """Return a group's settings from template properties. Raises AwsFault for sizes that contradict each other."""
    least, most = int(p["MinSize"]), int(p["MaxSize"])
    desired = int(p.get("DesiredCapacity", least))
    if not least <= desired <= most:
        raise AwsFault(
            "ValidationError",
            f"Desired capacity:{desired} must be between the specified min size:{least} and max size:{most}",
        )
    subnets = p.get("VPCZoneIdentifier", [])
    if not subnets and not p.get("AvailabilityZones"):
        raise AwsFault("ValidationError", "At least one Availability Zone or VPC Subnet is required.")
    return {
        "min": least,
        "max": most,
        "desired": desired,
        "template": p["LaunchTemplate"],
        "subnets": subnets,
        "zones": p.get("AvailabilityZones", []),
        "tags": p.get("Tags", []),
        "reservation": p.get("CapacityReservationSpecification"),
        "policies": p.get("TerminationPolicies", ["Default"]),
        "grace": int(p.get("HealthCheckGracePeriod", 0)),
        "check": p.get("HealthCheckType", "EC2"),
    }


def create(world: FakeState, region: str, name: str, wanted: dict[str, Any], own_tags: dict[str, str]) -> None:
    if (region, name) in world.groups:
        raise AwsFault(
            "AlreadyExists",
            f"AutoScalingGroup by this name already exists - A group with the name {name} already exists",
        )
    world.groups[region, name] = Group(region, name, wanted, own_tags, world.now)
    world.touch()


def get(world: FakeState, region: str, name: str) -> Group:
    """Return the group with this name. Raises AwsFault if it does not exist."""
    if (region, name) not in world.groups:
        raise AwsFault("ValidationError", f"AutoScalingGroup name not found - AutoScalingGroup {name} not found")
    return world.groups[region, name]


def change(world: FakeState, region: str, name: str, wanted: dict[str, Any]) -> None:
    """Replace the group's settings. Running instances stay as they are."""
    get(world, region, name).settings = wanted
    world.touch()


def resize(world: FakeState, region: str, name: str, sizes: dict[str, int]) -> None:
    """Change `min`, `max` and `desired` as UpdateAutoScalingGroup does. Omitted sizes stay.

    An omitted desired size is moved into the new limits. Raises AwsFault for sizes that contradict each other.
    """
    group = get(world, region, name)
    wanted = {**group.settings, **sizes}
    if wanted["min"] > wanted["max"]:
        raise AwsFault("ValidationError", "Min size cannot be greater than max size.")
    if "desired" not in sizes:
        wanted["desired"] = min(max(wanted["desired"], wanted["min"]), wanted["max"])
    if not wanted["min"] <= wanted["desired"] <= wanted["max"]:
        raise AwsFault(
            "ValidationError",
            f"Desired capacity:{wanted['desired']} must be between the specified min size:{wanted['min']} and max "
            f"size:{wanted['max']}",
        )
    group.settings = wanted
    world.touch()


def remove(world: FakeState, region: str, name: str) -> None:
    """Start the deletion of a group: its instances first, then itself. Poll `gone` for its end."""
    if (region, name) in world.groups:
        group = world.groups[region, name]
        group.removing = True
        group.settings = {**group.settings, "min": 0, "desired": 0}
        world.touch()


def gone(world: FakeState, region: str, name: str) -> bool:
    return (region, name) not in world.groups


def put_hook(world: FakeState, region: str, group: str, name: str, transition: str, timeout: int, default: str) -> None:
    if transition not in ("autoscaling:EC2_INSTANCE_LAUNCHING", "autoscaling:EC2_INSTANCE_TERMINATING"):
        raise AwsFault("ValidationError", f"Invalid lifecycle transition {transition}")
    get(world, region, group).hooks[name] = LifecycleHook(transition, timeout, default)
    world.touch()


def member(world: FakeState, region: str, instance: str) -> tuple[Group, GroupInstance]:
    """Return an instance and its group. Raises AwsFault if it is in no group."""
    for group in world.groups.values():
        for one in group.members:
            if one.id == instance and group.region == region:
                return group, one
    raise AwsFault("ValidationError", f"Instance Id not found - No managed instance found for instance ID: {instance}")
