"""Instances in the template: the master's fixed interface, two launch templates, two Auto Scaling groups."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from troposphere import GetAtt, Ref, Template, autoscaling, ec2, iam, policies

from cfn.instances import NetworkInterface
from cfn.template.design import TAG, Design, first_minutes
from cfn.template.filesystems import FileSystems
from cfn.template.firstboot import user_data
from cfn.template.network import ClusterNetwork, tags
from cfn.template.role import profile_arn
from cfn.template.security import SecurityGroups


@dataclass(frozen=True, kw_only=True)
class Groupings:
    """The two Auto Scaling groups and the master's addresses."""

    master: autoscaling.AutoScalingGroup
    workers: autoscaling.AutoScalingGroup
    master_address: Any
    master_private_address: Any


def add_nodes(
    t: Template,
    design: Design,
    place: ClusterNetwork,
    groups: SecurityGroups,
    files: FileSystems,
    profiles: Mapping[str, iam.InstanceProfile],
) -> Groupings:
    """Add the master's group of exactly one instance, and the workers' group."""
    interface, address = _master_interface(t, design, place, groups)
    private = GetAtt(interface, "PrimaryPrivateIpAddress")
    common = (t, design, place, groups, files, profiles, add_placement(t, design))
    master = _group("MasterNodes", "master", 1, _launch("Master", *common, interface=interface), design, place)
    workers = _group("WorkerNodes", "workers", design.file.nodes.pool, _launch("Worker", *common), design, place)
    return Groupings(
        master=t.add_resource(master),
        workers=t.add_resource(workers),
        master_address=address or private,
        master_private_address=private,
    )


def add_placement(t: Template, design: Design) -> ec2.Placement | None:
    """Return the placement of the nodes, and add a placement group if the stack needs its own.

    Nodes in a reservation are placed in the reservation's placement group. Returns None if the reservation has no
    group.
    """
    if not design.file.nodes.uses_placement_group:
        return ec2.Placement(GroupName=design.reserved_group) if design.reserved_group else None
    made = t.add_resource(ec2.PlacementGroup("Placement", Strategy="cluster", Tags=tags(design, "placement")))
    return ec2.Placement(GroupName=Ref(made))


def _master_interface(
    t: Template, design: Design, place: ClusterNetwork, groups: SecurityGroups
) -> tuple[ec2.NetworkInterface, Any]:
    """Add the master's primary network interface, which outlives its instances and so keeps their addresses.

    An Elastic IP on it is also the only public address that an instance with several network cards can have. Source:
    Auto Scaling User Guide, launch template examples, "Use an existing network interface".
    """
    kind = design.interfaces_of("master")[0].kind
    interface = t.add_resource(
        ec2.NetworkInterface(
            "MasterInterface",
            SubnetId=place.public_subnet if design.master_is_public else place.private_subnet,
            GroupSet=[groups.cluster, *([groups.admin] if groups.admin else [])],
            Description="Primary interface of the master",
            Tags=tags(design, "master"),
            **({"InterfaceType": kind} if kind != "interface" else {}),
        )
    )
    if not design.master_is_public:
        return interface, None
    internet = ["InternetAttachment"] if not design.file.network.vpc else []
    address = t.add_resource(
        ec2.EIP(
            "MasterAddress",
            Domain="vpc",
            Tags=tags(design, "master"),
            **({"DependsOn": internet} if internet else {}),
        )
    )
    t.add_resource(
        ec2.EIPAssociation(
            "MasterAssociation", AllocationId=GetAtt(address, "AllocationId"), NetworkInterfaceId=Ref(interface)
        )
    )
    return interface, GetAtt(address, "PublicIp")


