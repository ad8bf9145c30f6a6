"""Creation with capacity failover: try each zone, then the next instance type, and repeat until there is room."""

import datetime
import re
import time
from collections.abc import Callable, Sequence
from typing import TypeVar

from cfn import named_resources
from cfn import plan as plans
from cfn.aws import Aws
from cfn.capacity import NoCapacity, Tried
from cfn.checkout import Checkout
from cfn.create import create
from cfn.hosts import GroupMember
from cfn.plan import ClusterPlan
from cfn.progress import Show
from cfn.template.design import Design
from cluster.errors import ConfigError
from cluster.notify import Message, NotifyEvent, Undelivered, deliver
from cluster.terminal import counted

T = TypeVar("T")
Chosen = TypeVar("Chosen", bound=Design)
PAUSE_S = 300.0  # between two rounds, because AWS limits failed launches too
_UNITS = {"m": 60.0, "h": 3600.0, "d": 86400.0}


def seconds_of(wait: str) -> float:
    """Return the seconds of a duration like 30m, 6h or 2d; 0 for "". Raises ConfigError for any other form."""
    found = re.fullmatch(r"(\d{1,4})([mhd])", wait)
    if wait and not found:
        raise ConfigError(f"--wait {wait!r}: write a time like 30m, 6h or 2d")
    return int(found[1]) * _UNITS[found[2]] if found else 0.0


def create_and_tell(
    aws: Aws, plan: ClusterPlan, show: Show, *, keep_failed: bool, checkout: Checkout | None, wait_s: float
) -> list[GroupMember]:
    """Create the cluster as `create_where_there_is_room` does, and send the file's `notify` target the outcome.

    Nothing is sent unless there was a `wait_s`.
    """
    try:
        hosts = create_where_there_is_room(aws, plan, show, keep_failed=keep_failed, checkout=checkout, wait_s=wait_s)
    except NoCapacity as e:
        if wait_s:
            _tell(plan, f"no room for the cluster in {counted(wait_s / 3600, 'hour')}; the last: {e.tried[-1]}", show)
        raise
    if wait_s:
        _tell(plan, f"the cluster has its hosts: {len(hosts)} of {plan.instances} are ready", show)
    return hosts


def _tell(plan: ClusterPlan, text: str, show: Show) -> None:
    """Send a notification directly from this machine, because there may be no master to send it."""
    file = plan.design.file
    if not file.notify:
        return
    try:
        deliver(file.notify, Message(event=NotifyEvent.CAPACITY, job=file.name, text=text))
    except Undelivered as e:
        show(f"notify: {e}")


def create_where_there_is_room(
    aws: Aws,
    plan: ClusterPlan,
    show: Show,
    *,
    keep_failed: bool = False,
    checkout: Checkout | None = None,
    wait_s: float = 0.0,
    pause_s: float = PAUSE_S,
) -> list[GroupMember]:
    """Create the cluster from the first of the plan's choices that AWS has capacity for. Return its hosts.

    Args:
        wait_s: for how long the choices are tried again, round after round.
    Raises NoCapacity with all attempts of the last round, StackError for other failures, FieldError for a reservation
    that begins later than `wait_s` from now. With a single choice and no `wait_s`, AWS itself retries as long as the
    nodes may boot.
    """
    if not plan.stack:
        wait_s = when_begun(plan.design, show, wait_s)
    if plan.stack or (len(plan.choices) == 1 and not wait_s):
        return create(aws, plan, show, keep_failed, checkout)

    def attempt(design: Design) -> list[GroupMember]:
        return create(aws, plans.with_design(aws, design, plan), show, keep_failed, checkout, gives_up=True)

    return where_there_is_room(plan.choices, attempt, show, wait_s=wait_s, pause_s=pause_s)


def begins_of(design: Design) -> tuple[str, str]:
    """Return the start time of the design's reservation, and its id."""
    return design.reservation_begins, design.file.nodes.reservation


def when_begun(design: Design, show: Show, wait_s: float) -> float:
    """Wait until the design's reservation begins. Return what is left of `wait_s`.

    Raises FieldError if `wait_s` is shorter than that.
    """
    if left_s := named_resources.check_begun(*begins_of(design), wait_s):
        show(f"{design.file.nodes.reservation} begins at {design.reservation_begins}: waiting for it")
        time.sleep(left_s)
    return wait_s - left_s


def where_there_is_room(
    choices: Sequence[Chosen], attempt: Callable[[Chosen], T], show: Show, *, wait_s: float, pause_s: float = PAUSE_S
) -> T:
    """Try the choices in order, round after round, and return the result of the first attempt that finds capacity.

    Raises NoCapacity with all attempts of the last round once `wait_s` seconds have passed.
    """
    end = time.monotonic() + wait_s
    while True:
        try:
            return _round(choices, attempt, show)
        except NoCapacity as e:
            left_s = end - time.monotonic()
            if left_s <= 0:
                raise
            pause = min(pause_s, left_s)
            until = datetime.datetime.now() + datetime.timedelta(seconds=left_s)
            show(f"{len(e.tried)} tried in vain; again in {pause:.0f} s, and so on until {until:%Y-%m-%d %H:%M}")
            time.sleep(pause)


def _round(choices: Sequence[Chosen], attempt: Callable[[Chosen], T], show: Show) -> T:
    """Try each choice once. Raises NoCapacity if none has room."""
    tried: list[Tried] = []
    for design in choices:
        show(f"trying {design.instance.name} in {design.zone}")
        try:
            return attempt(design)
        except NoCapacity as e:
            tried += e.tried
            advice = e.advice
    raise NoCapacity(tried, advice)
