"""IAM policy of the operator's user: the permissions that the stack tasks need for one cluster file."""

from typing import Any

from cfn.groups import group_names
from cfn.statements import Statement, actions_of, allow, arn, by_cloudformation, document, tagged
from cfn.template.design import TAG, bucket_and_prefix
from cluster.clusterfile.eks import SUFFIX
from cluster.clusterfile.model import ClusterFile

LOOK = (
    "autoscaling:Describe*",
    "cloudformation:DescribeStacks",
    "ec2:Describe*",
    "ec2:GetEbs*",
    "elasticfilesystem:Describe*",
    "elasticfilesystem:List*",
    "fsx:Describe*",
    "logs:DescribeLogGroups",
    "pricing:GetProducts",
    "servicequotas:Get*",
    "tag:GetResources",
)
# Permissions to find what an EKS cluster left behind, for stack.orphans.
_LEFT = (
    "eks:Describe*", "eks:List*", "elasticloadbalancing:Describe*", "iam:ListRole*", "kms:DescribeKey",
    "kms:GetKeyPolicy", "kms:List*",
)  # fmt: skip
STACK = (
    "ContinueUpdateRollback", "CreateChangeSet", "CreateStack", "DeleteChangeSet", "DeleteStack", "Describe*",
    "ExecuteChangeSet", "GetTemplate", "ListStackResources", "UpdateTerminationProtection",
)  # fmt: skip
_GROUPS = (
    "DeleteScheduledAction", "PutScheduledUpdateGroupAction", "TerminateInstanceInAutoScalingGroup",
    "UpdateAutoScalingGroup",
)  # fmt: skip
_MADE = (  # and actions on new resources, whose tags may not be visible yet
    "CreateLaunchTemplate", "CreatePlacementGroup", "CreateSecurityGroup", "CreateTags", "RevokeSecurityGroupEgress",
    "RunInstances",
)  # fmt: skip
_CHANGED = (
    "AuthorizeSecurityGroupEgress", "AuthorizeSecurityGroupIngress", "CreateLaunchTemplateVersion",
    "DeleteLaunchTemplate", "DeletePlacementGroup", "DeleteSecurityGroup", "DeleteTags", "RevokeSecurityGroupIngress",
)  # fmt: skip
_NETWORK_MADE = (
    "CreateInternetGateway", "CreateNatGateway", "CreateRouteTable", "CreateSubnet", "CreateVpc", "CreateVpcEndpoint",
    "ModifySubnetAttribute", "ModifyVpcAttribute",
)  # fmt: skip
_NETWORK_CHANGED = (
    "AssociateRouteTable", "AttachInternetGateway", "CreateRoute", "DeleteInternetGateway", "DeleteNatGateway",
    "DeleteRoute", "DeleteRouteTable", "DeleteSubnet", "DeleteVpc", "DeleteVpcEndpoints", "DetachInternetGateway",
    "DisassociateRouteTable",
)  # fmt: skip
# EFS creates, changes and deletes a mount target's network interface with the caller's rights, without our tag.
# Source: EFS API Reference, CreateMountTarget, DeleteMountTarget and ModifyMountTargetSecurityGroups.
INTERFACES = ("CreateNetworkInterface", "DeleteNetworkInterface", "ModifyNetworkInterfaceAttribute")
_ADDRESS_CHANGED = ("AssociateAddress", "DisassociateAddress", "ReleaseAddress")
_EFS = ("CreateMountTarget", "DeleteMountTarget", "ModifyMountTargetSecurityGroups")
_EFS_MADE = ("CreateFileSystem", "DeleteFileSystem", "PutBackupPolicy", "PutFileSystemPolicy", "TagResource")
_FSX = ("CreateFileSystem", "DeleteFileSystem", "TagResource", "UpdateFileSystem")
_FSX_S3 = ("CreateDataRepositoryAssociation", "DeleteDataRepositoryAssociation")
ROLES = (
    "CreateRole", "DeleteRole", "DeleteRolePolicy", "GetRole*", "List*RolePolicies", "PutRolePolicy", "TagRole",
)  # fmt: skip
MANAGED = ("AttachRolePolicy", "DetachRolePolicy")  # for roles with AWS's managed policies
_GIVING = ("AttachRolePolicy", "CreateRole", "PutRolePolicy")  # actions that support the key iam:PermissionsBoundary
_PROFILES = ("*InstanceProfile",)
_REMOVED = (
    "autoscaling:DeleteAutoScalingGroup", "ec2:CancelCapacityReservation", "ec2:DeleteInternetGateway",
    "ec2:DeleteLaunchTemplate", "ec2:DeleteNatGateway", "ec2:DeleteNetworkInterface", "ec2:DeletePlacementGroup",
    "ec2:DeleteRouteTable", "ec2:DeleteSecurityGroup", "ec2:DeleteSnapshot", "ec2:DeleteSubnet", "ec2:DeleteVolume",
    "ec2:DeleteVpc", "ec2:DeleteVpcEndpoints", "ec2:DetachInternetGateway", "ec2:ReleaseAddress",
    "ec2:TerminateInstances", "eks:DeleteCluster", "eks:DeleteNodegroup", "elasticfilesystem:DeleteFileSystem",
    "elasticfilesystem:DeleteMountTarget", "elasticloadbalancing:DeleteLoadBalancer", "fsx:DeleteFileSystem",
    "iam:DeleteRole", "iam:DeleteRolePolicy", "iam:DetachRolePolicy", "iam:ListAttachedRolePolicies",
    "iam:ListRolePolicies", "kms:ScheduleKeyDeletion", "logs:DeleteLogGroup",
)  # fmt: skip


