"""Cluster file of a stack: read with every mistake named, or written anew with every field explained."""

import ast
import inspect
import itertools
import textwrap
from dataclasses import Field, fields, is_dataclass
from functools import cache
from pathlib import Path
from typing import Any

from cluster.clusterfile import reader
from cluster.clusterfile.model import ClusterFile
from cluster.errors import ConfigError
from cluster.files import write_atomically


def read(path: Path) -> ClusterFile:
    """Return the stack that a file describes. Raises ConfigError with the file, the line, the field and the remedy."""
    if not path.exists():
        raise ConfigError(f"{path} does not exist; `inv stack.init` writes one")
    return reader.read(path, parse)


def parse(values: dict[str, Any]) -> ClusterFile:
    """Return the stack that decoded TOML describes. Raises FieldError for a value that no stack can have."""
    file = reader.parse(values)
    file.check_stack()
    return file


def render(values: dict[str, Any] | None = None) -> str:
    """Return the text of a cluster file: every field with its meaning, and its value in `values` or its default."""
    values = values or {}
    plain = [f for f in fields(ClusterFile) if not (is_dataclass(f.type) or f.metadata.get("without_stack"))]
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
    value = values.get(prefix + f.name, f.default)
    shown = f.metadata["shown"] if value is None else value
    mark = "# " if value is None or (value == "" and f.metadata.get("filled")) else ""
    return "\n" + "".join(f"# {line}\n" for line in note) + f"{mark}{f.name} = {_literal(shown)}\n"


def _literal(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(_literal, value))}]"
    return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"' if isinstance(value, str) else repr(value)


@cache
def _notes(kind: type) -> dict[str, str]:
    """Return the text under each field of a dataclass, by field."""
    body: list[Any] = ast.parse(textwrap.dedent(inspect.getsource(kind))).body[0].body  # type: ignore[attr-defined]
    notes = {}
    for entry, note in itertools.pairwise(body):
        if isinstance(entry, ast.AnnAssign) and isinstance(entry.target, ast.Name) and isinstance(note, ast.Expr):
            notes[entry.target.id] = " ".join(ast.literal_eval(note.value).split())
    return notes


def write(path: Path, text: str) -> None:
    """Write a new file atomically. Raises ConfigError if there is one: it may describe a running cluster."""
    if path.exists():
        raise ConfigError(f"{path} is there already; edit it, or move it away first")
    write_atomically(path, text)
