"""Operations of other services that moto lacks or answers wrongly, answered from the fake's own state."""

import datetime
import json
from typing import Any, ClassVar

from moto.ec2 import ec2_backends

from lab.aws.moto_client import client
from lab.aws.protocol import AwsFault, page
from lab.aws.state import ACCOUNT, FakeState

DLAMI_PATH = "/aws/service/deeplearning/ami/"
DLAMI_NAMES = tuple(
    f"{arch}/base-oss-nvidia-driver-gpu-{os}/latest/ami-id"
    for arch in ("x86_64", "arm64")
    for os in ("ubuntu-22.04", "ubuntu-24.04", "amazon-linux-2023")
)
QUOTAS = {
    "L-417A185B": ("Running On-Demand P instances", 12_288.0),
    "L-7212CCBC": ("All P Spot Instance Requests", 12_288.0),
    "L-DB2E81BA": ("Running On-Demand G and VT instances", 4096.0),
    "L-1216C47A": ("Running On-Demand Standard (A, C, D, H, I, M, R, T, Z) instances", 4096.0),
    "L-34B43A08": ("All Standard (A, C, D, H, I, M, R, T, Z) Spot Instance Requests", 4096.0),
    "L-3819A6DF": ("All G and VT Spot Instance Requests", 4096.0),
}


