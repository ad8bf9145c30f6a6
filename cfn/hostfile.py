"""From the stack to the tasks of every day: hostfile, known hosts and the way in, the same on laptop and master."""

import re
import shutil
import socket
from collections.abc import Sequence
from pathlib import Path

from cfn import stack
from cfn.aws import Aws, asking
from cfn.clusterfile.fields import ClusterFile
from cfn.hosts import Member, hosts
from cluster.errors import ConfigError
from cluster.files import write_atomically
from cluster.hosts import Host, hostfile, is_this_machine
from cluster.inventory import Access
from cluster.ssh.options import options_for_a_person
from cluster.written import Target, some_fields, whole_file

# What a tag says is a node's own word: one key in known_hosts' form, or it is not taken.
HOST_KEY = re.compile(r"(ssh-ed25519|ssh-rsa|ecdsa-sha2-nistp(256|384|521)) [A-Za-z0-9+/]{40,1000}={0,2}")
THROUGH_SSM = """\
no port of the cluster is open to this machine; put this into ~/.ssh/config, so that ssh goes through Session Manager:
    Host i-*
        ProxyCommand aws ssm start-session --region {region} --target %h --document-name AWS-StartSSHSession \
--parameters portNumber=%p"""


def targets(aws: Aws, path: Path, file: ClusterFile) -> list[Target]:
    """`hosts` and `known_hosts` beside the cluster file, and the way in for its [ssh]."""
    outputs = stack.outputs(aws, file.name)
    members = hosts(aws, outputs)
    slots = int(outputs["Slots"])
    gateway = way_in(outputs, members, file.ssh.port)
    text = hostfile(Host(rank=n, address=m.address, slots=slots) for n, m in enumerate(members))
    fields = {"known_hosts": "known_hosts", **({"gateway": gateway} if gateway else {})}
    return [
        whole_file(path.parent / "hosts", text),
        whole_file(path.parent / "known_hosts", known_hosts(members, gateway or members[0].address)),
        some_fields(path, "ssh", fields),
    ]


def way_in(outputs: dict[str, str], members: Sequence[Member], port: int) -> str:
    """The address by which this machine reaches the master; empty on the master itself.

    Without an open port that is its private address where this machine is in the same network (a VPN, a lab), else its
    instance id, for which ~/.ssh/config may have Session Manager as a proxy.
    """
    if is_the_master(outputs):
        return ""
    if outputs.get("AccessMode") != "ssm" or answers(outputs["MasterPrivateAddress"], port):
        return outputs["MasterAddress"]
    return members[0].instance_id


def advice(aws: Aws, gateway: str) -> str:
    """What the operator has to do once for this way in; empty for nothing."""
    return THROUGH_SSM.format(region=aws.region) if gateway.startswith("i-") else ""


def answers(address: str, port: int, seconds: float = 2.0) -> bool:
    """Whether something listens there."""
    try:
        socket.create_connection((address, port), timeout=seconds).close()
    except OSError:
        return False
    return True


def known_hosts(members: Sequence[Member], gateway: str) -> str:
    """One line per host that has told its key, the master's also under the address it is reached by."""
    told = [m for m in members if HOST_KEY.fullmatch(m.host_key)]
    lines = [f"{m.address} {m.host_key}" for m in told]
    if told and told[0] is members[0] and gateway != members[0].address:
        lines.append(f"{gateway} {members[0].host_key}")
    return "".join(line + "\n" for line in lines)


def is_the_master(outputs: dict[str, str]) -> bool:
    """Whether this machine is the master of the stack with these outputs."""
    return is_this_machine(outputs.get("MasterPrivateAddress", ""))


def ssh_command(aws: Aws, file: ClusterFile, folder: Path, *, forward_agent: bool = False) -> list[str]:
    """The command that brings the operator to the master: host key known, the agent forwarded if asked for; Session
    Manager's where no port is open. Raises ConfigError if this machine lacks that.
    """
    outputs = stack.outputs(aws, file.name)
    members = hosts(aws, outputs)
    if file.access.mode == "ssm":
        for program in ("aws", "session-manager-plugin"):
            if shutil.which(program) is None:
                raise ConfigError(
                    f"access.mode is 'ssm', and this machine has no `{program}`: install the AWS CLI and its Session "
                    f"Manager plugin, or open a session to {members[0].instance_id} in the console"
                )
        return ["aws", "ssm", "start-session", "--region", file.region, "--target", members[0].instance_id]
    known = folder / ".known_hosts.stack"  # ours alone: known_hosts itself may have been edited
    write_atomically(known, known_hosts(members, outputs["MasterAddress"]))
    key = Path(file.ssh.key).expanduser() if file.ssh.key else None
    access = Access(user=file.ssh.user, port=file.ssh.port, key=key, known_hosts=known)
    return ["ssh", *options_for_a_person(access, forward_agent=forward_agent), outputs["MasterAddress"]]


def lend_key(aws: Aws, file: ClusterFile, public_key: Path) -> None:
    """Without a key pair: let this public key in for a minute, by EC2 Instance Connect."""
    master = hosts(aws, stack.outputs(aws, file.name))[0]
    with asking("EC2 Instance Connect"):
        aws.client("ec2-instance-connect").send_ssh_public_key(
            InstanceId=master.instance_id, InstanceOSUser=file.ssh.user, SSHPublicKey=public_key.read_text()
        )
