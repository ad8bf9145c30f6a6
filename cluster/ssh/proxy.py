"""Proxy command between ssh and a host without an open port: lends a key there first, and keeps error output.

Run as a script, so that it starts fast: `python proxy.py '{"said": …}' WORD…` becomes WORD…. The error output goes to a
file, because ssh drops its proxy's stderr where the connection is to stay open.
"""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

MISSING = (
    "this machine has no `{program}`, through which hosts without an open port are reached: install the AWS CLI "
    "(version 2) and, for access.mode 'ssm', its Session Manager plugin"
)
_OLD_CLI = "this machine's `aws` is version 1, which has no open-tunnel: install version 2 of the AWS CLI"
_HINTS = {
    "TargetNotConnected": "does it run, and may its role do what AmazonSSMManagedInstanceCore says?",
    "no available instance connect endpoints": "make one in its VPC, or use access.mode 'ssm'",
}


def main(words: list[str]) -> None:
    """Lend a key if one is to be lent, then become the command. Does not return."""
    given, command = json.loads(words[0]), words[1:]
    if "said" in given:
        with Path(given["said"]).open("w") as file:
            os.dup2(file.fileno(), 2)
    for program in given["needs"]:
        if shutil.which(program) is None:
            sys.exit(MISSING.format(program=program))
    if "lend" in given:
        try:
            lend(**given["lend"])
        except Exception as e:  # boto3 has many kinds, and a traceback would not be seen
            sys.exit(str(e))
    if not given["needs"]:  # then the command is an ssh, whose errors are not shown: it is tried again, as any other
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    os.execvp(command[0], command)


def lend(region: str, user: str, key: str, instance: str, address: str = "") -> None:
    """Let a key in for a minute, by EC2 Instance Connect.

    The instance is `instance`, or the one with `address` if that is given. Raises RuntimeError with a sentence if that
    fails.
    """
    from botocore.config import Config
    from botocore.exceptions import BotoCoreError, ClientError

    sys.path.append(str(Path(__file__).parents[2]))  # a script's path lacks the checkout
    from cluster.ssh.onhost import node_role

    config = Config(retries={"mode": "standard", "max_attempts": 8}, connect_timeout=5, read_timeout=10)
    where = f"{address}, behind {instance}" if address else instance
    try:
        aws = node_role.session()
        if address:
            instance = _instance_at(aws.client("ec2", region_name=region, config=config), address, instance)
        aws.client("ec2-instance-connect", region_name=region, config=config).send_ssh_public_key(
            InstanceId=instance, InstanceOSUser=user, SSHPublicKey=_public_half(Path(key))
        )
    except (BotoCoreError, ClientError, RuntimeError) as e:
        raise RuntimeError(f"our key was not lent to {where}: {e}") from e


def complaint(path: Path) -> str:
    """Return the last line that a proxy printed, or an empty string. Removes its file."""
    try:
        lines = path.read_text(errors="replace").split("\n")
        path.unlink()
    except OSError:
        return ""
    text = next((line.strip() for line in reversed(lines) if line.strip()), "")
    if any("Invalid choice" in line for line in lines):
        return _OLD_CLI
    hint = next((f": {hint}" for sign, hint in _HINTS.items() if sign in text), "")
    return text.rstrip(".") + hint if hint else text


def _instance_at(ec2: Any, address: str, neighbour: str) -> str:
    """Return the id of the running instance with a private address or name in the neighbour's VPC.

    Private addresses are not unique in an account. Raises RuntimeError if that VPC has none.
    """
    if re.fullmatch(r"i-[0-9a-f]{8,17}", address):
        return address
    kind = "private-ip-address" if re.fullmatch(r"[0-9.]+", address) else "private-dns-name"
    running = {"Name": "instance-state-name", "Values": ["running"]}
    found = _instances(ec2, Filters=[{"Name": kind, "Values": [address]}, running])
    if not found:
        raise RuntimeError("no instance that runs has this address")
    vpc = _instances(ec2, InstanceIds=[neighbour])[0]["VpcId"]
    own = [one for one in found if one["VpcId"] == vpc]
    if not own:
        others = ", ".join(f"{one['InstanceId']} in {one['VpcId']}" for one in found)
        raise RuntimeError(f"no instance of {neighbour}'s network {vpc} has this address, only {others}")
    return str(own[0]["InstanceId"])


def _instances(ec2: Any, **asked: Any) -> list[Any]:
    return [one for group in ec2.describe_instances(**asked)["Reservations"] for one in group["Instances"]]


def _public_half(key: Path) -> str:
    """Return a private key's public half, from the file beside it or from the key itself.

    Raises RuntimeError if neither has it.
    """
    beside = Path(f"{key}.pub")
    if beside.is_file():
        return beside.read_text().strip()
    asked = subprocess.run(["ssh-keygen", "-y", "-P", "", "-f", key], capture_output=True, text=True, timeout=10)
    if asked.returncode:
        raise RuntimeError(f"{key} does not tell its public half: write it to {beside} with ssh-keygen -y")
    return asked.stdout.strip()


if __name__ == "__main__":
    main(sys.argv[1:])