def policy(file: ClusterFile) -> dict[str, Any]:
    """Return the policy for this file's stack tasks. Removing orphans and buying blocks have separate policies."""
    stack = arn(file, "cloudformation", f"stack/{file.name}/*")
    return document(
        allow("Look", [*LOOK, *_LEFT], "*"),
        allow("Stack", actions_of("cloudformation", (*STACK, "SignalResource")), stack),
        allow("Groups", actions_of("autoscaling", _GROUPS), _group_arns(file)),
        _rank(file),
        *_way_in(file),
        *_read(file),
        *_made(file),
        *_roles(file),
    )


def orphans_policy() -> dict[str, Any]:
    """Return the policy for `stack.orphans --delete`: remove what carries our tag, of any cluster, in any region.

    The groups of a deleted Kubernetes carry only EKS's own tag, which holds the cluster's name.
    """
    ours = {"Null": {f"aws:ResourceTag/{TAG}cluster": "false"}}
    of_eks = {"StringLike": {"aws:ResourceTag/eks:cluster-name": f"*{SUFFIX}"}}
    return document(
        allow("RemoveOrphans", list(_REMOVED), "*", ours),
        # A mount target's interface has no tag of ours; EFS deletes it with the caller's rights.
        allow("RemoveMountTargets", ["ec2:DeleteNetworkInterface"], "*", {"Bool": {"aws:ViaAWSService": "true"}}),
        allow("RemoveGroupsOfEks", ["autoscaling:DeleteAutoScalingGroup"], "*", of_eks),
    )


def blocks_policy() -> dict[str, Any]:
    """Return the policy for `stack.blocks --buy`, which is charged at once.

    Tags may be set only while the reservation is created.
    """
    making = {"StringEquals": {"ec2:CreateAction": "PurchaseCapacityBlock"}}
    return document(
        allow("BuyBlocks", ["ec2:PurchaseCapacityBlock"], "*"),
        allow("TagBlocks", ["ec2:CreateTags"], "*", making),
    )


def _group_arns(file: ClusterFile) -> list[str]:
    return [arn(file, "autoscaling", f"autoScalingGroup:*:autoScalingGroupName/{g}") for g in group_names(file)]


