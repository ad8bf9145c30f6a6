"""Cells of a matrix: every combination of its axes' values, each with the command that it runs."""

import hashlib
import itertools
import json
import re
import shlex
from collections.abc import Mapping
from dataclasses import asdict, dataclass

from cluster.errors import ConfigError
from cluster.matrix.file import MOST_CELLS, TRAINERS, Matrix, Value


@dataclass(frozen=True, kw_only=True)
class Cell:
    """Job of a matrix: its command, and its position on the axes."""

    number: int  # position from 1, in the file's order
    values: Mapping[str, Value]  # axis -> value
    trainer: str  # the project's trainer; "" for a command line
    words: tuple[str, ...]  # a trainer's flags, or the command line
    np: int | None
    per: str
    env: Mapping[str, str]
    packages: Mapping[str, str]  # for a command line: requirements, venv, conda, container

    @property
    def digest(self) -> str:
        """Return the hash of the cell's work. Equal work has an equal hash, wherever it stands in a matrix."""
        work = {k: v for k, v in asdict(self).items() if k not in ("number", "values")}
        return hashlib.sha256(json.dumps(work, sort_keys=True).encode()).hexdigest()[:12]

    def __str__(self) -> str:
        return " ".join(f"{axis}={value}" for axis, value in self.values.items()) or "the only cell"

    @property
    def command(self) -> str:
        """Return the command on one line, for people to read."""
        env = [f"{name}={value}" for name, value in self.env.items()]
        program = [f"train.{self.trainer}"] if self.trainer else []
        ranks = [f"--np {self.np}"] if self.np else []
        return " ".join([*env, *program, *ranks, "--", shlex.join(self.words)])


def cells(matrix: Matrix) -> list[Cell]:
    """Return all cells of a matrix, the last axis varying fastest. Raises ConfigError if there are none or too many."""
    found: list[Cell] = []
    for values in itertools.product(*matrix.over.values()):
        at = dict(zip(matrix.over, values, strict=True))
        if any(all(at[axis] == value for axis, value in one.items()) for one in matrix.skip):
            continue
        found.append(_cell(matrix, len(found) + 1, at))
        if len(found) > MOST_CELLS:
            raise ConfigError(f"matrix {matrix.name} has more than {MOST_CELLS} cells: give axes fewer values")
    if not found:
        raise ConfigError(f"matrix {matrix.name} has no cell: [[skip]] leaves out all of them")
    return found


def _cell(matrix: Matrix, number: int, at: Mapping[str, Value]) -> Cell:
    program = str(at.get("program", matrix.program))
    flags, env = list(matrix.flags), dict(matrix.env)
    for axis, value in at.items():
        if axis in ("np", "program", "per"):
            continue
        if re.fullmatch(r"[A-Z][A-Z0-9_]*", axis):
            env[axis] = str(value)
        elif "." in axis:  # Mask R-CNN's configuration
            flags.append(f"{axis}={value}")
        elif isinstance(value, bool):
            flags += [f"--{axis}"] if value else []
        else:
            flags += [f"--{axis}", str(value)]
    np = at.get("np", matrix.np)
    return Cell(
        number=number,
        values=at,
        trainer=program if program in TRAINERS else "",
        words=tuple(flags if program in TRAINERS else [*shlex.split(program), *flags]),
        np=int(np) if np else None,
        per=str(at.get("per", matrix.per)),
        env=env,
        packages={} if program in TRAINERS else matrix.packages,
    )
