"""Resource types of an EKS cluster, including its key and its log. A node group starts instances of this fake."""

import json
import uuid
from typing import Any

from lab.aws import groups
from lab.aws.kinds import Properties, Site, kind
from lab.aws.moto_client import client
from lab.aws.protocol import AwsFault
from lab.aws.state import Made


def tags_as_eks(tags: list[dict[str, str]] | None) -> dict[str, str]:
    """Return tags in the form of EKS's API."""
    return {t["Key"]: t["Value"] for t in tags or []}


def lower(value: Any) -> Any:
    """Return a template's property with EKS's names: every key, at all levels, starts with a lower-case letter."""
    if isinstance(value, dict):
        return {k[:1].lower() + k[1:]: lower(v) for k, v in value.items()}
    return [lower(v) for v in value] if isinstance(value, list) else value


@kind("AWS::KMS::Key", "Description EnableKeyRotation PendingWindowInDays KeyPolicy Tags")
class Key:
    @staticmethod
    def create(site: Site, p: Properties) -> Made:
        tags = [{"TagKey": t["Key"], "TagValue": t["Value"]} for t in p.get("Tags", [])]
        api = site.api("kms")
        made = api.create_key(Description=p["Description"], Policy=json.dumps(p["KeyPolicy"]), Tags=tags)["KeyMetadata"]
        if p.get("EnableKeyRotation"):
            api.enable_key_rotation(KeyId=made["KeyId"])
        return Made(made["KeyId"], {"Arn": made["Arn"], "KeyId": made["KeyId"]})

    @staticmethod
    def delete(site: Site, physical: str, p: Properties) -> None:
        days = int(p.get("PendingWindowInDays", 30))
        site.api("kms").schedule_key_deletion(KeyId=physical, PendingWindowInDays=days)


@kind("AWS::Logs::LogGroup", "LogGroupName RetentionInDays Tags")
class LogGroup:
    @staticmethod
    def create(site: Site, p: Properties) -> Made:
        api, name = site.api("logs"), p["LogGroupName"]
        api.create_log_group(logGroupName=name, tags=tags_as_eks(p.get("Tags")))
        api.put_retention_policy(logGroupName=name, retentionInDays=int(p["RetentionInDays"]))
        return Made(name, {"Arn": f"arn:aws:logs:{site.region}:123456789012:log-group:{name}:*"})

    @staticmethod
    def delete(site: Site, physical: str, p: Properties) -> None:
        site.api("logs").delete_log_group(logGroupName=physical)


@kind(
    "AWS::EKS::Cluster",
    "Name Version RoleArn ResourcesVpcConfig EncryptionConfig Logging AccessConfig BootstrapSelfManagedAddons "
    "UpgradePolicy Tags",
)
class EksClusterKind:
    @staticmethod
    def create(site: Site, p: Properties) -> Made:
        """Create a cluster. Its subnets must be in two zones or more, as EKS requires.

        It gets its own security group.
        """
        ec2, network = site.api("ec2"), p["ResourcesVpcConfig"]
        subnets = ec2.describe_subnets(SubnetIds=network["SubnetIds"])["Subnets"]
        if len({s["AvailabilityZone"] for s in subnets}) < 2:
            raise AwsFault("InvalidParameterException", "Subnets specified must be in at least two different AZs", 400)
        site.api("eks").create_cluster(
            name=p["Name"],
            version=p["Version"],
            roleArn=p["RoleArn"],
            resourcesVpcConfig=lower(network),
            encryptionConfig=lower(p["EncryptionConfig"]),
            logging=_logging(p),
            tags=tags_as_eks(p.get("Tags")),
        )
        group = client("ec2", site.region).create_security_group(  # by EKS itself, as all that it makes of ours
            GroupName=f"eks-cluster-sg-{p['Name']}", Description="EKS created", VpcId=subnets[0]["VpcId"]
        )["GroupId"]
        site.world.kubernetes[site.region, p["Name"]] = {"group": group, "access": {}, "addons": {}, "identities": {}}
        made = site.api("eks").describe_cluster(name=p["Name"])["cluster"]
        return Made(p["Name"], {"Arn": made["arn"], "Endpoint": made["endpoint"], "ClusterSecurityGroupId": group})

    @staticmethod
    def update(site: Site, physical: str, old: Properties, new: Properties) -> None:
        """Accept any change without a call: only the stack keeps the new values."""

    @staticmethod
    def delete(site: Site, physical: str, p: Properties) -> None:
        site.api("eks").delete_cluster(name=physical)
        own = site.world.kubernetes.pop((site.region, physical))
        client("ec2", site.region).delete_security_group(GroupId=own["group"])