def _launch(
    role: str,
    t: Template,
    design: Design,
    place: ClusterNetwork,
    groups: SecurityGroups,
    files: FileSystems,
    profiles: Mapping[str, iam.InstanceProfile],
    placement: ec2.Placement | None,
    interface: ec2.NetworkInterface | None = None,
) -> ec2.LaunchTemplate:
    lower = role.lower()
    is_in_block = design.file.market(lower) == "capacity-block"
    # The node's preemption-notice service reads this tag.
    ends = {f"{TAG}ends": design.block_ends} if design.block_ends and is_in_block else {}
    owned = tags(design, lower, **{f"{TAG}role": lower}, **ends)
    data = ec2.LaunchTemplateData(
        ImageId=Ref("Ami"),
        InstanceType=design.instance_of(lower).name,
        IamInstanceProfile=ec2.IamInstanceProfile(Arn=profile_arn(profiles[role])),
        MetadataOptions=ec2.MetadataOptions(
            HttpTokens="required",
            HttpPutResponseHopLimit=1,
            HttpEndpoint="enabled",
            **({"InstanceMetadataTags": "enabled"} if ends else {}),
        ),
        BlockDeviceMappings=[root_volume(design)],
        NetworkInterfaces=_interfaces(design, lower, place, groups, interface),
        UserData=user_data(design, lower, f"{role}Nodes", files),
        TagSpecifications=[ec2.TagSpecifications(ResourceType=kind, Tags=owned) for kind in ("instance", "volume")],
    )
    if placement and not (design.master and lower == "master"):  # some small types are not allowed in such a group
        data.Placement = placement
    if design.file.access.key_pair:
        data.KeyName = design.file.access.key_pair
    _buy(design, data, lower)
    own = ec2.TagSpecifications(ResourceType="launch-template", Tags=tags(design, lower))
    return t.add_resource(ec2.LaunchTemplate(f"{role}Template", LaunchTemplateData=data, TagSpecifications=[own]))


def root_volume(design: Design) -> ec2.LaunchTemplateBlockDeviceMapping:
    """Return the block device of a node's root disk, which is deleted with the node."""
    size = design.file.nodes.root_gib
    disk = ec2.EBSBlockDevice(VolumeSize=size, VolumeType="gp3", Encrypted=True, DeleteOnTermination=True)
    return ec2.LaunchTemplateBlockDeviceMapping(DeviceName=design.root_device, Ebs=disk)


def _buy(design: Design, data: ec2.LaunchTemplateData, role: str) -> None:
    market = design.file.market(role)
    if market == "spot":
        data.InstanceMarketOptions = ec2.InstanceMarketOptions(
            MarketType="spot",
            SpotOptions=ec2.SpotOptions(SpotInstanceType="one-time", InstanceInterruptionBehavior="terminate"),
        )
    if market == "capacity-block":
        data.InstanceMarketOptions = ec2.InstanceMarketOptions(MarketType="capacity-block")
        data.CapacityReservationSpecification = reserved(design)


def reserved(design: Design) -> ec2.CapacityReservationSpecification:
    """Return the capacity reservation or capacity block of the cluster file."""
    target = ec2.CapacityReservationTarget(CapacityReservationId=design.file.nodes.reservation)
    return ec2.CapacityReservationSpecification(CapacityReservationTarget=target)


def _interfaces(
    design: Design, role: str, place: ClusterNetwork, groups: SecurityGroups, fixed: ec2.NetworkInterface | None
) -> list[ec2.NetworkInterfaces]:
    """Return the network interfaces of a role's launch template.

    The workers' subnet comes from their group. The master's group has no subnet, because the master's first interface
    exists already. Its EFAs are in the workers' subnet: only newer instance types let EFA traffic cross subnets.
    """
    return [
        ec2.NetworkInterfaces(DeviceIndex=0, NetworkInterfaceId=Ref(fixed))
        if fixed and i.device == 0 and i.card == 0
        else network_interface(i, [groups.cluster], **({"SubnetId": place.private_subnet} if fixed else {}))
        for i in design.interfaces_of(role)
    ]


