"""Base manifests of a cluster on Kubernetes: namespace, RBAC, priority class, network policies, pod security."""

from typing import Any

from eks.cluster import EksCluster
from eks.document import JOB, Document, document, object_name
from eks.image import HOME, UID

SERVICE_ACCOUNT = "dlami"  # of trainings and stagings; it may get a role that reads S3
PAGE_ACCOUNT = "dlami-page"  # of pages, which have no rights in AWS
_SMALL = {"requests": {"cpu": "250m", "memory": "512Mi"}, "limits": {"cpu": "2", "memory": "4Gi"}}
_METADATA_SERVICE = "169.254.0.0/16"  # of EC2 and EKS: it would give a pod the node's or another pod's credentials
_JOBS_VERBS = ("create", "delete", "get", "list", "patch", "update", "watch")


def operators(cluster: EksCluster) -> str:
    """Return the group name that an access entry gives to people who train here but do not administer the cluster."""
    return object_name(cluster.name, "operators")


def training_class(cluster: EksCluster) -> str:
    """Return the name of the priority class that is rendered. `eks.priority_class` may name it."""
    return object_name(cluster.name, "training")


def namespace(cluster: EksCluster) -> list[Document]:
    """Return the Namespace. Its pod security labels make Kubernetes refuse pods with more rights than ours need."""
    levels = {"enforce": "baseline", "warn": "restricted", "audit": "restricted"}
    if cluster.settings.local:
        levels["enforce"] = "privileged"  # `baseline` does not allow folders of the node (hostPath)
    own = {f"pod-security.kubernetes.io/{mode}": level for mode, level in levels.items()}
    name = cluster.settings.namespace
    return [document("v1", "Namespace", name, cluster.name, metadata={"labels": own})]


def access(cluster: EksCluster) -> list[Document]:
    """Return our pods' service accounts, without rights, and the operators' rights on what `inv eks.*` creates."""
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
    """Return a priority class that puts trainings before pods without a class. It preempts no running pod."""
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
    """Return network policies that close every pod of the cluster to ingress, except between pods of trainings.

    mpirun and NCCL need the connections between those.
    """
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
    """Return a network policy for the pods that match a selector.

    Args:
        pods: the pod selector.
        ingress: rules for incoming traffic; [] denies all of it, None leaves it alone.
        egress: the same for outgoing traffic.
    """
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
    """Return an egress rule for pods that need packages, S3 or a registry.

    It allows every address except the metadata services, which would give the pod the node's credentials.
    """
    return {"to": [{"ipBlock": {"cidr": "0.0.0.0/0", "except": [_METADATA_SERVICE]}}]}


def pod_security() -> dict[str, Any]:
    """Return a pod's security context: the image's non-root user and the runtime's default seccomp profile."""
    return {
        "runAsNonRoot": True,
        "runAsUser": UID,
        "runAsGroup": UID,
        "fsGroup": UID,
        "seccompProfile": {"type": "RuntimeDefault"},
    }


def container_security() -> dict[str, Any]:
    """Return a container's security context: no privilege escalation, no capabilities, a read-only root file system."""
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
    """Return the spec of a hardened pod with one container of our image and its own /tmp and home folder.

    Args:
        container: its name, command and whatever differs from the defaults; `resources` default to those of a small
            program.
        scratch_gib: limit of what it may write below /tmp and in its home folder, on the node's disk.
        before: an init container, which must succeed before the container starts.
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
    """Return the container with the fields that all of our containers share."""
    own = [{"name": "tmp", "mountPath": "/tmp"}, {"name": "home", "mountPath": HOME}]
    return {
        "image": cluster.settings.pinned_image,
        "imagePullPolicy": "IfNotPresent",
        "resources": _SMALL,
        "securityContext": container_security(),
        **container,
        "volumeMounts": [*own, *mounts],
    }