def _rank(file: ClusterFile) -> Statement:
    """Allow writing the hosts' ranks, which are tags of the instances."""
    only = {**tagged(file), "ForAllValues:StringEquals": {"aws:TagKeys": [f"{TAG}rank"]}}
    return allow("Rank", ["ec2:CreateTags"], arn(file, "ec2", "instance/*"), only)


def _way_in(file: ClusterFile) -> list[Statement]:
    """Allow access to the master where no port is open, or where no key pair is given."""
    instances = arn(file, "ec2", "instance/*")
    if file.access.mode == "ssm":
        carrying = {"StringEquals": {f"ssm:resourceTag/{TAG}cluster": file.name}}
        # Sessions are named after their user: Systems Manager User Guide, "Sample IAM policies for Session Manager".
        sessions = arn(file, "ssm", "session/${aws:username}-*")
        documents = arn(file, "ssm", "document/AWS-StartSSHSession").replace(":*:document", "::document")
        return [
            allow("WayIn", ["ssm:StartSession"], instances, carrying),
            allow("WayInBySsh", ["ssm:StartSession", "ssm:TerminateSession"], [documents, sessions]),
        ]
    given = [allow("LendKey", ["ec2-instance-connect:SendSSHPublicKey"], instances, tagged(file))]
    if file.access.mode == "eic":
        endpoint = arn(file, "ec2", "instance-connect-endpoint/*")
        given.append(allow("WayIn", ["ec2-instance-connect:OpenTunnel"], endpoint, tagged(file)))
    return given


def _read(file: ClusterFile) -> list[Statement]:
    """Allow reading the image's parameter, the archive of nodes.source, and the existence of buckets."""
    found = []
    if file.nodes.ami.startswith("/"):
        image = arn(file, "ssm", f"parameter{file.nodes.ami}")
        own = image.replace(":*:parameter/aws/", "::parameter/aws/")
        found.append(allow("Image", ["ssm:GetParameter"], own))
    found += buckets(file)
    if file.nodes.source.startswith("s3://"):
        found.append(allow("Source", ["s3:GetObject"], arn(file, "s3", file.nodes.source.removeprefix("s3://"))))
    return found


def buckets(file: ClusterFile) -> list[Statement]:
    """Allow checking that the buckets named in the file exist."""
    urls = [u for u in (file.storage.s3, file.storage.fsx_s3) if u]
    named = sorted({arn(file, "s3", bucket_and_prefix(u)[0]) for u in urls})
    return [allow("Buckets", ["s3:ListBucket"], named)] if named else []


def _made(file: ClusterFile) -> list[Statement]:
    """Allow what CloudFormation creates, changes and deletes."""
    is_public = file.access.mode == "ssh"
    made: list[str] = []
    changed: list[str] = []
    if is_public and file.network.vpc:  # for the master's address; otherwise they are included for NAT
        made.append("AllocateAddress")
        changed += _ADDRESS_CHANGED
    if file.access.mode == "eic":
        made.append("CreateInstanceConnectEndpoint")
        changed.append("DeleteInstanceConnectEndpoint")
    groups = ("CreateAutoScalingGroup", "CreateOrUpdateTags", "DeleteAutoScalingGroup", "UpdateAutoScalingGroup")
    make_groups = allow("MakeGroups", actions_of("autoscaling", groups), _group_arns(file), by_cloudformation())
    return [*base(file, made, changed), make_groups]