class Extras:
    """Handler of the operations in `operations`. All other operations of these services are moto's."""

    operations: ClassVar[dict[str, set[str]]] = {
        "ec2": {
            "CreatePlacementGroup",
            "DeletePlacementGroup",
            "DescribePlacementGroups",
            "DescribeCapacityReservations",
            "CancelCapacityReservation",
            "DescribeCapacityBlockOfferings",
            "PurchaseCapacityBlock",
            "DescribeSpotPriceHistory",
            "GetEbsDefaultKmsKeyId",
        },
        "resourcegroupstaggingapi": {"GetResources"},
        "service-quotas": {"GetServiceQuota"},
        "pricing": {"GetProducts"},
        "ssm": {"GetParameter"},
        "fsx": {"DescribeDataRepositoryAssociations"},
        "sts": {"GetCallerIdentity"},
    }

    def __init__(self, world: FakeState) -> None:
        self.world = world

    def takes(self, service: str, operation: str, p: dict[str, Any]) -> bool:
        if service == "ssm":
            return operation == "GetParameter" and p.get("Name", "").startswith(DLAMI_PATH)
        return operation in self.operations.get(service, ())

    def answer(self, service: str, operation: str, region: str, p: dict[str, Any]) -> dict[str, Any]:
        name = {
            "GetParameter": "parameter",
            "GetServiceQuota": "quota",
            "GetProducts": "products",
            "DescribeDataRepositoryAssociations": "links",
            "DescribeSpotPriceHistory": "spot_prices",
            "GetResources": "tagged_log_groups",
            "GetCallerIdentity": "caller",
            "GetEbsDefaultKmsKeyId": "ebs_key",
        }.get(operation)
        name = name or "".join("_" + c.lower() if c.isupper() else c for c in operation).lstrip("_")
        return getattr(self, name)(region, p)

    def parameter(self, region: str, p: dict[str, Any]) -> dict[str, Any]:
        """Return a public parameter of the DLAMI. An image of that name is registered on first use."""
        name = p["Name"]
        if name.removeprefix(DLAMI_PATH) not in DLAMI_NAMES:
            raise AwsFault("ParameterNotFound", f"Parameter {name} not found.")
        if (region + name) not in self.world.amis:
            title = f"Deep Learning Base OSS Nvidia Driver GPU AMI {name.split('/')[6]}"
            arch = "arm64" if "/arm64/" in name else "x86_64"
            made = client("ec2", region).register_image(
                Name=title, Architecture=arch, RootDeviceName="/dev/sda1", VirtualizationType="hvm"
            )
            # moto's RegisterImage forgets the architecture.
            ec2_backends[ACCOUNT][region].amis[made["ImageId"]].architecture = arch
            self.world.amis[region + name] = made["ImageId"]
        return {
            "Parameter": {
                "Name": name,
                "Type": "String",
                "Value": self.world.amis[region + name],
                "Version": 1,
                "DataType": "text",
                "ARN": f"arn:aws:ssm:{region}::parameter{name}",
            }
        }

    def caller(self, region: str, p: dict[str, Any]) -> dict[str, Any]:
        """Return the caller's identity. Moto would return a user in STS, which has no users."""
        return {"UserId": "AIDAFAKE", "Account": ACCOUNT, "Arn": self.world.caller}

    def ebs_key(self, region: str, p: dict[str, Any]) -> dict[str, Any]:
        """Return the key that ModifyEbsDefaultKmsKeyId has set. Moto stores it but cannot return it."""
        return {"KmsKeyId": default_disk_key(region) or f"arn:aws:kms:{region}:{ACCOUNT}:alias/aws/ebs"}

    def quota(self, region: str, p: dict[str, Any]) -> dict[str, Any]:
        if p["ServiceCode"] != "ec2" or p["QuotaCode"] not in QUOTAS:
            raise AwsFault(
                "NoSuchResourceException", "The request failed because the specified service does not exist."
            )
        name, value = QUOTAS[p["QuotaCode"]]
        return {
            "Quota": {
                "ServiceCode": "ec2",
                "QuotaCode": p["QuotaCode"],
                "QuotaName": name,
                "Value": self.world.quotas.get(p["QuotaCode"], value),
            }
        }

    def products(self, region: str, p: dict[str, Any]) -> dict[str, Any]:
        """Return prices that a test has set. Other types have none, like a type that is not in the price list yet."""
        kind = next(f["Value"] for f in p["Filters"] if f["Field"] == "instanceType")
        if kind not in self.world.prices:
            return {"FormatVersion": "aws_v1", "PriceList": []}
        price = {"unit": "Hrs", "pricePerUnit": {"USD": f"{self.world.prices[kind]:.10f}"}}
        offer = {
            "product": {"attributes": {"instanceType": kind}},
            "terms": {"OnDemand": {"a": {"priceDimensions": {"b": price}}}},
        }
        return {"FormatVersion": "aws_v1", "PriceList": [json.dumps(offer)]}

    def spot_prices(self, region: str, p: dict[str, Any]) -> dict[str, Any]:
        """Return the spot prices that a test has set, dated one hour ago."""
        zone = p.get("AvailabilityZone", f"{region}a")
        began = datetime.datetime.now(datetime.UTC) - datetime.timedelta(hours=1)
        return {
            "SpotPriceHistory": [
                {
                    "AvailabilityZone": zone,
                    "InstanceType": kind,
                    "ProductDescription": "Linux/UNIX",
                    "SpotPrice": f"{self.world.spot_prices[kind]:.6f}",
                    "Timestamp": began,
                }
                for kind in p.get("InstanceTypes", [])
                if kind in self.world.spot_prices
            ]
        }

    def tagged_log_groups(self, region: str, p: dict[str, Any]) -> dict[str, Any]:
        """Return the log groups with certain tags.

        Moto's tagging API does not know log groups; this one knows nothing else.
        """
        if p.get("ResourceTypeFilters") != ["logs:log-group"]:
            raise AwsFault("InvalidParameterException", "this fake finds log groups by their tags, and nothing else")
        logs, wanted = client("logs", region), {f["Key"] for f in p.get("TagFilters", [])}
        found = []
        for group in logs.describe_log_groups()["logGroups"]:
            tags = logs.list_tags_log_group(logGroupName=group["logGroupName"])["tags"]
            if wanted <= tags.keys():
                arn = f"arn:aws:logs:{region}:{ACCOUNT}:log-group:{group['logGroupName']}"
                found.append({"ResourceARN": arn, "Tags": [{"Key": k, "Value": v} for k, v in tags.items()]})
        return {"ResourceTagMappingList": found}

    def links(self, region: str, p: dict[str, Any]) -> dict[str, Any]:
        return {
            "Associations": [
                {"AssociationId": k, "FileSystemId": v["FileSystemId"], "DataRepositoryPath": v["DataRepositoryPath"]}
                for k, v in self.world.links.items()
            ]
        }

    def create_placement_group(self, region: str, p: dict[str, Any]) -> dict[str, Any]:
        self.world.placement_groups[region, p["GroupName"]] = {
            "GroupName": p["GroupName"],
            "Strategy": p.get("Strategy", "cluster"),
            "State": "available",
            "Tags": _tags_of(p, "placement-group"),
        }
        return {}

    def delete_placement_group(self, region: str, p: dict[str, Any]) -> dict[str, Any]:
        if not self.world.placement_groups.pop((region, p["GroupName"]), None):
            raise AwsFault("InvalidPlacementGroup.Unknown", f"The Placement Group '{p['GroupName']}' is unknown.")
        return {}

    def describe_placement_groups(self, region: str, p: dict[str, Any]) -> dict[str, Any]:
        here = [g for (where, _), g in self.world.placement_groups.items() if where == region]
        if missing := set(p.get("GroupNames", [])) - {g["GroupName"] for g in here}:
            raise AwsFault("InvalidPlacementGroup.Unknown", f"The Placement Group '{missing.pop()}' is unknown.")
        return {"PlacementGroups": [g for g in here if _passes(g, p)]}

    def describe_capacity_reservations(self, region: str, p: dict[str, Any]) -> dict[str, Any]:
        wanted = p.get("CapacityReservationIds") or [
            name for name, r in self.world.reservations.items() if r["AvailabilityZone"].startswith(region)
        ]
        for name in wanted:
            if name not in self.world.reservations:
                raise AwsFault(
                    "InvalidCapacityReservationId.NotFound", f"The capacity reservation ID '{name}' does not exist"
                )
        found = [{**self.world.reservations[n], "State": reservation_state(self.world, n)} for n in wanted]
        return {"CapacityReservations": [r for r in found if _passes(r, p)]}

    def describe_capacity_block_offerings(self, region: str, p: dict[str, Any]) -> dict[str, Any]:
        """Return the offers set by a test that have exactly this type, size and length and lie within the dates."""
        if not 1 <= p.get("InstanceCount", 1) <= 64 or p["CapacityDurationHours"] % 24:
            raise AwsFault("InvalidParameterValue", "InstanceCount is 1 to 64, CapacityDurationHours whole days")
        wanted = {
            "InstanceType": p.get("InstanceType"),
            "InstanceCount": p.get("InstanceCount"),
            "CapacityBlockDurationHours": p["CapacityDurationHours"],
        }
        found = [
            o
            for o in self.world.block_offers
            if o["AvailabilityZone"].startswith(region)
            and all(value in (None, o[name]) for name, value in wanted.items())
            and o["StartDate"] >= _moment(p.get("StartDateRange", o["StartDate"]))
            and o["EndDate"] <= _moment(p.get("EndDateRange", o["EndDate"]))
        ]
        items, token = page(found, p, self.world.page_size, "MaxResults")
        return {"CapacityBlockOfferings": items, **token}

    def purchase_capacity_block(self, region: str, p: dict[str, Any]) -> dict[str, Any]:
        """Replace an offer by a reservation that begins with the block."""
        name = p["CapacityBlockOfferingId"]
        offer = next((o for o in self.world.block_offers if o["CapacityBlockOfferingId"] == name), None)
        if offer is None:
            raise AwsFault("InvalidCapacityBlockOfferingId.NotFound", f"The offering ID '{name}' does not exist")
        self.world.block_offers.remove(offer)
        made = {
            "CapacityReservationId": f"cr-{len(self.world.reservations) + 1:017x}",
            "ReservationType": "capacity-block",
            "State": "scheduled",
            "InstancePlatform": p["InstancePlatform"],
            "TotalInstanceCount": offer["InstanceCount"],
            "AvailableInstanceCount": offer["InstanceCount"],
            "Tags": _tags_of(p, "capacity-reservation"),
            **{key: offer[key] for key in ("InstanceType", "AvailabilityZone", "StartDate", "EndDate")},
        }
        self.world.reservations[made["CapacityReservationId"]] = made
        return {"CapacityReservation": made}

    def cancel_capacity_reservation(self, region: str, p: dict[str, Any]) -> dict[str, Any]:
        found = self.describe_capacity_reservations(region, {"CapacityReservationIds": [p["CapacityReservationId"]]})
        for one in found["CapacityReservations"]:
            if one.get("ReservationType") == "capacity-block":
                raise AwsFault("OperationNotPermitted", "A Capacity Block cannot be cancelled.")
            self.world.reservations[one["CapacityReservationId"]]["State"] = "cancelled"
        return {"Return": True}


