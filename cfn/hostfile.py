"""From the stack to the tasks of every day: hostfile, known hosts and the way in, the same on laptop and master."""

import re
import socket
from pathlib import Path

from cfn import stack
from cfn.clusterfile.fields import ClusterFile
from cfn.hosts import Member, hosts
from cluster.errors import ConfigError, NothingToDo
from cluster.files import write_atomically
from cluster.hosts import Host, hostfile


def write(path: Path, file: ClusterFile, *, force: bool = False, dry_run: bool = False) -> str:
    """Writes `hosts` and `known_hosts` beside the cluster file, and the gateway into its [ssh]; what was done, as text.

    Raises NothingToDo if all is so already, ConfigError rather than replace a hostfile of other hosts unless `force`.
    """
    outputs = stack.outputs(file.name, file.region)
    members = hosts(outputs, file.region)
    slots = int(outputs["Slots"])
    settings = {"known_hosts": "known_hosts"}
    if not is_the_master(outputs):
        settings["gateway"] = outputs["MasterAddress"]
    wanted = {
        path.parent / "hosts": hostfile(Host(rank=n, address=m.address, slots=slots) for n, m in enumerate(members)),
        path.parent / "known_hosts": known_hosts(members, outputs["MasterAddress"]),
        path: with_ssh(path.read_text(), settings),
    }
    if dry_run:
        return wanted[path.parent / "hosts"].rstrip()
    if all(p.exists() and p.read_text() == text for p, text in wanted.items()):
        raise NothingToDo(f"{path.parent / 'hosts'} has these {len(members)} hosts already")
    _keep_others(path.parent / "hosts", outputs, members, force)
    for target, text in wanted.items():
        write_atomically(target, text)
    return f"{path.parent / 'hosts'}: {len(members)} hosts, {len(members) * slots} slots"


def _keep_others(path: Path, outputs: dict[str, str], members: list[Member], force: bool) -> None:
    """A hostfile that shares no host with this cluster is somebody else's."""
    if force or not path.exists():
        return
    known = {line.split()[0] for line in path.read_text().splitlines() if line.strip() and not line.startswith("#")}
    if known and not known & {m.address for m in members}:
        raise ConfigError(f"{path} has other hosts than cluster {outputs['Cluster']}: move it away, or add --force")


def known_hosts(members: list[Member], gateway: str) -> str:
    """One line per host that has told its key, the master's also under the address it is reached by."""
    lines = [f"{m.address} {m.host_key}" for m in members if m.host_key]
    if members and members[0].host_key and gateway != members[0].address:
        lines.append(f"{gateway} {members[0].host_key}")
    return "".join(line + "\n" for line in lines)


def with_ssh(text: str, settings: dict[str, str]) -> str:
    """A cluster file's text with fields of its [ssh] set, everything else as the operator wrote it."""
    if not re.search(r"^\[ssh\]\s*$", text, re.M):
        text = text.rstrip("\n") + "\n\n[ssh]\n"
    head, mark, body = re.split(r"^(\[ssh\][^\n]*\n)", text, maxsplit=1, flags=re.M)
    after = re.search(r"^\[", body, re.M)
    own, rest = (body[: after.start()], body[after.start() :]) if after else (body, "")
    for name, value in settings.items():
        line = f'{name} = "{value}"'
        own, found = re.subn(rf"^(# )?{name} *=.*$", line, own, count=1, flags=re.M)
        own = own if found else own + line + "\n"
    return head + mark + own + rest


def is_the_master(outputs: dict[str, str]) -> bool:
    """Whether this machine is the master of the stack with these outputs."""
    return is_this_machine(outputs.get("MasterPrivateAddress", ""))


def is_this_machine(address: str) -> bool:
    """Whether the address is one of this machine's: only those can be bound."""
    if not address:
        return False
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.bind((address, 0))
        except OSError:
            return False
    return True


def ssh_command(file: ClusterFile, folder: Path) -> list[str]:
    """The command that brings the operator to the master: agent forwarded, host key known; SSM's where no port
    is open.
    """
    outputs = stack.outputs(file.name, file.region)
    members = hosts(outputs, file.region)
    if file.access.mode == "ssm":
        return ["aws", "ssm", "start-session", "--region", file.region, "--target", members[0].instance_id]
    write_atomically(folder / "known_hosts", known_hosts(members, outputs["MasterAddress"]))
    key = ["-i", str(Path(file.ssh.key).expanduser())] if file.ssh.key else []
    return [
        "ssh",
        "-A",
        *key,
        "-p",
        str(file.ssh.port),
        "-o",
        f"UserKnownHostsFile={folder / 'known_hosts'}",
        "-o",
        "StrictHostKeyChecking=yes",
        f"{file.ssh.user}@{outputs['MasterAddress']}",
    ]


def lend_key(file: ClusterFile, public_key: Path) -> None:
    """Without a key pair: let this public key in for a minute, by EC2 Instance Connect."""
    from cfn.aws import asking, client

    master = hosts(stack.outputs(file.name, file.region), file.region)[0]
    with asking("EC2 Instance Connect"):
        client("ec2-instance-connect", file.region).send_ssh_public_key(
            InstanceId=master.instance_id, InstanceOSUser=file.ssh.user, SSHPublicKey=public_key.read_text()
        )
