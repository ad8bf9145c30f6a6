"""Matrix file: what runs, over which values, and what is measured."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cluster.clusterfile.checks import FieldError
from cluster.clusterfile.reader import decode, line_of
from cluster.errors import ConfigError
from cluster.jobs.record import check_name

# The project's trainers; any other program is a command line
TRAINERS = ("benchmark", "resnet50", "resnet50-torch", "maskrcnn")
MOST_CELLS = 1000
FIELDS: dict[str, tuple[type, ...]] = {
    "name": (str,), "program": (str,), "flags": (list,), "np": (int,), "per": (str,), "env": (dict,), "over": (dict,),
    "skip": (list,), "columns": (dict,), "upload": (str,),
    "requirements": (str,), "venv": (str,), "conda": (str,), "container": (str,),
    "python": (str,),
}  # fmt: skip
Value = str | int | float | bool


@dataclass(frozen=True, kw_only=True)
class Matrix:
    """Content of a matrix file: the axes, and the settings that all cells share. `cells` expands it."""

    name: str  # name of its results' folder on the shared folder
    program: str = "benchmark"
    flags: tuple[str, ...] = ()  # flags of every cell
    np: int | None = None
    per: str = "gpu"
    env: Mapping[str, str]
    over: Mapping[str, tuple[Value, ...]]  # axis -> its values, in their order
    skip: tuple[Mapping[str, Value], ...] = ()  # cells with all of these values are left out
    columns: Mapping[str, str]  # further results: column -> pattern with one group, searched in the job's output
    upload: str = ""  # s3://… to upload the results to
    python: str = ""  # interpreter with PyTorch, for resnet50-torch
    packages: Mapping[str, str]  # for command lines, as in train.run: requirements, venv, conda, container


def read(path: Path) -> Matrix:
    """Parse a matrix file. Raises ConfigError that names the line and the remedy."""
    text, raw = decode(path)
    try:
        return _matrix(raw, path.stem)
    except FieldError as e:
        line = line_of(text, e.field)
        raise ConfigError(f"{path}:{line}: {e}" if line else f"{path}: {e}") from e


def _matrix(raw: Mapping[str, Any], stem: str) -> Matrix:
    for name, value in raw.items():
        if name not in FIELDS:
            raise FieldError(name, "no such field", f"known here: {', '.join(FIELDS)}; what varies is in [over]")
        if not isinstance(value, FIELDS[name]) or isinstance(value, bool):
            raise FieldError(name, f"is not {FIELDS[name][0].__name__}", "see docs/running.md")
    name = raw.get("name") or re.sub(r"[^a-z0-9]+", "-", stem.lower()).strip("-")
    try:
        check_name(f"{name}-{MOST_CELLS}")  # as in the names of its jobs
    except ConfigError:
        raise FieldError("name", f"is {name!r}", "use small letters, digits and dashes, 26 at most") from None
    over = {axis: _values(axis, values) for axis, values in raw.get("over", {}).items()}
    for axis in {a for one in raw.get("skip", ()) for a in _table(one)} - over.keys():
        raise FieldError("skip", f"names {axis!r}, which is no axis", f"there are {', '.join(over) or 'none'}")
    return Matrix(
        name=name,
        program=raw.get("program", "benchmark"),
        flags=tuple(str(word) for word in raw.get("flags", ())),
        np=raw.get("np"),
        per=raw.get("per", "gpu"),
        env={key: _text(value) for key, value in raw.get("env", {}).items()},
        over=over,
        skip=tuple(raw.get("skip", ())),
        columns={column: _pattern(column, text) for column, text in raw.get("columns", {}).items()},
        upload=raw.get("upload", ""),
        python=raw.get("python", ""),
        packages={name: raw[name] for name in ("requirements", "venv", "conda", "container") if name in raw},
    )


def _table(one: Any) -> Mapping[str, Any]:
    if not isinstance(one, dict):
        raise FieldError("skip", f"{one!r} is no table", "write [[skip]] and below it the values of cells to leave out")
    return one


def _values(axis: str, values: Any) -> tuple[Value, ...]:
    field = f"over.{axis}"
    if not isinstance(values, Sequence) or isinstance(values, str) or not values:
        raise FieldError(field, "is no list of values", f"write it like {axis} = [1, 2]")
    for value in values:
        if not isinstance(value, str | int | float | bool):
            raise FieldError(field, f"{value!r} is no plain value", "give texts, numbers, true or false")
        if axis == "np" and (type(value) is not int or value < 1):
            raise FieldError(field, f"{value!r} is no number of ranks", "give whole numbers, 1 and more")
    if len(set(map(repr, values))) < len(values):
        raise FieldError(field, "has a value twice", "each value makes cells of its own: leave one out")
    return tuple(values)


def _pattern(column: str, text: Any) -> str:
    field = f"columns.{column}"
    try:
        groups = re.compile(text).groups
    except (re.error, TypeError) as e:
        raise FieldError(field, f"is no pattern: {e}", "write it like 'loss: ([0-9.]+)'") from None
    if groups != 1:
        raise FieldError(field, f"has {groups} groups", "put the one thing that is wanted into ( )")
    return str(text)


def _text(value: Value) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
