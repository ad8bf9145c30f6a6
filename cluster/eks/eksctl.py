"""The cluster as eksctl's own ClusterConfig, for those who use eksctl: from the same cluster file, asking nobody."""

from typing import Any

from cluster.eks.cluster import EksCluster
from cluster.eks.document import Document
from cluster.settings import FieldError

ADDONS = (
    *("coredns", "kube-proxy", "vpc-cni", "eks-pod-identity-agent"),
    *("aws-efs-csi-driver", "eks-node-monitoring-agent"),
)
CONFIGURED = {"vpc-cni": '{"enableNetworkPolicy": "true"}'}  # else it obeys no network policy
LOG_DAYS = 30


def cluster_config(cluster: EksCluster) -> Document:
    """What `eksctl create cluster -f` takes. Raises FieldError for a file that leaves open what eksctl must be told.

    EFS, the key for secrets and the rights of trainings' pods are `inv eks.create`'s alone: eksctl makes none of them.
    """
    if not cluster.zone and not cluster.private_subnets:
        raise FieldError(
            "network.zone",
            "is empty, and eksctl must be told in which zone the nodes are",
            "write it like 'us-east-1d'",
        )
    return {
        "apiVersion": "eksctl.io/v1alpha5",
        "kind": "ClusterConfig",
        "metadata": {
            "name": f"{cluster.name}-eks",
            "region": cluster.region,
            "version": cluster.settings.version,
            "tags": {"dlami-cluster:cluster": f"{cluster.name}-eks"},
        },
        **_network(cluster),
        "accessConfig": {"authenticationMode": "API"},
        "addonsConfig": {"autoApplyPodIdentityAssociations": True},
        "addons": [_addon(name) for name in (*ADDONS, *(["aws-fsx-csi-driver"] if cluster.fsx_mount else []))],
        "cloudWatch": {"clusterLogging": {"enableTypes": ["*"], "logRetentionInDays": LOG_DAYS}},
        "upgradePolicy": {"supportType": "STANDARD"},
        "managedNodeGroups": [_nodes(cluster)],
    }


def _addon(name: str) -> dict[str, str]:
    return {"name": name, **({"configurationValues": CONFIGURED[name]} if name in CONFIGURED else {})}


def _network(cluster: EksCluster) -> dict[str, Any]:
    """A new network of two zones, or the file's own subnets; who may reach the API."""
    api = {
        "clusterEndpoints": {"privateAccess": True, "publicAccess": bool(cluster.api_from)},
        **({"publicAccessCIDRs": list(cluster.api_from)} if cluster.api_from else {}),
    }
    if cluster.private_subnets:
        private = {f"private-{n}": {"id": subnet} for n, subnet in enumerate(cluster.private_subnets)}
        return {"vpc": {"id": cluster.vpc, "subnets": {"private": private}, **api}}
    second = f"{cluster.region}{'b' if cluster.zone.endswith('a') else 'a'}"
    return {
        "availabilityZones": [cluster.zone, second],
        "vpc": {"cidr": cluster.cidr, "nat": {"gateway": "Single"}, **api},
    }


def _nodes(cluster: EksCluster) -> dict[str, Any]:
    """The node group. With EFA eksctl makes a placement group of its own; without, it takes one that is there only."""
    where = {"subnets": ["private-0"]} if cluster.private_subnets else {"availabilityZones": [cluster.zone]}
    reserved = {"capacityReservationTarget": {"capacityReservationID": cluster.reservation}}
    return {
        "name": "nodes",
        "amiFamily": "AmazonLinux2023",
        "instanceType": cluster.instance_type,
        "minSize": 0,
        "desiredCapacity": cluster.nodes,
        "maxSize": cluster.nodes,
        **where,
        "privateNetworking": True,
        "volumeSize": cluster.root_gib,
        "volumeType": "gp3",
        "volumeEncrypted": True,
        "disableIMDSv1": True,
        "disablePodIMDS": True,
        "nodeRepairConfig": {"enabled": True},
        "tags": {"dlami-cluster:cluster": f"{cluster.name}-eks"},
        **({"efaEnabled": True} if cluster.efa else {}),
        **({"spot": True} if cluster.capacity == "spot" else {}),
        **({"capacityReservation": reserved} if cluster.reservation else {}),
        **({"instanceMarketOptions": {"marketType": "capacity-block"}} if cluster.capacity == "capacity-block" else {}),
    }
