"""Resource types of the network and of EC2's instances."""

import secrets
from typing import Any

from lab.aws.kinds import Properties, Site, ended_by, kind, retag, tag_specification
from lab.aws.state import Made


def plain(p: Properties, *without: str) -> Properties:
    """Return the properties that the API takes by the same names."""
    return {k: v for k, v in p.items() if k not in ("Tags", *without)}


class Retagged:
    """Base of types of which only the tags can be changed in place."""

    @staticmethod
    def update(site: Site, physical: str, old: Properties, new: Properties) -> None:
        retag(site, physical, new)


@kind("AWS::EC2::VPC", "CidrBlock EnableDnsSupport EnableDnsHostnames Tags")
class Vpc(Retagged):
    @staticmethod
    def create(site: Site, p: Properties) -> Made:
        ec2 = site.api("ec2")
        vpc = ec2.create_vpc(CidrBlock=p["CidrBlock"], **tag_specification("vpc", p.get("Tags")))["Vpc"]["VpcId"]
        ec2.modify_vpc_attribute(VpcId=vpc, EnableDnsHostnames={"Value": bool(p.get("EnableDnsHostnames"))})
        return Made(vpc, {"VpcId": vpc, "CidrBlock": p["CidrBlock"]})

    delete = ended_by("ec2", "delete_vpc", "VpcId")


@kind("AWS::EC2::Subnet", "VpcId CidrBlock AvailabilityZone MapPublicIpOnLaunch Tags")
class Subnet(Retagged):
    @staticmethod
    def create(site: Site, p: Properties) -> Made:
        ec2 = site.api("ec2")
        made = ec2.create_subnet(**plain(p, "MapPublicIpOnLaunch"), **tag_specification("subnet", p.get("Tags")))[
            "Subnet"
        ]
        ec2.modify_subnet_attribute(
            SubnetId=made["SubnetId"], MapPublicIpOnLaunch={"Value": bool(p.get("MapPublicIpOnLaunch"))}
        )
        return Made(made["SubnetId"], {"SubnetId": made["SubnetId"], "AvailabilityZone": made["AvailabilityZone"]})

    delete = ended_by("ec2", "delete_subnet", "SubnetId")


@kind("AWS::EC2::InternetGateway", "Tags")
class InternetGateway(Retagged):
    @staticmethod
    def create(site: Site, p: Properties) -> Made:
        made = site.api("ec2").create_internet_gateway(**tag_specification("internet-gateway", p.get("Tags")))
        return Made(made["InternetGateway"]["InternetGatewayId"])

    delete = ended_by("ec2", "delete_internet_gateway", "InternetGatewayId")


@kind("AWS::EC2::VPCGatewayAttachment", "VpcId InternetGatewayId")
class Attachment:
    @staticmethod
    def create(site: Site, p: Properties) -> Made:
        site.api("ec2").attach_internet_gateway(**p)
        return Made(f"IGW|{p['VpcId']}")

    @staticmethod
    def delete(site: Site, physical: str, p: Properties) -> None:
        site.api("ec2").detach_internet_gateway(**p)


@kind("AWS::EC2::EIP", "Domain Tags")
class Eip(Retagged):
    @staticmethod
    def create(site: Site, p: Properties) -> Made:
        made = site.api("ec2").allocate_address(Domain="vpc", **tag_specification("elastic-ip", p.get("Tags")))
        return Made(made["PublicIp"], {"AllocationId": made["AllocationId"], "PublicIp": made["PublicIp"]})

    @staticmethod
    def delete(site: Site, physical: str, p: Properties) -> None:
        ec2 = site.api("ec2")
        for address in ec2.describe_addresses(Filters=[{"Name": "public-ip", "Values": [physical]}])["Addresses"]:
            ec2.release_address(AllocationId=address["AllocationId"])

    @staticmethod
    def update(site: Site, physical: str, old: Properties, new: Properties) -> None:
        return None


@kind("AWS::EC2::EIPAssociation", "AllocationId NetworkInterfaceId")
class EipAssociation:
    @staticmethod
    def create(site: Site, p: Properties) -> Made:
        return Made(site.api("ec2").associate_address(**p)["AssociationId"])

    delete = ended_by("ec2", "disassociate_address", "AssociationId")


