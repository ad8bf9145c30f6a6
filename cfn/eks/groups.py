"""The Auto Scaling groups that EKS makes for the node groups of a cluster, by EKS's own word."""

from cfn.aws import Aws, pages


def scaling_groups(aws: Aws, cluster: str) -> set[str]:
    """Their names; empty while EKS has none yet. Raises ClientError for a cluster that is not there."""
    eks, found = aws.client("eks"), set()
    for name in pages(eks, "list_nodegroups", "nodegroups", clusterName=cluster):
        group = eks.describe_nodegroup(clusterName=cluster, nodegroupName=name)["nodegroup"]
        found |= {g["name"] for g in group.get("resources", {}).get("autoScalingGroups", [])}
    return found
