"""Leftovers of EKS clusters: node groups, control planes, Auto Scaling groups, load balancers, keys, roles.

Pod Identity associations, add-ons and access entries are parts of the control plane and are deleted with it. No OIDC
provider is created. Log, network, instances and storage are of the bare cluster's kinds (cfn/orphan_kinds.py).
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from botocore.exceptions import ClientError

from cfn import prices
from cfn.aws import Aws, code_of, pages
from cfn.orphan_kinds import CLUSTER, OURS, STACK_ID, OrphanKind, Tagged, made, tags_of
from cfn.prices import PriceList
from cfn.removal import ApiCall
from cluster.terminal import counted
from eks.stack.design import KEY_PENDING_DAYS, REGION
from eks.stack.load_balancers import balancers

OF_EKS, _GROUP = "eks:cluster-name", "aws:autoscaling:groupName"  # AWS's own tags of a node
_NODES_S, _CONTROL_S = 600, 600  # seconds that their deletion takes


def _clusters(aws: Aws) -> Iterator[tuple[str, Mapping[str, str]]]:
    """Yield the EKS clusters that carry our tag, with their tags."""
    eks = aws.client("eks")
    for name in pages(eks, "list_clusters", "clusters"):
        tags = eks.describe_cluster(name=name)["cluster"].get("tags", {})
        if CLUSTER in tags:
            yield name, tags


def _node_groups(aws: Aws, price_list: PriceList) -> Iterable[Tagged]:
    eks = aws.client("eks")
    for cluster, tags in _clusters(aws):
        for name in pages(eks, "list_nodegroups", "nodegroups", clusterName=cluster):
            found = eks.describe_nodegroup(clusterName=cluster, nodegroupName=name)["nodegroup"]
            end = ApiCall("eks", "delete_nodegroup", {"clusterName": cluster, "nodegroupName": name}, _NODES_S)
            kept = counted(found["scalingConfig"]["desiredSize"], "instance")
            note = f"keeps {kept} running: what is ended comes back until it is removed"
            yield from made("node group", f"{cluster}/{name}", 0.0, tags, end, note=note)


def _control_planes(aws: Aws, price_list: PriceList) -> Iterable[Tagged]:
    for name, tags in _clusters(aws):
        end = ApiCall("eks", "delete_cluster", {"name": name}, _CONTROL_S)
        yield from made("Kubernetes", name, prices.per_day(prices.EKS), tags, end, note="its control plane")


def _groups(aws: Aws, price_list: PriceList) -> Iterable[Tagged]:
    """Yield the Auto Scaling groups of deleted Kubernetes clusters, found by the tags of their instances.

    EKS does not put our tags on the groups.
    """
    there = set(pages(aws.client("eks"), "list_clusters", "clusters"))
    owners: dict[str, dict[str, str]] = {}
    for r in pages(aws.client("ec2"), "describe_instances", "Reservations", Filters=OURS):
        for i in r["Instances"]:
            tags = tags_of(i.get("Tags", []))
            if tags.get(OF_EKS, "") not in {*there, ""} and _GROUP in tags:
                owners[tags[_GROUP]] = tags
    for name, tags in sorted(owners.items()):
        found = aws.client("autoscaling").describe_auto_scaling_groups(AutoScalingGroupNames=[name])
        for group in found["AutoScalingGroups"]:
            end = ApiCall(
                "autoscaling", "delete_auto_scaling_group", {"AutoScalingGroupName": name, "ForceDelete": True}
            )
            kept = counted(group["DesiredCapacity"], "instance")
            yield from made(
                "Auto Scaling group", name, 0.0, tags, end, note=f"of a Kubernetes that is gone; keeps {kept}"
            )


def _balancers(aws: Aws, price_list: PriceList) -> Iterable[Tagged]:
    """Yield the load balancers of deleted Kubernetes clusters.

    An existing Kubernetes deletes its own, and recreates those that others delete.
    """
    there = set(pages(aws.client("eks"), "list_clusters", "clusters"))
    for one in balancers(aws):
        if one.clusters and not one.clusters & there:
            note = f"of {one.service or 'a service'} in a Kubernetes that is gone; what it passes on is billed besides"
            usd = prices.per_day(prices.LOAD_BALANCER)
            yield from made("load balancer", one.name, usd, one.tags, one.end, note=note)


def _keys(aws: Aws, price_list: PriceList) -> Iterable[Tagged]:
    kms = aws.client("kms")
    for key in pages(kms, "list_keys", "Keys"):
        name = key["KeyId"]
        try:
            tags = tags_of(kms.list_resource_tags(KeyId=name)["Tags"], "TagKey", "TagValue")
        except ClientError as e:
            if "AccessDenied" not in code_of(e):
                raise
            continue  # the key's policy denies the query, so it is not ours
        if CLUSTER in tags and kms.describe_key(KeyId=name)["KeyMetadata"]["KeyState"] != "PendingDeletion":
            end = ApiCall("kms", "schedule_key_deletion", {"KeyId": name, "PendingWindowInDays": KEY_PENDING_DAYS})
            note = f"Kubernetes' secrets; deleted {KEY_PENDING_DAYS} days later, and not billed from then on"
            yield from made("key", name, prices.KMS_KEY / prices.DAYS_OF_A_MONTH, tags, end, note=note)


def _roles(aws: Aws, price_list: PriceList) -> Iterable[Tagged]:
    """Yield the roles of clusters of this region. IAM itself has no regions."""
    iam = aws.client("iam")
    for role in pages(iam, "list_roles", "Roles"):
        name = role["RoleName"]
        if not _is_for_eks(role):
            continue
        tags = tags_of(iam.list_role_tags(RoleName=name)["Tags"])
        if CLUSTER not in tags or aws.region not in (tags.get(REGION), *tags.get(STACK_ID, "").split(":")[3:4]):
            continue
        attached = iam.list_attached_role_policies(RoleName=name)["AttachedPolicies"]
        steps = [
            ApiCall("iam", "detach_role_policy", {"RoleName": name, "PolicyArn": p["PolicyArn"]}) for p in attached
        ]
        inline = iam.list_role_policies(RoleName=name)["PolicyNames"]
        steps += [ApiCall("iam", "delete_role_policy", {"RoleName": name, "PolicyName": p}) for p in inline]
        end = ApiCall("iam", "delete_role", {"RoleName": name})
        yield from made("role", name, 0.0, tags, *steps, end)


def _is_for_eks(role: dict[str, Any]) -> bool:
    """Return True if EKS, its pods or EC2 instances may assume the role. The tags of other roles are not queried."""
    statements = role["AssumeRolePolicyDocument"].get("Statement", [])
    said = [s.get("Principal", {}) for s in (statements if isinstance(statements, list) else [statements])]
    services = [p.get("Service", "") for p in said if isinstance(p, dict)]
    each = {one for some in services for one in ([some] if isinstance(some, str) else some)}
    return any(one.startswith(("eks.", "pods.eks.", "ec2.")) for one in each)


# In the order of removal, as in cfn/orphan_kinds.py. All of these come before the kinds there.
KINDS = (
    OrphanKind("eks", _node_groups),
    OrphanKind("eks", _control_planes),
    OrphanKind("eks", _groups),
    OrphanKind("elbv2", _balancers),
    OrphanKind("kms", _keys),
    OrphanKind("iam", _roles),
)
