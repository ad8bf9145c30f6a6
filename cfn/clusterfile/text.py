"""cluster.toml: read into a `ClusterFile` with every mistake named, and written with every field explained."""

import ast
import difflib
import inspect
import itertools
import os
import tempfile
import textwrap
import tomllib
from dataclasses import MISSING, Field, fields, is_dataclass
from functools import cache
from pathlib import Path
from typing import Any

from cfn.clusterfile.fields import ClusterFile
from cluster.errors import ConfigError

KINDS = {str: "text in quotes", int: "a whole number", float: "a number", bool: "true or false"}


def read(path: Path) -> ClusterFile:
    """The cluster a file describes. Raises ConfigError naming the file, the field and the remedy."""
    try:
        data = tomllib.loads(path.read_text())
    except FileNotFoundError as e:
        raise ConfigError(f"{path} does not exist; `inv stack.init` writes one") from e
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as e:
        raise ConfigError(f"{path} is not valid TOML: {e}; fix that line") from e
    try:
        return parse(data)
    except ConfigError as e:
        raise ConfigError(f"{path}: {e}") from e


def is_of_a_stack(path: Path) -> bool:
    """Whether the file has a table that only a stack needs: one made for a lab or by hand says how to reach hosts."""
    try:
        data = tomllib.loads(path.read_text())
    except FileNotFoundError:
        return False
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as e:
        raise ConfigError(f"{path} is not valid TOML: {e}; fix that line") from e
    return any(is_dataclass(f.type) and f.name in data for f in fields(ClusterFile) if f.name != "ssh")


def parse(data: dict[str, Any]) -> ClusterFile:
    """The cluster that decoded TOML describes."""
    return _table(ClusterFile, data, "")


def _table(kind: type, data: dict[str, Any], prefix: str) -> Any:
    known: dict[str, Field[Any]] = {f.name: f for f in fields(kind)}
    values = {}
    for key, value in data.items():
        if key not in known:
            near = difflib.get_close_matches(key, known, n=1, cutoff=0.5)
            remedy = f"did you mean {prefix + near[0]!r}?" if near else f"known here: {', '.join(known)}"
            raise ConfigError(f"{prefix}{key}: no such field; {remedy}")
        values[key] = _value(known[key], value, prefix + key)
    return kind(**values)


def _value(f: "Field[Any]", value: Any, name: str) -> Any:
    kind: Any = f.type
    if is_dataclass(kind):
        if not isinstance(value, dict):
            raise ConfigError(f"{name}: is a table; write [{name}] on a line of its own and its fields below")
        return _table(kind, value, name + ".")  # type: ignore[arg-type]
    if kind is float and type(value) is int:
        return float(value)
    if type(value) is not kind:
        raise ConfigError(f"{name}: {value!r} is not {KINDS[kind]}; write it like {_literal(f.default)}")
    return value


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
    # An SSH field that is not there means "as ssh itself does"; an empty one would be taken for a path.
    mark = "# " if prefix == "ssh." and value == "" else ""
    return "\n" + "".join(f"# {line}\n" for line in note) + f"{mark}{f.name} = {_literal(value)}\n"


def _literal(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
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
