"""IAM policy of the operator's user: the permissions that the EKS tasks need for one cluster file."""

from typing import Any

from cfn import rights
from cfn.statements import Statement, actions_of, allow, arn, by_cloudformation, document, tagged
from cluster.clusterfile.model import ClusterFile
from eks.stack.design import file_for_eks
from eks.stack.roles import POD

_LOOK = (
    "elasticloadbalancing:Describe*",
    "iam:GetRole",
    "logs:Describe*",
)  # to find load balancers in the way, and the caller's role
# For the status, and for deleting a node group whose zone has no capacity.
_STATUS = ("DeleteNodegroup", "DescribeAddon", "DescribeCluster", "DescribeNodegroup", "ListAddons", "ListNodegroups")
# Wildcards for what CloudFormation does to this one cluster: a policy may have only 6144 characters.
_CHANGED = (
    "AssociateAccessPolicy", "Create*", "Delete*", "Describe*", "DisassociateAccessPolicy", "List*", "TagResource",
    "UntagResource", "Update*",
)  # fmt: skip
_KEY = (
    "CreateGrant", "DescribeKey", "DisableKey", "EnableKey", "EnableKeyRotation", "GetKeyPolicy",
    "GetKeyRotationStatus", "ListResourceTags", "PutKeyPolicy", "ScheduleKeyDeletion", "UpdateKeyDescription",
)  # fmt: skip
_LOG = (
    "CreateLogGroup", "DeleteLogGroup", "GetDataProtectionPolicy", "ListTagsForResource", "PutRetentionPolicy",
    "TagResource",
)  # fmt: skip
_TAKEN_BY = ("ec2.amazonaws.com", "eks.amazonaws.com", POD)  # roles: nodes, the control plane, pods and add-ons


def policy(file: ClusterFile) -> dict[str, Any]:
    """Return the policy for eks.plan, eks.create, eks.status and eks.delete.

    Raises FieldError if EKS cannot make a cluster of the file.
    """
    own = file_for_eks(file)
    stack = arn(own, "cloudformation", f"stack/{own.name}/*")
    return document(
        allow("Look", [*rights.LOOK, *_LOOK], "*"),
        allow("Stack", actions_of("cloudformation", rights.STACK), stack),
        *rights.buckets(own),
        *_kubernetes(own),
        *rights.base(own, [], []),
        *_roles(own),
    )


def _kubernetes(own: ClusterFile) -> list[Statement]:
    """Allow managing the control plane with its parts, its key and its log."""
    parts = [arn(own, "eks", f"cluster/{own.name}"), arn(own, "eks", f"*/{own.name}/*")]  # addon/NAME/…, and so on
    log = arn(own, "logs", f"log-group:/aws/eks/{own.name}/*")
    return [
        allow("Status", actions_of("eks", _STATUS), parts),
        allow("MakeKubernetes", ["eks:CreateCluster", "kms:CreateKey", "kms:TagResource"], "*", by_cloudformation()),
        allow("ChangeKubernetes", actions_of("eks", _CHANGED), parts, by_cloudformation()),
        allow("Key", actions_of("kms", _KEY), arn(own, "kms", "key/*"), by_cloudformation(tagged(own))),
        allow("Log", actions_of("logs", _LOG), log, by_cloudformation()),
    ]


def _roles(own: ClusterFile) -> list[Statement]:
    """Allow managing the cluster's roles, and passing them only to EKS, its nodes and its pods."""
    where = arn(own, "iam", f"role{own.access.role_path}{own.name}-*")
    to_whom = {"StringEquals": {"iam:PassedToService": list(_TAKEN_BY)}}
    return [
        *rights.roles(own, rights.ROLES + rights.MANAGED, where),
        allow("PassRoles", ["iam:PassRole"], where, to_whom),
        rights.service_roles(own, "autoscaling", "eks", "eks-nodegroup"),
        *rights.data_roles(own),
    ]
