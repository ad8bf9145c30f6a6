"""Checks that several fields share, and the error of a field that cannot be used."""

import contextlib
import ipaddress
import re
from pathlib import Path

from cluster.errors import ConfigError


class FieldError(ConfigError):
    """Error for a field that cannot be used: its name, what is wrong with it, what to do."""

    def __init__(self, field: str, problem: str, remedy: str) -> None:
        super().__init__(f"{in_short(field, 80)}: {in_short(problem, 400)}; {in_short(remedy, 400)}")
        self.field = field


def in_short(text: str, most: int) -> str:
    """Return the text, or its beginning and its end if it has more than `most` characters."""
    end = most // 4
    return text if len(text) <= most else f"{text[: most - end - 3]}...{text[-end:]}"


def match(name: str, value: str, pattern: str, remedy: str, problem: str = "does not fit") -> None:
    """Raise FieldError if the whole value does not match the pattern."""
    if not re.fullmatch(pattern, value):
        raise FieldError(name, f"{value!r} {problem}", remedy)


def match_if_set(name: str, value: str, pattern: str, remedy: str, problem: str = "does not fit") -> None:
    """Raise FieldError as `match` does, unless the value is empty."""
    if value:
        match(name, value, pattern, remedy, problem)


def in_range(name: str, value: float, least: float, most: float, remedy: str) -> None:
    """Raise FieldError for a number that is too small or too large."""
    if not least <= value <= most:
        raise FieldError(name, f"{value} is outside {least:.0f} to {most:.0f}", remedy)


def several(value: str | tuple[str, ...]) -> tuple[str, ...]:
    """Return the values of a field that takes one text or several; () for an empty one."""
    return value if isinstance(value, tuple) else (value,) if value else ()


REGION = r"[a-z]{2}(-[a-z]+)+-\d"
FILE_SYSTEM = r"fs-([0-9a-f]{8}|[0-9a-f]{17})"
# First parts of paths that are the system's: a mount over one of them, or a `chown -R` in it, breaks the node.
SYSTEM = re.compile(r"bin|boot|dev|etc|lib\w*|lost\+found|proc|run|sbin|snap|sys|usr")


def check_folder(name: str, value: str, example: str, depth: int = 1) -> None:
    """Raise FieldError for a path that is not a folder for data: the system's own, a home itself, or with '..'.

    depth: the least number of parts of the path.
    """
    match(name, value, r"(/[\w.-]+)+", f"write an absolute path like {example!r}")
    parts = value.split("/")[1:]
    home = {"home": 3, "root": 2, "tmp": 2, "var": 4}.get(parts[0], depth)
    if SYSTEM.fullmatch(parts[0]) or {".", ".."} & set(parts) or len(parts) < home:
        raise FieldError(
            name,
            f"{value!r} is the system's own, or not below a folder for data or a home",
            f"choose one like {example!r} or '/home/ubuntu/{example.rsplit('/', 1)[1]}'",
        )


def network_of(name: str, value: str, example: str = "10.20.0.0/16") -> ipaddress.IPv4Network:
    """Return the IPv4 network in a field. Raises FieldError, which suggests the network if the value has host bits."""
    try:
        return ipaddress.IPv4Network(value)
    except ValueError as e:
        with contextlib.suppress(ipaddress.AddressValueError, ipaddress.NetmaskValueError):
            near = str(ipaddress.IPv4Network(value, strict=False))
            raise FieldError(name, f"{value!r} has bits set after the prefix", f"write {near!r}") from e
        raise FieldError(name, f"{value!r} is not an IPv4 network", f"write it like {example!r}") from e


def expanded(name: str, value: str) -> Path:
    """Return a path with its `~` expanded. Raises FieldError if there is no such user."""
    try:
        return Path(value).expanduser()
    except RuntimeError as e:
        raise FieldError(name, f"{value!r}: no user of that name is here", "write the whole path") from e
