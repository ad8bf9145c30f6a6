"""Orphans: resources with our tags that no existing stack made or uses, in every region.

Find, price and remove them.
"""

import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from botocore.exceptions import ClientError

from cfn import orphan_kinds, prices
from cfn.aws import FAILED, Aws, asking, code_of, message_of, pages
from cfn.orphan_kinds import STACK_ID, Tagged, tags_of
from cfn.prices import PriceList
from cluster.terminal import counted
from eks.stack import orphans
from eks.stack.orphans import OF_EKS

_AT_ONCE = 8  # regions
_OF_EKSCTL = "alpha.eksctl.io/cluster-name"  # eksctl's own tag of its stacks and of what they make
KINDS = (*orphans.KINDS, *orphan_kinds.KINDS)


@dataclass(frozen=True, kw_only=True)
class Orphan:
    """Resource that no stack made or uses any more."""

    region: str
    thing: Tagged

    @property
    def command(self) -> str:
        """Return the AWS CLI commands that remove it, or "" if it can only expire by itself."""
        return " && ".join(step.command(self.region) for step in self.thing.steps)

    def as_json(self) -> dict[str, Any]:
        return {
            "region": self.region, "cluster": self.thing.cluster, **self.thing.item.as_json(), "command": self.command
        }  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Found:
    """Orphans that were found, and what could not be searched."""

    orphans: tuple[Orphan, ...]
    unasked: tuple[str, ...]  # a sentence for each query that failed
    regions: int

    @property
    def usd_per_day(self) -> float:
        return sum(o.thing.item.usd_per_day or 0.0 for o in self.orphans)

    def __str__(self) -> str:
        lines = []
        for o in self.orphans:
            lines.append(f"{o.region}  {o.thing.item}, of {o.thing.cluster}")
            lines.append(f"    {o.command or 'ends by itself: nothing removes it before'}")
        if not self.orphans:
            lines.append(f"nothing of ours is left without a stack in {counted(self.regions, 'region')}")
        else:
            lines.append(f"in all  {prices.dollars(self.usd_per_day)} USD per day, {prices.LISTED}")
        return "\n".join(lines)

    def as_json(self) -> dict[str, Any]:
        return {
            "orphans": [o.as_json() for o in self.orphans],
            "usd_per_day": round(self.usd_per_day, 4),
            "unasked": list(self.unasked),
        }


@dataclass(frozen=True)
class _Living:
    """Existing stacks of a region: their ids, their clusters, and everything that their outputs name."""

    ids: frozenset[str]
    clusters: frozenset[str]
    named: frozenset[str]

    def has(self, thing: Tagged) -> bool:
        """Return True if an existing stack made the resource or uses it.

        CloudFormation's tag on the resource names its stack. The tags of EKS and eksctl name its Kubernetes cluster.
        """
        if thing.item.id in self.named or thing.tags.get(STACK_ID) in self.ids:
            return True
        if any(thing.tags.get(name) in self.clusters for name in (OF_EKS, _OF_EKSCTL)):
            return True
        return thing.cluster in self.clusters and STACK_ID not in thing.tags


def regions(aws: Aws) -> list[str]:
    """Return the regions that the account may use."""
    with asking("listing the regions"):
        return sorted(r["RegionName"] for r in aws.client("ec2").describe_regions()["Regions"])


def find(aws: Aws, where: Sequence[str], heard: Callable[[str], None] = lambda _: None) -> Found:
    """Return our orphans in these regions, and the queries that failed. Orphans keep the order of `where` and of KINDS.

    Args:
        heard: is called with each region that has been searched.
    """
    unasked: list[str] = []
    lock = threading.Lock()  # boto3 sessions are not thread-safe when they make clients
    accounts = {region: aws.in_region(region) for region in where}

    def look(region: str) -> list[Orphan]:
        there = accounts[region]
        with lock:
            services = [k.service for k in KINDS] + ["cloudformation"]
            offered = [s for s in dict.fromkeys(services) if there.offers(s)]
            for service in offered:
                there.client(service)
        found = _in_region(there, set(offered), unasked.append)
        heard(region)
        return found

    with ThreadPoolExecutor(_AT_ONCE) as pool:
        found = [one for some in pool.map(look, where) for one in some]
    return Found(orphans=tuple(found), unasked=tuple(unasked), regions=len(where))


def _in_region(aws: Aws, offered: set[str], unasked: Callable[[str], None]) -> list[Orphan]:
    try:
        living = _living(aws)
    except FAILED as e:
        unasked(f"{aws.region}: {_why(e)}")
        return []
    price_list, found = PriceList(aws), []
    for kind in KINDS:
        if kind.service not in offered:
            continue
        try:
            found += [t for t in kind.find(aws, price_list) if not living.has(t)]
        except FAILED as e:
            unasked(f"{aws.region}: {_why(e)}")
    return [Orphan(region=aws.region, thing=t) for t in found]


def _living(aws: Aws) -> _Living:
    stacks = [
        s
        for s in pages(aws.client("cloudformation"), "describe_stacks", "Stacks")
        if s["StackStatus"] != "DELETE_COMPLETE"
    ]
    outputs: Iterable[str] = (o["OutputValue"] for s in stacks for o in s.get("Outputs", []))
    by_eksctl = (tags_of(s.get("Tags", [])).get(_OF_EKSCTL, "") for s in stacks)
    return _Living(
        ids=frozenset(s["StackId"] for s in stacks),
        clusters=frozenset(s["StackName"] for s in stacks) | frozenset(by_eksctl) - {""},
        named=frozenset(outputs),
    )


def _why(error: Exception) -> str:
    if isinstance(error, ClientError):
        return f"{error.operation_name} was refused: {message_of(error)} ({code_of(error)})"
    return " ".join(str(error).split())


def remove(aws: Aws, orphan: Orphan, wait_s: float = 600.0) -> None:
    """Delete an orphan for good. Raises AwsError if AWS refuses."""
    there = aws.in_region(orphan.region)
    for step in orphan.thing.steps:
        step.run(there, f"{orphan.thing.item.kind} {orphan.thing.item.id}", wait_s)
