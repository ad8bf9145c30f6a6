"""Strict reader of cluster.toml: misspelt, mistyped or empty fields are refused with their line and name."""

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from cluster.errors import ConfigError


class Texts:
    """Type of a field that is one text or several, of which the first available one is used."""


class TextList:
    """Type of a field that is a list of texts, possibly empty."""


Fields = Mapping[str, "type | Fields"]
T = TypeVar("T")

SSH: Fields = {"user": str, "port": int, "key": str, "known_hosts": str, "gateway": str}
# Fields of a stack. `cfn.clusterfile` defines their meaning, defaults and limits.
STACK: Fields = {
    "region": str,
    "network": dict.fromkeys(("zone", "cidr", "public_cidr", "private_cidr", "vpc"), str)
    | dict.fromkeys(("public_subnet", "private_subnet"), Texts),
    "nodes": {
        "instance_type": Texts,
        "workers": int,
        "spares": int,
        "min_nodes": int,
        "ami": str,
        "root_gib": int,
        "capacity": str,
        "reservation": str,
        "boot_minutes": int,
        "usd_per_hour": float,
        "source": str,
    },
    "master": {"instance_type": str, "capacity": str, "usd_per_hour": float},
    "storage": {
        "efs": str,
        "tls": bool,
        "fsx_gib": int,
        "fsx_mount": str,
        "fsx_throughput": int,
        "fsx_s3": str,
        "s3": str,
    },
    "guard": {"idle_minutes": int, "max_hours": float, "budget_usd": float},
    "access": {
        "mode": str,
        "ssh_from": str,
        "allow_wide": bool,
        "key_pair": str,
        "public_key": str,
        "protect": bool,
        "permissions_boundary": str,
        "rank_credentials": bool,
        "role_path": str,
    },
}
ACCESS_MODES = ("ssh", "ssm", "eic")  # the last two: no port is open, the AWS CLI connects to the master
# Fields for trainings on Kubernetes. `cluster.eks.settings` defines their meaning.
EKS: Fields = {
    **dict.fromkeys(("context", "namespace", "image", "version", "priority_class", "efs", "fsx", "local"), str),
    **dict.fromkeys(("shm_gib", "ttl_seconds"), int),
    "allow_cidrs": TextList,
}
WITHOUT_STACK: Fields = {"shared_by": str}  # only for clusters without a stack
FIELDS: Fields = {
    **dict.fromkeys(("name", "shared", "project", "notify", "results", "setup"), str),
    "ssh": SSH,
    **STACK,
    "eks": EKS,
    **WITHOUT_STACK,
}
"""All fields of a cluster file and their types."""

KINDS = {
    str: "text in quotes",
    Texts: "text in quotes, or a list of such",
    TextList: "a list of texts",
    int: "a whole number",
    float: "a number",
    bool: "true or false",
}
EXAMPLES = {
    str: '"text"',
    Texts: '"text" or ["text", "other"]',
    TextList: '["text"]',
    int: "1",
    float: "1.5",
    bool: "true",
}
LARGEST = 2**63  # TOML's whole numbers have 64 bits
MOST_BYTES = 256 * 1024


class FieldError(ConfigError):
    """Error for a field that cannot be used: its name, what is wrong with it, what to do."""

    def __init__(self, field: str, problem: str, remedy: str) -> None:
        super().__init__(f"{_in_short(field, 80)}: {_in_short(problem, 400)}; {_in_short(remedy, 400)}")
        self.field = field


def read(path: Path, build: Callable[[dict[str, Any]], T]) -> T:
    """Return what `build` makes of the file's values, all of them known fields of the right type.

    Raises ConfigError with the file, the line, the field and the remedy, also for a FieldError of `build`.
    """
    text, values = decode(path)
    try:
        check(values)
        return build(values)
    except FieldError as e:
        line = line_of(text, e.field)
        raise ConfigError(f"{path}:{line}: {e}" if line else f"{path}: {e}") from e


