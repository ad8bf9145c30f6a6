"""Export of the cluster as eksctl's ClusterConfig, from the same cluster file and without a query to AWS."""

from typing import Any

from cluster.clusterfile.checks import FieldError
from cluster.errors import ConfigError
from eks.cluster import EksCluster
from eks.document import Document

ADDONS = (
    *("coredns", "kube-proxy", "vpc-cni", "eks-pod-identity-agent"),
    *("aws-efs-csi-driver", "eks-node-monitoring-agent"),
)
# Settings of add-ons. By default the VPC CNI accepts network policies but does not enforce them.
# Source: EKS User Guide, "Limit Pod traffic with Kubernetes network policies".
CONFIGURED = {"vpc-cni": '{"enableNetworkPolicy": "true"}'}
LOG_DAYS = 30
# Zones in which EKS creates no interfaces, by the ids that mean the same in every account.
# Source: EKS User Guide, "View Amazon EKS networking requirements for VPC and subnets".
WITHOUT_EKS = ("use1-az3", "usw1-az2", "cac1-az3")


def cluster_config(cluster: EksCluster, second_zone: str = "") -> Document:
    """Return the configuration for `eksctl create cluster -f`. Raises ConfigError if a required choice is missing.

    second_zone: another zone of a new network, for EKS's own interfaces. It must be given, since not every account has
    every zone, and EKS does not support every zone.
    eksctl does not create EFS, the key for secrets, or the rights of trainings' pods. `inv eks.create` does.
    """
    if not cluster.file.network.zone and not cluster.file.network.private_subnets:
        raise FieldError(
            "network.zone",
            "is empty, and eksctl must be told in which zone the nodes are",
            "write it like 'us-east-1d'",
        )
    return {
        "apiVersion": "eksctl.io/v1alpha5",
        "kind": "ClusterConfig",
        "metadata": {
            "name": cluster.file.eks_stack,
            "region": cluster.region,
            "version": cluster.settings.version,
            "tags": {"dlami-cluster:cluster": cluster.file.eks_stack},
        },
        **_network(cluster, second_zone),
        "accessConfig": {"authenticationMode": "API"},
        "addonsConfig": {"autoApplyPodIdentityAssociations": True},
        "addons": [_addon(name) for name in (*ADDONS, *(["aws-fsx-csi-driver"] if cluster.fsx_mount else []))],
        "cloudWatch": {"clusterLogging": {"enableTypes": ["*"], "logRetentionInDays": LOG_DAYS}},
        "upgradePolicy": {"supportType": "STANDARD"},
        "managedNodeGroups": [_nodes(cluster)],
    }


def _addon(name: str) -> dict[str, str]:
    return {"name": name, **({"configurationValues": CONFIGURED[name]} if name in CONFIGURED else {})}


def _network(cluster: EksCluster, second_zone: str) -> dict[str, Any]:
    """Return the network and API access: a new network in two zones, or the file's own subnets."""
    own = cluster.file.network
    api = {
        "clusterEndpoints": {"privateAccess": True, "publicAccess": bool(cluster.file.api_from)},
        **({"publicAccessCIDRs": list(cluster.file.api_from)} if cluster.file.api_from else {}),
    }
    if own.private_subnets:
        private = {f"private-{n}": {"id": subnet} for n, subnet in enumerate(own.private_subnets)}
        return {"vpc": {"id": own.vpc, "subnets": {"private": private}, **api}}
    if second_zone in ("", own.zone) or not second_zone.startswith(cluster.region):
        raise ConfigError(
            f"eksctl must be told another zone of {cluster.region} beside {own.zone}, for EKS's own interfaces, "
            f"not {second_zone or 'none'}: give --second-zone one of 'aws ec2 describe-availability-zones --region "
            f"{cluster.region}'; EKS has no interfaces in the ZoneIds {', '.join(WITHOUT_EKS)}"
        )
    return {
        "availabilityZones": [own.zone, second_zone],
        "vpc": {"cidr": own.cidr, "nat": {"gateway": "Single"}, **api},
    }


def _nodes(cluster: EksCluster) -> dict[str, Any]:
    """Return the node group.

    With EFA, eksctl creates a placement group for it; without, only an existing one can be used.
    """
    network, own = cluster.file.network, cluster.file.nodes
    where = {"subnets": ["private-0"]} if network.private_subnets else {"availabilityZones": [network.zone]}
    reserved = {"capacityReservationTarget": {"capacityReservationID": own.reservation}}
    return {
        "name": "nodes",
        "amiFamily": "AmazonLinux2023",
        "instanceType": cluster.instance_type,
        "minSize": 0,
        "desiredCapacity": cluster.nodes,
        "maxSize": cluster.nodes,
        **where,
        "privateNetworking": True,
        "volumeSize": own.root_gib,
        "volumeType": "gp3",
        "volumeEncrypted": True,
        "disableIMDSv1": True,
        "disablePodIMDS": True,
        "nodeRepairConfig": {"enabled": True},
        "tags": {"dlami-cluster:cluster": cluster.file.eks_stack},
        **({"efaEnabled": True} if cluster.efa else {}),
        **({"spot": True} if own.capacity == "spot" else {}),
        **({"capacityReservation": reserved} if own.reservation else {}),
        **({"instanceMarketOptions": {"marketType": "capacity-block"}} if own.capacity == "capacity-block" else {}),
    }
