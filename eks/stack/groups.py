"""Auto Scaling groups that EKS creates for the node groups of a cluster."""

from cfn.aws import Aws, pages


def scaling_groups(aws: Aws, cluster: str) -> set[str]:
    """Return the names of the cluster's Auto Scaling groups; none before EKS has created them.

    Raises ClientError if the cluster does not exist.
    """
    eks, found = aws.client("eks"), set()
    for name in pages(eks, "list_nodegroups", "nodegroups", clusterName=cluster):
        group = eks.describe_nodegroup(clusterName=cluster, nodegroupName=name)["nodegroup"]
        found |= {g["name"] for g in group.get("resources", {}).get("autoScalingGroups", [])}
    return found
