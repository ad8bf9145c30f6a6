"""Facts of a checkpoint, stored as JSON beside its arrays. Each field is checked when it is read."""

import hashlib
import json
import math
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from dataclasses import fields as dataclass_fields
from typing import Any

CHECK = "sha256_of_facts"  # the key of the facts' own checksum; checkpoints of version 0.1.0 have none
_SHA256 = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, kw_only=True)
class Facts:
    """Facts of a checkpoint that can be read without its arrays."""

    step: int  # steps done
    time: str  # when it was written, ISO 8601, UTC
    sha256: str  # of the file of arrays
    bytes: int  # of the file of arrays
    attempt: int = 0  # the job's attempt that wrote it; 0 outside a job
    more: dict[str, Any] = field(default_factory=dict)  # the trainer's own: position, seed, the configuration

    def as_text(self) -> str:
        """Return the content of the facts file."""
        fields = asdict(self)
        return json.dumps({**fields, CHECK: _sha256_of(fields)}, indent=1) + "\n"

    @classmethod
    def of_text(cls, text: str, step: int) -> "Facts":
        """Parse the facts that `as_text` wrote for this step's checkpoint. Unknown fields are ignored.

        Raises:
            ValueError: a field is missing, of the wrong kind or impossible. The message names it.
        """
        fields = _mapping(text)
        own = {name: value for name, value in fields.items() if name != CHECK}
        if CHECK in fields and fields[CHECK] != _sha256_of(own):
            raise ValueError("it does not match its own checksum")
        if CHECK not in fields and (unknown := set(own) - {f.name for f in dataclass_fields(cls)}):
            raise ValueError(f"it has {min(unknown)!r:.40} and no checksum of its own")  # damaged, for instance
        if whole_number(own, "step") != step:
            raise ValueError(f"it is of step {own['step']}, not {step}")
        if not isinstance(own.get("time"), str):
            raise ValueError("time is missing or no text")
        if not (isinstance(own.get("sha256"), str) and _SHA256.fullmatch(own["sha256"])):
            raise ValueError("sha256 is missing or no checksum")
        if not isinstance(own.get("more", {}), dict):
            raise ValueError("more is no table")
        return cls(
            step=step,
            time=own["time"],
            sha256=own["sha256"],
            bytes=whole_number(own, "bytes"),
            attempt=whole_number({"attempt": 0, **own}, "attempt"),
            more=own.get("more", {}),
        )


@dataclass(frozen=True)
class Best:
    """Best checkpoint so far, by its score."""

    step: int
    score: float

    @classmethod
    def of_text(cls, text: str) -> "Best":
        """Parse the JSON that `mark_best` wrote.

        Raises:
            ValueError: a field is missing, of the wrong kind or impossible.
        """
        fields = _mapping(text)
        score = fields.get("score")
        if not isinstance(score, int | float) or isinstance(score, bool) or not math.isfinite(score):
            raise ValueError("score is missing or no number")
        return cls(whole_number(fields, "step"), float(score))


def whole_number(fields: Mapping[str, Any], name: str, least: int = 0) -> int:
    """Return the field as a whole number from `least` that fits into 64 bits. Raises ValueError if it is not one."""
    value = fields.get(name)
    if type(value) is not int or not least <= value < 1 << 63:
        raise ValueError(f"{name} is missing" if name not in fields else f"{name} is {str(value)[:40]}")
    return value


def _mapping(text: str) -> dict[str, Any]:
    try:
        fields = json.loads(text)
    except RecursionError as e:
        raise ValueError("nested without end") from e
    if not isinstance(fields, dict):
        raise ValueError("it holds no table")
    return fields


def _sha256_of(fields: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(fields, sort_keys=True).encode()).hexdigest()
