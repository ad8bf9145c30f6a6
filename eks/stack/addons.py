"""EKS add-ons in the template: those that a node needs to become ready, and those that run on nodes."""

from typing import Any

from troposphere import GetAtt, Ref, Template, eks

from cfn.template.network import tags
from eks.eksctl import CONFIGURED
from eks.stack.design import EksDesign
from eks.stack.roles import POD, add_role

# Add-ons by title. A node needs the first three to become ready; the others need nodes to run on.
BEFORE_NODES = {
    "PodIdentityAddon": "eks-pod-identity-agent",
    "NetworkAddon": "vpc-cni",
    "ProxyAddon": "kube-proxy",
}
ON_NODES = {
    "DnsAddon": "coredns",
    "EfsAddon": "aws-efs-csi-driver",
    "MonitoringAddon": "eks-node-monitoring-agent",
}
FSX = {"FsxAddon": "aws-fsx-csi-driver"}  # if the cluster file has Lustre
# Add-ons that call AWS: service account and AWS's managed policy. The FSx driver only mounts existing file systems,
# so it needs no permissions.
IDENTITIES = {
    "NetworkAddon": ("aws-node", "AmazonEKS_CNI_Policy"),
    "EfsAddon": ("efs-csi-controller-sa", "service-role/AmazonEFSCSIDriverPolicy"),
}


def add_before_nodes(t: Template, design: EksDesign, cluster: eks.Cluster) -> list[str]:
    """Add the add-ons without which no node becomes ready. Return their titles."""
    for title, name in BEFORE_NODES.items():
        needed = [] if title == "PodIdentityAddon" else ["PodIdentityAddon"]
        _addon(t, design, cluster, title, name, needed)
    return list(BEFORE_NODES)


def add_on_nodes(t: Template, design: EksDesign, cluster: eks.Cluster, nodes: eks.Nodegroup) -> None:
    """Add the add-ons that become ready once they run on a node."""
    storage = design.file.storage
    for title, name in {**ON_NODES, **(FSX if storage.fsx_gib or design.file.eks.fsx else {})}.items():
        _addon(t, design, cluster, title, name, [nodes.title])


def _addon(t: Template, design: EksDesign, cluster: eks.Cluster, title: str, name: str, needed: list[str]) -> None:
    own: dict[str, Any] = {}
    if title in IDENTITIES:
        account, policy = IDENTITIES[title]
        role = add_role(t, design, title.replace("Addon", "Role"), POD, managed=(policy,))
        association = eks.PodIdentityAssociationProperty(ServiceAccount=account, RoleArn=GetAtt(role, "Arn"))
        own = {"PodIdentityAssociations": [association]}
    if name in CONFIGURED:
        own["ConfigurationValues"] = CONFIGURED[name]
    t.add_resource(
        eks.Addon(
            title,
            AddonName=name,
            ClusterName=Ref(cluster),
            ResolveConflicts="OVERWRITE",
            Tags=tags(design, name),
            **own,
            **({"DependsOn": needed} if needed else {}),
        )
    )
