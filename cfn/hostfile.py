"""Hostfile, known_hosts and gateway, written from the stack's instances, with the same result on laptop and master."""

import re
import shutil
import socket
from collections.abc import Sequence
from pathlib import Path

from cfn import stack
from cfn.aws import Aws, asking
from cfn.hosts import GroupMember, hosts
from cluster.clusterfile.model import ClusterFile
from cluster.errors import ConfigError
from cluster.files import write_atomically
from cluster.hosts import Host, hostfile, is_this_machine
from cluster.inventory import INSTANCE, SshSettings, Tunnel
from cluster.ssh.connections import make_key
from cluster.ssh.options import Route, needed_programs, options_for_a_person
from cluster.ssh.proxy import MISSING
from cluster.written import TargetFile, some_fields, whole_file

# A node writes this tag itself, so its value is used only if it has the form of one known_hosts key.
HOST_KEY = re.compile(r"(ssh-ed25519|ssh-rsa|ecdsa-sha2-nistp(256|384|521)) [A-Za-z0-9+/]{40,1000}={0,2}")
CLOSED = "no port of the cluster is open to this machine: tasks reach the master through {way}"
WAYS = {
    "ssm": "Session Manager, by the AWS CLI and its Session Manager plugin",
    "eic": "its Instance Connect Endpoint, by the AWS CLI (version 2)",
}


def targets(aws: Aws, path: Path, file: ClusterFile) -> list[TargetFile]:
    """Return the files to write: `hosts`, `known_hosts`, and the gateway in the cluster file's [ssh] table."""
    outputs = stack.outputs(aws, file.name)
    members = hosts(aws, outputs)
    gateway = way_in(outputs, members, file.ssh.port)
    text = hostfile(
        Host(rank=n, address=m.address, slots=slots_of(m, outputs), is_spare=is_spare(m, file))
        for n, m in enumerate(members)
    )
    fields = {"known_hosts": "known_hosts", **({"gateway": gateway} if gateway else {})}
    return [
        whole_file(path.parent / "hosts", text),
        whole_file(path.parent / "known_hosts", known_hosts(members, gateway or members[0].address)),
        some_fields(path, "ssh", fields),
    ]


def slots_of(member: GroupMember, outputs: dict[str, str]) -> int:
    """Return the number of ranks that a host holds: 0 for a master that does not train."""
    return int((outputs.get("MasterSlots") if member.role == "master" else None) or outputs["Slots"])


def is_spare(member: GroupMember, file: ClusterFile) -> bool:
    """Return True if the host's rank is higher than those of all workers."""
    return (member.rank or 0) > file.nodes.workers


def way_in(outputs: dict[str, str], members: Sequence[GroupMember], port: int) -> str:
    """Return the address by which this machine reaches the master; "" on the master itself.

    If SSH is not open to the internet, this is the master's private address where this machine is in its network (VPN,
    lab). Elsewhere it is the instance id, which the AWS CLI can tunnel to.
    """
    if is_the_master(outputs):
        return ""
    if outputs.get("AccessMode", "ssh") == "ssh" or answers(outputs["MasterPrivateAddress"], port):
        return outputs["MasterAddress"]
    return members[0].instance_id


def advice(file: ClusterFile, gateway: str) -> str:
    """Return what this machine needs for a tunnel to the master, or "" if no tunnel is used."""
    return CLOSED.format(way=WAYS[file.access.mode]) if INSTANCE.fullmatch(gateway) else ""


def answers(address: str, port: int, seconds: float = 2.0) -> bool:
    """Return True if something accepts TCP connections at the address and port."""
    try:
        socket.create_connection((address, port), timeout=seconds).close()
    except OSError:
        return False
    return True


def known_hosts(members: Sequence[GroupMember], gateway: str) -> str:
    """Return the known_hosts text: one line per host with a known key, and one for the master's gateway address."""
    told = [m for m in members if HOST_KEY.fullmatch(m.host_key)]
    lines = [f"{m.address} {m.host_key}" for m in told]
    if told and told[0] is members[0] and gateway != members[0].address:
        lines.append(f"{gateway} {members[0].host_key}")
    return "".join(line + "\n" for line in lines)


def is_the_master(outputs: dict[str, str]) -> bool:
    """Return True if this machine is the master of the stack with these outputs."""
    return is_this_machine(outputs.get("MasterPrivateAddress", ""))


def ssh_command(aws: Aws, file: ClusterFile, folder: Path, *, forward_agent: bool = False) -> list[str]:
    """Return the command that opens a shell on the master.

    It checks the master's host key and forwards the agent if requested. Session Manager has its own command. Raises
    ConfigError if a program that it needs is missing here.
    """
    outputs = stack.outputs(aws, file.name)
    members = hosts(aws, outputs)
    for program in needed_programs(file.access.mode):
        if shutil.which(program) is None:
            where = f"open a session to {members[0].instance_id} in the console"
            raise ConfigError(f"{MISSING.format(program=program)}, or {where}")
    if file.access.mode == "ssm":
        return ["aws", "ssm", "start-session", "--region", file.region, "--target", members[0].instance_id]
    is_closed = file.access.mode == "eic"
    address = members[0].instance_id if is_closed else outputs["MasterAddress"]
    known = folder / ".known_hosts.stack"  # ours alone: known_hosts itself may have been edited
    write_atomically(known, known_hosts(members, address))
    way = Route(
        address,
        SshSettings(
            user=file.ssh.user,
            port=file.ssh.port,
            key=Path(file.ssh.key).expanduser() if file.ssh.key else None,
            known_hosts=known,
            gateway=address if is_closed else None,
            tunnel=Tunnel(mode="eic", region=file.region, lends_key=True) if is_closed else None,
        ),
    )
    make_key(way)
    return ["ssh", *options_for_a_person(way, forward_agent=forward_agent), address]


def lend_key(aws: Aws, file: ClusterFile, public_key: Path) -> None:
    """Authorise this public key on the master for one minute, by EC2 Instance Connect."""
    master = hosts(aws, stack.outputs(aws, file.name))[0]
    with asking("EC2 Instance Connect"):
        aws.client("ec2-instance-connect").send_ssh_public_key(
            InstanceId=master.instance_id, InstanceOSUser=file.ssh.user, SSHPublicKey=public_key.read_text()
        )