def _logging(p: Properties) -> dict[str, Any]:
    types = [one["Type"] for one in p["Logging"]["ClusterLogging"]["EnabledTypes"]]
    return {"clusterLogging": [{"types": types, "enabled": True}]}


@kind(
    "AWS::EKS::Nodegroup",
    "ClusterName NodeRole Subnets AmiType CapacityType LaunchTemplate ScalingConfig UpdateConfig NodeRepairConfig Tags",
)
class Nodegroup:
    """Node group: an Auto Scaling group with its own launch template, derived from the stack's one, as EKS does it."""

    @staticmethod
    def create(site: Site, p: Properties) -> Made:
        name, eks = site.generated_name, site.api("eks")
        needed = {"vpc-cni", "kube-proxy"} - site.world.kubernetes[site.region, p["ClusterName"]]["addons"].keys()
        if needed:
            raise AwsFault(
                "InvalidRequestException",
                f"NodeCreationFailure: Unhealthy nodes in the kubernetes cluster: no {', '.join(sorted(needed))}",
            )
        made = eks.create_nodegroup(
            clusterName=p["ClusterName"],
            nodegroupName=name,
            nodeRole=p["NodeRole"],
            subnets=p["Subnets"],
            amiType=p["AmiType"],
            capacityType=p["CapacityType"],
            scalingConfig=_sizes(p),
            launchTemplate={"id": p["LaunchTemplate"]["Id"], "version": str(p["LaunchTemplate"]["Version"])},
            tags=p.get("Tags", {}),
        )["nodegroup"]
        group = made["resources"]["autoScalingGroups"][0]["name"]
        template = _own_template(site, p, group)
        own = {"eks:cluster-name": p["ClusterName"], "eks:nodegroup-name": name}
        groups.create(site.world, site.region, group, _group(p, template), own)
        return Made(f"{p['ClusterName']}/{name}", {"NodegroupName": name, "Arn": made["nodegroupArn"], "group": group})

    @staticmethod
    def update(site: Site, physical: str, old: Properties, new: Properties) -> None:
        cluster, _, name = physical.partition("/")
        eks = site.api("eks")
        made = eks.describe_nodegroup(clusterName=cluster, nodegroupName=name)["nodegroup"]
        eks.update_nodegroup_config(clusterName=cluster, nodegroupName=name, scalingConfig=_sizes(new))
        group = made["resources"]["autoScalingGroups"][0]["name"]
        template = groups.get(site.world, site.region, group).settings["template"]
        if old["LaunchTemplate"] != new["LaunchTemplate"]:
            template = _own_template(site, new, group, template["LaunchTemplateId"])
        groups.change(site.world, site.region, group, _group(new, template))

    @staticmethod
    def delete(site: Site, physical: str, p: Properties) -> None:
        cluster, _, name = physical.partition("/")
        eks = site.api("eks")
        made = eks.describe_nodegroup(clusterName=cluster, nodegroupName=name)["nodegroup"]
        group = made["resources"]["autoScalingGroups"][0]["name"]
        template = groups.get(site.world, site.region, group).settings["template"]["LaunchTemplateId"]
        groups.remove(site.world, site.region, group)
        client("ec2", site.region).delete_launch_template(LaunchTemplateId=template)
        eks.delete_nodegroup(clusterName=cluster, nodegroupName=name)


def _sizes(p: Properties) -> dict[str, int]:
    return {k: int(v) for k, v in lower(p["ScalingConfig"]).items()}


