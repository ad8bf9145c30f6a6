"""Operations of other services that moto lacks or answers wrongly, answered from the fake's own state."""

import json
from typing import Any, ClassVar

from moto.ec2 import ec2_backends

from cluster.lab.aws.inner import client
from cluster.lab.aws.wire import AwsFault
from cluster.lab.aws.world import ACCOUNT, World

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
    "L-3819A6DF": ("All G and VT Spot Instance Requests", 4096.0),
}


class Extras:
    """`operations` says what is answered here; all else of these services is moto's."""

    operations: ClassVar[dict[str, set[str]]] = {
        "ec2": {
            "CreatePlacementGroup",
            "DeletePlacementGroup",
            "DescribePlacementGroups",
            "DescribeCapacityReservations",
        },
        "service-quotas": {"GetServiceQuota"},
        "pricing": {"GetProducts"},
        "ssm": {"GetParameter"},
        "fsx": {"DescribeDataRepositoryAssociations"},
    }

    def __init__(self, world: World) -> None:
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
        }.get(operation)
        name = name or "".join("_" + c.lower() if c.isupper() else c for c in operation).lstrip("_")
        return getattr(self, name)(region, p)

    def parameter(self, region: str, p: dict[str, Any]) -> dict[str, Any]:
        """The DLAMI's public parameters; an image of that name is made on first use."""
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
        """Prices that a test set; none otherwise, as for a type that the price list does not have yet."""
        kind = next(f["Value"] for f in p["Filters"] if f["Field"] == "instanceType")
        if kind not in self.world.prices:
            return {"FormatVersion": "aws_v1", "PriceList": []}
        price = {"unit": "Hrs", "pricePerUnit": {"USD": f"{self.world.prices[kind]:.10f}"}}
        offer = {
            "product": {"attributes": {"instanceType": kind}},
            "terms": {"OnDemand": {"a": {"priceDimensions": {"b": price}}}},
        }
        return {"FormatVersion": "aws_v1", "PriceList": [json.dumps(offer)]}

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
        }
        return {}

    def delete_placement_group(self, region: str, p: dict[str, Any]) -> dict[str, Any]:
        if not self.world.placement_groups.pop((region, p["GroupName"]), None):
            raise AwsFault("InvalidPlacementGroup.Unknown", f"The Placement Group '{p['GroupName']}' is unknown.")
        return {}

    def describe_placement_groups(self, region: str, p: dict[str, Any]) -> dict[str, Any]:
        return {"PlacementGroups": [g for (where, _), g in self.world.placement_groups.items() if where == region]}

    def describe_capacity_reservations(self, region: str, p: dict[str, Any]) -> dict[str, Any]:
        wanted = p.get("CapacityReservationIds") or list(self.world.reservations)
        for name in wanted:
            if name not in self.world.reservations:
                raise AwsFault(
                    "InvalidCapacityReservationId.NotFound", f"The capacity reservation ID '{name}' does not exist"
                )
        return {"CapacityReservations": [self.world.reservations[n] for n in wanted]}
