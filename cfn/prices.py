"""AWS prices: instances by the price list of their region, everything else at the list prices of us-east-1."""

import datetime
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from cfn.aws import FAILED, Aws, pages

HOURS_OF_A_DAY = 24.0
DAYS_OF_A_MONTH = 730.0 / 24.0  # AWS bills gigabyte-months of 730 hours

# USD per GB and month in us-east-1, as aws.amazon.com/ebs/pricing, /efs/pricing, /fsx/lustre/pricing and
# /cloudwatch/pricing say; other regions ask up to half as much again.
VOLUMES = {"gp3": 0.08, "gp2": 0.10, "io1": 0.125, "io2": 0.125, "st1": 0.045, "sc1": 0.015, "standard": 0.05}
SNAPSHOT, LOGS = 0.05, 0.03
EFS = {"ValueInStandard": 0.30, "ValueInIA": 0.016, "ValueInArchive": 0.008}
FSX = {125: 0.145, 250: 0.21, 500: 0.34, 1000: 0.60}  # by MB/s per TiB, for Lustre PERSISTENT_2 on SSD
# USD per hour in us-east-1, as aws.amazon.com/vpc/pricing says
ADDRESS, NAT = 0.005, 0.045
# The same of eks/pricing and kms/pricing: a Kubernetes of AWS's in standard support, and a key by the month.
EKS, KMS_KEY = 0.10, 1.0
LOAD_BALANCER = 0.0225  # USD per hour, as aws.amazon.com/elasticloadbalancing/pricing says of a network's
GIB = 2.0**30
LISTED = "by prices of us-east-1 for all but instances"


def per_day(usd_per_hour: float) -> float:
    """Return USD per day of what is billed by the hour."""
    return usd_per_hour * HOURS_OF_A_DAY


def stored(gib: float, usd_per_month: float) -> float:
    """Return USD per day of so many gigabytes at a price per gigabyte and month."""
    return gib * usd_per_month / DAYS_OF_A_MONTH


def volume(described: Mapping[str, Any]) -> float | None:
    """Return USD per day of an EBS volume as EC2 describes it, for its size alone; None for an unknown volume type."""
    price = VOLUMES.get(described.get("VolumeType", ""))
    return None if price is None else stored(described["Size"], price)


def snapshot(described: Mapping[str, Any]) -> float:
    """Return the maximum USD per day of a snapshot as EC2 describes it.

    Blocks that it shares with earlier snapshots are billed only once.
    """
    return stored(described.get("VolumeSize", 0), SNAPSHOT)


def efs(described: Mapping[str, Any]) -> float:
    """Return USD per day of a file system as EFS describes it, by its size. Reads, writes and backups are extra."""
    size = described.get("SizeInBytes", {})
    known = {name: size[name] for name in EFS if size.get(name)} or {"ValueInStandard": size.get("Value", 0)}
    return sum(stored(value / GIB, EFS[name]) for name, value in known.items())


def fsx(described: Mapping[str, Any]) -> float | None:
    """Return USD per day of a file system as FSx describes it, or None if it is not Lustre on SSD."""
    throughput = described.get("LustreConfiguration", {}).get("PerUnitStorageThroughput")
    price = FSX.get(throughput or 0)
    return None if price is None else stored(described["StorageCapacity"], price)


def logs(described: Mapping[str, Any]) -> float:
    """Return USD per day of a log group as CloudWatch describes it, for the stored bytes."""
    return stored(described.get("storedBytes", 0) / GIB, LOGS)


@dataclass(frozen=True)
class PriceList:
    """Cached instance prices of one region. A failed query counts as an unknown price."""

    aws: Aws
    _known: dict[tuple[str, str], float | None] = field(default_factory=dict, compare=False, repr=False)

    def on_demand(self, kind: str) -> float | None:
        """Return USD per hour of one Linux instance of this type, or None if the list has no price."""
        return self._once(("on-demand", kind), lambda: self._listed(kind))

    def spot(self, kind: str, zone: str) -> float | None:
        """Return the current USD per hour of one spot instance in the zone, or None if it is unknown."""
        return self._once((f"spot {zone}", kind), lambda: self._spot_now(kind, zone))

    def _once(self, what: tuple[str, str], ask: Any) -> float | None:
        if what not in self._known:
            try:
                self._known[what] = ask()
            except FAILED:
                self._known[what] = None
        return self._known[what]

    def _listed(self, kind: str) -> float | None:
        wanted = {
            "instanceType": kind,
            "regionCode": self.aws.region,
            "operatingSystem": "Linux",
            "tenancy": "Shared",
            "preInstalledSw": "NA",
            "capacitystatus": "Used",
        }
        filters = [{"Type": "TERM_MATCH", "Field": k, "Value": v} for k, v in wanted.items()]
        pricing = self.aws.in_region("us-east-1").client("pricing")  # the price list API exists in few regions
        for offer in map(json.loads, pricing.get_products(ServiceCode="AmazonEC2", Filters=filters)["PriceList"]):
            for term in offer.get("terms", {}).get("OnDemand", {}).values():
                for price in term["priceDimensions"].values():
                    if (usd := float(price["pricePerUnit"].get("USD", 0))) > 0:
                        return usd
        return None

    def _spot_now(self, kind: str, zone: str) -> float | None:
        found = pages(
            self.aws.client("ec2"),
            "describe_spot_price_history",
            "SpotPriceHistory",
            InstanceTypes=[kind],
            AvailabilityZone=zone,
            ProductDescriptions=["Linux/UNIX"],
            StartTime=datetime.datetime.now(datetime.UTC),
        )
        newest = max(found, key=lambda one: one["Timestamp"], default=None)
        return float(newest["SpotPrice"]) if newest else None


def dollars(usd: float | None) -> str:
    """Return a sum as people read it: '0.16', '98.32', '12,345', 'unknown'."""
    if usd is None:
        return "unknown"
    return f"{usd:,.0f}" if usd >= 10_000 else f"{usd:,.2f}"
