"""Design of an EKS cluster: the same cluster file, completed with what EKS needs in addition."""

from dataclasses import dataclass, replace

from cfn.template.design import TAG, Design
from cluster.clusterfile.checks import FieldError, network_of
from cluster.clusterfile.eks import SUFFIX
from cluster.clusterfile.instance_types import hardware_of
from cluster.clusterfile.model import ClusterFile, Guard, Master

KEY_PENDING_DAYS = 7  # the minimum that KMS allows
REGION = f"{TAG}region"  # a tag of roles: IAM knows no regions, and a cluster is in one
LONGEST = 41 - len(SUFFIX)  # characters of a name in the cluster file
CONTROL_PREFIX = 28  # EKS needs 6 free addresses in each of its subnets and asks for 16
PLACES = {"Public": "elb", "Private": "internal-elb"}  # tags by which Kubernetes finds the subnets for load balancers


@dataclass(frozen=True, kw_only=True)
class EksDesign(Design):
    """Complete design of one EKS cluster."""

    second_zone: str
    """Second zone. EKS requires its interfaces in two zones; the nodes stay in the first."""
    second_subnet: str = ""
    """Existing subnet in the second zone; empty: the stack makes one."""
    control_cidr: str = ""
    """Addresses of the subnet that the stack makes in the second zone."""
    api_cidrs: tuple[str, ...] = ()
    """Networks outside the VPC that may reach the Kubernetes API; empty: none."""
    operator: str = ""
    """ARN of the IAM user or role with full access to Kubernetes: the creator of the cluster."""

    @property
    def nodes(self) -> int:
        """Return the size of the node group, which is the number of the bare cluster's hosts that train."""
        return self.file.nodes.workers + 1

    @property
    def ami_type(self) -> str:
        """Return EKS's AMI type for the instance type, with the NVIDIA and EFA drivers if it has GPUs."""
        arch = "ARM_64" if self.instance.architecture == "arm64" else "x86_64"
        return f"AL2023_{arch}_{'NVIDIA' if self.instance.gpus else 'STANDARD'}"

    @property
    def has_local_disks(self) -> bool:
        known = hardware_of(self.instance.name)
        return known is not None and known.nvme

    def subnet_tags(self, name: str) -> dict[str, str]:
        """Return the tags by which Kubernetes finds the subnets for its load balancers."""
        return {f"kubernetes.io/cluster/{self.file.name}": "shared", f"kubernetes.io/role/{PLACES[name]}": "1"}


def file_for_eks(file: ClusterFile) -> ClusterFile:
    """Return the cluster file of the EKS stack, NAME-eks beside the bare cluster NAME.

    It lacks what Kubernetes does itself: access by SSH, first boot, guard, spares. Raises FieldError if EKS cannot make
    a cluster of the file.
    """
    if len(file.name) > LONGEST:
        raise FieldError("name", f"{file.name!r} is too long for EKS", f"use {LONGEST} characters at most")
    network = file.network
    if network.vpc and len(network.private_subnets) < 2:
        raise FieldError(
            "network.private_subnet",
            "names one subnet, and EKS needs two, in different zones",
            "write a list: the nodes are in the first whose zone has their type",
        )
    return replace(
        file,
        name=file.eks_stack,
        setup="",
        network=replace(network, public_subnet=""),
        nodes=replace(file.nodes, source="", workers=file.hosts - 1, spares=0, min_nodes=0),
        master=Master(),
        storage=replace(file.storage, efs=file.eks.efs or file.storage.efs),
        access=replace(file.access, mode="ssm", ssh_from="", allow_wide=False, key_pair="", public_key=""),
        guard=Guard(idle_minutes=0),
    )


def control_cidr(file: ClusterFile) -> str:
    """Return the first free part of the new VPC that is large enough for EKS's interfaces.

    Raises FieldError if there is none.
    """
    network = file.network
    whole = network_of("network.cidr", network.cidr)
    taken = [network_of(f"network.{n}", getattr(network, n)) for n in ("public_cidr", "private_cidr")]
    for part in whole.subnets(new_prefix=CONTROL_PREFIX):
        if not any(part.overlaps(t) for t in taken):
            return str(part)
    raise FieldError(
        "network.cidr",
        f"{network.cidr} has no /{CONTROL_PREFIX} left beside its two subnets, which EKS needs in a second zone",
        "use a larger one, as '10.20.0.0/16'",
    )
