"""Kubernetes in the template: control plane, its encryption key and log, and access to it."""

from typing import Any

from troposphere import GetAtt, Ref, Sub, Template, ec2, eks, kms, logs

from cfn.template.network import ClusterNetwork, tags
from eks.stack.design import KEY_PENDING_DAYS, EksDesign
from eks.stack.roles import add_role

LOGS = ("api", "audit", "authenticator", "controllerManager", "scheduler")
LOG_DAYS = 30


def add_control_plane(t: Template, design: EksDesign, place: ClusterNetwork) -> eks.Cluster:
    """Add the EKS cluster, with secrets encrypted by its own key.

    Its API endpoint is private, and public only for the operator's networks.
    """
    role = add_role(t, design, "ControlRole", "eks.amazonaws.com", managed=("AmazonEKSClusterPolicy",))
    log = t.add_resource(
        logs.LogGroup(
            "ControlLog",
            LogGroupName=f"/aws/eks/{design.file.name}/cluster",  # else EKS creates it, untagged, and never deletes it
            RetentionInDays=LOG_DAYS,
            Tags=tags(design, "control"),
            DeletionPolicy="Delete",
            UpdateReplacePolicy="Delete",
        )
    )
    cluster = t.add_resource(
        eks.Cluster(
            "Kubernetes",
            Name=design.file.name,
            Version=design.file.eks.version,
            RoleArn=GetAtt(role, "Arn"),
            ResourcesVpcConfig=eks.ResourcesVpcConfig(
                SubnetIds=[place.private_subnet, _second_subnet(t, design, place)], **_endpoint(design)
            ),
            EncryptionConfig=[
                eks.EncryptionConfig(
                    Provider=eks.Provider(KeyArn=GetAtt(_key(t, design), "Arn")), Resources=["secrets"]
                )
            ],
            Logging=eks.Logging(
                ClusterLogging=eks.ClusterLogging(EnabledTypes=[eks.LoggingTypeConfig(Type=name) for name in LOGS])
            ),
            AccessConfig=eks.AccessConfig(AuthenticationMode="API", BootstrapClusterCreatorAdminPermissions=False),
            BootstrapSelfManagedAddons=False,
            # At the end of support AWS upgrades the cluster instead of charging six times the price for the old one.
            UpgradePolicy=eks.UpgradePolicy(SupportType="STANDARD"),
            Tags=tags(design, "kubernetes"),
            DependsOn=[log.title],
        )
    )
    _add_operator(t, design, cluster)
    return cluster


def _add_operator(t: Template, design: EksDesign, cluster: eks.Cluster) -> None:
    """Give the creator of the cluster full access, and no other user any."""
    t.add_resource(
        eks.AccessEntry(
            "OperatorAccess",
            ClusterName=Ref(cluster),
            PrincipalArn=design.operator,
            AccessPolicies=[
                eks.AccessPolicy(
                    AccessScope=eks.AccessScope(Type="cluster"),
                    PolicyArn=Sub("arn:${AWS::Partition}:eks::aws:cluster-access-policy/AmazonEKSClusterAdminPolicy"),
                )
            ],
            Tags=tags(design, "operator"),
        )
    )


def _endpoint(design: EksDesign) -> dict[str, Any]:
    public: dict[str, Any] = {"PublicAccessCidrs": list(design.api_cidrs)} if design.api_cidrs else {}
    return {"EndpointPrivateAccess": True, "EndpointPublicAccess": bool(design.api_cidrs), **public}


def _second_subnet(t: Template, design: EksDesign, place: ClusterNetwork) -> Any:
    """Return a subnet in another zone for EKS's own interfaces, without nodes or a route to the internet."""
    if design.second_subnet:
        return design.second_subnet
    made = t.add_resource(
        ec2.Subnet(
            "ControlSubnet",
            VpcId=place.vpc,
            CidrBlock=design.control_cidr,
            AvailabilityZone=Ref("SecondZone"),
            MapPublicIpOnLaunch=False,
            Tags=tags(design, "control"),
        )
    )
    return Ref(made)


def _key(t: Template, design: EksDesign) -> kms.Key:
    owner = {"AWS": Sub("arn:${AWS::Partition}:iam::${AWS::AccountId}:root")}
    return t.add_resource(
        kms.Key(
            "SecretsKey",
            Description=f"Kubernetes secrets of {design.file.name}",
            EnableKeyRotation=True,
            PendingWindowInDays=KEY_PENDING_DAYS,
            KeyPolicy={
                "Version": "2012-10-17",
                "Statement": [
                    {"Sid": "Owner", "Effect": "Allow", "Principal": owner, "Action": "kms:*", "Resource": "*"}
                ],
            },
            Tags=tags(design, "secrets"),
            DeletionPolicy="Delete",
            UpdateReplacePolicy="Delete",
        )
    )
