"""What would be made, and what it costs: shown before anything is."""

import json
from dataclasses import dataclass
from typing import Any

from botocore.exceptions import BotoCoreError, ClientError

from cfn import preflight, stack
from cfn.aws import client
from cfn.clusterfile.fields import ClusterFile
from cfn.stack import Stack
from cfn.template import template
from cfn.template.design import Design


@dataclass(frozen=True, kw_only=True)
class Plan:
    """One cluster as it would be created."""

    design: Design
    body: str
    existing: Stack | None
    usd_per_hour: float | None

    @property
    def hosts(self) -> int:
        return self.design.hosts

    def __str__(self) -> str:
        d, file = self.design, self.design.file
        efas = sum(i.kind != "interface" for i in d.interfaces)
        fsx = f", FSx {file.storage.fsx_gib} GiB at {file.storage.fsx_mount}" if file.storage.fsx_gib else ""
        state = f"stack is {self.existing.status}" if self.existing else "no such stack yet"
        door = f"SSH from {file.access.ssh_from}" if d.master_is_public else "SSM only, no open port"
        return "\n".join(
            [
                f"cluster   {file.name} in {d.zone} ({state})",
                f"nodes     1 master + {file.nodes.workers} workers, {d.instance.name}, "
                f"{file.nodes.capacity}: {self.hosts * d.instance.gpus} GPUs, "
                f"{d.instance.slots} slots and {efas} EFA interfaces each",
                f"image     {d.ami}",
                f"network   {file.network.vpc or 'new VPC ' + d.vpc_cidr}; {door}",
                f"storage   EFS {file.storage.efs or 'new, kept when the stack goes'} at {file.shared}{fsx}",
                f"template  {len(self.body.encode())} bytes, {len(template.stack(d).resources)} resources",
                f"cost      {self.cost}",
            ]
        )

    @property
    def cost(self) -> str:
        """In words; the instances only."""
        if self.usd_per_hour is None:
            return "unknown: set nodes.usd_per_hour to see it"
        total = f"{self.usd_per_hour * self.hosts:.2f} USD per hour for {self.hosts} instances"
        return f"{total} ({self.usd_per_hour:.3f} each), storage and NAT extra"

    def as_json(self) -> dict[str, Any]:
        d = self.design
        return {
            "cluster": d.file.name,
            "region": d.file.region,
            "zone": d.zone,
            "ami": d.ami,
            "instance_type": d.instance.name,
            "hosts": self.hosts,
            "slots": d.instance.slots,
            "gpus": self.hosts * d.instance.gpus,
            "template_bytes": len(self.body.encode()),
            "usd_per_hour": None if self.usd_per_hour is None else round(self.usd_per_hour * self.hosts, 4),
            "stack": self.existing.status if self.existing else None,
        }


def make(file: ClusterFile) -> Plan:
    """The plan of a cluster file, checked against the account. Raises ConfigError for what must be corrected first."""
    existing = stack.find(file.name, file.region)
    pinned = existing.outputs if existing and existing.outputs else None
    design = preflight.design_for(file, pinned)
    return Plan(
        design=design, body=template.body(design), existing=existing, usd_per_hour=instance_usd_per_hour(design)
    )


def instance_usd_per_hour(design: Design) -> float | None:
    """Price of one instance; None where nobody says. Spot and reserved capacity have no list price: only the
    file's counts.
    """
    nodes = design.file.nodes
    if nodes.usd_per_hour:
        return nodes.usd_per_hour
    if nodes.capacity != "on-demand":
        return None
    wanted = {
        "instanceType": nodes.instance_type,
        "regionCode": design.file.region,
        "operatingSystem": "Linux",
        "tenancy": "Shared",
        "preInstalledSw": "NA",
        "capacitystatus": "Used",
    }
    filters = [{"Type": "TERM_MATCH", "Field": k, "Value": v} for k, v in wanted.items()]
    try:  # the price list is served from few regions; it is never a reason to stop
        offers = client("pricing", "us-east-1").get_products(ServiceCode="AmazonEC2", Filters=filters)["PriceList"]
    except (ClientError, BotoCoreError):
        return None
    for offer in map(json.loads, offers):
        for term in offer.get("terms", {}).get("OnDemand", {}).values():
            for price in term["priceDimensions"].values():
                if (usd := float(price["pricePerUnit"].get("USD", 0))) > 0:
                    return usd
    return None
