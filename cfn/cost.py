"""Cost of a cluster so far and its forecast: hours and dollars by host, from the history of its Auto Scaling groups.

`python -m cfn.cost REGION STACK [--since T] [--until T]` prints a JSON object, for other programs.
"""

import argparse
import datetime
import json
import sys
from dataclasses import asdict, dataclass, replace
from typing import Any

from cfn import fixed_costs, in_stack, prices, stack
from cfn.aws import Aws, asking, pages
from cfn.hosts import read
from cluster.clusterfile.model import ClusterFile
from cluster.errors import ClusterError
from cluster.guard.onhost.history import Span, spans


@dataclass(frozen=True, kw_only=True)
class HostCost:
    """Hours and price of one instance that the cluster has or had."""

    instance_id: str
    role: str  # master, worker or node
    rank: int | None  # None: it is gone, or a node of EKS, which has no rank
    address: str  # "" if it is gone
    instance_type: str
    market: str  # on-demand, spot, reservation or capacity-block
    span: Span
    hours: float
    usd_per_hour: float | None
    other_usd_per_hour: float | None  # price in the other market: spot for on-demand, else on-demand

    @property
    def usd(self) -> float | None:
        return None if self.usd_per_hour is None else self.hours * self.usd_per_hour

    @property
    def is_prepaid(self) -> bool:
        """Return True if its hours cost nothing more: it is in a capacity block without a price in the file."""
        return self.market == "capacity-block" and not self.usd_per_hour

    def as_json(self) -> dict[str, Any]:
        values = {k: v for k, v in asdict(self).items() if k != "span"}
        ends = self.span.ends.isoformat() if self.span.ends else None
        return {**values, "begins": self.span.begins.isoformat(), "ends": ends, "usd": self.usd}


@dataclass(frozen=True, kw_only=True)
class ControlPlane:
    """EKS control plane, which is billed by the hour."""

    name: str
    begins: datetime.datetime
    hours: float
    usd_per_hour: float

    @property
    def usd(self) -> float:
        return self.hours * self.usd_per_hour

    def __str__(self) -> str:
        who = f"{'control plane':<24} {self.name:<19}"
        return f"{who}  {self.begins:%Y-%m-%d %H:%M} to now  {self.hours:.2f} h  {prices.dollars(self.usd)} USD"

    def as_json(self) -> dict[str, Any]:
        return {**asdict(self), "begins": self.begins.isoformat(), "usd": self.usd}


@dataclass(frozen=True, kw_only=True)
class Forecast:
    """Predicted total cost at the end of a job, from its current pace and the hosts that run now."""

    job: str
    left_s: float
    usd: float | None

    def __str__(self) -> str:
        return f"{prices.dollars(self.usd)} USD when {self.job} is done, in {self.left_s / 3600:.1f} hours"


@dataclass(frozen=True, kw_only=True)
class Cost:
    """Cost of a cluster so far, by instance."""

    cluster: str
    hosts: tuple[HostCost, ...]
    items: tuple[fixed_costs.DailyCost, ...]  # what is billed besides its instances
    forecast: Forecast | None = None
    control_plane: ControlPlane | None = None  # of a cluster on EKS, while it exists

    @property
    def hours(self) -> float:
        """Return the hours of all instances so far."""
        return sum(h.hours for h in self.hosts)

    @property
    def usd(self) -> float | None:
        """Return the cost of all instances and the control plane so far, or None if a price is unknown."""
        return _sum([*(h.usd for h in self.hosts), *self._of_plane])

    @property
    def other_usd(self) -> float | None:
        """Return the cost of the same hours at the current price of the other market."""
        others = [None if h.other_usd_per_hour is None else h.hours * h.other_usd_per_hour for h in self.hosts]
        return _sum([*others, *self._of_plane])

    @property
    def usd_per_hour(self) -> float | None:
        """Return the cost per hour of the running instances and the control plane."""
        plane = [self.control_plane.usd_per_hour] if self.control_plane else []
        return _sum([*(h.usd_per_hour for h in self.hosts if h.span.ends is None), *plane])

    @property
    def _of_plane(self) -> list[float | None]:
        return [self.control_plane.usd] if self.control_plane else []

    def until(self, job: str, left_s: float) -> Forecast:
        """Return the predicted total cost after another `left_s` seconds."""
        so_far, rate = self.usd, self.usd_per_hour
        usd = None if so_far is None or rate is None else so_far + rate * left_s / 3600
        return Forecast(job=job, left_s=left_s, usd=usd)

    def __str__(self) -> str:
        lines = [_line(h) for h in self.hosts] or ["no instance in the last six weeks"]
        lines += [str(self.control_plane)] if self.control_plane else []
        total = f"total     {self.hours:.2f} hours, {prices.dollars(self.usd)} USD"
        if self.usd_per_hour:
            total += f"; {prices.dollars(self.usd_per_hour)} USD per hour now"
        lines.append(total)
        if self.other_usd is not None and self.hosts:
            markets = {h.market for h in self.hosts}
            other = "other" if len(markets) > 1 else "spot" if markets == {"on-demand"} else "on-demand"
            lines.append(f"{other:<9} {prices.dollars(self.other_usd)} USD for the same hours at today's {other} price")
        if any(h.is_prepaid for h in self.hosts):
            lines.append("the capacity block was paid in advance: it is in no sum here but that of another price")
        if self.usd is None:
            lines.append("a price is unknown: set nodes.usd_per_hour or master.usd_per_hour in the cluster file")
        lines.append(
            f"besides   {prices.dollars(fixed_costs.total(self.items))} USD per day: storage, addresses, way out"
        )
        if self.forecast:
            lines.append(f"forecast  {self.forecast}")
        return "\n".join(lines)

    def as_json(self) -> dict[str, Any]:
        return {
            "cluster": self.cluster,
            "hours": self.hours,
            "usd": self.usd,
            "other_usd": self.other_usd,
            "usd_per_hour": self.usd_per_hour,
            "usd_per_day_besides": fixed_costs.total(self.items),
            "hosts": [h.as_json() for h in self.hosts],
            "control_plane": self.control_plane.as_json() if self.control_plane else None,
            "besides": [i.as_json() for i in self.items],
            "forecast": asdict(self.forecast) if self.forecast else None,
        }


