"""Fixed costs of a stack, billed whether or not its nodes run: storage, addresses, NAT, reservations."""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from botocore.exceptions import ClientError

from cfn import prices
from cfn.aws import Aws, asking
from cfn.stack import Stack, StackResource, resources
from cluster.clusterfile.model import ClusterFile


@dataclass(frozen=True, kw_only=True)
class DailyCost:
    """Resource that is billed by the day."""

    kind: str
    id: str
    usd_per_day: float | None  # None: unknown
    note: str = ""

    def __str__(self) -> str:
        price = "price unknown" if self.usd_per_day is None else f"{prices.dollars(self.usd_per_day)} USD per day"
        return f"{self.kind} {self.id}: {price}" + (f" ({self.note})" if self.note else "")

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def standing(aws: Aws, file: ClusterFile, stack: Stack) -> tuple[DailyCost, ...]:
    """Return what is billed while no node runs, most expensive first. Items of unknown price come before all."""
    found = [item for one in resources(aws, stack) if (item := _item(aws, one)) is not None]
    if file.nodes.reservation:
        found.append(_reserved(aws, file))
    return tuple(sorted(found, key=lambda i: (i.usd_per_day is not None, -(i.usd_per_day or 0), i.kind, i.id)))


def total(items: Sequence[DailyCost]) -> float:
    """Return USD per day of the items whose price is known."""
    return sum(i.usd_per_day or 0.0 for i in items)


def text(items: Sequence[DailyCost]) -> str:
    """Return one line per item, and the sum."""
    lines = [f"billed   {item}" for item in items]
    return "\n".join([*lines, f"billed   {prices.dollars(total(items))} USD per day in all, {prices.LISTED}"])


def _item(aws: Aws, resource: StackResource) -> DailyCost | None:
    """Return the daily cost of a stack's resource, or None if it costs nothing while no node runs."""
    describe = _KINDS.get(resource.kind)
    if describe is None:
        return None
    with asking(f"looking at {resource.id}"):
        return describe(aws, resource.id)


def _efs(aws: Aws, name: str) -> DailyCost:
    found = aws.client("efs").describe_file_systems(FileSystemId=name)["FileSystems"][0]
    gib = found.get("SizeInBytes", {}).get("Value", 0) / prices.GIB
    return DailyCost(
        kind="EFS", id=name, usd_per_day=prices.efs(found), note=f"{gib:,.1f} GiB; its backups are billed apart"
    )


def _fsx(aws: Aws, name: str) -> DailyCost:
    found = aws.client("fsx").describe_file_systems(FileSystemIds=[name])["FileSystems"][0]
    return DailyCost(
        kind="FSx for Lustre", id=name, usd_per_day=prices.fsx(found), note=f"{found['StorageCapacity']:,} GiB"
    )


def _nat(aws: Aws, name: str) -> DailyCost:
    return DailyCost(kind="NAT gateway", id=name, usd_per_day=prices.per_day(prices.NAT), note="and its traffic")


def _address(aws: Aws, name: str) -> DailyCost:
    return DailyCost(kind="public address", id=name, usd_per_day=prices.per_day(prices.ADDRESS))


def _eks(aws: Aws, name: str) -> DailyCost:
    return DailyCost(kind="Kubernetes", id=name, usd_per_day=prices.per_day(prices.EKS), note="its control plane")


def _key(aws: Aws, name: str) -> DailyCost:
    return DailyCost(kind="key", id=name, usd_per_day=prices.KMS_KEY / prices.DAYS_OF_A_MONTH)


_KINDS: dict[str, Callable[[Aws, str], DailyCost]] = {
    "AWS::EFS::FileSystem": _efs,
    "AWS::FSx::FileSystem": _fsx,
    "AWS::EC2::NatGateway": _nat,
    "AWS::EC2::EIP": _address,
    "AWS::EKS::Cluster": _eks,
    "AWS::KMS::Key": _key,
}


def _reserved(aws: Aws, file: ClusterFile) -> DailyCost:
    """Return the cost of the file's reservation."""
    name = file.nodes.reservation
    try:
        found = aws.client("ec2").describe_capacity_reservations(CapacityReservationIds=[name])
    except ClientError:
        return DailyCost(kind="capacity reservation", id=name, usd_per_day=None, note="it cannot be looked at")
    return reservation(prices.PriceList(aws), found["CapacityReservations"][0])


def reservation(price_list: prices.PriceList, described: dict[str, Any]) -> DailyCost:
    """Return the cost of a capacity reservation as EC2 describes it.

    Unused instances of it are billed as if they ran. A capacity block costs nothing more: it was paid in advance.
    """
    name, free, kind = (
        described["CapacityReservationId"], described.get("AvailableInstanceCount", 0), described["InstanceType"]
    )  # fmt: skip
    if described.get("ReservationType") == "capacity-block":
        return DailyCost(kind="capacity block", id=name, usd_per_day=0.0, note=f"{kind}, paid in advance")
    each = price_list.on_demand(kind)
    usd = None if each is None else prices.per_day(each) * free
    return DailyCost(kind="capacity reservation", id=name, usd_per_day=usd, note=f"{free} x {kind} unused")