@kind("AWS::EC2::InstanceConnectEndpoint", "SubnetId SecurityGroupIds PreserveClientIp Tags")
class InstanceConnectEndpoint:
    """Instance Connect endpoint, which moto lacks. Only the existence of its subnet and security groups is checked."""

    @staticmethod
    def create(site: Site, p: Properties) -> Made:
        site.api("ec2").describe_subnets(SubnetIds=[p["SubnetId"]])
        site.api("ec2").describe_security_groups(GroupIds=p["SecurityGroupIds"])
        return Made(f"eice-{secrets.token_hex(8)}")

    @staticmethod
    def delete(site: Site, physical: str, p: Properties) -> None:
        return None


@kind("AWS::EC2::NatGateway", "AllocationId SubnetId Tags")
class Nat(Retagged):
    @staticmethod
    def create(site: Site, p: Properties) -> Made:
        return Made(
            site.api("ec2").create_nat_gateway(**plain(p), **tag_specification("natgateway", p.get("Tags")))[
                "NatGateway"
            ]["NatGatewayId"]
        )

    @staticmethod
    def delete(site: Site, physical: str, p: Properties) -> None:
        ec2 = site.api("ec2")
        ec2.delete_nat_gateway(NatGatewayId=physical)
        for address in ec2.describe_addresses(AllocationIds=[p["AllocationId"]])["Addresses"]:
            if "AssociationId" in address:
                ec2.disassociate_address(AssociationId=address["AssociationId"])


@kind("AWS::EC2::RouteTable", "VpcId Tags")
class RouteTable(Retagged):
    @staticmethod
    def create(site: Site, p: Properties) -> Made:
        made = site.api("ec2").create_route_table(VpcId=p["VpcId"], **tag_specification("route-table", p.get("Tags")))
        return Made(made["RouteTable"]["RouteTableId"])

    delete = ended_by("ec2", "delete_route_table", "RouteTableId")


@kind("AWS::EC2::SubnetRouteTableAssociation", "SubnetId RouteTableId")
class Routing:
    @staticmethod
    def create(site: Site, p: Properties) -> Made:
        return Made(site.api("ec2").associate_route_table(**p)["AssociationId"])

    delete = ended_by("ec2", "disassociate_route_table", "AssociationId")


@kind("AWS::EC2::Route", "RouteTableId DestinationCidrBlock GatewayId NatGatewayId")
class RouteKind:
    @staticmethod
    def create(site: Site, p: Properties) -> Made:
        site.api("ec2").create_route(**p)
        return Made(f"{p['RouteTableId']}|{p['DestinationCidrBlock']}")

    @staticmethod
    def delete(site: Site, physical: str, p: Properties) -> None:
        site.api("ec2").delete_route(RouteTableId=p["RouteTableId"], DestinationCidrBlock=p["DestinationCidrBlock"])


@kind("AWS::EC2::VPCEndpoint", "VpcId VpcEndpointType ServiceName RouteTableIds")
class Endpoint:
    @staticmethod
    def create(site: Site, p: Properties) -> Made:
        return Made(site.api("ec2").create_vpc_endpoint(**p)["VpcEndpoint"]["VpcEndpointId"])

    @staticmethod
    def delete(site: Site, physical: str, p: Properties) -> None:
        site.api("ec2").delete_vpc_endpoints(VpcEndpointIds=[physical])


def permission(p: Properties) -> dict[str, Any]:
    """Return a template's rule as the authorize calls take it."""
    said = {"Description": p["Description"]} if "Description" in p else {}
    out: dict[str, Any] = {"IpProtocol": p["IpProtocol"]}
    out |= {k: int(p[k]) for k in ("FromPort", "ToPort") if k in p}
    if "CidrIp" in p:
        out["IpRanges"] = [{"CidrIp": p["CidrIp"], **said}]
    if group := p.get("SourceSecurityGroupId") or p.get("DestinationSecurityGroupId"):
        out["UserIdGroupPairs"] = [{"GroupId": group, **said}]
    return out


