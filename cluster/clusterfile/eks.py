"""`[eks]` in a cluster file: which Kubernetes, which image, and which networks have access."""

import ipaddress
import re
from dataclasses import dataclass

from cluster.clusterfile.checks import FieldError
from cluster.errors import ConfigError

SUFFIX = "-eks"  # of the name of its stack
# Every node pulls the image at every start. Without a tag it would be `latest`, which changes.
IMAGE = r"[a-z0-9][\w.:/-]{0,200}(:[\w][\w.-]{0,127}|@sha256:[0-9a-f]{64})"
LABEL = r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?"  # RFC 1123, what Kubernetes takes as the name of most things
FILE_SYSTEM = r"fs-([0-9a-f]{8}|[0-9a-f]{17})"
LOCAL = r"/(mnt|opt|data|local|scratch)(/[\w.-]*\w[\w.-]*){0,8}"  # nothing that the node itself lives on
WIDEST = 8  # bits of the widest network that may reach a service; access.ssh_from has the same limit


@dataclass(frozen=True, kw_only=True)
class EksSettings:
    """Kubernetes for the same trainings: `inv eks.*`. Number, type and market of its nodes are in [nodes]."""

    context: str = ""
    """kubectl's context. Empty: the one that kubectl uses by itself."""
    namespace: str = "dlami"
    """Kubernetes namespace of all that is made."""
    image: str = ""
    """Image of trainings and services, as 'registry/name:tag', which the nodes must be able to pull; `inv eks.image`
    builds one."""
    version: str = "1.35"
    """Kubernetes of a cluster that eks.create makes. AWS supports 1.35 without a surcharge until 27 March 2027."""
    priority_class: str = ""
    """A priority class of the Kubernetes, for trainings. Empty: the default one."""
    shm_gib: int = 8
    """Size of /dev/shm of a worker: it counts as its memory."""
    ttl_seconds: int = 86400
    """Seconds after a job's end until Kubernetes removes its objects and pods' logs. Its folder on EFS stays."""
    allow_cidrs: tuple[str, ...] = ()
    """Networks that may reach services which are opened, and, as access.ssh_from, the Kubernetes API. Empty: services
    are reached by port-forward only. Never the whole internet."""
    efs: str = ""
    """An EFS file system for the shared folder, 'fs-...'. Empty: that of the stack."""
    fsx: str = ""
    """An FSx for Lustre file system, as 'fs-0123456789abcdef0:mountname'. Empty: that of the stack, if it has one."""
    local: str = ""
    """A folder of every node for data of its own, as '/mnt/k8s-disks/0' of one with instance store; /local in pods.
    Empty: none. With it Kubernetes lets the namespace's pods see folders of their nodes."""

    def __post_init__(self) -> None:
        if self.context and not re.fullmatch(r"[\w.:/@+-]{1,253}", self.context):
            raise FieldError(
                "eks.context", f"{self.context!r} is no context's name", "choose one of `kubectl config get-contexts`"
            )
        self._check_names()
        if not re.fullmatch(r"1\.\d{2}", self.version):
            raise FieldError("eks.version", f"{self.version!r} is no version of EKS", "write it like '1.35'")
        if not 1 <= self.shm_gib <= 1024:
            raise FieldError("eks.shm_gib", f"{self.shm_gib} is outside 1 to 1024", "8 suits most trainings")
        if not 60 <= self.ttl_seconds <= 31_536_000:
            raise FieldError(
                "eks.ttl_seconds", f"{self.ttl_seconds} is outside 60 to 31536000, a year", "86400 is a day"
            )
        for cidr in self.allow_cidrs:
            _check_network(cidr)
        if len(set(self.allow_cidrs)) < len(self.allow_cidrs):
            raise FieldError("eks.allow_cidrs", "has a network twice", "name each once")
        self._check_file_systems()

    def _check_names(self) -> None:
        if not re.fullmatch(LABEL, self.namespace):
            raise FieldError(
                "eks.namespace",
                f"{self.namespace!r} is no namespace's name",
                "use lower case letters, digits and hyphens, 63 at most",
            )
        if self.namespace.startswith("kube-"):
            raise FieldError("eks.namespace", f"{self.namespace!r} is Kubernetes' own", "choose another, as 'dlami'")
        if self.image and not re.fullmatch(IMAGE, self.image):
            raise FieldError("eks.image", f"{self.image!r} is no image with a tag", "write it like 'registry/name:tag'")
        if self.priority_class and not re.fullmatch(LABEL, self.priority_class):
            raise FieldError(
                "eks.priority_class",
                f"{self.priority_class!r} is no priority class's name",
                "choose one of `kubectl get priorityclass`",
            )

    def _check_file_systems(self) -> None:
        if self.efs and not re.fullmatch(FILE_SYSTEM, self.efs):
            raise FieldError("eks.efs", f"{self.efs!r} is no file system", "write an id like 'fs-0123456789abcdef0'")
        if self.fsx and not re.fullmatch(FILE_SYSTEM + r":[\w.-]{1,32}", self.fsx):
            raise FieldError(
                "eks.fsx",
                f"{self.fsx!r} is no Lustre file system with its mount name",
                "write it like 'fs-0123456789abcdef0:mountname', as `aws fsx describe-file-systems` tells them",
            )

        if self.local and not re.fullmatch(LOCAL, self.local):
            raise FieldError(
                "eks.local", f"{self.local!r} is no folder for data of a node", "write it like '/mnt/k8s-disks/0'"
            )

    @property
    def pinned_image(self) -> str:
        """Return the image, which everything that runs a pod needs. Raises ConfigError if none is set."""
        if not self.image:
            raise ConfigError(
                "eks.image is empty: write the image that the nodes pull, as 'registry/name:tag'; "
                "`inv eks.image` builds one"
            )
        return self.image


def _check_network(cidr: str) -> None:
    """Raise FieldError if this is not an IPv4 network, or covers nearly the whole internet."""
    try:
        network = ipaddress.IPv4Network(cidr)
    except ValueError as e:
        raise FieldError("eks.allow_cidrs", f"{cidr!r} is not an IPv4 network", "write it like '203.0.113.7/32'") from e
    if network.prefixlen < WIDEST:
        raise FieldError(
            "eks.allow_cidrs",
            f"{cidr!r} opens the cluster to the internet",
            "give the networks you come from, as '203.0.113.7/32'",
        )
