"""Reader of dataclasses from JSON. Each field is checked. Unknown fields of newer versions are ignored."""

import collections.abc
import dataclasses
import enum
import functools
import types
import typing
from typing import Any, TypeVar

T = TypeVar("T")

_MOST = 2**63


def from_json(kind: type[T], raw: object) -> T:
    """Return a value of this dataclass from a JSON object. Raises ValueError with the field's name."""
    if not isinstance(raw, dict):
        raise ValueError(f"expected an object, got {_short(raw)}")
    hints = _hints(kind)  # type: ignore[arg-type]
    values: dict[str, Any] = {}
    for field in dataclasses.fields(kind):  # type: ignore[arg-type]
        if field.name in raw:
            try:
                values[field.name] = _value(hints[field.name], raw[field.name])
            except ValueError as e:
                raise ValueError(f"{field.name}: {e}") from None
        elif field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING:
            raise ValueError(f"{field.name} is missing")
    return kind(**values)


@functools.lru_cache
def _hints(kind: type) -> dict[str, Any]:
    return typing.get_type_hints(kind)


def _value(kind: Any, raw: object) -> Any:
    origin, inner = typing.get_origin(kind), typing.get_args(kind)
    if origin in (types.UnionType, typing.Union):
        return None if raw is None else _value(inner[0], raw)
    if origin is tuple:
        if not isinstance(raw, list | tuple):
            raise ValueError(f"expected a list, got {_short(raw)}")
        return tuple(_value(inner[0], one) for one in raw)
    if origin is collections.abc.Mapping:
        if not isinstance(raw, dict):
            raise ValueError(f"expected an object, got {_short(raw)}")
        return {str(name): _value(inner[1], one) for name, one in raw.items()}
    if dataclasses.is_dataclass(kind):
        return from_json(typing.cast(type, kind), raw)
    if issubclass(kind, enum.Enum):
        return kind(raw)  # ValueError: 'x' is not a valid JobState
    if kind is float and type(raw) is int:  # JSON has one kind of number
        raw = float(raw) if abs(raw) < _MOST else raw
    if not isinstance(raw, kind) or (kind is int and isinstance(raw, bool)):
        raise ValueError(f"expected {kind.__name__}, got {_short(raw)}")
    if isinstance(raw, int | float) and not abs(raw) < _MOST:  # NaN, too: later code computes sums and times from it
        raise ValueError(f"{_short(raw)} is no number that can be meant")
    return raw


def _short(raw: object) -> str:
    text = repr(raw)
    return text if len(text) <= 40 else text[:39] + "…"
