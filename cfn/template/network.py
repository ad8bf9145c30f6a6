"""Network in the template: a VPC of one zone with a public and a private subnet, or the ids of an existing one."""

from dataclasses import dataclass
from typing import Any

from troposphere import GetAtt, Ref, Sub, Tags, Template, ec2

from cfn.template.design import TAG, Design


@dataclass(frozen=True, kw_only=True)
class ClusterNetwork:
    """VPC and subnets of the cluster, as ids or as references into the template."""

    vpc: Any
    public_subnet: Any
    private_subnet: Any
    ready: tuple[str, ...] = ()
    """Resources that must exist before a node can reach AWS."""


def tags(design: Design, part: str, **more: str) -> Tags:
    """Return the tags of a resource: its name, and the cluster's name."""
    return Tags(**{"Name": f"{design.file.name}-{part}", f"{TAG}cluster": design.file.name, **more})


def add_network(t: Template, design: Design) -> ClusterNetwork:
    """Return the cluster file's existing network, or add a new one."""
    network = design.file.network
    if network.vpc:
        near, far = design.existing_subnets
        return ClusterNetwork(vpc=network.vpc, public_subnet=near or far, private_subnet=far)
    vpc = t.add_resource(
        ec2.VPC("Vpc", CidrBlock=network.cidr, EnableDnsSupport=True, EnableDnsHostnames=True, Tags=tags(design, "vpc"))
    )
    public = _subnet(t, design, vpc, "Public", network.public_cidr)
    private = _subnet(t, design, vpc, "Private", network.private_cidr)
    tables = _route_table(t, design, vpc, "Public", public), _route_table(t, design, vpc, "Private", private)
    ways = _add_ways_out(t, design, vpc, public, tables)
    # Data never goes through the NAT, which is slow and billed per gigabyte.
    endpoint = t.add_resource(
        ec2.VPCEndpoint(
            "S3Endpoint",
            VpcId=Ref(vpc),
            VpcEndpointType="Gateway",
            ServiceName=Sub("com.amazonaws.${AWS::Region}.s3"),
            RouteTableIds=[Ref(table) for table in tables],
        )
    )
    ready = (*ways, "PublicRouting", "PrivateRouting", endpoint.title)
    return ClusterNetwork(vpc=Ref(vpc), public_subnet=Ref(public), private_subnet=Ref(private), ready=ready)


def _add_ways_out(
    t: Template, design: Design, vpc: ec2.VPC, public: ec2.Subnet, tables: tuple[ec2.RouteTable, ec2.RouteTable]
) -> tuple[str, str]:
    """Add an internet gateway for the public subnet and NAT for the private one. Return the names of the two routes."""
    gateway = t.add_resource(ec2.InternetGateway("InternetGateway", Tags=tags(design, "internet")))
    attachment = t.add_resource(
        ec2.VPCGatewayAttachment("InternetAttachment", VpcId=Ref(vpc), InternetGatewayId=Ref(gateway))
    )
    address = t.add_resource(ec2.EIP("NatAddress", Domain="vpc", DependsOn=attachment.title, Tags=tags(design, "nat")))
    nat = t.add_resource(
        ec2.NatGateway(
            "Nat", AllocationId=GetAtt(address, "AllocationId"), SubnetId=Ref(public), Tags=tags(design, "nat")
        )
    )
    anywhere = "0.0.0.0/0"
    out = ec2.Route(
        "PublicRoute",
        RouteTableId=Ref(tables[0]),
        DestinationCidrBlock=anywhere,
        GatewayId=Ref(gateway),
        DependsOn=attachment.title,
    )
    through_nat = ec2.Route(
        "PrivateRoute", RouteTableId=Ref(tables[1]), DestinationCidrBlock=anywhere, NatGatewayId=Ref(nat)
    )
    t.add_resource(out)
    t.add_resource(through_nat)
    return out.title, through_nat.title


def _subnet(t: Template, design: Design, vpc: ec2.VPC, name: str, cidr: str) -> ec2.Subnet:
    return t.add_resource(
        ec2.Subnet(
            f"{name}Subnet",
            VpcId=Ref(vpc),
            CidrBlock=cidr,
            AvailabilityZone=Ref("Zone"),
            MapPublicIpOnLaunch=False,
            Tags=tags(design, name.lower(), **design.subnet_tags(name)),
        )
    )


def _route_table(t: Template, design: Design, vpc: ec2.VPC, name: str, subnet: ec2.Subnet) -> ec2.RouteTable:
    table = t.add_resource(ec2.RouteTable(f"{name}Routes", VpcId=Ref(vpc), Tags=tags(design, name.lower())))
    t.add_resource(ec2.SubnetRouteTableAssociation(f"{name}Routing", SubnetId=Ref(subnet), RouteTableId=Ref(table)))
    return table
