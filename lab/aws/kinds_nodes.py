"""Resource types of nodes, access and storage."""

import json
import uuid
import zlib
from typing import Any

from lab.aws import groups
from lab.aws.kinds import Properties, Site, ended_by, kind
from lab.aws.protocol import AwsFault
from lab.aws.schedule import SIZES
from lab.aws.state import Made


@kind("AWS::EC2::PlacementGroup", "Strategy Tags")
class PlacementKind:
    @staticmethod
    def create(site: Site, p: Properties) -> Made:
        name = site.generated_name
        site.world.placement_groups[site.region, name] = {
            "GroupName": name,
            "Strategy": p["Strategy"],
            "State": "available",
            "Tags": p.get("Tags", []),
        }
        return Made(name, {"GroupName": name})

    @staticmethod
    def update(site: Site, physical: str, old: Properties, new: Properties) -> None:
        site.world.placement_groups[site.region, physical]["Tags"] = new.get("Tags", [])

    @staticmethod
    def delete(site: Site, physical: str, p: Properties) -> None:
        site.world.placement_groups.pop((site.region, physical), None)


@kind("AWS::EC2::LaunchTemplate", "LaunchTemplateData TagSpecifications")
class LaunchTemplate:
    @staticmethod
    def create(site: Site, p: Properties) -> Made:
        data = p["LaunchTemplateData"]
        if len(data.get("UserData", "")) * 3 // 4 > 16384:
            raise AwsFault("InvalidUserData.Malformed", "User data is limited to 16384 bytes")
        made = site.api("ec2").create_launch_template(
            LaunchTemplateName=site.generated_name,
            LaunchTemplateData=data,
            TagSpecifications=p.get("TagSpecifications", []),
        )["LaunchTemplate"]
        return Made(
            made["LaunchTemplateId"],
            {"LatestVersionNumber": "1", "DefaultVersionNumber": "1", "LaunchTemplateId": made["LaunchTemplateId"]},
        )

    @staticmethod
    def update(site: Site, physical: str, old: Properties, new: Properties) -> Made:
        made = site.api("ec2").create_launch_template_version(
            LaunchTemplateId=physical, LaunchTemplateData=new["LaunchTemplateData"]
        )
        latest = str(made["LaunchTemplateVersion"]["VersionNumber"])
        return Made(
            physical, {"LatestVersionNumber": latest, "DefaultVersionNumber": "1", "LaunchTemplateId": physical}
        )

    delete = ended_by("ec2", "delete_launch_template", "LaunchTemplateId")


@kind("AWS::IAM::Role", "AssumeRolePolicyDocument Policies ManagedPolicyArns Path PermissionsBoundary Tags")
class Role:
    @staticmethod
    def create(site: Site, p: Properties) -> Made:
        iam, name = site.api("iam"), site.generated_name
        tags = [{"Key": t["Key"], "Value": t["Value"]} for t in p.get("Tags", [])]
        own = {name: p[name] for name in ("Path", "PermissionsBoundary") if name in p}
        arn = iam.create_role(
            RoleName=name, AssumeRolePolicyDocument=json.dumps(p["AssumeRolePolicyDocument"]), Tags=tags, **own
        )["Role"]["Arn"]
        Role._policies(site, name, p)
        return Made(name, {"Arn": arn})

    @staticmethod
    def _policies(site: Site, name: str, p: Properties) -> None:
        iam = site.api("iam")
        for policy in p.get("Policies", []):
            iam.put_role_policy(
                RoleName=name, PolicyName=policy["PolicyName"], PolicyDocument=json.dumps(policy["PolicyDocument"])
            )
        for arn in p.get("ManagedPolicyArns", []):
            known = arn.startswith("arn:aws:iam::aws:policy/")
            if not known:
                raise AwsFault("NoSuchEntity", f"Policy {arn} does not exist or is not attachable.")
            # moto has AWS's own policies only when it loads all of them, which takes longer than a whole test.
            iam.tag_role(RoleName=name, Tags=[{"Key": "fake:managed-policy", "Value": arn.rsplit("/", 1)[1]}])

    @staticmethod
    def update(site: Site, physical: str, old: Properties, new: Properties) -> None:
        Role._policies(site, physical, new)

    @staticmethod
    def delete(site: Site, physical: str, p: Properties) -> None:
        iam = site.api("iam")
        for name in iam.list_role_policies(RoleName=physical)["PolicyNames"]:
            iam.delete_role_policy(RoleName=physical, PolicyName=name)
        iam.delete_role(RoleName=physical)


