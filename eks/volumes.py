"""Volumes for the shared folder on EFS and for Lustre. Both outlive everything else that we create in Kubernetes."""

from typing import Any

from cluster.errors import ConfigError
from eks import image
from eks.base import pod
from eks.cluster import EksCluster
from eks.document import Document, document, labels, object_name

SHARED, DATA, LOCAL = "shared", "data", "local"  # volumes of a pod
LOCAL_PATH = "/local"  # in pods; on the node it is `eks.local`
_UNLIMITED = "1Ti"  # a required field that EFS and an existing Lustre ignore
_OWNED = ("jobs", "data", "notebooks")  # folders of the shared one in which our user writes
# Folders of other users keep their owner, and so do the sticky folders in which a bare cluster lets all users write.
_GIVE = f"""
for folder; do
    mkdir -p "$folder"
    [ "$(stat -c %u "$folder")" != 0 ] || [ -k "$folder" ] || chown {image.UID}:{image.UID} "$folder"
done
"""


def storage(cluster: EksCluster) -> list[Document]:
    """Return a volume and a claim for the shared folder on EFS, and for Lustre if configured. Raises ConfigError."""
    found = [*_pair(cluster, SHARED, _efs(cluster))]
    if cluster.fsx_mount:
        found += _pair(cluster, DATA, _lustre(cluster), mountOptions=["flock", "noatime"])
    return found


def claim_name(cluster: EksCluster, volume: str) -> str:
    """Return the name of the claim of SHARED or DATA."""
    return object_name(cluster.name, volume)


def pod_volumes(cluster: EksCluster, *, read_only: bool = False) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Return a pod's volumes and their mounts: the shared folder and Lustre at the bare cluster's paths.

    With `eks.local` they include the node's own folder, at /local.
    """
    closed: dict[str, Any] = {"readOnly": True} if read_only else {}
    names = {SHARED: cluster.shared, **({DATA: cluster.fsx_mount} if cluster.fsx_mount else {})}
    volumes: list[dict[str, Any]] = [
        {"name": name, "persistentVolumeClaim": {"claimName": claim_name(cluster, name), **closed}} for name in names
    ]
    mounts: list[dict[str, Any]] = [{"name": name, "mountPath": path, **closed} for name, path in names.items()]
    if cluster.settings.local and not read_only:
        path = f"{cluster.settings.local}/{object_name(cluster.name)}"
        volumes.append({"name": LOCAL, "hostPath": {"path": path, "type": "DirectoryOrCreate"}})
        mounts.append({"name": LOCAL, "mountPath": LOCAL_PATH})
    return volumes, mounts


def folders(cluster: EksCluster) -> Document:
    """Return a Job that creates the folders in which our user writes, and makes him their owner.

    A new file system belongs to root. This pod runs as root with only the rights for that; our other pods have none.
    Node-local folders are handed over when data is staged there (`giving`), because nodes come and go.
    """
    volumes, mounts = pod_volumes(cluster)
    tops = [mount["mountPath"] for mount in mounts if mount["name"] != LOCAL]
    container = giving(*tops, *(f"{cluster.shared}/{name}" for name in _OWNED))
    spec = pod(cluster, container, volumes=volumes, mounts=mounts, restartPolicy="OnFailure")
    spec["securityContext"] = {"runAsUser": 0, "seccompProfile": {"type": "RuntimeDefault"}}
    return document(
        "batch/v1",
        "Job",
        object_name(cluster.name, "folders"),
        cluster.name,
        namespace=cluster.settings.namespace,
        spec={
            "backoffLimit": 3,
            "activeDeadlineSeconds": 600,
            "ttlSecondsAfterFinished": 600,
            "template": {"metadata": {"labels": labels(cluster.name, app="folders")}, "spec": spec},
        },
    )


def giving(*folders: str) -> dict[str, Any]:
    """Return a container that changes the owner of those folders that belong to root to our user."""
    return {
        "name": "folders",
        "command": ["bash", "-euc", _GIVE, "folders", *folders],
        "securityContext": {
            "runAsUser": 0,
            "runAsNonRoot": False,
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"], "add": ["CHOWN", "DAC_OVERRIDE", "FOWNER"]},
            "readOnlyRootFilesystem": True,
        },
    }


def _pair(cluster: EksCluster, name: str, csi: dict[str, Any], **more: Any) -> list[Document]:
    """Return a volume for an existing file system and its claim, each bound to the other only."""
    space, claim = cluster.settings.namespace, claim_name(cluster, name)
    volume = object_name(space, cluster.name, name)  # volumes are in no namespace
    common = {"accessModes": ["ReadWriteMany"], "volumeMode": "Filesystem", "storageClassName": ""}
    return [
        document(
            "v1",
            "PersistentVolume",
            volume,
            cluster.name,
            spec={
                **common,
                "capacity": {"storage": _UNLIMITED},
                "persistentVolumeReclaimPolicy": "Retain",
                "claimRef": {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "namespace": space, "name": claim},
                **more,
                "csi": csi,
            },
        ),
        document(
            "v1",
            "PersistentVolumeClaim",
            claim,
            cluster.name,
            namespace=space,
            spec={**common, "volumeName": volume, "resources": {"requests": {"storage": _UNLIMITED}}},
        ),
    ]


def _efs(cluster: EksCluster) -> dict[str, Any]:
    """Return the CSI source of EFS over TLS. Source: aws-efs-csi-driver, docs/README.md, static provisioning."""
    if not cluster.settings.efs:
        raise ConfigError(
            "eks.efs is empty, and no stack was asked which file system is its own: write its id into cluster.toml, "
            "as efs = 'fs-0123456789abcdef0'; `inv eks.status` shows that of a stack"
        )
    return {
        "driver": "efs.csi.aws.com",
        "volumeHandle": cluster.settings.efs,
        "volumeAttributes": {"encryptInTransit": "true"},
    }


def _lustre(cluster: EksCluster) -> dict[str, Any]:
    """Return the CSI source of FSx for Lustre. Source: aws-fsx-csi-driver, static provisioning.

    It encrypts by itself between instances that can.
    """
    if not cluster.settings.fsx:
        raise ConfigError(
            "eks.fsx is empty, and no stack was asked which Lustre is its own: write it into cluster.toml, "
            "as fsx = 'fs-0123456789abcdef0:mountname'"
        )
    system, _, mount_name = cluster.settings.fsx.partition(":")
    domain = "amazonaws.com.cn" if cluster.region.startswith("cn-") else "amazonaws.com"
    return {
        "driver": "fsx.csi.aws.com",
        "volumeHandle": system,
        "volumeAttributes": {"dnsname": f"{system}.fsx.{cluster.region}.{domain}", "mountname": mount_name},
    }