@kind("AWS::EC2::SecurityGroup", "VpcId GroupDescription Tags SecurityGroupIngress SecurityGroupEgress")
class SecurityGroup:
    @staticmethod
    def create(site: Site, p: Properties) -> Made:
        ec2 = site.api("ec2")
        group = ec2.create_security_group(
            GroupName=site.generated_name,
            Description=p["GroupDescription"],
            VpcId=p["VpcId"],
            **tag_specification("security-group", p.get("Tags")),
        )["GroupId"]
        SecurityGroup._rules(site, group, {}, p)
        return Made(group, {"GroupId": group, "VpcId": p["VpcId"]})

    @staticmethod
    def _rules(site: Site, group: str, old: Properties, new: Properties) -> None:
        ec2 = site.api("ec2")
        for name, allow, revoke in (
            ("SecurityGroupIngress", ec2.authorize_security_group_ingress, ec2.revoke_security_group_ingress),
            ("SecurityGroupEgress", ec2.authorize_security_group_egress, ec2.revoke_security_group_egress),
        ):
            before, after = old.get(name, []), new.get(name, [])
            for rule in (r for r in before if r not in after):
                revoke(GroupId=group, IpPermissions=[permission(rule)])
            for rule in (r for r in after if r not in before):
                allow(GroupId=group, IpPermissions=[permission(rule)])

    @staticmethod
    def update(site: Site, physical: str, old: Properties, new: Properties) -> None:
        SecurityGroup._rules(site, physical, old, new)
        retag(site, physical, new)

    delete = ended_by("ec2", "delete_security_group", "GroupId")


@kind("AWS::EC2::SecurityGroupIngress", "GroupId SourceSecurityGroupId IpProtocol FromPort ToPort CidrIp Description")
class Ingress:
    @staticmethod
    def create(site: Site, p: Properties) -> Made:
        made = site.api("ec2").authorize_security_group_ingress(GroupId=p["GroupId"], IpPermissions=[permission(p)])
        return Made(made["SecurityGroupRules"][0]["SecurityGroupRuleId"])

    @staticmethod
    def delete(site: Site, physical: str, p: Properties) -> None:
        site.api("ec2").revoke_security_group_ingress(GroupId=p["GroupId"], IpPermissions=[permission(p)])


@kind(
    "AWS::EC2::SecurityGroupEgress",
    "GroupId DestinationSecurityGroupId IpProtocol FromPort ToPort CidrIp Description",
)
class Egress:
    @staticmethod
    def create(site: Site, p: Properties) -> Made:
        ec2 = site.api("ec2")
        described = ec2.describe_security_groups(GroupIds=[p["GroupId"]])["SecurityGroups"][0]["IpPermissionsEgress"]
        default = {"IpProtocol": "-1", "IpRanges": [{"CidrIp": "0.0.0.0/0"}]}
        # AWS drops the default open rule as soon as a rule of our own is there.
        if any(
            r["IpProtocol"] == "-1"
            and [i.get("CidrIp") for i in r["IpRanges"]] == ["0.0.0.0/0"]
            and "Description" not in r["IpRanges"][0]
            for r in described
        ):
            ec2.revoke_security_group_egress(GroupId=p["GroupId"], IpPermissions=[default])
        made = ec2.authorize_security_group_egress(GroupId=p["GroupId"], IpPermissions=[permission(p)])
        return Made(made["SecurityGroupRules"][0]["SecurityGroupRuleId"])

    @staticmethod
    def delete(site: Site, physical: str, p: Properties) -> None:
        site.api("ec2").revoke_security_group_egress(GroupId=p["GroupId"], IpPermissions=[permission(p)])


@kind("AWS::EC2::NetworkInterface", "SubnetId GroupSet Description InterfaceType Tags")
class NetworkInterfaceKind:
    @staticmethod
    def create(site: Site, p: Properties) -> Made:
        made = site.api("ec2").create_network_interface(
            SubnetId=p["SubnetId"],
            Groups=p["GroupSet"],
            Description=p.get("Description", ""),
            **tag_specification("network-interface", p.get("Tags")),
        )["NetworkInterface"]
        return Made(
            made["NetworkInterfaceId"],
            {"Id": made["NetworkInterfaceId"], "PrimaryPrivateIpAddress": made["PrivateIpAddress"]},
        )

    @staticmethod
    def update(site: Site, physical: str, old: Properties, new: Properties) -> None:
        site.api("ec2").modify_network_interface_attribute(NetworkInterfaceId=physical, Groups=new["GroupSet"])
        retag(site, physical, new)

    delete = ended_by("ec2", "delete_network_interface", "NetworkInterfaceId")
