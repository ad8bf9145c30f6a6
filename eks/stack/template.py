"""CloudFormation template of an EKS cluster: network, storage and security as the bare cluster's, with Kubernetes."""

import json
from typing import Any

from troposphere import GetAtt, Output, Parameter, Ref, Template, eks

from cfn import in_stack
from cfn.template.filesystems import FileSystems, add_filesystems
from cfn.template.network import ClusterNetwork, add_network
from cfn.template.security import add_groups
from cfn.template.template import checked
from cluster.terminal import counted
from eks.base import SERVICE_ACCOUNT
from eks.stack.addons import add_before_nodes, add_on_nodes
from eks.stack.control import add_control_plane
from eks.stack.design import EksDesign
from eks.stack.nodes import add_node_group
from eks.stack.roles import add_jobs_role


def stack(design: EksDesign) -> Template:
    """Return the template: network, storage, Kubernetes, nodes, add-ons, outputs."""
    t = Template(Description=f"dlami-cluster {design.file.name}: Kubernetes and {counted(design.nodes, 'node')}")
    t.set_version("2010-09-09")
    t.set_metadata({in_stack.KEY: in_stack.values(design.file)})
    for name, zone, what in (
        ("Zone", design.zone, "Zone of every node"),
        ("SecondZone", design.second_zone, "Another one, for EKS's own interfaces"),
    ):
        t.add_parameter(Parameter(name, Type="AWS::EC2::AvailabilityZone::Name", Default=zone, Description=what))
    place = add_network(t, design)
    groups = add_groups(t, design, place)
    files = add_filesystems(t, design, place, groups)
    cluster = add_control_plane(t, design, place)
    nodes = add_node_group(t, design, place, groups, cluster, add_before_nodes(t, design, cluster))
    add_on_nodes(t, design, cluster, nodes)
    add_jobs_role(t, design, Ref(cluster), design.file.eks.namespace, SERVICE_ACCOUNT)
    for name, value in outputs(design, place, files, cluster, nodes).items():
        t.add_output(Output(name, Value=value))
    return t


def outputs(
    design: EksDesign, place: ClusterNetwork, files: FileSystems, cluster: eks.Cluster, nodes: eks.Nodegroup
) -> dict[str, Any]:
    """Return the outputs, which hold all that the tasks need, so that none guesses a resource's name."""
    known: dict[str, Any] = {
        "Cluster": design.file.name,
        "Zone": Ref("Zone"),
        "SecondZone": Ref("SecondZone"),
        "InstanceType": design.instance.name,
        "Slots": str(design.instance.slots),
        "Kubernetes": Ref(cluster),
        "Endpoint": GetAtt(cluster, "Endpoint"),
        "NodeGroup": GetAtt(nodes, "NodegroupName"),
        "Operator": design.operator,
        "Vpc": place.vpc,
        "PrivateSubnet": place.private_subnet,
        "FileSystem": files.efs,
        "SharedFolder": design.file.shared,
    }
    if files.fsx is not None:
        known |= {"FastFileSystem": files.fsx, "FastName": files.fsx_name, "FastFolder": design.file.storage.fsx_mount}
    if files.target is not None:
        known["MountTarget"] = files.target
    return known


def body(design: EksDesign) -> str:
    """Return the template as it is sent to AWS. Raises ConfigError if CloudFormation would not accept it."""
    return checked(json.dumps(stack(design).to_dict(), sort_keys=True, separators=(",", ":")), "the cluster file")