@kind("AWS::IAM::InstanceProfile", "Path Roles")
class ProfileKind:
    @staticmethod
    def create(site: Site, p: Properties) -> Made:
        iam, name = site.api("iam"), site.generated_name
        path = p.get("Path", "/")
        arn = iam.create_instance_profile(InstanceProfileName=name, Path=path)["InstanceProfile"]["Arn"]
        for role in p["Roles"]:
            iam.add_role_to_instance_profile(InstanceProfileName=name, RoleName=role)
        return Made(name, {"Arn": arn})

    @staticmethod
    def delete(site: Site, physical: str, p: Properties) -> None:
        iam = site.api("iam")
        for role in p["Roles"]:
            iam.remove_role_from_instance_profile(InstanceProfileName=physical, RoleName=role)
        iam.delete_instance_profile(InstanceProfileName=physical)


@kind("AWS::EFS::FileSystem", "Encrypted ThroughputMode PerformanceMode BackupPolicy FileSystemTags FileSystemPolicy")
class Efs:
    @staticmethod
    def create(site: Site, p: Properties) -> Made:
        made = site.api("efs").create_file_system(
            CreationToken=str(uuid.uuid4()),
            Encrypted=p.get("Encrypted", False),
            ThroughputMode=p["ThroughputMode"],
            PerformanceMode=p["PerformanceMode"],
            Backup=p.get("BackupPolicy", {}).get("Status") == "ENABLED",
            Tags=[{"Key": t["Key"], "Value": t["Value"]} for t in p.get("FileSystemTags", [])],
        )
        if policy := p.get("FileSystemPolicy"):
            site.api("efs").put_file_system_policy(FileSystemId=made["FileSystemId"], Policy=json.dumps(policy))
        return Made(made["FileSystemId"], {"FileSystemId": made["FileSystemId"], "Arn": made["FileSystemArn"]})

    @staticmethod
    def update(site: Site, physical: str, old: Properties, new: Properties) -> None:
        if policy := new.get("FileSystemPolicy"):
            site.api("efs").put_file_system_policy(FileSystemId=physical, Policy=json.dumps(policy))

    delete = ended_by("efs", "delete_file_system", "FileSystemId")


@kind("AWS::EFS::MountTarget", "FileSystemId SubnetId SecurityGroups")
class MountTarget:
    """Mount target. EFS creates, changes and deletes its untagged network interface with the caller's rights."""

    @staticmethod
    def interface(site: Site, physical: str) -> str:
        found = site.api("efs").describe_mount_targets(MountTargetId=physical)["MountTargets"][0]
        return str(found["NetworkInterfaceId"])

    @staticmethod
    def create(site: Site, p: Properties) -> Made:
        site.note("ec2", "create_network_interface", SubnetId=p["SubnetId"])
        made = site.api("efs").create_mount_target(**p)
        return Made(made["MountTargetId"], {"Id": made["MountTargetId"], "IpAddress": made["IpAddress"]})

    @staticmethod
    def update(site: Site, physical: str, old: Properties, new: Properties) -> None:
        interface = MountTarget.interface(site, physical)
        site.note("ec2", "modify_network_interface_attribute", NetworkInterfaceId=interface)
        site.api("efs").modify_mount_target_security_groups(
            MountTargetId=physical, SecurityGroups=new["SecurityGroups"]
        )

    @staticmethod
    def delete(site: Site, physical: str, p: Properties) -> None:
        site.note("ec2", "delete_network_interface", NetworkInterfaceId=MountTarget.interface(site, physical))
        site.api("efs").delete_mount_target(MountTargetId=physical)


