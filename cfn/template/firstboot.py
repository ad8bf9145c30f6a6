"""User data: the settings of one role in front of `scripts/first-boot.sh`."""

import re
from typing import Any

from troposphere import Base64, FindInMap, Join, Ref, Template

from cfn.template.design import Design
from cfn.template.filesystems import FileSystems
from cluster.errors import ConfigError
from cluster.files import shipped

SCRIPT = shipped("scripts/first-boot.sh")
LIMIT = 16 * 1024  # bytes EC2 accepts before base64


def body() -> str:
    """The script without what only a human reader needs: comments, blank lines, the indentation of its shell lines.

    The programs within keep one blank of four.
    """
    kept, inside = [], ""  # inside: the word that ends a document within the script, whose indentation counts
    for line in SCRIPT.read_text().splitlines():
        if not inside and (not line.strip() or line.lstrip().startswith("#")):
            continue
        text = line.lstrip()
        kept.append((len(line) - len(text)) // 4 * " " + text if inside else text)
        if inside == line:
            inside = ""
        elif not inside and (opened := re.search(r"<<'?([A-Z]+)'?", line)):
            inside = opened[1]
    return "".join(line + "\n" for line in kept)


def add_script(t: Template) -> None:
    """The script, once in the template for both launch templates: twice would be too large for a request."""
    t.add_mapping("FirstBoot", {"script": {"text": body()}})


def user_data(design: Design, role: str, resource: str, files: FileSystems) -> Base64:
    """What a node of this role runs once. Values are checked names and paths: none of them needs quoting in a shell."""
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
    if design.setup:
        settings["SETUP"] = design.setup.digest  # another script is another launch template: new nodes run it
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
    """Neighbouring texts made one: fewer bytes in the template."""
    out: list[Any] = []
    for part in parts:
        if out and isinstance(part, str) and isinstance(out[-1], str):
            out[-1] += part
        else:
            out.append(part)
    return out
