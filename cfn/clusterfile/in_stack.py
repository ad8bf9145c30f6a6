"""The cluster file as the stack holds it in its template, so that the master and a colleague can have it too."""

import tomllib
from dataclasses import MISSING, fields, is_dataclass
from typing import Any

from cfn.aws import Aws, asking
from cfn.clusterfile import text
from cfn.clusterfile.fields import ClusterFile
from cfn.stack import StackError, get

KEY = "ClusterFile"  # in the template's metadata
# Fields that hold on one machine only (paths there, its way in) or in no stack at all (a price for the plan).
OF_ONE_MACHINE = ("ssh.key", "ssh.known_hosts", "ssh.gateway", "nodes.usd_per_hour")


def values(file: ClusterFile) -> dict[str, Any]:
    """Field -> value of all that is not the default, as `text.render` takes it, but for what holds on one machine.

    CloudFormation changes a template's metadata only together with a resource, so that is all that belongs here.
    """
    return {name: value for name, value in _set(file, "").items() if name not in OF_ONE_MACHINE}


def _set(table: Any, prefix: str) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for f in fields(table):
        value = getattr(table, f.name)
        if is_dataclass(value):
            found |= _set(value, f"{f.name}.")
        elif f.default is MISSING or value != f.default:
            found[prefix + f.name] = value
    return found


def of(aws: Aws, name: str) -> dict[str, Any]:
    """The values that the running stack was last made from, its name and region always among them.

    Raises StackError if there is no such stack, or none that holds a cluster file.
    """
    stack = get(aws, name)
    with asking(f"reading the cluster file of stack {name}"):
        body = aws.client("cloudformation").get_template(StackName=stack.id)["TemplateBody"]
    found = body.get("Metadata", {}).get(KEY) if isinstance(body, dict) else None
    if found is None:
        raise StackError(f"stack {name} holds no cluster file: copy the one it was made from")
    return {**found, "name": stack.name, "region": aws.region}


def file_of(aws: Aws, name: str) -> ClusterFile:
    """The cluster file that the running stack was last made from. Raises StackError as `of` does."""
    return text.parse(tomllib.loads(text.render(of(aws, name))))


def differences(file: ClusterFile, in_stack: dict[str, Any]) -> list[str]:
    """The fields in which the file says other than the stack was last made from, both sides of each."""
    here = values(file)
    names = sorted((here.keys() | in_stack.keys()) - {"name", "region"})
    return [
        f"{n} is {here.get(n, 'the default')} here, {in_stack.get(n, 'the default')} in the stack"
        for n in names
        if here.get(n) != in_stack.get(n)
    ]
