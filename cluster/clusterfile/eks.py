"""`[eks]` in a cluster file: which Kubernetes, which image, and which networks have access."""

from dataclasses import dataclass

from cluster.clusterfile.checks import FILE_SYSTEM, FieldError, in_range, match, match_if_set, network_of
from cluster.errors import ConfigError

SUFFIX = "-eks"  # of the name of its stack
# Every node pulls the image at every start. Without a tag it would be `latest`, which changes.
IMAGE = r"[a-z0-9][\w.:/-]{0,200}(:[\w][\w.-]{0,127}|@sha256:[0-9a-f]{64})"
LABEL = r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?"  # RFC 1123, what Kubernetes takes as the name of most things
EXAMPLE = "fs-0123456789abcdef0"
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
        self._check_names()
        match("eks.version", self.version, r"1\.\d{2}", "write it like '1.35'", "is no version of EKS")
        in_range("eks.shm_gib", self.shm_gib, 1, 1024, "8 suits most trainings")
        in_range("eks.ttl_seconds", self.ttl_seconds, 60, 31_536_000, "86400 is a day")
        for cidr in self.allow_cidrs:
            if network_of("eks.allow_cidrs", cidr, "203.0.113.7/32").prefixlen < WIDEST:
                raise FieldError(
                    "eks.allow_cidrs",
                    f"{cidr!r} opens the cluster to the internet",
                    "give the networks you come from, as '203.0.113.7/32'",
                )
        if len(set(self.allow_cidrs)) < len(self.allow_cidrs):
            raise FieldError("eks.allow_cidrs", "has a network twice", "name each once")
        match_if_set("eks.efs", self.efs, FILE_SYSTEM, f"write an id like {EXAMPLE!r}", "is no file system")
        match_if_set(
            "eks.fsx",
            self.fsx,
            FILE_SYSTEM + r":[\w.-]{1,32}",
            f"write it like '{EXAMPLE}:mountname', as `aws fsx describe-file-systems` tells them",
            "is no Lustre file system with its mount name",
        )
        match_if_set(
            "eks.local", self.local, LOCAL, "write it like '/mnt/k8s-disks/0'", "is no folder for data of a node"
        )

    def _check_names(self) -> None:
        context = r"[\w.:/@+-]{1,253}"
        contexts = "choose one of `kubectl config get-contexts`"
        match_if_set("eks.context", self.context, context, contexts, "is no context's name")
        lower = "use lower case letters, digits and hyphens, 63 at most"
        match("eks.namespace", self.namespace, LABEL, lower, "is no namespace's name")
        if self.namespace.startswith("kube-"):
            raise FieldError("eks.namespace", f"{self.namespace!r} is Kubernetes' own", "choose another, as 'dlami'")
        match_if_set("eks.image", self.image, IMAGE, "write it like 'registry/name:tag'", "is no image with a tag")
        classes = "choose one of `kubectl get priorityclass`"
        match_if_set("eks.priority_class", self.priority_class, LABEL, classes, "is no priority class's name")

    @property
    def pinned_image(self) -> str:
        """Return the image, which everything that runs a pod needs. Raises ConfigError if none is set."""
        if not self.image:
            raise ConfigError(
                "eks.image is empty: write the image that the nodes pull, as 'registry/name:tag'; "
                "`inv eks.image` builds one"
            )
        return self.image
