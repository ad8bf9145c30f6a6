"""Cluster file in the template of its stack, from which the master and colleagues get it."""

import base64
import tomllib
import zlib
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

from cfn.aws import Aws, asking
from cfn.stack import StackError, get
from cluster.clusterfile import text
from cluster.clusterfile.model import ClusterFile
from cluster.setup.script import Script

KEY, SETUP = "ClusterFile", "Setup"  # in the template's metadata
OF_ONE_MACHINE = ("ssh.key", "ssh.known_hosts", "ssh.gateway")  # paths there, its way in


def values(file: ClusterFile) -> dict[str, Any]:
    """Return field -> value of all that is not the default, as `text.render` takes it.

    It lacks what holds on one machine only, and the fields of another stack, the one on EKS.

    CloudFormation changes a template's metadata only together with a resource, so that is all that belongs here.
    """
    found = {n: value for n, value in _set(file, "").items() if n not in OF_ONE_MACHINE and not n.startswith("eks.")}
    return {**found, "setup": Path(file.setup).name} if file.setup else found


def packed(script: Script) -> dict[str, str]:
    """Return a set-up script as the template holds it."""
    text = base64.b64encode(zlib.compress(script.text.encode(), 9)).decode()
    return {"name": script.name, "text": text}


def setup_of(aws: Aws, name: str) -> Script | None:
    """Return the set-up script that the stack's nodes run at first boot, None without one. Raises StackError."""
    found = _metadata(aws, name).get(SETUP)
    if found is None:
        return None
    return Script(name=found["name"], text=zlib.decompress(base64.b64decode(found["text"])).decode())


def _set(table: Any, prefix: str) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for f in fields(table):
        value = getattr(table, f.name)
        if is_dataclass(value):
            found |= _set(value, f"{f.name}.")
        elif value != f.default:
            found[prefix + f.name] = list(value) if isinstance(value, tuple) else value  # as JSON has it
    return found


def stack_values(aws: Aws, name: str) -> dict[str, Any]:
    """Return the values that the running stack was last made from, its name and region always among them.

    Raises StackError if there is no such stack, or none that holds a cluster file.
    """
    found = _metadata(aws, name).get(KEY)
    if found is None:
        raise StackError(f"stack {name} holds no cluster file: copy the one it was made from")
    return {**found, "name": get(aws, name).name, "region": aws.region}


def _metadata(aws: Aws, name: str) -> dict[str, Any]:
    """Return the metadata of the running stack's template."""
    stack = get(aws, name)
    with asking(f"reading the cluster file of stack {name}"):
        body = aws.client("cloudformation").get_template(StackName=stack.id)["TemplateBody"]
    return dict(body.get("Metadata", {})) if isinstance(body, dict) else {}


def file_of(aws: Aws, name: str) -> ClusterFile:
    """Return the cluster file that the running stack was last made from. Raises StackError as `of` does."""
    return text.parse(tomllib.loads(text.render(stack_values(aws, name))))


def differences(file: ClusterFile, in_stack: dict[str, Any]) -> list[str]:
    """Return a line for each field in which the file differs from what the stack was last made from."""
    return [f"{name} is {here} here, {there} in the stack" for name, here, there in _differing(file, in_stack)]


def moves(file: ClusterFile, in_stack: dict[str, Any]) -> list[str]:
    """Return the fields that an update changes, as `nodes.workers: 1 -> 2`."""
    return [f"{name}: {there} -> {here}" for name, here, there in _differing(file, in_stack)]


def _differing(file: ClusterFile, in_stack: dict[str, Any]) -> list[tuple[str, Any, Any]]:
    """Return name, value here and value in the stack of each field that differs."""
    here, default = values(file), "the default"
    names = sorted((here.keys() | in_stack.keys()) - {"name", "region"})
    return [(n, here.get(n, default), in_stack.get(n, default)) for n in names if here.get(n) != in_stack.get(n)]