def network_interface(i: NetworkInterface, security_groups: list[Any], **subnet: Any) -> ec2.NetworkInterfaces:
    """Return one network interface of a launch template."""
    kind = {"InterfaceType": i.kind} if i.kind != "interface" else {}
    card = {"NetworkCardIndex": i.card} if i.card else {}
    return ec2.NetworkInterfaces(
        DeviceIndex=i.device, Groups=security_groups, DeleteOnTermination=True, **kind, **card, **subnet
    )


def _group(
    title: str, role: str, size: int, launch: ec2.LaunchTemplate, design: Design, place: ClusterNetwork
) -> autoscaling.AutoScalingGroup:
    nodes = design.file.nodes
    where = {"AvailabilityZones": [Ref("Zone")]} if role == "master" else {"VPCZoneIdentifier": [place.private_subnet]}
    group = autoscaling.AutoScalingGroup(
        title,
        AutoScalingGroupName=f"{design.file.name}-{role}",
        MinSize=str(size if role == "master" else 0),
        MaxSize=str(size),
        DesiredCapacity=str(size),
        HealthCheckType="EC2",
        HealthCheckGracePeriod=300,
        TerminationPolicies=["NewestInstance"],
        LaunchTemplate=autoscaling.LaunchTemplateSpecification(
            LaunchTemplateId=Ref(launch), Version=GetAtt(launch, "LatestVersionNumber")
        ),
        Tags=autoscaling.Tags(
            **{
                f"{TAG}cluster": (design.file.name, True),
                f"{TAG}role": (role.removesuffix("s"), True),
                f"{TAG}guard": (_terms(design), False),
            }
        ),
        **where,
    )
    # An update of something else must not restart nodes that the guard or `inv stack.stop` has ended.
    group.UpdatePolicy = policies.UpdatePolicy(
        AutoScalingScheduledAction=policies.AutoScalingScheduledAction(IgnoreUnmodifiedGroupSizeProperties=True)
    )
    depends = [*place.ready, *(["ClusterIn", "ClusterOut", "ClusterInternet", "NfsIn"])]
    if role == "master" and design.master_is_public:
        depends.append("MasterAssociation")
    if design.efs_group:
        depends.append("ExistingNfsIn")
    group.DependsOn = depends
    if design.file.market(role.removesuffix("s")) == "reservation":
        group.CapacityReservationSpecification = autoscaling.CapacityReservationSpecification(
            CapacityReservationPreference="capacity-reservations-only",
            CapacityReservationTarget=autoscaling.CapacityReservationTarget(CapacityReservationIds=[nodes.reservation]),
        )
    if size:
        least = nodes.min_nodes - 1 if role == "workers" and nodes.min_nodes else size
        signal = policies.ResourceSignal(Count=least, Timeout=f"PT{nodes.boot_minutes}M")
        group.CreationPolicy = policies.CreationPolicy(ResourceSignal=signal)
    return group


def _terms(design: Design) -> str:
    """Return the guard's terms as text, which the master reads from its group.

    A change of the terms needs no new node.
    """
    guard = design.file.guard
    said: dict[str, object] = {"idle_minutes": design.file.idle_minutes}
    said |= {"max_hours": f"{guard.max_hours:g}", "budget_usd": f"{guard.budget_usd:g}"}
    # A price in the file is included even without a budget, so that a new price changes a resource of the stack.
    known = {
        "usd_per_hour": design.usd_per_hour or design.file.nodes.usd_per_hour,
        "master_usd_per_hour": design.master_usd_per_hour or design.file.master.usd_per_hour,
    }
    said |= {name: f"{usd:g}" for name, usd in known.items() if usd}
    said |= {"block_ends": design.block_ends} if design.block_ends else {}
    # The master's first boot reads first_minutes.
    said |= {"first_minutes": first_minutes(design.file)} if design.file.is_guarded else {}
    return " ".join(f"{name}={value}" for name, value in said.items())
