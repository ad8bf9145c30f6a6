"""Progress of a matrix: `state.json` beside its results on the shared folder, read and written on the master."""

import dataclasses
import json
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from cluster.errors import ClusterError
from cluster.inventory import Cluster
from cluster.matrix.cells import Cell, Value
from cluster.ssh.fanout import Executor
from cluster.ssh.limits import Limits
from cluster.ssh.noise_filter import marked, output_between_marks, trouble

_ANSWER_S = 30.0


@dataclass(frozen=True, kw_only=True)
class CellEntry:
    """Job and result of one cell."""

    job: str
    state: str = ""  # state of the job; "" until it has ended
    cause: str = ""  # why it did not succeed
    code: str = ""  # hash of the operator's code that it ran; "" for a trainer, or if no code was sent along
    measured: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class MatrixState:
    """Entries of the cells by their digests."""

    cells: Mapping[str, CellEntry] = field(default_factory=dict)

    def with_entry(self, cell: Cell, entry: CellEntry) -> "MatrixState":
        """Return a copy with the cell's entry replaced."""
        return MatrixState(cells={**self.cells, cell.digest: entry})

    def is_done(self, cell: Cell) -> bool:
        """Return True if the cell's job has succeeded, so that it is not run again."""
        entry = self.cells.get(cell.digest)
        return entry is not None and entry.state == "succeeded"


def rows(cells: list[Cell], state: MatrixState) -> list[dict[str, Value | None]]:
    """Return the rows of the table in the order of the cells: values, job, state and measurements."""
    found: list[dict[str, Value | None]] = []
    for cell in cells:
        entry = state.cells.get(cell.digest, CellEntry(job=""))
        found.append(
            {
                **cell.values,
                "job": entry.job,
                "state": entry.state or ("going" if entry.job else "to do"),
                **entry.measured,
            }
            | ({"cause": entry.cause} if entry.cause else {})
        )
    return found


def text_of(state: MatrixState, cells: list[Cell]) -> str:
    """Return the text of `state.json`: the entry of every cell, and the rows of the table."""
    known = {digest: dataclasses.asdict(entry) for digest, entry in state.cells.items()}
    return json.dumps({"cells": known, "rows": rows(cells, state)}, indent=1) + "\n"


def parse(text: str) -> MatrixState:
    """Parse the text of `state.json`; an empty text gives an empty state. Raises ValueError."""
    try:
        raw = json.loads(text)["cells"] if text.strip() else {}
        return MatrixState(cells={digest: _entry(one) for digest, one in raw.items()})
    except (KeyError, TypeError, AttributeError, RecursionError) as e:
        raise ValueError(f"{type(e).__name__}: {e}") from e


def _entry(raw: Mapping[str, Any]) -> CellEntry:
    return CellEntry(
        job=str(raw["job"]),
        state=str(raw["state"]),
        cause=str(raw["cause"]),
        code=str(raw.get("code", "")),
        measured=dict(raw["measured"].items()),
    )


class ResultStore:
    """Folder of a matrix's results on the shared folder."""

    def __init__(self, reach: Executor, cluster: Cluster, name: str) -> None:
        self._reach, self._cluster = reach, cluster
        self.folder = f"{cluster.shared}/matrices/{name}"

    def read(self) -> MatrixState:
        """Return the state that an earlier run has stored; empty if there was none. Raises ClusterError."""
        folder, path = shlex.quote(self.folder), shlex.quote(f"{self.folder}/state.json")
        others = shlex.quote(f"it is another user's: give the matrix another name, or remove {self.folder}")
        text = self._on_master(
            f"if [ -L {folder} ] || {{ [ -e {folder} ] && ! [ -O {folder} ]; }}; then echo {others} >&2; exit 1; fi; "
            f"if [ -e {path} ]; then cat {path}; fi"
        )
        try:
            return parse(text)
        except ValueError as e:
            raise ClusterError(
                f"{self.folder}/state.json on the master is damaged ({e}): move it away, and every cell is run again"
            ) from e

    def write(self, state: MatrixState, cells: list[Cell]) -> None:
        """Write the state and the rows of the table atomically. Raises ClusterError."""
        text = text_of(state, cells)
        folder = shlex.quote(self.folder)
        fresh = f"{folder}/.state.$$"
        self._on_master(f"mkdir -p {folder} && cat >{fresh} && mv {fresh} {folder}/state.json", stdin=text.encode())

    def _on_master(self, script: str, stdin: bytes = b"") -> str:
        master = self._cluster.master
        result = self._reach.run([master], marked(script), stdin=stdin, limits=Limits(total_s=_ANSWER_S))[master]
        if why := trouble(result):
            raise ClusterError(f"{self.folder} on the master ({master}): {why}")
        return output_between_marks(result) or ""