@kind(
    "AWS::FSx::FileSystem",
    "FileSystemType FileSystemTypeVersion StorageType StorageCapacity SubnetIds SecurityGroupIds "
    "LustreConfiguration Tags",
)
class Fsx:
    @staticmethod
    def create(site: Site, p: Properties) -> Made:
        made = site.api("fsx").create_file_system(**{k: v for k, v in p.items() if k != "FileSystemTypeVersion"})[
            "FileSystem"
        ]
        return Made(made["FileSystemId"], {"DNSName": made["DNSName"], "LustreMountName": "fakelustre"})

    delete = ended_by("fsx", "delete_file_system", "FileSystemId")


@kind(
    "AWS::FSx::DataRepositoryAssociation",
    "FileSystemId FileSystemPath DataRepositoryPath BatchImportMetaDataOnCreate S3 Tags",
)
class Link:
    @staticmethod
    def create(site: Site, p: Properties) -> Made:
        name = f"dra-{zlib.crc32(site.generated_name.encode()):08x}"
        site.world.links[name] = dict(p)
        return Made(name, {"AssociationId": name})

    @staticmethod
    def delete(site: Site, physical: str, p: Properties) -> None:
        site.world.links.pop(physical, None)


@kind("AWS::S3::Bucket", "BucketName")
class BucketKind:
    @staticmethod
    def create(site: Site, p: Properties) -> Made:
        name = p.get("BucketName", site.generated_name.lower())
        where = {} if site.region == "us-east-1" else {"CreateBucketConfiguration": {"LocationConstraint": site.region}}
        site.api("s3").create_bucket(Bucket=name, **where)
        return Made(name, {"Arn": f"arn:aws:s3:::{name}"})

    delete = ended_by("s3", "delete_bucket", "Bucket")


@kind(
    "AWS::AutoScaling::AutoScalingGroup",
    "AutoScalingGroupName MinSize MaxSize DesiredCapacity HealthCheckType HealthCheckGracePeriod "
    "TerminationPolicies LaunchTemplate Tags AvailabilityZones VPCZoneIdentifier CapacityReservationSpecification",
)
class GroupKind:
    @staticmethod
    def create(site: Site, p: Properties) -> Made:
        name = p.get("AutoScalingGroupName", site.generated_name)
        own = {
            "aws:cloudformation:stack-name": site.stack_name,
            "aws:cloudformation:logical-id": site.logical,
            "aws:cloudformation:stack-id": site.stack_id,
        }
        groups.create(site.world, site.region, name, groups.settings(p), own)
        return Made(name)

    @staticmethod
    def update(site: Site, physical: str, old: Properties, new: Properties) -> None:
        """Update the group's settings, including the template's sizes.

        With an update policy for scheduled actions, only those sizes are set that the template changes.
        """
        wanted, policy = groups.settings(new), site.update_policy.get("AutoScalingScheduledAction", {})
        if policy.get("IgnoreUnmodifiedGroupSizeProperties"):
            now = groups.get(site.world, site.region, physical).settings
            kept = [s for name, s in SIZES.items() if old.get(name) == new.get(name)]
            wanted |= {s: now[s] for s in kept}
        groups.change(site.world, site.region, physical, wanted)

    @staticmethod
    def delete(site: Site, physical: str, p: Properties) -> None:
        groups.remove(site.world, site.region, physical)


@kind(
    "AWS::AutoScaling::LifecycleHook",
    "AutoScalingGroupName LifecycleHookName LifecycleTransition HeartbeatTimeout DefaultResult",
)
class LifecycleHookKind:
    @staticmethod
    def create(site: Site, p: Properties) -> Made:
        name = p.get("LifecycleHookName", site.generated_name)
        groups.put_hook(
            site.world,
            site.region,
            p["AutoScalingGroupName"],
            name,
            p["LifecycleTransition"],
            int(p.get("HeartbeatTimeout", 3600)),
            p.get("DefaultResult", "ABANDON"),
        )
        return Made(name)

    @staticmethod
    def delete(site: Site, physical: str, p: Properties) -> None:
        groups.get(site.world, site.region, p["AutoScalingGroupName"]).hooks.pop(physical, None)


def names() -> list[Any]:
    """Return the modelled resource types, for the docs and the tests."""
    from lab.aws.kinds import KINDS

    return sorted(KINDS)
