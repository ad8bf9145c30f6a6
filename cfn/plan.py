"""Plan of a cluster: its design, template and cost, shown before anything is created."""

from dataclasses import dataclass, replace
from typing import Any

from cfn import frameworks, guard_deadline, preflight
from cfn.aws import Aws
from cfn.estimate.alternatives import better
from cfn.estimate.layers import network
from cfn.estimate.machines import machine
from cfn.estimate.step import TrainingSettings, step
from cfn.prices import PriceList
from cfn.stack import Stack, find
from cfn.template import template
from cfn.template.design import Design
from cluster.clusterfile.model import ClusterFile
from cluster.errors import ConfigError
from cluster.terminal import counted

# Source: FSx for Lustre User Guide, "Installing the Lustre client", November 2026.
LUSTRE_KERNELS = "6.8, 6.14 and 6.17"


@dataclass(frozen=True, kw_only=True)
class ClusterPlan:
    """Cluster as it would be created, with its cost."""

    design: Design
    body: str
    stack: Stack | None
    """The existing stack, or None before the first create."""
    usd_per_hour: float | None
    """Price of one node."""
    master_usd_per_hour: float | None = None
    """Price of the master; it differs if the master has its own instance type or market."""
    choices: tuple[Design, ...] = ()
    """Designs in the order in which they are tried for capacity, the plan's own first."""

    @property
    def hosts(self) -> int:
        """Return the number of hosts that train."""
        return self.design.file.hosts

    @property
    def instances(self) -> int:
        """Return the number of instances that are billed, spares included."""
        return self.design.file.nodes.instances

    def __str__(self) -> str:
        d, file = self.design, self.design.file
        efas = sum(i.kind != "interface" for i in d.interfaces_of("worker"))
        efa_text, workers = counted(efas, "EFA interface"), counted(file.nodes.workers, "worker")
        spares = f" + {counted(file.nodes.spares, 'spare')}" if file.nodes.spares else ""
        market = " on demand" if file.market("master") != file.nodes.capacity else ""
        kept = f", the master{market}" if market and d.master is None else ""
        one = f"1 master ({d.master.name}{market}, does not train)" if d.master else "1 master"
        fsx = f", FSx {file.storage.fsx_gib} GiB at {file.storage.fsx_mount}" if file.storage.fsx_gib else ""
        state = f"stack is {self.stack.status}" if self.stack else "no such stack yet"
        closed = {"ssm": "Session Manager", "eic": "Instance Connect Endpoint"}
        door = f"SSH from {file.access.ssh_from}" if d.master_is_public else f"no open port, {closed[file.access.mode]}"
        return "\n".join(
            [
                f"cluster   {file.name} in {d.zone} ({state})",
                f"nodes     {one} + {workers}{spares}, {d.instance.name}, "
                f"{file.nodes.capacity}{kept}: {counted(self.hosts * d.instance.gpus, 'GPU')} in all; each host has "
                f"{counted(d.instance.gpus, 'GPU')}, {counted(d.instance.slots, 'slot')} and {efa_text}",
                *([f"tries     {self.order}"] if len(self.choices) > 1 else []),
                f"image     {d.ami}",
                f"trains    with {' or '.join(frameworks.trains_with(d.instance.name)) or 'none of our frameworks'}",
                *([f"speed     {speed}"] if (speed := speed_of(d.instance.name, self.hosts)) else []),
                f"network   {file.network.vpc or 'new VPC ' + d.vpc_cidr}; {door}",
                f"storage   EFS {file.storage.efs or 'new, kept when the stack goes'} at {file.shared}{fsx}",
                f"template  {len(self.body.encode())} bytes, {counted(len(template.stack(d).resources), 'resource')}",
                f"cost      {self.cost}",
                f"guard     {guard_deadline.terms(file)}",
            ]
        )

    @property
    def order(self) -> str:
        """Return a text on the zones and instance types, in the order in which they are tried."""
        zones: dict[str, list[str]] = {}
        for choice in self.choices:
            zones.setdefault(choice.instance.name, []).append(choice.zone)
        least = self.design.file.nodes.min_nodes
        text = ", then ".join(f"{kind} in {', '.join(where)}" for kind, where in zones.items())
        return text + (f"; begins with {counted(least, 'host')} where no more can be had" if least else "")

    @property
    def warnings(self) -> list[str]:
        """Return warnings about settings that AWS accepts but that the operator may not intend."""
        file = self.design.file
        found = frameworks.warnings_for(self.design.instance.name, self.design.ami)
        if self.design.reservation_begins:
            found.append(
                f"warning: {file.nodes.reservation} begins at {self.design.reservation_begins}: before that "
                "'inv stack.create' is refused, unless '--wait' is long enough"
            )
        if not file.nodes.source:
            found.append(
                "warning: nodes.source is empty: unless the AMI or the shared file system has this project already, "
                "the nodes become ready without it and without its runtime, until 'inv sync' and 'inv setup' bring them"
                + (", and setup, which it runs, fails their first boot" if file.setup else "")
            )
        if file.is_guarded and not file.nodes.source:
            found.append(
                "warning: the guard is on, and nodes without this project do not put its end off: unless the AMI has "
                "it, or 'inv sync' brings it, they end however busy they are, at the time said under 'guard'"
            )
        if file.access.allow_wide:
            found.append(f"warning: access.ssh_from lets all of {file.access.ssh_from} try the master's SSH port")
        first = self.design.interfaces_of("master")[0]
        if self.design.master_is_public and first.kind != "interface" and file.nodes.workers:
            found.append(
                "warning: access.mode is ssh: the master's EFA is its public interface, in another subnet than the "
                "workers', and whether EFA's traffic crosses was not seen yet; access.mode = \"ssm\" has all in one, "
                "'inv train.* --profile ena' trains without EFA"
            )
        if file.storage.fsx_gib:
            found.append(
                "warning: storage.fsx_gib: FSx's archive has a Lustre client for Ubuntu 24.04's kernels "
                f"{LUSTRE_KERNELS} alone; on an image with another kernel ('uname -r' there), first boot fails unless "
                "the image brings one"
            )
        if not file.storage.tls:
            found.append("warning: storage.tls is false: the cluster's private key crosses the VPC in plain NFS")
        if self.design.master_is_public and not (file.access.key_pair or file.access.public_key):
            found.append(
                "warning: access.key_pair and access.public_key are empty: only `inv ssh` gets in from here; "
                "set public_key, and the tasks of every day reach the nodes from this machine too"
            )
        return found

    @property
    def cost(self) -> str:
        """Return the cost of the instances alone, as text."""
        if self.usd_per_hour is None:
            return "unknown: set nodes.usd_per_hour to see it"
        if self.total_usd_per_hour is None or self.master_usd_per_hour is None:
            return "unknown for the master: set master.usd_per_hour to see it"
        total = f"{self.total_usd_per_hour:.2f} USD per hour for {counted(self.instances, 'instance')}"
        spares = self.design.file.nodes.spares
        of_them = f", {self.usd_per_hour * spares:.2f} of it for {counted(spares, 'spare')}" if spares else ""
        if self.master_usd_per_hour != self.usd_per_hour:
            of_them = f", the master {self.master_usd_per_hour:.3f}{of_them}"
        return f"{total} ({self.usd_per_hour:.3f} each{of_them}), storage and NAT extra"

    @property
    def total_usd_per_hour(self) -> float | None:
        """Return the cost per hour of all instances, or None if a price is unknown."""
        if self.usd_per_hour is None or self.master_usd_per_hour is None:
            return None
        return self.usd_per_hour * self.design.file.nodes.pool + self.master_usd_per_hour

    def as_json(self) -> dict[str, Any]:
        d = self.design
        return {
            "cluster": d.file.name,
            "region": d.file.region,
            "zone": d.zone,
            "ami": d.ami,
            "instance_type": d.instance.name,
            "master_instance_type": d.instance_of("master").name,
            "master_trains": d.file.master_trains,
            "tries": [{"instance_type": c.instance.name, "zone": c.zone} for c in self.choices],
            "min_nodes": d.file.nodes.min_nodes,
            "hosts": self.hosts,
            "spares": d.file.nodes.spares,
            "slots": d.instance.slots,
            "trains_with": frameworks.trains_with(d.instance.name),
            "speed": speed_of(d.instance.name, self.hosts),
            "gpus": self.hosts * d.instance.gpus,
            "template_bytes": len(self.body.encode()),
            "usd_per_hour": None if self.total_usd_per_hour is None else round(self.total_usd_per_hour, 4),
            "guard": {"idle_minutes": d.file.idle_minutes, **guard_limits(d.file)},
            "stack": self.stack.status if self.stack else None,
            "warnings": self.warnings,
        }


