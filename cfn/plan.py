"""What would be made, and what it costs: shown before anything is."""

import json
from dataclasses import dataclass
from typing import Any

from botocore.exceptions import BotoCoreError, ClientError

from cfn import preflight
from cfn.aws import Aws
from cfn.clusterfile.fields import ClusterFile
from cfn.stack import Stack, find
from cfn.template import template
from cfn.template.design import Design


@dataclass(frozen=True, kw_only=True)
class Plan:
    """One cluster as it would be created."""

    design: Design
    body: str
    stack: Stack | None
    """The stack as it is now; none before the first create."""
    usd_per_hour: float | None

    @property
    def hosts(self) -> int:
        return self.design.hosts

    def __str__(self) -> str:
        d, file = self.design, self.design.file
        efas = sum(i.kind != "interface" for i in d.interfaces)
        efa_text, workers = counted(efas, "EFA interface"), counted(file.nodes.workers, "worker")
        fsx = f", FSx {file.storage.fsx_gib} GiB at {file.storage.fsx_mount}" if file.storage.fsx_gib else ""
        state = f"stack is {self.stack.status}" if self.stack else "no such stack yet"
        door = f"SSH from {file.access.ssh_from}" if d.master_is_public else "SSM only, no open port"
        return "\n".join(
            [
                f"cluster   {file.name} in {d.zone} ({state})",
                f"nodes     1 master + {workers}, {d.instance.name}, "
                f"{file.nodes.capacity}: {self.hosts * d.instance.gpus} GPUs, "
                f"{d.instance.slots} slots and {efa_text} each",
                f"image     {d.ami}",
                f"network   {file.network.vpc or 'new VPC ' + d.vpc_cidr}; {door}",
                f"storage   EFS {file.storage.efs or 'new, kept when the stack goes'} at {file.shared}{fsx}",
                f"template  {len(self.body.encode())} bytes, {len(template.stack(d).resources)} resources",
                f"cost      {self.cost}",
            ]
        )

    @property
    def warnings(self) -> list[str]:
        """What AWS would take, and the operator may not have meant."""
        file, found = self.design.file, []
        if not file.nodes.source:
            found.append(
                "warning: nodes.source is empty: unless the AMI or the shared file system has this project already, "
                "the nodes become ready without it and without its runtime"
            )
        if file.access.allow_wide:
            found.append(f"warning: access.ssh_from lets all of {file.access.ssh_from} try the master's SSH port")
        if not file.storage.tls:
            found.append("warning: storage.tls is false: the cluster's private key crosses the VPC in plain NFS")
        if not (file.access.key_pair or file.access.public_key):
            found.append(
                "warning: access.key_pair and access.public_key are empty: only `inv ssh` gets in from here; "
                "set public_key, and the tasks of every day reach the nodes from this machine too"
            )
        return found

    @property
    def cost(self) -> str:
        """In words; the instances only."""
        if self.usd_per_hour is None:
            return "unknown: set nodes.usd_per_hour to see it"
        total = f"{self.usd_per_hour * self.hosts:.2f} USD per hour for {counted(self.hosts, 'instance')}"
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
            "stack": self.stack.status if self.stack else None,
            "warnings": self.warnings,
        }


def counted(number: int, noun: str) -> str:
    """'1 worker', '2 workers'."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


def make(aws: Aws, file: ClusterFile) -> Plan:
    """The plan of a cluster file, checked against the account. Raises ConfigError for what must be corrected first."""
    stack = find(aws, file.name)
    pinned = stack.outputs if stack and stack.outputs else None
    design = preflight.design_for(aws, file, pinned)
    return Plan(design=design, body=template.body(design), stack=stack, usd_per_hour=instance_usd_per_hour(design))


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
        offers = Aws("us-east-1").client("pricing").get_products(ServiceCode="AmazonEC2", Filters=filters)["PriceList"]
    except (ClientError, BotoCoreError):
        return None
    for offer in map(json.loads, offers):
        for term in offer.get("terms", {}).get("OnDemand", {}).values():
            for price in term["priceDimensions"].values():
                if (usd := float(price["pricePerUnit"].get("USD", 0))) > 0:
                    return usd
    return None