def base(file: ClusterFile, made: list[str], changed: list[str]) -> list[Statement]:
    """Allow what the stack of any cluster has: network, storage, launch templates, security groups.

    Args:
        made: further EC2 actions that create resources.
        changed: further EC2 actions on resources that carry the cluster's tag.
    """
    made, changed = [*_MADE, *INTERFACES, *made], [*_CHANGED, *changed]
    if not file.network.vpc:
        made += [*_NETWORK_MADE, "AllocateAddress"]
        changed += [*_NETWORK_CHANGED, *_ADDRESS_CHANGED]
    stored = actions_of("elasticfilesystem", _EFS + (() if file.storage.efs else _EFS_MADE))
    if file.storage.fsx_gib:
        stored += actions_of("fsx", _FSX + (_FSX_S3 if file.storage.fsx_s3 else ()))
    found = [
        allow("Make", actions_of("ec2", tuple(made)) + stored, "*", by_cloudformation()),
        allow("Change", actions_of("ec2", tuple(changed)), "*", by_cloudformation(tagged(file))),
    ]
    if file.storage.efs and file.network.vpc:
        rules = ("AuthorizeSecurityGroupIngress", "RevokeSecurityGroupIngress")
        theirs = arn(file, "ec2", "security-group/*")
        found.append(allow("OpenExistingStorage", actions_of("ec2", rules), theirs, by_cloudformation()))
    return found


def _roles(file: ClusterFile) -> list[Statement]:
    """Allow managing the nodes' roles, passing them to EC2 only, and creating AWS's service-linked roles."""
    path = file.access.role_path
    kinds = [arn(file, "iam", f"{kind}{path}{file.name}-*") for kind in ("instance-profile", "role")]
    names = ROLES + _PROFILES + (MANAGED if file.access.mode == "ssm" else ())
    services = ["ec2-instance-connect"] if file.access.mode == "eic" else []
    return [
        *roles(file, names, kinds),
        allow("PassRoles", ["iam:PassRole"], kinds[1], {"StringEquals": {"iam:PassedToService": "ec2.amazonaws.com"}}),
        service_roles(file, "autoscaling", *services),
        *data_roles(file),
    ]


def roles(file: ClusterFile, names: tuple[str, ...], where: list[str] | str) -> list[Statement]:
    """Allow CloudFormation to make and change the cluster's roles: with a permissions boundary, only bounded ones.

    Whoever gives a role rights may give it more than that user has. The boundary's condition is on every action that
    adds rights, and no action that removes a boundary is allowed.
    """
    boundary = file.access.permissions_boundary
    if not boundary:
        return [allow("Roles", actions_of("iam", names), where, by_cloudformation())]
    other = tuple(name for name in names if name not in _GIVING)
    giving = sorted({"PutRole*" if name == "PutRolePolicy" else name for name in names if name in _GIVING})
    of_role = where if isinstance(where, str) else where[-1]
    bounded = by_cloudformation({"StringEquals": {"iam:PermissionsBoundary": boundary}})
    return [
        allow("Roles", actions_of("iam", other), where, by_cloudformation()),
        allow("BoundRoles", actions_of("iam", tuple(giving)), of_role, bounded),
    ]


def service_roles(file: ClusterFile, *more: str) -> Statement:
    """Allow creating service-linked roles, which the first user of a service in an account has to create."""
    services = [*more, "elasticfilesystem", "spot", *(["fsx"] if file.storage.fsx_gib else [])]
    linked = {"StringLike": {"iam:AWSServiceName": [f"{s}.amazonaws.com" for s in services]}}
    where = arn(file, "iam", "role/aws-service-role/*")
    return allow("ServiceRoles", ["iam:CreateServiceLinkedRole"], where, linked)


def data_roles(file: ClusterFile) -> list[Statement]:
    """Allow creating the role by which FSx reads and writes a file system's bucket.

    FSx creates it with its caller's rights. Source: FSx for Lustre User Guide, "Adding permissions to use data
    repositories in Amazon S3".
    """
    where = arn(file, "iam", "role/aws-service-role/s3.data-source.lustre.*")
    names = ("AttachRolePolicy", "CreateServiceLinkedRole", "PutRolePolicy")
    return [allow("DataRoles", actions_of("iam", names), where)] if file.storage.fsx_s3 else []
