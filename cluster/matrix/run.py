"""Run of a matrix until every cell has ended: one cell after the other, or as many at once as fit on the hosts."""

import dataclasses
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from cluster.errors import ClusterError, NothingToDo
from cluster.jobs.record import Job, JobView
from cluster.jobs.state import JobState
from cluster.matrix.cells import Cell
from cluster.matrix.state import CellEntry, MatrixState
from cluster.terminal import counted

LOOK_S = 3.0


class MatrixJobs(Protocol):
    """Job operations that a matrix run needs."""

    def submit(self, job: Job) -> str:
        """Submit a job and return its id."""

    def list(self) -> "RecordedJobs":
        """Return every job on record."""

    def stop(self, which: str) -> JobView:
        """Stop a job, and end what it has left on its hosts."""


class RecordedJobs(Protocol):
    """Jobs on record."""

    @property
    def jobs(self) -> tuple[JobView, ...]:
        """Return the jobs, the oldest first."""


class Keeper(Protocol):
    """Storage of the matrix's state."""

    def write(self, state: MatrixState, cells: list[Cell]) -> None:
        """Store the state."""


class MatrixRun:
    """Run of a matrix's cells. An earlier run may have completed some of them.

    measure: returns the results of a job that has succeeded. code: hash of the code that command lines run now. again:
    run cells again that have succeeded with other code.
    """

    def __init__(
        self,
        cells: list[Cell],
        state: MatrixState,
        *,
        jobs: MatrixJobs,
        keeper: Keeper,
        measure: Callable[[JobView], Mapping[str, object]],
        packed: bool,
        code: str = "",
        again: bool = False,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._cells, self.state = cells, state
        self._planned: dict[str, Job] = {}
        self._jobs, self._keeper, self._measure = jobs, keeper, measure
        self._packed, self._sleep = packed, sleep
        self._code, self._again = code, again

    def left(self) -> list[Cell]:
        """Return the cells still to be run, equal ones once.

        Cells that have succeeded or whose job is active are left out.
        """
        going = {job.id for job in self._heard()}
        found: dict[str, Cell] = {}
        for cell in self._cells:
            entry = self.state.cells.get(cell.digest)
            is_done = self.state.is_done(cell) and not (self._again and self._ran_other_code(cell))
            if not is_done and not (entry and entry.job in going):
                found.setdefault(cell.digest, cell)
        return list(found.values())

    def of_other_code(self) -> list[Cell]:
        """Return the cells that have succeeded, but with code other than the current one."""
        return [cell for cell in self._cells if self.state.is_done(cell) and self._ran_other_code(cell)]

    def _ran_other_code(self, cell: Cell) -> bool:
        return not cell.trainer and self.state.cells[cell.digest].code != self._code

    def run_to_end(self, planned: Mapping[str, Job]) -> MatrixState:
        """Run the cells whose jobs are given by digest, and return the state once every cell has ended."""
        self._planned = dict(planned)
        self._keeper.write(self.state, self._cells)
        while True:
            going = self._heard()
            todo = [c for c in self._cells if c.digest in self._planned]
            if not going and not todo:
                return self.state
            if todo and may_submit(going, packed=self._packed):
                self._submit(todo[0])
            else:
                self._sleep(LOOK_S)

    def _heard(self) -> list[JobView]:
        """Record the jobs that have ended, and return those that are active."""
        found = {one.id: one for one in self._jobs.list().jobs}
        going: list[JobView] = []
        for cell in self._cells:
            entry = self.state.cells.get(cell.digest)
            if entry is None or entry.state or cell.digest in self._planned:
                continue
            job = found.get(entry.job)
            if job and job.state.is_going:
                going.append(job)
            elif job is None:
                self._note(cell, CellEntry(job=entry.job, state="failed", cause="its record was removed"))
            else:
                self._ended(cell, job)
        return going

    def _ended(self, cell: Cell, job: JobView) -> None:
        measured = self._measure(job) if job.state is JobState.SUCCEEDED else {}
        cause = "" if job.state is JobState.SUCCEEDED else job.status.cause
        if job.state is JobState.LOST:
            cause = f"its supervisor was gone (killed, or the master restarted); {self._freed(job)}"
        self._note(cell, CellEntry(job=job.id, state=str(job.state), cause=cause, measured=measured))
        speed = measured.get("images_per_s")
        how = f"{job.state}" + (f": {cause}" if cause else f", {speed} images/s" if speed is not None else "")
        print(f"{cell.number}/{len(self._cells)} {cell}: {how}", file=sys.stderr)

    def _freed(self, job: JobView) -> str:
        """Stop what a lost job has left on its hosts, for the next cell, and return how that went.

        Cells are not recovered.
        """
        try:
            left = self._jobs.stop(job.id).status.left
            return f"left behind: {', '.join(left)}" if left else "what was left of it is ended"
        except NothingToDo:
            return "nothing is left of it"
        except ClusterError as e:
            return f"its hosts stay taken: {str(e).splitlines()[0]}"

    def _submit(self, cell: Cell) -> None:
        """Submit the cell's job. Its id is stored first, so that a run resumed after an interruption finds the job."""
        job = self._planned.pop(cell.digest)
        self._note(cell, CellEntry(job=job.id))
        try:
            self._jobs.submit(job)
        except ClusterError as e:
            self._note(cell, CellEntry(job=job.id, state="failed", cause=str(e).splitlines()[0]))
        print(f"{cell.number}/{len(self._cells)} {cell}: job {job.id}", file=sys.stderr)

    def _note(self, cell: Cell, entry: CellEntry) -> None:
        before = self.state.cells.get(cell.digest)
        ran = before.code if before and before.job == entry.job else "" if cell.trainer else self._code
        entry = dataclasses.replace(entry, code=ran)
        self.state = self.state.with_entry(cell, entry)
        self._keeper.write(self.state, self._cells)


def may_submit(going: Sequence[JobView], *, packed: bool) -> bool:
    """Return True if the next cell may be submitted: no job is queued, and unless packed none is active."""
    return not any(job.state is JobState.QUEUED for job in going) if packed else not going


def summary(cells: Sequence[Cell], state: MatrixState) -> str:
    """Return how many cells have succeeded, on one line."""
    succeeded = sum(state.is_done(c) for c in cells)
    return f"{succeeded} of {counted(len(cells), 'cell')} succeeded"
