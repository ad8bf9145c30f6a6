"""Capacity blocks: list AWS's offers with price and dates, and buy one, which is charged in full at once."""

import datetime
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from cfn.aws import Aws, asking, pages
from cfn.template.design import TAG
from cluster.errors import ConfigError
from cluster.terminal import counted

MOST_INSTANCES = 64  # of one block, as AWS's user guide says: as many as a cluster may have


@dataclass(frozen=True, kw_only=True)
class Offer:
    """Capacity block that can be bought now."""

    id: str
    instance_type: str
    instances: int
    zone: str
    begins: datetime.datetime
    ends: datetime.datetime
    hours: int
    price: float  # of the whole block, paid at once
    currency: str

    @property
    def each_hour(self) -> float:
        """Return the price of one instance for one hour."""
        return self.price / self.instances / self.hours

    def __str__(self) -> str:
        return (
            f"{self.id}  {self.instances} x {self.instance_type} in {self.zone}, {self.begins:%Y-%m-%d %H:%M} to "
            f"{self.ends:%Y-%m-%d %H:%M} UTC ({counted(self.hours / 24, 'day')}): {self.price:,.2f} "
            f"{self.currency} at once, "
            f"{self.each_hour:.2f} per instance and hour"
        )

    def as_json(self) -> dict[str, Any]:
        times = {"begins": self.begins.isoformat(), "ends": self.ends.isoformat()}
        return {**asdict(self), **times, "each_hour": round(self.each_hour, 4)}


def days_of(days: int) -> int:
    """Return the number of days of a block. Raises ConfigError unless it is 1 to 14, or whole weeks up to 26."""
    if 1 <= days <= 14 or (days % 7 == 0 and 14 < days <= 182):
        return days
    raise ConfigError(f"--days {days}: AWS sells blocks of 1 to 14 days, or of whole weeks up to 182 days")


def offers(
    aws: Aws, kinds: Sequence[str], instances: int, days: int, since: datetime.datetime | None = None
) -> list[Offer]:
    """Return AWS's offers for this many instances of these types, cheapest first.

    Args:
        since: leave out blocks that begin earlier.
    Raises ConfigError if AWS does not sell blocks of this size or length.
    """
    if not 1 <= instances <= MOST_INSTANCES:
        raise ConfigError(f"--instances {instances}: a block has 1 to {MOST_INSTANCES}")
    range_ = {"StartDateRange": since} if since else {}
    found: list[Offer] = []
    with asking("asking for capacity blocks"):
        for kind in kinds:
            found += map(
                _offer,
                pages(
                    aws.client("ec2"),
                    "describe_capacity_block_offerings",
                    "CapacityBlockOfferings",
                    InstanceType=kind,
                    InstanceCount=instances,
                    CapacityDurationHours=24 * days_of(days),
                    **range_,
                ),
            )
    return sorted(found, key=lambda o: (o.price, o.begins, o.id))


def _offer(described: dict[str, Any]) -> Offer:
    return Offer(
        id=described["CapacityBlockOfferingId"],
        instance_type=described["InstanceType"],
        instances=described["InstanceCount"],
        zone=described["AvailabilityZone"],
        begins=described["StartDate"].astimezone(datetime.UTC),
        ends=described["EndDate"].astimezone(datetime.UTC),
        hours=described["CapacityBlockDurationHours"],
        price=float(described["UpfrontFee"]),
        currency=described["CurrencyCode"],
    )


def pick(found: Sequence[Offer], name: str) -> Offer:
    """Return the offer with this id. Raises ConfigError if it is gone, so that no other offer is bought instead."""
    for one in found:
        if one.id == name:
            return one
    raise ConfigError(f"{name} is not among today's {len(found)} offers of this size: look with `inv stack.blocks`")


def buy(aws: Aws, offer: Offer, cluster: str) -> str:
    """Buy the offer, which is charged at once. Return the id of the reservation, tagged with the cluster's name."""
    tags = [{"Key": "Name", "Value": f"{cluster}-block"}, {"Key": f"{TAG}cluster", "Value": cluster}]
    with asking(f"buying {offer.id}"):
        bought = aws.client("ec2").purchase_capacity_block(
            CapacityBlockOfferingId=offer.id,
            InstancePlatform="Linux/UNIX",
            TagSpecifications=[{"ResourceType": "capacity-reservation", "Tags": tags}],
        )
    return str(bought["CapacityReservation"]["CapacityReservationId"])
