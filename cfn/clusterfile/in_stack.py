"""The cluster file that a stack carries in its template, so that every seat can have it: the master, a colleague."""

from dataclasses import MISSING, fields, is_dataclass
from typing import Any

from cfn.aws import asking, client
from cfn.clusterfile.fields import ClusterFile
from cfn.stack import StackError, get

KEY = "ClusterFile"  # in the template's metadata
# What is of one seat only, or of no stack: paths on one machine, the way in from there, a price for the plan.
OF_A_SEAT = ("ssh.key", "ssh.known_hosts", "ssh.gateway", "nodes.usd_per_hour")


def values(file: ClusterFile) -> dict[str, Any]:
    """Field -> value of all that is not the default, as `clusterfile.render` takes it; nothing of one seat.

    CloudFormation changes a template's metadata only together with a resource, so that is all that belongs here.
    """
    return {name: value for name, value in _set(file, "").items() if name not in OF_A_SEAT}


def _set(table: Any, prefix: str) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for f in fields(table):
        value = getattr(table, f.name)
        if is_dataclass(value):
            found |= _set(value, f"{f.name}.")
        elif f.default is MISSING or value != f.default:
            found[prefix + f.name] = value
    return found


def of(name: str, region: str) -> dict[str, Any]:
    """The values that the running stack was last made from, its name and region always among them.

    Raises StackError if there is no such stack, or none that carries a cluster file.
    """
    stack = get(name, region)
    with asking(f"reading the cluster file of stack {name}"):
        body = client("cloudformation", region).get_template(StackName=stack.id)["TemplateBody"]
    found = body.get("Metadata", {}).get(KEY) if isinstance(body, dict) else None
    if found is None:
        raise StackError(f"stack {name} does not carry its cluster file: copy the one it was made from")
    return {**found, "name": stack.name, "region": region}


def differences(file: ClusterFile, carried: dict[str, Any]) -> list[str]:
    """The fields in which the file says other than the stack was last made from, both sides of each."""
    here = values(file)
    names = sorted((here.keys() | carried.keys()) - {"name", "region"})
    return [
        f"{n} is {here.get(n, 'the default')} here, {carried.get(n, 'the default')} in the stack"
        for n in names
        if here.get(n) != carried.get(n)
    ]