def _own_template(site: Site, p: Properties, group: str, known: str = "") -> dict[str, Any]:
    """Add EKS's image and user data to the stack's launch template.

    Store the result as the group's own launch template, or as a new version of it (`known`).
    """
    ec2 = client("ec2", site.region)
    given = p["LaunchTemplate"]
    versions = ec2.describe_launch_template_versions(LaunchTemplateId=given["Id"], Versions=[str(given["Version"])])
    data = versions["LaunchTemplateVersions"][0]["LaunchTemplateData"]
    if {"ImageId", "IamInstanceProfile"} & data.keys() or any("SubnetId" in i for i in data["NetworkInterfaces"]):
        raise AwsFault("InvalidRequestException", "the launch template has what only EKS may say of its nodes")
    image = f"eks {site.region} {p['AmiType']}"
    if image not in site.world.amis:
        made = ec2.register_image(Name=f"amazon-eks-node-{p['AmiType']}", RootDeviceName="/dev/xvda")
        site.world.amis[image] = made["ImageId"]
    data = {"UserData": "", **data, "ImageId": site.world.amis[image]}
    if known:
        version = ec2.create_launch_template_version(LaunchTemplateId=known, LaunchTemplateData=data)
        return {"LaunchTemplateId": known, "Version": str(version["LaunchTemplateVersion"]["VersionNumber"])}
    made = ec2.create_launch_template(LaunchTemplateName=group, LaunchTemplateData=data)["LaunchTemplate"]
    return {"LaunchTemplateId": made["LaunchTemplateId"], "Version": "1"}


def _group(p: Properties, template: dict[str, Any]) -> dict[str, Any]:
    sizes = p["ScalingConfig"]
    return groups.settings(
        {
            "MinSize": sizes["MinSize"],
            "MaxSize": sizes["MaxSize"],
            "DesiredCapacity": sizes["DesiredSize"],
            "VPCZoneIdentifier": p["Subnets"],
            "LaunchTemplate": template,
        }
    )


@kind("AWS::EKS::Addon", "AddonName ClusterName ConfigurationValues ResolveConflicts PodIdentityAssociations Tags")
class Addon:
    @staticmethod
    def create(site: Site, p: Properties) -> Made:
        """Create an add-on.

        One that runs as a Deployment needs nodes, and would stay degraded if created before them.
        """
        cluster = site.world.kubernetes[site.region, p["ClusterName"]]
        if p["AddonName"] not in ADDONS:
            raise AwsFault("InvalidParameterException", f"Addon {p['AddonName']} specified is not supported", 400)
        needs_nodes = ADDONS[p["AddonName"]]
        if needs_nodes and not site.api("eks").list_nodegroups(clusterName=p["ClusterName"])["nodegroups"]:
            raise AwsFault(
                "InvalidRequestException", "InsufficientNumberOfReplicas: no nodes available to schedule pods"
            )
        cluster["addons"][p["AddonName"]] = {
            "tags": tags_as_eks(p.get("Tags")),
            "roles": p.get("PodIdentityAssociations", []),
        }
        return Made(f"{p['ClusterName']}|{p['AddonName']}", {"Arn": f"arn:aws:eks:{site.region}::{uuid.uuid4()}"})

    @staticmethod
    def delete(site: Site, physical: str, p: Properties) -> None:
        del site.world.kubernetes[site.region, p["ClusterName"]]["addons"][p["AddonName"]]


ADDONS = {  # name -> whether it needs nodes to be ready
    "vpc-cni": False,
    "kube-proxy": False,
    "eks-pod-identity-agent": False,
    "coredns": True,
    "aws-efs-csi-driver": True,
    "aws-fsx-csi-driver": True,
    "eks-node-monitoring-agent": False,
}


@kind("AWS::EKS::AccessEntry", "ClusterName PrincipalArn AccessPolicies Tags")
class AccessEntry:
    @staticmethod
    def create(site: Site, p: Properties) -> Made:
        principal = p["PrincipalArn"]
        if ":sts:" in principal:
            raise AwsFault("InvalidParameterException", "The principalArn must be of an IAM user or role", 400)
        site.world.kubernetes[site.region, p["ClusterName"]]["access"][principal] = p["AccessPolicies"]
        return Made(f"{principal}|{p['ClusterName']}")

    @staticmethod
    def delete(site: Site, physical: str, p: Properties) -> None:
        del site.world.kubernetes[site.region, p["ClusterName"]]["access"][p["PrincipalArn"]]


@kind("AWS::EKS::PodIdentityAssociation", "ClusterName Namespace ServiceAccount RoleArn Tags")
class PodIdentity:
    @staticmethod
    def create(site: Site, p: Properties) -> Made:
        name = f"a-{uuid.uuid4().hex[:17]}"
        site.world.kubernetes[site.region, p["ClusterName"]]["identities"][name] = p
        return Made(name, {"AssociationId": name})

    @staticmethod
    def delete(site: Site, physical: str, p: Properties) -> None:
        del site.world.kubernetes[site.region, p["ClusterName"]]["identities"][physical]