def decode(path: Path) -> tuple[str, dict[str, Any]]:
    """Return the file's text and its values, unchecked. Raises ConfigError with the line for text that is not TOML."""
    import tomllib  # here, like difflib: every task imports this module, `inv --list` reads nothing

    try:
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as e:
        line = e.object[: e.start].count(b"\n") + 1
        raise ConfigError(
            f"{path}:{line}: a byte is no UTF-8 ({e.object[e.start]:#04x}): save the file as UTF-8"
        ) from e
    except OSError as e:
        raise ConfigError(f"{path}: cannot be read as a cluster file: {e}") from e
    if len(text) > MOST_BYTES:
        raise ConfigError(f"{path}: has {len(text)} characters, a cluster file has at most {MOST_BYTES}")
    try:
        return text, tomllib.loads(text)
    except tomllib.TOMLDecodeError as e:
        raise ConfigError(f"{path} is not valid TOML: {e}; fix that line") from e
    except RecursionError as e:
        line = max(enumerate(text.splitlines(), 1), key=lambda pair: pair[1].count("[") + pair[1].count("{"))[0]
        raise ConfigError(f"{path}:{line}: is nested too deeply; a cluster file has tables and plain values") from e
    except ValueError as e:  # a number that Python will not convert
        long = (n for n, line in enumerate(text.splitlines(), 1) if re.search(r"[\d_]{1000}", line))
        raise ConfigError(f"{path}:{next(long, '?')}: a number is too long; write one that fits 64 bits") from e


def check(values: Mapping[str, Any], fields: Fields = FIELDS, table: str = "") -> None:
    """Raise FieldError for the first field that is unknown or of the wrong type."""
    import difflib

    for key, value in values.items():
        name = f"{table}{key}" if key.isprintable() else f"{table}{key!r}"
        if key not in fields:
            near = difflib.get_close_matches(key, fields, n=1, cutoff=0.5)
            known = f"did you mean {table + near[0]!r}?" if near else f"known here: {', '.join(fields)}"
            raise FieldError(name, "no such field", known)
        kind = fields[key]
        if not isinstance(kind, type):
            if not isinstance(value, dict):
                raise FieldError(name, "is a table", f"write [{name}] on a line of its own and its fields below")
            check(value, kind, f"{name}.")
        else:
            _check_value(name, value, kind)


def _check_value(name: str, value: Any, kind: type) -> None:
    if type(value) is int and not -LARGEST <= value < LARGEST:
        raise FieldError(name, "is too long a number", "write one that fits 64 bits")
    if isinstance(value, list) and (kind is TextList or (kind is Texts and value)):
        for one in value:
            _check_value(name, one, str)
        return
    fits = type(value) is (str if kind is Texts else kind)
    if not (fits or (kind is float and type(value) is int)):
        raise FieldError(name, f"{_short(value)} is not {KINDS[kind]}", f"write it like {EXAMPLES[kind]}")
    if isinstance(value, str) and not value.isprintable():
        raise FieldError(name, f"{_short(value)} has a character that cannot be printed", "write it on one line")


def _short(value: Any) -> str:
    shown = "a table" if isinstance(value, dict) else "a list" if isinstance(value, list) else repr(value)
    return _in_short(shown, 80)


def line_of(text: str, field: str) -> int | None:
    """Return the number of the line that sets a field, or else the table that it is missing from.

    None if neither is set.

    The line is the end of the shortest beginning of the file that has the field.
    """
    import tomllib

    path = field.split(".")
    lines = text.split("\n")
    while path:
        for number in range(1, len(lines) + 1):
            try:
                found: Any = tomllib.loads("\n".join(lines[:number]) + "\n")
            except (ValueError, RecursionError):
                continue  # in the middle of a value of several lines
            for part in path:
                found = found.get(part) if isinstance(found, dict) else None
            if found is not None:
                return number
        path.pop()
    return None


def with_fields(text: str, table: str, values: Mapping[str, str | int], mark: str = "") -> str:
    """Return a cluster file's text with fields of one table set, and all else as the operator wrote it.

    Args:
        mark: a comment on each line that is written.
    """
    import tomlkit

    document = tomlkit.parse(text if text.endswith("\n") else text + "\n")
    if table not in document:
        document[table] = tomlkit.table()
    own: Any = document[table]
    for name, value in values.items():
        if own.get(name) == value:
            continue
        item = tomlkit.item(value)
        inline = isinstance(own, tomlkit.items.InlineTable)
        if mark and not inline:
            item.comment(mark)
        if name in own or inline or not own:
            own[name] = item
        else:  # directly below the last field: a comment after it may belong to the next table
            own.value._insert_after(list(own)[-1], name, item)
    return tomlkit.dumps(document)


def _in_short(text: str, most: int) -> str:
    """Return the text, or its beginning and its end if it has more than `most` characters."""
    end = most // 4
    return text if len(text) <= most else f"{text[: most - end - 3]}...{text[-end:]}"
