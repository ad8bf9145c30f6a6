"""cluster.toml: read into a `ClusterFile` with every mistake named; a new one, with every field explained."""

import ast
import inspect
import itertools
import os
import subprocess
import tempfile
import textwrap
from dataclasses import MISSING, Field, fields, is_dataclass
from functools import cache
from pathlib import Path
from typing import Any

import boto3

from cfn.aws import FAILED, Aws
from cfn.clusterfile.fields import ClusterFile
from cluster import settings
from cluster.errors import ConfigError
from cluster.inventory import check_ssh

UNSET = {"guard.idle_minutes": 60}  # what is shown of a field that is not set, and has no one default


def read(path: Path) -> ClusterFile:
    """The cluster a file describes. Raises ConfigError naming the file, the line, the field and the remedy."""
    if not path.exists():
        raise ConfigError(f"{path} does not exist; `inv stack.init` writes one")
    return settings.read(path, parse)


def is_of_a_stack(path: Path) -> bool:
    """Whether the file has a table that only a stack needs: one made for a lab or by hand says how to reach hosts."""
    if not path.exists():
        return False
    tables = {name for name, kind in settings.STACK.items() if not isinstance(kind, type)}
    return bool(tables & settings.decode(path)[1].keys())


def parse(values: dict[str, Any]) -> ClusterFile:
    """The cluster that decoded TOML describes. Raises FieldError for a value that no cluster can have."""
    settings.check(values)
    check_ssh(values.get("ssh", {}))
    if "shared_by" in values:
        raise settings.FieldError(
            "shared_by", "is for hosts without a stack", "leave it out: a stack's nodes share one"
        )
    return _table(ClusterFile, values)


def _table(kind: type, values: dict[str, Any]) -> Any:
    types: dict[str, Any] = {f.name: f.type for f in fields(kind)}
    return kind(
        **{
            name: _table(types[name], value)
            if is_dataclass(types[name])
            else float(value)
            if types[name] is float
            else tuple(value)
            if isinstance(value, list)
            else value
            for name, value in values.items()
        }
    )


def render(values: dict[str, Any] | None = None) -> str:
    """Text of a cluster file: every field with its meaning, its default unless `values` says otherwise."""
    values = values or {}
    plain = [f for f in fields(ClusterFile) if not is_dataclass(f.type)]
    tables = [f for f in fields(ClusterFile) if is_dataclass(f.type)]
    text = "# One cluster: what `inv stack.plan` checks and `inv stack.create` makes.\n"
    text += "".join(_entry(ClusterFile, f, values, "") for f in plain)
    for table in tables:
        kind: Any = table.type
        text += f"\n\n# {inspect.getdoc(kind)}\n[{table.name}]\n"
        text += "".join(_entry(kind, f, values, table.name + ".") for f in fields(kind))
    return text


def _entry(kind: type, f: "Field[Any]", values: dict[str, Any], prefix: str) -> str:
    note = textwrap.wrap(_notes(kind)[f.name], 110)
    value = values.get(prefix + f.name, "" if f.default is MISSING else f.default)
    shown = UNSET.get(prefix + f.name) if value is None else value
    # An SSH field that is not there means "as ssh itself does"; an empty one would be taken for a path.
    mark = "# " if (prefix == "ssh." and value == "") or value is None else ""
    return "\n" + "".join(f"# {line}\n" for line in note) + f"{mark}{f.name} = {_literal(shown)}\n"


def _literal(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(_literal, value))}]"
    return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"' if isinstance(value, str) else repr(value)


@cache
def _notes(kind: type) -> dict[str, str]:
    """The text under each field of a dataclass, by field."""
    body: list[Any] = ast.parse(textwrap.dedent(inspect.getsource(kind))).body[0].body  # type: ignore[attr-defined]
    notes = {}
    for entry, note in itertools.pairwise(body):
        if isinstance(entry, ast.AnnAssign) and isinstance(entry.target, ast.Name) and isinstance(note, ast.Expr):
            notes[entry.target.id] = " ".join(ast.literal_eval(note.value).split())
    return notes


def write(path: Path, text: str) -> None:
    """A new file, whole or not at all. Raises ConfigError if there is one: it may describe a running cluster."""
    if path.exists():
        raise ConfigError(f"{path} is there already; edit it, or move it away first")
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=path.name)
    with os.fdopen(handle, "w") as file:
        file.write(text)
    Path(temporary).chmod(0o644)
    Path(temporary).replace(path)


def looked_up(folder: Path, given: dict[str, Any]) -> dict[str, Any]:
    """Field -> value: what was given, then the region of the AWS profile, the only key pair, this project's
    https address.
    """
    found: dict[str, Any] = {}
    if where := given.get("region") or boto3.Session().region_name:
        found["region"] = where
        if key := _only_key_pair(where):
            found["access.key_pair"] = key
    if source := _source(folder):
        found["nodes.source"] = source
    return {**found, **{k: v for k, v in given.items() if v not in ("", None)}}


def region() -> str:
    """The region of the AWS profile. Raises ConfigError if it has none."""
    if found := boto3.Session().region_name:
        return found
    raise ConfigError("no AWS region is set here: give --region, or set AWS_DEFAULT_REGION")


def _only_key_pair(region: str) -> str:
    try:
        names = [k["KeyName"] for k in Aws(region).client("ec2").describe_key_pairs()["KeyPairs"]]
    except FAILED:
        return ""  # no credentials yet: the field stays empty and is explained
    return names[0] if len(names) == 1 else ""


def _source(folder: Path) -> str:
    asked = subprocess.run(
        ["git", "-C", str(folder), "remote", "get-url", "origin"], capture_output=True, text=True, check=False
    )
    address = asked.stdout.strip()
    return address if asked.returncode == 0 and address.startswith("https://") and "@" not in address else ""
