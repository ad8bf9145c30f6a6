"""What all of ours stands on in a Kubernetes: the namespace, who may do what in it, and how its pods are closed."""

from typing import Any

from cluster.eks.cluster import EksCluster
from cluster.eks.document import JOB, Document, document, object_name
from cluster.eks.image import HOME, UID

SERVICE_ACCOUNT = "dlami"  # of trainings and stagings, which may be given a role that reads S3
PAGE_ACCOUNT = "dlami-page"  # of pages, which have no rights in AWS
_SMALL = {"requests": {"cpu": "250m", "memory": "512Mi"}, "limits": {"cpu": "2", "memory": "4Gi"}}
_METADATA_SERVICE = "169.254.0.0/16"  # of EC2 and of EKS: who reaches it gets the node's or another pod's credentials
_JOBS_VERBS = ("create", "delete", "get", "list", "patch", "update", "watch")


def operators(cluster: EksCluster) -> str:
    """The group that an access entry gives to people who train here but rule nothing else."""
    return object_name(cluster.name, "operators")


def training_class(cluster: EksCluster) -> str:
    """The priority class that is rendered; `eks.priority_class` may name it."""
    return object_name(cluster.name, "training")


def namespace(cluster: EksCluster) -> list[Document]:
    """The namespace, in which Kubernetes refuses pods that may more than ours need."""
    levels = {"enforce": "baseline", "warn": "restricted", "audit": "restricted"}
    if cluster.settings.local:
        levels["enforce"] = "privileged"  # a folder of the node is no part of `baseline`
    own = {f"pod-security.kubernetes.io/{mode}": level for mode, level in levels.items()}
    name = cluster.settings.namespace
    return [document("v1", "Namespace", name, cluster.name, metadata={"labels": own})]


def access(cluster: EksCluster) -> list[Document]:
    """Service accounts without any right for our pods, and the rights of operators on what `inv eks.*` makes."""
    space, group = cluster.settings.namespace, operators(cluster)
    rules = [
        {"apiGroups": ["kubeflow.org"], "resources": ["mpijobs"], "verbs": [*_JOBS_VERBS]},
        {"apiGroups": ["batch"], "resources": ["jobs"], "verbs": [*_JOBS_VERBS]},
        {"apiGroups": ["apps"], "resources": ["deployments"], "verbs": [*_JOBS_VERBS]},
        {"apiGroups": [""], "resources": ["configmaps", "secrets", "services"], "verbs": [*_JOBS_VERBS]},
        {"apiGroups": ["networking.k8s.io"], "resources": ["networkpolicies"], "verbs": [*_JOBS_VERBS]},
        {"apiGroups": [""], "resources": ["pods", "pods/log", "events"], "verbs": ["get", "list", "watch"]},
        {"apiGroups": [""], "resources": ["pods"], "verbs": ["delete"]},
        {"apiGroups": [""], "resources": ["pods/portforward"], "verbs": ["create", "get"]},
        {"apiGroups": [""], "resources": ["persistentvolumeclaims", "serviceaccounts"], "verbs": ["get", "list"]},
    ]
    api = "rbac.authorization.k8s.io"
    return [
        *(
            document("v1", "ServiceAccount", name, cluster.name, namespace=space, automountServiceAccountToken=False)
            for name in (SERVICE_ACCOUNT, PAGE_ACCOUNT)
        ),
        document(f"{api}/v1", "Role", group, cluster.name, namespace=space, rules=rules),
        document(
            f"{api}/v1",
            "RoleBinding",
            group,
            cluster.name,
            namespace=space,
            roleRef={"apiGroup": api, "kind": "Role", "name": group},
            subjects=[{"apiGroup": api, "kind": "Group", "name": group}],
        ),
    ]


