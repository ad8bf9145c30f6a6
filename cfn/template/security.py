"""Security groups in the template."""

from dataclasses import dataclass
from typing import Any

from troposphere import Ref, Template, ec2

from cfn.template.design import Design
from cfn.template.network import ClusterNetwork, tags


@dataclass(frozen=True, kw_only=True)
class SecurityGroups:
    """Security groups, as references."""

    cluster: Any
    admin: Any | None
    storage: Any


def add_groups(t: Template, design: Design, place: ClusterNetwork) -> SecurityGroups:
    """Add the security groups: nodes, SSH, and storage. The nodes' is open to itself both ways, as EFA needs."""
    cluster = _group(
        t, design, place, "ClusterGroup", "Nodes of the cluster, everything among themselves, out to anywhere"
    )
    lustre = ec2.SecurityGroupRule(
        IpProtocol="tcp", FromPort=988, ToPort=1023, CidrIp=design.vpc_cidr, Description="Lustre to its clients"
    )
    storage = _group(
        t, design, place, "StorageGroup", "File systems, reached only by nodes of the cluster", egress=[lustre]
    )
    _add_cluster_rules(t, cluster)
    _admit(t, "NfsIn", Ref(storage), cluster, (2049, 2049), "NFS from the nodes")
    if design.efs_group:
        _admit(t, "ExistingNfsIn", design.efs_group, cluster, (2049, 2049), "NFS from the nodes")
    if design.file.access.mode == "eic":
        _add_endpoint(t, design, place, cluster)
    if design.file.storage.fsx_gib:
        _add_lustre_rules(t, cluster, storage)
    return SecurityGroups(cluster=Ref(cluster), admin=_admin(t, design, place), storage=Ref(storage))


def _add_cluster_rules(t: Template, cluster: ec2.SecurityGroup) -> None:
    """Add the nodes' rules as separate resources, because a group that refers to itself would be circular."""
    own = {"GroupId": Ref(cluster), "IpProtocol": "-1"}
    for rule in (
        ec2.SecurityGroupIngress(
            "ClusterIn",
            SourceSecurityGroupId=Ref(cluster),
            Description="Everything from nodes of the cluster, as EFA requires",
            **own,
        ),
        ec2.SecurityGroupEgress(
            "ClusterOut",
            DestinationSecurityGroupId=Ref(cluster),
            Description="Everything to nodes of the cluster, as EFA requires",
            **own,
        ),
        ec2.SecurityGroupEgress("ClusterInternet", CidrIp="0.0.0.0/0", Description="Packages, AWS APIs and S3", **own),
    ):
        t.add_resource(rule)


def _admit(
    t: Template, name: str, group: Any, source: ec2.SecurityGroup, ports: tuple[int, int], description: str
) -> None:
    """Add a rule that admits members of one group to another on these TCP ports."""
    t.add_resource(
        ec2.SecurityGroupIngress(
            name,
            GroupId=group,
            SourceSecurityGroupId=Ref(source),
            IpProtocol="tcp",
            FromPort=ports[0],
            ToPort=ports[1],
            Description=description,
        )
    )


def _group(
    t: Template, design: Design, place: ClusterNetwork, name: str, description: str, egress: list[Any] | None = None
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


def _add_endpoint(t: Template, design: Design, place: ClusterNetwork, cluster: ec2.SecurityGroup) -> None:
    """Add the EC2 Instance Connect Endpoint, through which the operator reaches only port 22 of the nodes."""
    door = ec2.SecurityGroupRule(
        IpProtocol="tcp",
        FromPort=22,
        ToPort=22,
        DestinationSecurityGroupId=Ref(cluster),
        Description="SSH to the nodes",
    )
    group = _group(t, design, place, "EndpointGroup", "From the operator to port 22 of the nodes", egress=[door])
    _admit(t, "EndpointIn", Ref(cluster), group, (22, 22), "SSH from the Instance Connect Endpoint")
    t.add_resource(
        ec2.InstanceConnectEndpoint(
            "Endpoint",
            SubnetId=place.private_subnet,
            SecurityGroupIds=[Ref(group)],
            PreserveClientIp=False,
            Tags=tags(design, "endpoint"),
        )
    )


def _add_lustre_rules(t: Template, cluster: ec2.SecurityGroup, storage: ec2.SecurityGroup) -> None:
    for who, source in (("Nodes", cluster), ("Servers", storage)):
        for part, ports in (("", (988, 988)), ("Data", (1018, 1023))):
            _admit(t, f"Lustre{part}From{who}", Ref(storage), source, ports, f"Lustre from its {who.lower()}")


def _admin(t: Template, design: Design, place: ClusterNetwork) -> Any | None:
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
