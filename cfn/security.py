"""The template's security groups."""

from dataclasses import dataclass
from typing import Any

from troposphere import Ref, Template, ec2

from cfn.design import Design
from cfn.network import Place, tags


@dataclass(frozen=True, kw_only=True)
class Groups:
    """Security groups, as references."""

    cluster: Any
    admin: Any | None
    storage: Any


def add_groups(t: Template, design: Design, place: Place) -> Groups:
    """One group for the nodes, open to itself both ways as EFA needs; one for SSH; one for the storage."""
    cluster = _group(
        t, design, place, "ClusterGroup", "Nodes of the cluster, everything among themselves, out to anywhere"
    )
    # Rules of their own: written inside the group, a reference to itself would be circular.
    t.add_resource(
        ec2.SecurityGroupIngress(
            "ClusterIn",
            GroupId=Ref(cluster),
            SourceSecurityGroupId=Ref(cluster),
            IpProtocol="-1",
            Description="Everything from nodes of the cluster, as EFA requires",
        )
    )
    t.add_resource(
        ec2.SecurityGroupEgress(
            "ClusterOut",
            GroupId=Ref(cluster),
            DestinationSecurityGroupId=Ref(cluster),
            IpProtocol="-1",
            Description="Everything to nodes of the cluster, as EFA requires",
        )
    )
    t.add_resource(
        ec2.SecurityGroupEgress(
            "ClusterInternet",
            GroupId=Ref(cluster),
            CidrIp="0.0.0.0/0",
            IpProtocol="-1",
            Description="Packages, AWS APIs and S3",
        )
    )
    storage = _group(
        t,
        design,
        place,
        "StorageGroup",
        "File systems, reached only by nodes of the cluster",
        egress=[
            ec2.SecurityGroupRule(
                IpProtocol="tcp",
                FromPort=988,
                ToPort=1023,
                CidrIp=design.vpc_cidr,
                Description="Lustre to its clients",
            )
        ],
    )
    t.add_resource(
        ec2.SecurityGroupIngress(
            "NfsIn",
            GroupId=Ref(storage),
            SourceSecurityGroupId=Ref(cluster),
            IpProtocol="tcp",
            FromPort=2049,
            ToPort=2049,
            Description="NFS from the nodes",
        )
    )
    if design.efs_group:
        t.add_resource(
            ec2.SecurityGroupIngress(
                "ExistingNfsIn",
                GroupId=design.efs_group,
                SourceSecurityGroupId=Ref(cluster),
                IpProtocol="tcp",
                FromPort=2049,
                ToPort=2049,
                Description="NFS from the nodes",
            )
        )
    if design.file.storage.fsx_gib:
        _add_lustre_rules(t, cluster, storage)
    return Groups(cluster=Ref(cluster), admin=_admin(t, design, place), storage=Ref(storage))


def _group(
    t: Template, design: Design, place: Place, name: str, description: str, egress: list[Any] | None = None
) -> ec2.SecurityGroup:
    return t.add_resource(
        ec2.SecurityGroup(
            name,
            VpcId=place.vpc,
            GroupDescription=description,
            Tags=tags(design, name.removesuffix("Group").lower()),
            **({"SecurityGroupEgress": egress} if egress is not None else {}),
        )
    )


def _add_lustre_rules(t: Template, cluster: ec2.SecurityGroup, storage: ec2.SecurityGroup) -> None:
    for who, source in (("Nodes", cluster), ("Servers", storage)):
        for part, first, last in (("", 988, 988), ("Data", 1018, 1023)):
            t.add_resource(
                ec2.SecurityGroupIngress(
                    f"Lustre{part}From{who}",
                    GroupId=Ref(storage),
                    SourceSecurityGroupId=Ref(source),
                    IpProtocol="tcp",
                    FromPort=first,
                    ToPort=last,
                    Description=f"Lustre from its {who.lower()}",
                )
            )


def _admin(t: Template, design: Design, place: Place) -> Any | None:
    if not design.master_is_public:
        return None
    ssh = ec2.SecurityGroupRule(
        IpProtocol="tcp",
        FromPort=design.file.ssh.port,
        ToPort=design.file.ssh.port,
        CidrIp=design.file.access.ssh_from,
        Description="SSH from the operator",
    )
    group = ec2.SecurityGroup(
        "AdminGroup",
        VpcId=place.vpc,
        GroupDescription="SSH from the operator to the master",
        SecurityGroupIngress=[ssh],
        Tags=tags(design, "admin"),
    )
    return Ref(t.add_resource(group))
