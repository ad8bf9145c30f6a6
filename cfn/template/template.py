"""CloudFormation template of a bare cluster, rendered from its design. The same design gives the same bytes."""

import json
from typing import Any

from troposphere import Output, Parameter, Ref, Template

from cfn import in_stack
from cfn.template.design import Design
from cfn.template.filesystems import FileSystems, add_filesystems
from cfn.template.firstboot import add_script
from cfn.template.network import ClusterNetwork, add_network
from cfn.template.nodes import Groupings, add_nodes
from cfn.template.role import add_roles
from cfn.template.security import add_groups
from cluster.errors import ConfigError

LIMIT = 51_200  # maximum bytes of a template in a CloudFormation request


def stack(design: Design) -> Template:
    """Return the template: network, storage, access, nodes, outputs."""
    t = Template(Description=f"dlami-cluster {design.file.name}: one master and {design.file.nodes.workers} workers")
    t.set_version("2010-09-09")
    script = {in_stack.SETUP: in_stack.packed(design.setup)} if design.setup else {}
    t.set_metadata({in_stack.KEY: in_stack.values(design.file), **script})
    t.add_parameter(
        Parameter("Ami", Type="AWS::EC2::Image::Id", Default=design.ami, Description="Image of every node, pinned")
    )
    t.add_parameter(
        Parameter(
            "Zone", Type="AWS::EC2::AvailabilityZone::Name", Default=design.zone, Description="Zone of every node"
        )
    )
    add_script(t)
    place = add_network(t, design)
    groups = add_groups(t, design, place)
    files = add_filesystems(t, design, place, groups)
    nodes = add_nodes(t, design, place, groups, files, add_roles(t, design))
    for name, value in outputs(design, place, files, nodes).items():
        t.add_output(Output(name, Value=value))
    return t


def outputs(design: Design, place: ClusterNetwork, files: FileSystems, nodes: Groupings) -> dict[str, Any]:
    """Return the outputs, which hold all that the tasks need, so that none guesses a resource's name."""
    file = design.file
    known: dict[str, Any] = {
        "Cluster": file.name,
        "Zone": Ref("Zone"),
        "Ami": Ref("Ami"),
        "InstanceType": design.instance.name,
        "Slots": str(design.instance.slots),
        "MasterAddress": nodes.master_address,
        "MasterPrivateAddress": nodes.master_private_address,
        "MasterGroup": Ref(nodes.master),
        "WorkerGroup": Ref(nodes.workers),
        "Vpc": place.vpc,
        "PrivateSubnet": place.private_subnet,
        "FileSystem": files.efs,
        "SharedFolder": file.shared,
        "ProjectFolder": file.project,
        "User": file.ssh.user,
        "AccessMode": file.access.mode,
    }
    if design.master:
        known |= {"MasterInstanceType": design.master.name, "MasterSlots": "0"}
    if files.fsx is not None:
        known |= {"FastFileSystem": files.fsx, "FastFolder": file.storage.fsx_mount}
    if files.target is not None:
        known["MountTarget"] = files.target
    if file.storage.s3:
        known["Bucket"] = file.storage.s3
    if file.nodes.source:
        known |= {"Source": file.nodes.source, "SourceVersion": design.source_version}
    return known


def body(design: Design) -> str:
    """Return the template as it is sent to AWS. Raises ConfigError if CloudFormation would not accept it."""
    text = json.dumps(stack(design).to_dict(), sort_keys=True, separators=(",", ":"))
    return checked(text, "the set-up script" if design.setup else "scripts/first-boot.sh")


def checked(text: str, longest_part: str) -> str:
    """Return the template's text. Raises ConfigError, naming the part to shorten, if it is too large for a request."""
    if len(text.encode()) > LIMIT:
        raise ConfigError(
            f"the template has {len(text.encode())} bytes, CloudFormation takes {LIMIT}: shorten {longest_part}"
        )
    return text
