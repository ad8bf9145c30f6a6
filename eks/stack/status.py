"""State of an EKS cluster in one report: stack, control plane, nodes, add-ons, and current cost."""

from dataclasses import asdict, dataclass
from typing import Any

from botocore.exceptions import ClientError

from cfn import cost, prices
from cfn.aws import Aws, asking, code_of, pages
from cfn.fixed_costs import DailyCost, standing, total
from cfn.plan import counted
from cfn.rollback import way_out
from cfn.stack import Stack, StackError, StackEvent, events, find, first_cause
from cluster.clusterfile.model import ClusterFile


@dataclass(frozen=True, kw_only=True)
class Part:
    """Control plane, node group or add-on, as EKS describes it."""

    kind: str  # Kubernetes, nodes or add-on
    name: str
    status: str  # as EKS names it
    version: str
    issues: tuple[str, ...] = ()  # problems that EKS reports

    def __str__(self) -> str:
        wrong = "".join(f"  {issue}" for issue in self.issues)
        return f"{self.kind:<10} {self.name}  {self.version}  {self.status}{wrong}"


@dataclass(frozen=True, kw_only=True)
class EksStatus:
    """State of an EKS cluster: stack, parts, nodes, cost and problems."""

    stack: Stack
    parts: tuple[Part, ...]
    wanted: int  # desired number of nodes
    nodes: int  # running nodes
    usd_per_hour: float | None  # of running nodes and control plane; None: unknown
    billed: tuple[DailyCost, ...]
    cause: StackEvent | None = None

    @property
    def problems(self) -> list[str]:
        """Return what is wrong with the cluster, with the remedy for each problem."""
        if not self.stack.is_usable:
            return [way_out(self.stack, "eks")]
        found = [f"{p.kind} {p.name} is {p.status}" for p in self.parts if p.status not in ("ACTIVE", "UPDATING")]
        if not any(p.kind == "Kubernetes" for p in self.parts):
            found.append("the Kubernetes itself is gone: `inv eks.delete`, then create it anew")
        if self.nodes != self.wanted:
            found.append(f"{self.nodes} of {counted(self.wanted, 'node')} run; EKS goes on trying")
        return found

    def __str__(self) -> str:
        lines = [f"stack      {self.stack.name}  {self.stack.status}  {self.stack.reason}".rstrip()]
        if self.stack.outputs:
            lines.append(f"storage    EFS {self.stack.outputs['FileSystem']}")
        if self.cause and not self.stack.is_usable:
            lines.append(f"cause      {self.cause.resource}: {self.cause.reason}")
        lines += [str(p) for p in self.parts]
        if self.stack.is_usable:
            lines.append(f"running    {self.nodes} of {counted(self.wanted, 'node')}")
            lines += [f"wrong      {problem}" for problem in self.problems]
            lines.append(f"cost       {prices.dollars(self.usd_per_hour)} USD per hour for nodes and control plane")
        lines += [f"besides    {item}" for item in self.billed]
        return "\n".join(lines)

    def as_json(self) -> dict[str, Any]:
        return {
            "stack": {"name": self.stack.name, "status": self.stack.status, "reason": self.stack.reason},
            "healthy": not self.problems,
            "problems": self.problems,
            "outputs": self.stack.outputs,
            "parts": [asdict(p) for p in self.parts],
            "nodes": {"wanted": self.wanted, "running": self.nodes},
            "usd_per_hour": None if self.usd_per_hour is None else round(self.usd_per_hour, 4),
            "besides": [i.as_json() for i in self.billed],
            "usd_per_day_besides": round(total(self.billed), 4),
            "cause": {"resource": self.cause.resource, "reason": self.cause.reason}
            if self.cause and not self.stack.is_usable
            else None,
        }


def read_status(aws: Aws, file: ClusterFile) -> EksStatus:
    """Return the status of the EKS cluster of a cluster file. Raises StackError if there is none."""
    stack = find(aws, file.eks_stack)
    if stack is None:
        raise StackError(f"there is no stack {file.eks_stack} in {aws.region}; `inv eks.create` makes it")
    with asking(f"looking at {stack.name}"):
        try:
            parts, wanted = _parts(aws, stack.name)
        except ClientError as e:
            if code_of(e) != "ResourceNotFoundException":
                raise
            parts, wanted = [], 0
        nodes = _running(aws, stack.name)
    return EksStatus(
        stack=stack,
        parts=tuple(parts),
        wanted=wanted,
        nodes=len(nodes),
        usd_per_hour=_usd_per_hour(aws, file, nodes, bool(parts)),
        billed=tuple(i for i in standing(aws, file, stack) if i.kind != "Kubernetes"),
        cause=None if stack.is_usable else first_cause(events(aws, stack)),
    )


def _parts(aws: Aws, name: str) -> tuple[list[Part], int]:
    """Return control plane, node groups and add-ons, and the desired number of nodes."""
    eks = aws.client("eks")
    parts, wanted = [_part("Kubernetes", name, eks.describe_cluster(name=name)["cluster"])], 0
    for group in pages(eks, "list_nodegroups", "nodegroups", clusterName=name):
        found = eks.describe_nodegroup(clusterName=name, nodegroupName=group)["nodegroup"]
        parts.append(_part("nodes", group, found))
        wanted += found["scalingConfig"]["desiredSize"]
    for addon in pages(eks, "list_addons", "addons", clusterName=name):
        found = eks.describe_addon(clusterName=name, addonName=addon)["addon"]
        parts.append(_part("add-on", addon, {**found, "version": found.get("addonVersion", "")}))
    return parts, wanted


def _part(kind: str, name: str, found: dict[str, Any]) -> Part:
    said = found.get("health", {}).get("issues", [])
    issues = tuple(f"{i.get('code', '')}: {i.get('message', '')}" for i in said)
    return Part(kind=kind, name=name, status=found["status"], version=found.get("version", ""), issues=issues)


def _running(aws: Aws, name: str) -> list[dict[str, Any]]:
    """Return EC2's descriptions of the cluster's running and pending nodes, which are billed."""
    wanted = [
        {"Name": "tag:dlami-cluster:cluster", "Values": [name]},
        {"Name": "instance-state-name", "Values": ["pending", "running"]},
    ]
    found = pages(aws.client("ec2"), "describe_instances", "Reservations", Filters=wanted)
    return [i for r in found for i in r["Instances"]]


def _usd_per_hour(aws: Aws, file: ClusterFile, nodes: list[dict[str, Any]], has_control_plane: bool) -> float | None:
    """Return the hourly cost by the file's price or AWS's, as `inv stack.cost` does; None if a price is unknown."""
    price_list, usd = prices.PriceList(aws), prices.EKS if has_control_plane else 0.0
    for one in nodes:
        each, _ = cost.usd_per_hour(file, price_list, "node", one["InstanceType"], one["Placement"]["AvailabilityZone"])
        if each is None:
            return None
        usd += each
    return usd
