"""Node group in the template: one launch template like the bare cluster's, in one zone, managed by EKS."""

from typing import Any

from troposphere import Base64, GetAtt, Ref, Template, ec2, eks

from cfn.template.network import ClusterNetwork, tags
from cfn.template.nodes import add_placement, network_interface, reserved, root_volume
from cfn.template.security import SecurityGroups
from eks.stack.design import EksDesign
from eks.stack.roles import add_role

CAPACITIES = {"on-demand": "ON_DEMAND", "reservation": "ON_DEMAND", "spot": "SPOT", "capacity-block": "CAPACITY_BLOCK"}
ROOT_DEVICE = "/dev/xvda"  # of Amazon Linux 2023
# Source: EKS User Guide, "Customize managed nodes with launch templates"; awslabs/amazon-eks-ami, nodeadm's NodeConfig.
LOCAL_DISKS = """\
MIME-Version: 1.0
Content-Type: multipart/mixed; boundary="//"

--//
Content-Type: application/node.eks.aws

apiVersion: node.eks.aws/v1alpha1
kind: NodeConfig
spec:
  instance:
    localStorage:
      strategy: RAID0
--//--
"""


def add_node_group(
    t: Template,
    design: EksDesign,
    place: ClusterNetwork,
    groups: SecurityGroups,
    cluster: eks.Cluster,
    before: list[str],
) -> eks.Nodegroup:
    """Add the node group: as many nodes as the bare cluster has hosts, none of them public.

    Args:
        before: resources without which no node becomes ready.
    """
    role = add_role(
        t,
        design,
        "NodeRole",
        "ec2.amazonaws.com",
        managed=("AmazonEKSWorkerNodePolicy", "AmazonEC2ContainerRegistryPullOnly"),
    )
    launch = _launch_template(t, design, groups, cluster)
    return t.add_resource(
        eks.Nodegroup(
            "Nodes",
            ClusterName=Ref(cluster),
            NodeRole=GetAtt(role, "Arn"),
            Subnets=[place.private_subnet],
            AmiType=design.ami_type,
            CapacityType=CAPACITIES[design.file.nodes.capacity],
            LaunchTemplate=eks.LaunchTemplateSpecification(
                Id=Ref(launch), Version=GetAtt(launch, "LatestVersionNumber")
            ),
            ScalingConfig=eks.ScalingConfig(MinSize=0, DesiredSize=design.nodes, MaxSize=design.nodes),
            UpdateConfig=eks.UpdateConfig(MaxUnavailable=1),
            # EKS replaces nodes that the monitoring agent reports broken. A job recovers as on bare hosts.
            NodeRepairConfig=eks.NodeRepairConfig(Enabled=True),
            Tags={"Name": f"{design.file.name}-nodes", "dlami-cluster:cluster": design.file.name},
            DependsOn=[*place.ready, "ClusterIn", "ClusterOut", "ClusterInternet", "NfsIn", *before],
        )
    )


def _launch_template(
    t: Template, design: EksDesign, groups: SecurityGroups, cluster: eks.Cluster
) -> ec2.LaunchTemplate:
    # EKS does not add its security group to a launch template's interfaces. Without it the API cannot reach kubelets.
    security = [groups.cluster, GetAtt(cluster, "ClusterSecurityGroupId")]
    owned = tags(design, "node")
    data = ec2.LaunchTemplateData(
        InstanceType=design.instance.name,
        MetadataOptions=ec2.MetadataOptions(HttpTokens="required", HttpPutResponseHopLimit=1, HttpEndpoint="enabled"),
        BlockDeviceMappings=[root_volume(design)],
        NetworkInterfaces=[network_interface(i, security) for i in design.interfaces_of("worker")],
        TagSpecifications=[ec2.TagSpecifications(ResourceType=kind, Tags=owned) for kind in ("instance", "volume")],
        **_bought(design),
    )
    if design.has_local_disks:
        data.UserData = Base64(LOCAL_DISKS)
    if placement := add_placement(t, design):
        data.Placement = placement
    own = ec2.TagSpecifications(ResourceType="launch-template", Tags=owned)
    return t.add_resource(ec2.LaunchTemplate("NodeTemplate", LaunchTemplateData=data, TagSpecifications=[own]))


def _bought(design: EksDesign) -> dict[str, Any]:
    """Return the market options of the launch template.

    EKS accepts spot only as a property of the node group.
    """
    capacity = design.file.nodes.capacity
    block = {"InstanceMarketOptions": ec2.InstanceMarketOptions(MarketType="capacity-block")}
    own = {"CapacityReservationSpecification": reserved(design)} if design.file.nodes.reservation else {}
    return {**(block if capacity == "capacity-block" else {}), **own}