def reservation_state(world: FakeState, name: str) -> str:
    """Return a reservation's state by AWS's clock. A scheduled one is active once it begins."""
    one = world.reservations[name]
    has_begun = one["State"] == "scheduled" and "StartDate" in one and _moment(one["StartDate"]) <= world.now()
    return "active" if has_begun else str(one["State"])


def default_disk_key(region: str) -> str:
    """Return the account's own default key for disks; empty if AWS's key is the default."""
    return str(ec2_backends[ACCOUNT][region].default_kms_key_id)


def _moment(value: Any) -> datetime.datetime:
    """Parse a time of a request, which moto's parser leaves as text."""
    found = datetime.datetime.fromisoformat(str(value))
    return found if found.tzinfo else found.replace(tzinfo=datetime.UTC)


def _tags_of(p: dict[str, Any], kind: str) -> list[dict[str, str]]:
    """Return the tags that a request gives to the resource it creates."""
    return [t for spec in p.get("TagSpecifications", []) if spec["ResourceType"] == kind for t in spec["Tags"]]


def _passes(described: dict[str, Any], p: dict[str, Any]) -> bool:
    """Return True if the resource matches the request's filters. This fake knows only the filter `tag-key`."""
    keys = {t["Key"] for t in described.get("Tags", [])}
    for wanted in p.get("Filters", []):
        if wanted["Name"] != "tag-key":
            raise AwsFault("InvalidParameterValue", f"this fake does not filter by {wanted['Name']}")
        if not keys & set(wanted["Values"]):
            return False
    return True