def _line(host: HostCost) -> str:
    here = f"node {host.address:<19}" if host.span.ends is None else f"{'gone':<24}"
    who = f"host {host.rank:<3} {host.address:<15}" if host.rank is not None else here
    until = "now" if host.span.ends is None else f"{host.span.ends:%Y-%m-%d %H:%M}"
    paid = "paid in advance" if host.is_prepaid else f"{prices.dollars(host.usd)} USD"
    return (
        f"{who} {host.instance_id:<19}  {host.instance_type} {host.market}  {host.span.begins:%Y-%m-%d %H:%M} to "
        f"{until}  {host.hours:.2f} h  {paid}"
    )


def _sum(values: list[float | None]) -> float | None:
    return None if None in values else sum(v for v in values if v is not None)


def cluster_cost(
    aws: Aws,
    file: ClusterFile,
    *,
    since: datetime.datetime | None = None,
    until: datetime.datetime | None = None,
    besides: bool = True,
) -> Cost:
    """Return the cost of the cluster that the file describes.

    Args:
        since, until: count only costs between these times, for one job's share.
        besides: include what is billed besides the instances, which needs the operator's own permissions.
    Raises StackError if there is no such stack, AwsError if AWS cannot be queried.
    """
    there = stack.get(aws, file.name)
    outputs = stack.outputs(aws, file.name)
    now = until or datetime.datetime.now(datetime.UTC)
    members = read(aws, outputs)
    price_list = prices.PriceList(aws)
    found: list[HostCost] = []
    for role, group in (("master", outputs["MasterGroup"]), ("worker", outputs["WorkerGroup"])):
        own = {m.instance_id: m for m in members if m.role == role}
        for span in spans(activities(aws, group), {i: m.launched for i, m in own.items()}):
            hours = (span.within(since, now) if since else span.seconds(now)) / 3600
            if hours or not since:
                kind = outputs.get("MasterInstanceType") if role == "master" else None
                one = host_cost(file, price_list, role, span, hours, kind or outputs["InstanceType"], outputs["Zone"])
                member = own.get(span.instance_id)
                found.append(replace(one, rank=member.rank, address=member.address) if member else one)
    items = fixed_costs.standing(aws, file, there) if besides else ()
    return Cost(cluster=file.name, hosts=tuple(sorted(found, key=_order)), items=items)


def _order(host: HostCost) -> tuple[bool, int, datetime.datetime]:
    """Return the sort key of a host: by rank, then hosts that are gone, by start time."""
    return host.rank is None, host.rank or 0, host.span.begins


def activities(aws: Aws, group: str) -> list[dict[str, Any]]:
    """Return the scaling activities of an Auto Scaling group."""
    with asking(f"reading the history of {group}"):
        return pages(aws.client("autoscaling"), "describe_scaling_activities", "Activities", AutoScalingGroupName=group)


def host_cost(
    file: ClusterFile, price_list: prices.PriceList, role: str, span: Span, hours: float, kind: str, zone: str
) -> HostCost:
    """Return the cost of one instance's hours, at the file's price or AWS's. Its rank and address are left empty."""
    own, other = usd_per_hour(file, price_list, role, kind, zone)
    return HostCost(
        instance_id=span.instance_id,
        role=role,
        rank=None,
        address="",
        instance_type=kind,
        market=file.market(role),
        span=span,
        hours=hours,
        usd_per_hour=own,
        other_usd_per_hour=other,
    )


def usd_per_hour(
    file: ClusterFile, price_list: prices.PriceList, role: str, kind: str, zone: str
) -> tuple[float | None, float | None]:
    """Return the hourly price of an instance in its own market and in the other one; None where it is unknown.

    An instance in a capacity block costs 0 per hour: the block was paid in advance.
    """
    on_demand, spot = price_list.on_demand(kind), price_list.spot(kind, zone)
    own, other = {
        "on-demand": (on_demand, spot),
        "spot": (spot, on_demand),
        "reservation": (on_demand, None),
        "capacity-block": (0.0, on_demand),
    }[file.market(role)]
    return file.given_usd_per_hour(role) or own, other


def main(argv: list[str]) -> int:
    """Print what a stack has cost as JSON. Return the exit code."""
    parser = argparse.ArgumentParser(prog="cfn.cost")
    parser.add_argument("region")
    parser.add_argument("stack")
    parser.add_argument("--since", type=datetime.datetime.fromisoformat)
    parser.add_argument("--until", type=datetime.datetime.fromisoformat)
    asked = parser.parse_args(argv)
    aws = Aws(asked.region)
    try:
        file = in_stack.file_of(aws, asked.stack)
        print(json.dumps(cluster_cost(aws, file, since=asked.since, until=asked.until, besides=False).as_json()))
    except ClusterError as e:
        print(e, file=sys.stderr)
        return e.exit_code or 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
