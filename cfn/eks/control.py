"""The template's Kubernetes itself: control plane, its key and its log, and who may use it."""

from typing import Any

from troposphere import GetAtt, Ref, Sub, Template, ec2, eks, kms, logs

from cfn.eks.design import KEY_PENDING_DAYS, EksDesign
from cfn.eks.roles import add_role
from cfn.template.network import Place, tags

LOGS = ("api", "audit", "authenticator", "controllerManager", "scheduler")
LOG_DAYS = 30


def add_control_plane(t: Template, design: EksDesign, place: Place) -> eks.Cluster:
    """The cluster: its API private, and public for the operator's networks alone; secrets under a key of its own."""
    role = add_role(t, design, "ControlRole", "eks.amazonaws.com", managed=("AmazonEKSClusterPolicy",))
    log = t.add_resource(
        logs.LogGroup(
            "ControlLog",
            LogGroupName=f"/aws/eks/{design.file.name}/cluster",  # EKS would make it without tags, and for good
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
            # When support ends AWS moves the cluster on, rather than asking six times the price for the old version.
            UpgradePolicy=eks.UpgradePolicy(SupportType="STANDARD"),
            Tags=tags(design, "kubernetes"),
            DependsOn=[log.title],
        )
    )
    _add_operator(t, design, cluster)
    return cluster


def _add_operator(t: Template, design: EksDesign, cluster: eks.Cluster) -> None:
    """Who makes the cluster may do all in it; nobody else may anything."""
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


def _second_subnet(t: Template, design: EksDesign, place: Place) -> Any:
    """A subnet for EKS's own interfaces in another zone; no node and no route to the internet."""
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
