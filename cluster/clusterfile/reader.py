"""Strict reader of cluster.toml: misspelt, mistyped or empty fields are refused with their line and name."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from cluster.clusterfile import schema
from cluster.clusterfile.checks import FieldError
from cluster.clusterfile.model import ClusterFile
from cluster.errors import ConfigError

T = TypeVar("T")
MOST_BYTES = 256 * 1024


def read(path: Path, build: Callable[[dict[str, Any]], T]) -> T:
    """Return what `build` makes of the file's values, all of them known fields of the right type.

    Raises ConfigError with the file, the line, the field and the remedy, also for a FieldError of `build`.
    """
    text, values = decode(path)
    try:
        schema.check(values, ClusterFile)
        return build(values)
    except FieldError as e:
        line = line_of(text, e.field)
        raise ConfigError(f"{path}:{line}: {e}" if line else f"{path}: {e}") from e


def parse(values: dict[str, Any], **defaults: Any) -> ClusterFile:
    """Return the cluster file that decoded TOML describes.

    defaults: values of top-level fields that the file may leave out. Raises FieldError for a value that no cluster
    can have.
    """
    schema.check(values, ClusterFile)
    found: ClusterFile = schema.build({**defaults, **values}, ClusterFile)
    return found


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