def speed_of(instance_type: str, hosts: int) -> str:
    """Return a sentence on the predicted speed of ResNet-50 and its bottleneck; "" for unknown GPUs.

    It also names hosts of another type that would not have that bottleneck, if there are any.
    """
    try:
        kind = machine(instance_type)
    except ConfigError:
        return ""
    training = TrainingSettings(layers=network("resnet50", 224), batch=256)
    found = step(training, kind, hosts)
    held = {"GPU": "its GPUs", "network": "its network", "input": "its processors, which decode images"}[found.bound]
    said = f"some {found.images_per_s:,.0f} images/s of ResNet-50 in float16 with --xla, bound by {held}"
    if other := better(training, kind, hosts):
        gpus = counted(other.hosts * other.machine.gpus, "GPU")
        said += f"; {other.hosts} x {other.machine.name}, {gpus}: some {other.step.images_per_s:,.0f}"
    return f"{said} (a model: 'inv train.estimate' has others)"


def guard_limits(file: ClusterFile) -> dict[str, float]:
    """Return the limits of the guard, except for idleness."""
    return {"max_hours": file.guard.max_hours, "budget_usd": file.guard.budget_usd}


def make(aws: Aws, file: ClusterFile) -> ClusterPlan:
    """Return the plan of a cluster file, checked against the account. Raises ConfigError for what must be corrected."""
    stack = find(aws, file.name)
    pinned = stack.outputs if stack and stack.outputs else None
    choices = preflight.choices(aws, file, pinned)
    first = ClusterPlan(design=choices[0], body="", stack=stack, usd_per_hour=None, choices=choices)
    return with_design(aws, choices[0], first)


def with_design(aws: Aws, design: Design, plan: ClusterPlan) -> ClusterPlan:
    """Return the plan with another of its designs, and with that design's prices and template."""
    price_list = PriceList(aws)
    each = instance_usd_per_hour(price_list, design, "worker")
    master = instance_usd_per_hour(price_list, design, "master")
    design = guard_deadline.priced(design, each, master)
    return replace(plan, design=design, body=template.body(design), usd_per_hour=each, master_usd_per_hour=master)


def instance_usd_per_hour(price_list: PriceList, design: Design, role: str) -> float | None:
    """Return the hourly price of a master or worker instance, or None if it is unknown.

    Reserved capacity has no list price, so it is known only if the file gives one.
    """
    kind, market = design.instance_of(role).name, design.file.market(role)
    if given := design.file.given_usd_per_hour(role):
        return given
    if market == "spot":
        return price_list.spot(kind, design.zone)
    return price_list.on_demand(kind) if market == "on-demand" else None
