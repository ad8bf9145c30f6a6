"""Host keys from EC2: cloud-init prints them on an instance's console, which only its account can read."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from cluster.join.keys import key_in
from cluster.ssh.onhost import node_role

_BLOCK = re.compile(r"-----BEGIN SSH HOST KEY KEYS-----(.*?)-----END SSH HOST KEY KEYS-----", re.DOTALL)
_PRINTS = re.compile(
    r"-----BEGIN SSH HOST KEY FINGERPRINTS-----(.*?)-----END SSH HOST KEY FINGERPRINTS-----", re.DOTALL
)
_PRINT = re.compile(r"SHA256:[A-Za-z0-9+/]{43}")
_MOST = 200  # most addresses per filter


@dataclass(frozen=True, kw_only=True)
class Consoles:
    """Host key fingerprints from the consoles of the account's instances."""

    fingerprints: dict[str, frozenset[str]]  # by address, only of hosts whose console shows any
    why_not: str = ""  # a sentence, if EC2 could not be queried


def fingerprints_in(output: str) -> frozenset[str]:
    """Return the fingerprints of the host keys that the last boot printed there; empty if it printed none."""
    said: set[str] = set()
    if blocks := _BLOCK.findall(output):
        said |= {k.fingerprint for line in blocks[-1].splitlines() if (k := key_in(line))}
    if prints := _PRINTS.findall(output):
        said |= set(_PRINT.findall(prints[-1]))
    return frozenset(said)


def consoles(addresses: Sequence[str], region: str = "") -> Consoles:
    """Return what EC2 has of the hosts with these addresses, private or public.

    Without credentials, region or an answer, `why_not` says so.
    """
    from botocore.config import Config
    from botocore.exceptions import BotoCoreError, ClientError

    try:
        session = node_role.session(region_name=region or None)
        if session.get_credentials() is None:
            return Consoles(fingerprints={}, why_not="there are no AWS credentials here to ask EC2 with")
        if not session.region_name:
            return Consoles(fingerprints={}, why_not="no AWS region is set to ask EC2 in: set AWS_REGION")
        limits = Config(connect_timeout=5, read_timeout=20, retries={"mode": "standard", "total_max_attempts": 3})
        ec2 = session.client("ec2", config=limits)
        found = _instances(ec2, addresses)
        said = {a: fingerprints_in(_console(ec2, instance)) for a, instance in found.items()}
    except (BotoCoreError, ClientError) as e:
        return Consoles(fingerprints={}, why_not=f"EC2 could not be asked: {e}")
    return Consoles(fingerprints={a: prints for a, prints in said.items() if prints})


def _instances(ec2: Any, addresses: Sequence[str]) -> dict[str, str]:
    """Return the running instance of each address that belongs to one."""
    found: dict[str, str] = {}
    for start in range(0, len(addresses), _MOST):
        some = list(addresses[start : start + _MOST])
        for name, field in (("private-ip-address", "PrivateIpAddress"), ("ip-address", "PublicIpAddress")):
            pages = ec2.get_paginator("describe_instances").paginate(Filters=[{"Name": name, "Values": some}])
            found |= {i[field]: i["InstanceId"] for i in _running(pages) if i.get(field) in some}
    return found


def _running(pages: Iterable[Any]) -> Iterable[Any]:
    for page in pages:
        for reservation in page["Reservations"]:
            for instance in reservation["Instances"]:
                if instance["State"]["Name"] == "running":
                    yield instance


def _console(ec2: Any, instance: str) -> str:
    """Return the instance's console output as boto3 decodes it, with the newest lines if its type supports that."""
    from botocore.exceptions import ClientError

    try:
        said = ec2.get_console_output(InstanceId=instance, Latest=True)
    except ClientError as e:
        # Instances on Xen: only the output kept at boot
        if e.response.get("Error", {}).get("Code") != "UnsupportedOperation":
            raise
        said = ec2.get_console_output(InstanceId=instance)
    return str(said.get("Output", ""))
