"""Plan of an EKS cluster: its design, template and cost, shown before anything is created."""

from dataclasses import dataclass, replace
from typing import Any

from cfn import prices
from cfn.aws import Aws
from cfn.plan import ClusterPlan, counted, instance_usd_per_hour
from cfn.prices import PriceList
from cfn.stack import find
from cluster.clusterfile.model import ClusterFile
from eks.stack import preflight, template
from eks.stack.addons import BEFORE_NODES, FSX, ON_NODES
from eks.stack.design import EksDesign

NO_GUARD = "none: EKS keeps its node group itself, so nothing of ours ends a forgotten cluster; `inv eks.delete` does"


@dataclass(frozen=True, kw_only=True)
class EksPlan(ClusterPlan):
    """EKS cluster as it would be created. Change sets accept it like the bare cluster's plan."""

    design: EksDesign
    designs: tuple[EksDesign, ...] = ()
    """Designs in the order in which they are tried for capacity, the plan's own first."""

    @property
    def instances(self) -> int:
        """Return the number of nodes, all of which train."""
        return self.design.nodes

    @property
    def total_usd_per_hour(self) -> float | None:
        """Return the cost per hour of nodes and control plane, or None if the instance price is unknown."""
        return None if self.usd_per_hour is None else self.usd_per_hour * self.instances + prices.EKS

    @property
    def addons(self) -> list[str]:
        """Return AWS's names of the add-ons."""
        resources = template.stack(self.design).resources
        known = {**BEFORE_NODES, **ON_NODES, **FSX}
        return sorted(name for title, name in known.items() if title in resources)

    def __str__(self) -> str:
        d, file = self.design, self.design.file
        efa = counted(sum(i.kind != "interface" for i in d.interfaces_of("worker")), "EFA interface")
        state = f"stack is {self.stack.status}" if self.stack else "no such stack yet"
        fsx = f", FSx {file.storage.fsx_gib} GiB" if file.storage.fsx_gib else ""
        way = f"from {', '.join(d.api_cidrs)}" if d.api_cidrs else "from inside of its VPC only"
        return "\n".join(
            [
                f"cluster   {file.name} in {d.zone} ({state}), Kubernetes {file.eks.version}",
                f"nodes     {self.instances}, {d.instance.name}, {file.nodes.capacity}: "
                f"{counted(self.instances * d.instance.gpus, 'GPU')}, "
                f"{counted(d.instance.slots, 'slot')} and {efa} each",
                *([f"tries     {self.order}"] if len(self.choices) > 1 else []),
                f"image     EKS's own, {d.ami_type}",
                f"add-ons   {', '.join(self.addons)}",
                f"network   {file.network.vpc or 'new VPC ' + d.vpc_cidr}; EKS itself in {d.zone} and {d.second_zone}",
                f"API       {way}; {d.operator or 'nobody'} may do everything",
                f"storage   EFS {file.storage.efs or 'new, kept when the stack goes'}{fsx}",
                f"template  {len(self.body.encode())} bytes, {counted(len(template.stack(d).resources), 'resource')}",
                f"cost      {self.cost}",
                f"guard     {NO_GUARD}",
            ]
        )

    @property
    def warnings(self) -> list[str]:
        """Return warnings about settings that AWS accepts but that the operator may not intend."""
        found = []
        if not self.design.api_cidrs:
            found.append(
                "warning: access.ssh_from and eks.allow_cidrs are empty: kubectl reaches the API from inside of the "
                "VPC only; set one of them to where you come from"
            )
        if not self.design.file.storage.tls:
            found.append("warning: storage.tls is false: what trainings read and write crosses the VPC in plain NFS")
        return found

    @property
    def cost(self) -> str:
        """Return the cost of nodes and control plane, as text."""
        if self.usd_per_hour is None or self.total_usd_per_hour is None:
            return (
                f"unknown: set nodes.usd_per_hour to see it; {prices.EKS:.2f} USD per hour of it for the control plane"
            )
        return (
            f"{self.total_usd_per_hour:.2f} USD per hour: {counted(self.instances, 'node')} "
            f"({self.usd_per_hour:.3f} each) and {prices.EKS:.2f} for the control plane; storage and NAT extra"
        )

    def as_json(self) -> dict[str, Any]:
        d, total = self.design, self.total_usd_per_hour
        return {
            "cluster": d.file.name,
            "region": d.file.region,
            "zone": d.zone,
            "second_zone": d.second_zone,
            "version": d.file.eks.version,
            "instance_type": d.instance.name,
            "capacity": d.file.nodes.capacity,
            "tries": [{"instance_type": c.instance.name, "zone": c.zone} for c in self.choices],
            "nodes": self.instances,
            "slots": d.instance.slots,
            "gpus": self.instances * d.instance.gpus,
            "addons": self.addons,
            "api_from": list(d.api_cidrs),
            "operator": d.operator,
            "template_bytes": len(self.body.encode()),
            "usd_per_hour": None if total is None else round(total, 4),
            "guard": None,
            "stack": self.stack.status if self.stack else None,
            "warnings": self.warnings,
        }


def make(aws: Aws, file: ClusterFile) -> EksPlan:
    """Return the plan of a cluster file, checked against the account. Raises ConfigError for what must be corrected."""
    stack = find(aws, file.eks_stack)
    pinned = stack.outputs if stack and stack.outputs else None
    designs = preflight.choices(aws, file, pinned)
    first = EksPlan(design=designs[0], designs=designs, choices=designs, body="", stack=stack, usd_per_hour=None)
    return with_design(aws, designs[0], first)


def with_design(aws: Aws, design: EksDesign, plan: EksPlan) -> EksPlan:
    """Return the plan with another of its designs, and with that design's price and template."""
    each = instance_usd_per_hour(PriceList(aws), design, "worker")
    return replace(plan, design=design, body=template.body(design), usd_per_hour=each)