def priority(cluster: EksCluster) -> list[Document]:
    """A class by which trainings go before what has none, without ending what runs already."""
    return [
        document(
            "scheduling.k8s.io/v1",
            "PriorityClass",
            training_class(cluster),
            cluster.name,
            value=1000,
            globalDefault=False,
            preemptionPolicy="Never",
            description="Trainings go before pods without a class; none that runs is ended for them.",
        )
    ]


def network(cluster: EksCluster) -> list[Document]:
    """Nobody comes in to any pod of the cluster; those of trainings reach each other, as mpirun and NCCL do."""
    everyone = {"matchLabels": cluster.labels}
    training = {"matchLabels": cluster.labels, "matchExpressions": [{"key": JOB, "operator": "Exists"}]}
    return [
        policy(cluster, "closed", everyone, ingress=[]),
        policy(cluster, "trainings", training, ingress=[{"from": [{"podSelector": training}]}]),
    ]


def policy(
    cluster: EksCluster,
    name: str,
    pods: dict[str, Any],
    *,
    ingress: list[Any] | None = None,
    egress: list[Any] | None = None,
) -> Document:
    """A network policy of these pods: what comes in, and what goes out, as far as either is said."""
    ways = {"Ingress": ingress, "Egress": egress}
    rules = {way.lower(): said for way, said in ways.items() if said}
    return document(
        "networking.k8s.io/v1",
        "NetworkPolicy",
        object_name(cluster.name, name),
        cluster.name,
        namespace=cluster.settings.namespace,
        spec={"podSelector": pods, "policyTypes": [way for way, said in ways.items() if said is not None], **rules},
    )


def outside() -> dict[str, Any]:
    """Where a pod may go that needs packages, S3 or a registry: everywhere but to the node's own credentials."""
    return {"to": [{"ipBlock": {"cidr": "0.0.0.0/0", "except": [_METADATA_SERVICE]}}]}


def pod_security() -> dict[str, Any]:
    """The image's own user, who is not root, and the runtime's usual filter of system calls."""
    return {
        "runAsNonRoot": True,
        "runAsUser": UID,
        "runAsGroup": UID,
        "fsGroup": UID,
        "seccompProfile": {"type": "RuntimeDefault"},
    }


def container_security() -> dict[str, Any]:
    """No right beyond the user's, and a root that cannot be written."""
    return {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}, "readOnlyRootFilesystem": True}


def pod(
    cluster: EksCluster,
    container: dict[str, Any],
    *,
    volumes: list[dict[str, Any]],
    mounts: list[dict[str, Any]],
    account: str = SERVICE_ACCOUNT,
    scratch_gib: int = 2,
    before: dict[str, Any] | None = None,
    **more: Any,
) -> dict[str, Any]:
    """The spec of a closed pod with one container of our image, /tmp and the home folder being its own.

    Args:
        container: its name, command and what else is its own; `resources` are a small program's without it.
        scratch_gib: what it may write below /tmp and in its home folder, on the node's disk.
        before: a container that has to end well before it starts.
        more: further fields of the pod's spec.
    """
    own = ("tmp", "home")
    first = {"initContainers": [_complete(cluster, before, mounts)]} if before else {}
    return {
        "serviceAccountName": account,
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "securityContext": pod_security(),
        **first,
        "containers": [_complete(cluster, container, mounts)],
        "volumes": [*({"name": name, "emptyDir": {"sizeLimit": f"{scratch_gib}Gi"}} for name in own), *volumes],
        **more,
    }


def _complete(cluster: EksCluster, container: dict[str, Any], mounts: list[dict[str, Any]]) -> dict[str, Any]:
    """A container with what all of ours have."""
    own = [{"name": "tmp", "mountPath": "/tmp"}, {"name": "home", "mountPath": HOME}]
    return {
        "image": cluster.settings.pinned_image,
        "imagePullPolicy": "IfNotPresent",
        "resources": _SMALL,
        "securityContext": container_security(),
        **container,
        "volumeMounts": [*own, *mounts],
    }
