"""User data of the nodes: the settings of one role, followed by `scripts/first-boot.sh`."""

import base64
import bz2
from pathlib import PurePosixPath
from typing import Any

from troposphere import Base64, FindInMap, Join, Ref, Template

from cfn.template.design import Design
from cfn.template.filesystems import FileSystems
from cluster.errors import ConfigError
from cluster.files import shipped

SCRIPT = shipped("scripts/first-boot.sh")
PLACE = PurePosixPath("/run/dlami-cluster/first-boot.sh")  # path on a node
LIMIT = 16 * 1024  # maximum bytes that EC2 accepts before base64


def body() -> str:
    """Return shell code that unpacks the first-boot script into a file on the node and sources it.

    The script is packed by bzip2, whose output is the same on every machine. Other bytes would change the launch
    template.
    """
    packed = base64.b85encode(bz2.compress(SCRIPT.read_bytes())).decode()
    unpack = "import base64, bz2, sys; sys.stdout.buffer.write(bz2.decompress(base64.b85decode(sys.argv[1])))"
    return f"mkdir -p {PLACE.parent}\npython3 -c '{unpack}' '{packed}' >{PLACE} && . {PLACE}\n"


def add_script(t: Template) -> None:
    """Add the script to the template once for both launch templates. Two copies would exceed the request's limit."""
    t.add_mapping("FirstBoot", {"script": {"text": body()}})


def user_data(design: Design, role: str, resource: str, files: FileSystems) -> Base64:
    """Return the user data of a role, which a node runs once.

    Values are checked names and paths, so none of them needs quoting in a shell.
    """
    file = design.file
    settings: dict[str, Any] = {
        "NAME": file.name,
        "ROLE": role,
        "RESOURCE": resource,
        "STACK": Ref("AWS::StackId"),
        "REGION": Ref("AWS::Region"),
        "DOMAIN": Ref("AWS::URLSuffix"),
        "SHARED": file.shared,
        "PROJECT": file.project,
        "LOGIN": file.ssh.user,
        "EFS_ADDRESS": files.efs_address,
        "EFS_ID": files.efs,
        "EFS_TLS": "1" if file.storage.tls else "",
        "FSX_ADDRESS": files.fsx_address,
        "FSX_NAME": files.fsx_name,
        "FSX_MOUNT": file.storage.fsx_mount,
        "SOURCE": file.nodes.source.partition("#")[0],
        "SOURCE_VERSION": design.source_version,
        "PUBLIC_KEY": file.access.public_key,
        "BOOT_SECONDS": str(file.nodes.boot_minutes * 60),
    }
    if design.master:
        settings["OTHER_MASTER"] = "1"  # the environment that it builds is not the workers'
    if file.access.rank_credentials:
        settings["RANK_CREDENTIALS"] = "1"
    if design.setup:
        settings["SETUP"] = design.setup.digest  # a changed script changes the launch template, so new nodes run it
    head: list[Any] = ["#!/bin/bash\n"]
    for name, value in settings.items():
        head += [f"{name}='", value, "'\n"] if not isinstance(value, str) else [f"{name}='{value}'\n"]
    size = sum(len(part) if isinstance(part, str) else 64 for part in head) + len(body().encode())
    if size > LIMIT:
        raise ConfigError(
            f"user data would have {size} bytes, EC2 takes {LIMIT}: give an ed25519 key as access.public_key, or "
            "shorten scripts/first-boot.sh"
        )
    return Base64(Join("", [*_joined(head), FindInMap("FirstBoot", "script", "text")]))


def _joined(parts: list[Any]) -> list[Any]:
    """Merge neighbouring strings, which makes the template smaller."""
    out: list[Any] = []
    for part in parts:
        if out and isinstance(part, str) and isinstance(out[-1], str):
            out[-1] += part
        else:
            out.append(part)
    return out
