"""Storage in the template: EFS, which outlives the stack, and FSx for Lustre in front of S3."""

from dataclasses import dataclass
from typing import Any

from troposphere import GetAtt, Ref, Template, efs, fsx

from cfn.template.design import Design
from cfn.template.network import ClusterNetwork, tags
from cfn.template.security import SecurityGroups

KEEP = "RetainExceptOnCreate"  # kept when the stack goes, not left behind by a create that was rolled back


@dataclass(frozen=True, kw_only=True)
class FileSystems:
    """File systems that the nodes mount."""

    efs: Any
    efs_address: Any
    fsx: Any | None = None
    fsx_address: Any = ""
    fsx_name: Any = ""
    target: Any | None = None
    """Mount target that the stack makes; None if an existing one is used."""


def add_filesystems(t: Template, design: Design, place: ClusterNetwork, groups: SecurityGroups) -> FileSystems:
    """Add EFS with a mount target in the private subnet, and FSx if the cluster file has it."""
    file_system: Any = design.file.storage.efs or Ref(_efs(t, design))
    address: Any = design.efs_address
    made: Any = None
    if not address:
        target = t.add_resource(
            efs.MountTarget(
                "SharedTarget",
                FileSystemId=file_system,
                SubnetId=place.private_subnet,
                SecurityGroups=[groups.storage],
            )
        )
        address, made = GetAtt(target, "IpAddress"), Ref(target)
    if not design.file.storage.fsx_gib:
        return FileSystems(efs=file_system, efs_address=address, target=made)
    lustre = _fsx(t, design, place, groups)
    return FileSystems(
        efs=file_system,
        efs_address=address,
        target=made,
        fsx=Ref(lustre),
        fsx_address=GetAtt(lustre, "DNSName"),
        fsx_name=GetAtt(lustre, "LustreMountName"),
    )


def _efs(t: Template, design: Design) -> efs.FileSystem:
    # Elastic throughput: burst credits of a nearly empty file system run out in mid-training.
    file_system = efs.FileSystem(
        "SharedFileSystem",
        Encrypted=True,
        ThroughputMode="elastic",
        PerformanceMode="generalPurpose",
        BackupPolicy=efs.BackupPolicy(Status="ENABLED"),
        FileSystemTags=tags(design, "shared"),
        DeletionPolicy=KEEP,
        UpdateReplacePolicy="Retain",
    )
    if design.file.storage.tls:
        file_system.FileSystemPolicy = {
            "Version": "2012-10-17",
            "Statement": [
                {
                    "Sid": "Mount",
                    "Effect": "Allow",
                    "Principal": {"AWS": "*"},
                    "Resource": "*",
                    "Action": [
                        "elasticfilesystem:ClientMount",
                        "elasticfilesystem:ClientRootAccess",
                        "elasticfilesystem:ClientWrite",
                    ],
                    "Condition": {"Bool": {"elasticfilesystem:AccessedViaMountTarget": "true"}},
                },
                {
                    "Sid": "OnlyTls",
                    "Effect": "Deny",
                    "Principal": {"AWS": "*"},
                    "Resource": "*",
                    "Action": "*",
                    "Condition": {"Bool": {"aws:SecureTransport": "false"}},
                },
            ],
        }
    return t.add_resource(file_system)


def _fsx(t: Template, design: Design, place: ClusterNetwork, groups: SecurityGroups) -> fsx.FileSystem:
    storage = design.file.storage
    # With S3 behind it FSx is a cache and is deleted with the stack. Alone it holds the only copy and is kept.
    policy = "Delete" if storage.fsx_s3 else KEEP
    lustre = t.add_resource(
        fsx.FileSystem(
            "FastFileSystem",
            FileSystemType="LUSTRE",
            FileSystemTypeVersion="2.15",
            StorageType="SSD",
            StorageCapacity=storage.fsx_gib,
            SubnetIds=[place.private_subnet],
            SecurityGroupIds=[groups.storage],
            Tags=tags(design, "fast"),
            LustreConfiguration=fsx.LustreConfiguration(
                DeploymentType="PERSISTENT_2",
                PerUnitStorageThroughput=storage.fsx_throughput,
                DataCompressionType="LZ4",
            ),
            DeletionPolicy=policy,
            UpdateReplacePolicy="Delete" if storage.fsx_s3 else "Retain",
        )
    )
    if storage.fsx_s3:
        t.add_resource(
            fsx.DataRepositoryAssociation(
                "FastLink",
                FileSystemId=Ref(lustre),
                FileSystemPath="/data",
                DataRepositoryPath=storage.fsx_s3,
                BatchImportMetaDataOnCreate=True,
                S3=fsx.S3(
                    AutoImportPolicy=fsx.AutoImportPolicy(Events=["NEW", "CHANGED", "DELETED"]),
                    # No DELETED: removing a file to make room must never remove its object.
                    AutoExportPolicy=fsx.AutoExportPolicy(Events=["NEW", "CHANGED"]),
                ),
                Tags=tags(design, "fast"),
            )
        )
    return lustre
