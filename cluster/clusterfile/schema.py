"""Names and types of a cluster file's fields, derived from the dataclasses of its tables."""

import difflib
from collections.abc import Mapping
from dataclasses import Field, dataclass, field, fields, is_dataclass
from functools import cache
from typing import Any, get_args

from cluster.clusterfile.checks import FieldError, in_short

LARGEST = 2**63  # TOML's whole numbers have 64 bits


@dataclass(frozen=True)
class FieldKind:
    """Type of a field as an operator reads it."""

    name: str
    example: str


KINDS: Mapping[Any, FieldKind] = {
    str: FieldKind("text in quotes", '"text"'),
    str | tuple[str, ...]: FieldKind("text in quotes, or a list of such", '"text" or ["text", "other"]'),
    tuple[str, ...]: FieldKind("a list of texts", '["text"]'),
    int: FieldKind("a whole number", "1"),
    float: FieldKind("a number", "1.5"),
    bool: FieldKind("true or false", "true"),
}


def filled(default: Any) -> Any:
    """Field that may be left out of a file, but not be set to "". A new file has a default of "" as a comment."""
    return field(default=default, metadata={"filled": True})


def without_stack(default: Any) -> Any:
    """Field for hosts without a stack. A new file, which describes a stack, lacks it."""
    return field(default=default, metadata={"without_stack": True})


def unset(shown: Any) -> Any:
    """Field that is None unless a file sets it. A new file has `shown` as a comment."""
    return field(default=None, metadata={"shown": shown})


def check(values: Mapping[str, Any], kind: type, prefix: str = "") -> None:
    """Raise FieldError for the first field that is unknown, empty or of the wrong type.

    kind: the dataclass of the table.
    """
    known = by_name(kind)
    for key, value in values.items():
        name = f"{prefix}{key}" if key.isprintable() else f"{prefix}{key!r}"
        if key not in known:
            near = difflib.get_close_matches(key, known, n=1, cutoff=0.5)
            remedy = f"did you mean {prefix + near[0]!r}?" if near else f"known here: {', '.join(known)}"
            raise FieldError(name, "no such field", remedy)
        of: Any = known[key].type
        if is_dataclass(of):
            if not isinstance(value, dict):
                raise FieldError(name, "is a table", f"write [{name}] on a line of its own and its fields below")
            check(value, of, f"{name}.")  # type: ignore[arg-type]
        else:
            _check_value(name, value, _plain(of))
            if value == "" and known[key].metadata.get("filled"):
                raise FieldError(name, "is empty", "give it a value, or leave the line out")


def build(values: Mapping[str, Any], kind: type) -> Any:
    """Return the table that checked values describe. Raises FieldError of the table's own checks."""
    known = by_name(kind)
    return kind(**{name: _built(value, known[name].type) for name, value in values.items()})


@cache
def by_name(kind: type) -> dict[str, "Field[Any]"]:
    """Return the fields of a table by their names."""
    return {f.name: f for f in fields(kind)}


def _built(value: Any, of: Any) -> Any:
    if is_dataclass(of):
        return build(value, of)  # type: ignore[arg-type]
    return float(value) if of is float else tuple(value) if isinstance(value, list) else value


def _plain(of: Any) -> Any:
    """Return the type that a file has for a field: `int` of `int | None`."""
    return of if of in KINDS else get_args(of)[0]


def _check_value(name: str, value: Any, of: Any) -> None:
    if type(value) is int and not -LARGEST <= value < LARGEST:
        raise FieldError(name, "is too long a number", "write one that fits 64 bits")
    is_one_or_more = of == str | tuple[str, ...]
    if isinstance(value, list) and (of == tuple[str, ...] or (is_one_or_more and value)):
        for one in value:
            _check_value(name, one, str)
        return
    fits = type(value) is (str if is_one_or_more else of)
    if not (fits or (of is float and type(value) is int)):
        raise FieldError(name, f"{_short(value)} is not {KINDS[of].name}", f"write it like {KINDS[of].example}")
    if isinstance(value, str) and not value.isprintable():
        raise FieldError(name, f"{_short(value)} has a character that cannot be printed", "write it on one line")


def _short(value: Any) -> str:
    shown = "a table" if isinstance(value, dict) else "a list" if isinstance(value, list) else repr(value)
    return in_short(shown, 80)
