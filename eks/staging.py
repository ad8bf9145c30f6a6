"""Staging of data from S3 by a Job whose pods run the program of `inv stage`, into a shared or a node-local folder."""

import json
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from cluster.errors import ConfigError
from cluster.stage.stage import StageRequest
from eks.base import pod
from eks.cluster import EksCluster
from eks.document import Document, document, labels, object_name
from eks.image import PROJECT, PYTHON
from eks.volumes import LOCAL_PATH, giving, pod_volumes

ASKED, PARTS = "DLAMI_STAGE", "DLAMI_STAGE_PARTS"  # in a pod's environment: what is staged, and by how many
_HOST = "kubernetes.io/hostname"
_RESOURCES = {"requests": {"cpu": "1", "memory": "1Gi"}, "limits": {"cpu": "8", "memory": "8Gi"}}
_SAID = {"operator": "In", "values": [1]}  # the program's own failure, which a retry would repeat
_MOST_S = 24 * 3600


@dataclass(frozen=True, kw_only=True)
class StagingJob:
    """One staging: its manifests and its number of pods."""

    name: str
    pods: int
    documents: list[Document]
    environment: Document | None  # a Secret with what boto3 is given; None for the pods' own role

    @property
    def selector(self) -> str:
        """The label selector of its pods."""
        return f"batch.kubernetes.io/job-name={self.name}"


def staging_job(cluster: EksCluster, request: StageRequest, *, pods: int = 0, name: str = "") -> StagingJob:
    """Return the Job for this request, with at most one pod per node. Raises ConfigError for a folder that no pod has.

    Args:
        pods: how many pods share the work on a shared folder; 0 for one per node. A node-local folder always gets one
            pod per node.
        name: "" for a new one.
    """
    is_local = _is_local(cluster, request.folder)
    if is_local and request.upload:
        raise ConfigError(f"{LOCAL_PATH} is another folder on each node: upload from {cluster.shared}")
    name = name or object_name(cluster.name, "stage", secrets.token_hex(3))
    count = cluster.nodes if is_local or not pods else pods
    space = cluster.settings.namespace
    secret = None
    if request.environment:
        secret = document("v1", "Secret", name, cluster.name, namespace=space, stringData=dict(request.environment))
    job = document(
        "batch/v1",
        "Job",
        name,
        cluster.name,
        namespace=space,
        spec={
            "completions": count,
            "parallelism": count,
            "completionMode": "Indexed",
            "backoffLimitPerIndex": 3,  # after the loss of a node another pod stages what is missing
            "podFailurePolicy": {"rules": [{"action": "FailIndex", "onExitCodes": _SAID}]},
            "maxFailedIndexes": count,
            "activeDeadlineSeconds": _MOST_S,
            "ttlSecondsAfterFinished": cluster.settings.ttl_seconds,
            "template": {
                "metadata": {"labels": labels(cluster.name, app="stage")},
                "spec": _pod(cluster, request, name, 1 if is_local else count, is_local, bool(secret)),
            },
        },
    )
    return StagingJob(name=name, pods=count, documents=[job], environment=secret)


def _is_local(cluster: EksCluster, folder: str) -> bool:
    """Return True if each node has its own copy of the folder. Raises ConfigError if it is on no volume of the pods."""
    tops = [cluster.shared, *([cluster.fsx_mount] if cluster.fsx_mount else [])]
    local = [LOCAL_PATH] if cluster.settings.local else []
    if not any(f"{folder}/".startswith(f"{top.rstrip('/')}/") for top in tops + local):
        more = "" if local else f"; a folder of each node is {LOCAL_PATH}, once eks.local says where the nodes have it"
        raise ConfigError(f"{folder} is on no volume of the pods, which are {', '.join(tops + local)}{more}")
    return bool(local) and f"{folder}/".startswith(f"{LOCAL_PATH}/")


def _pod(
    cluster: EksCluster, request: StageRequest, name: str, parts: int, is_local: bool, has_secret: bool
) -> dict[str, Any]:
    volumes, mounts = pod_volumes(cluster)
    asked = {key: value for key, value in vars(request).items() if key != "environment"}
    container = {
        "name": "stage",
        "command": [PYTHON, "-m", "eks.staging_pod"],
        "workingDir": PROJECT,
        "env": [
            {"name": ASKED, "value": json.dumps(asked, sort_keys=True)},
            {"name": PARTS, "value": str(parts)},
            {"name": "PYTHONDONTWRITEBYTECODE", "value": "1"},
        ],
        "resources": _RESOURCES,
        **({"envFrom": [{"secretRef": {"name": name}}]} if has_secret else {}),
    }
    selector = {"matchLabels": {"batch.kubernetes.io/job-name": name}}
    apart = [{"labelSelector": selector, "topologyKey": _HOST}]
    return pod(
        cluster,
        container,
        volumes=volumes,
        mounts=mounts,
        before=giving(LOCAL_PATH) if is_local else None,
        restartPolicy="Never",
        affinity={"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": apart}},
        tolerations=[{"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}],
        nodeSelector={"node.kubernetes.io/instance-type": cluster.instance_type},
        terminationGracePeriodSeconds=30,
    )


def part_of_pod(environment: Mapping[str, str]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Parse a pod's environment. Return the request that all pods share, and the pod's own part.

    In a shared folder the Job's index selects the part. An upload keeps its one place in S3.
    """
    asked = json.loads(environment[ASKED])
    parts = int(environment[PARTS])
    index = int(environment.get("JOB_COMPLETION_INDEX", "0"))
    return {**asked, "environment": {}}, {"part": (index % parts, parts)}
