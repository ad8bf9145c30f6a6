"""A training as an MPIJob of kubeflow.org/v2beta1: a launcher that supervises it and one worker per node.

Nothing here queries a cluster. This module only defines the pods. The launcher decides how ranks are started, after it
has checked its hosts, by the code of the bare cluster (cluster/launch).
"""

from typing import Any

from eks.base import pod
from eks.cluster import EksCluster
from eks.code import CODE_FOLDER
from eks.document import JOB, Document, document, labels
from eks.image import PROJECT, PYTHON, SSH_FOLDER, SSH_PORT
from eks.job_spec import ORDER_VARIABLE, Order
from eks.volumes import pod_volumes
from eks.worker import GRACE_VARIABLE

LAUNCHER_MEMORY_GIB, LAUNCHER_CPUS = 4, 2
WORKER_MEMORY_GIB, WORKER_CPUS = 8, 2  # at least; a worker has its node to itself, and no limit below that
HUGE_PAGES_MIB = 5120  # for EFA's buffers. Source: Amazon EKS User Guide, "Run machine learning training ... with EFA"
RESTARTS = 3  # of the launcher; recovery from a failed attempt needs none
GRACE_S = 120  # for ranks to save and leave
ROLE = "dlami/role"  # the label that tells launchers from workers
SCRATCH_GIB = 20  # of each worker's /tmp and home folder, on its node's disk
_LAST_WORDS = {"name": "tmp", "mountPath": "/var/tmp"}  # where a supervisor writes while the shared folder is away
_GPU, _EFA = "nvidia.com/gpu", "vpc.amazonaws.com/efa"


def mpijob(cluster: EksCluster, order: Order, nodes: int, code_secret: str = "") -> Document:
    """Return the MPIJob on this many nodes of the cluster. Raises ConfigError if the cluster file names no image.

    code_secret: name of the Secret with the operator's code, for a program.
    """
    settings = cluster.settings
    return document(
        "kubeflow.org/v2beta1",
        "MPIJob",
        order.job,
        cluster.name,
        namespace=settings.namespace,
        metadata={"labels": {JOB: order.job}},
        spec={
            "slotsPerWorker": cluster.slots,
            "mpiImplementation": "OpenMPI",
            "sshAuthMountPath": SSH_FOLDER,
            "launcherCreationPolicy": "WaitForWorkersReady",
            "runPolicy": {
                "cleanPodPolicy": "All",
                "backoffLimit": RESTARTS,
                "ttlSecondsAfterFinished": settings.ttl_seconds,
            },
            "mpiReplicaSpecs": {
                "Launcher": _replicas(1, _template(cluster, order, "launcher", _launcher(cluster, order, code_secret))),
                "Worker": _replicas(nodes, _template(cluster, order, "worker", _worker(cluster))),
            },
        },
    )


def _replicas(number: int, template: dict[str, Any]) -> dict[str, Any]:
    return {"replicas": number, "restartPolicy": "OnFailure", "template": template}


def _template(cluster: EksCluster, order: Order, role: str, spec: dict[str, Any]) -> dict[str, Any]:
    """Return a pod template with the fields that launcher and workers share."""
    common: dict[str, Any] = {
        "terminationGracePeriodSeconds": GRACE_S,
        "shareProcessNamespace": True,  # so that processes left behind by ranks are reaped
        "tolerations": [{"key": _GPU, "operator": "Exists", "effect": "NoSchedule"}],
    }
    if cluster.settings.priority_class:
        common["priorityClassName"] = cluster.settings.priority_class
    return {"metadata": {"labels": {**labels(cluster.name, job=order.job), ROLE: role}}, "spec": {**spec, **common}}


def _launcher(cluster: EksCluster, order: Order, code_secret: str) -> dict[str, Any]:
    """Return the launcher's pod.

    It trains nothing: it waits for workers, plans, starts mpirun and supervises the job.
    """
    memory = f"{LAUNCHER_MEMORY_GIB}Gi"
    volumes, mounts = pod_volumes(cluster)
    if code_secret:
        volumes.append({"name": "code", "secret": {"secretName": code_secret, "defaultMode": 0o440}})
        mounts.append({"name": "code", "mountPath": CODE_FOLDER, "readOnly": True})
    container = {
        "name": "launcher",
        "command": [PYTHON, "-m", "eks.launcher"],
        "workingDir": PROJECT,
        "env": [{"name": ORDER_VARIABLE, "value": order.to_json()}],
        "resources": {"requests": {"cpu": str(LAUNCHER_CPUS), "memory": memory}, "limits": {"memory": memory}},
    }
    names = {"searches": [f"{order.job}.{cluster.settings.namespace}.svc.cluster.local"]}
    return pod(cluster, container, volumes=volumes, mounts=[*mounts, _LAST_WORDS], dnsConfig=names)


def _worker(cluster: EksCluster) -> dict[str, Any]:
    """Return a worker's pod. It has a node with all GPUs and EFA cards to itself, and runs sshd to start ranks."""
    devices = {_GPU: str(cluster.gpus)} if cluster.gpus else {}
    devices |= {_EFA: str(cluster.efa), "hugepages-2Mi": f"{HUGE_PAGES_MIB}Mi"} if cluster.efa else {}
    least = {"cpu": str(WORKER_CPUS), "memory": f"{WORKER_MEMORY_GIB + cluster.settings.shm_gib}Gi"}
    container = {
        "name": "worker",
        "command": [PYTHON, "-m", "eks.worker"],
        "workingDir": PROJECT,
        "env": [{"name": GRACE_VARIABLE, "value": str(GRACE_S)}],
        "ports": [{"name": "ssh", "containerPort": SSH_PORT, "protocol": "TCP"}],
        "readinessProbe": {"tcpSocket": {"port": SSH_PORT}, "periodSeconds": 5, "timeoutSeconds": 3},
        "resources": {"requests": {**least, **devices}, **({"limits": devices} if devices else {})},
    }
    volumes, mounts = pod_volumes(cluster)
    volumes += [
        {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": f"{cluster.settings.shm_gib}Gi"}},
        {"name": "run", "emptyDir": {"medium": "Memory", "sizeLimit": "16Mi"}},
    ]
    mounts += [{"name": "shm", "mountPath": "/dev/shm"}, {"name": "run", "mountPath": "/run"}, _LAST_WORDS]
    return pod(
        cluster, container, volumes=volumes, mounts=mounts, scratch_gib=SCRATCH_GIB, affinity=_alone_on_its_node()
    )


def _alone_on_its_node() -> dict[str, Any]:
    """Return an affinity by which no two workers share a node, as no two jobs share a host on the bare cluster."""
    term = {"labelSelector": {"matchLabels": {ROLE: "worker"}}, "topologyKey": "kubernetes.io/hostname"}
    return {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}
