"""A matrix run to its end: cell after cell through the queue, or as many at once as there are hosts for."""

import dataclasses
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from cluster.errors import ClusterError, NothingToDo
from cluster.jobs.record import Job, JobView
from cluster.jobs.state import JobState
from cluster.matrix.cells import Cell
from cluster.matrix.state import Entry, State
from cluster.terminal import counted

LOOK_S = 3.0


class Jobs(Protocol):
    """What is done with jobs."""

    def submit(self, job: Job) -> str:
        """Start it."""

    def list(self) -> "Listing":
        """Every job on record."""

    def stop(self, which: str) -> JobView:
        """End it, and what is left of it on its hosts."""


class Listing(Protocol):
    """The jobs."""

    @property
    def jobs(self) -> tuple[JobView, ...]:
        """Oldest first."""


class Keeper(Protocol):
    """Where the state is kept."""

    def write(self, state: State, cells: list[Cell]) -> None:
        """Keep it."""


class Run:
    """One run of a matrix's cells, of which an earlier one may have done some.

    measure: what a job that has succeeded has reached. code: what command lines run now. again: those that have
    succeeded with other code are to be run again.
    """

    def __init__(
        self,
        cells: list[Cell],
        state: State,
        *,
        jobs: Jobs,
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
        """The cells that are still to be run, equal ones once: none that has succeeded, or goes on from before."""
        going = {job.id for job in self._heard()}
        found: dict[str, Cell] = {}
        for cell in self._cells:
            entry = self.state.cells.get(cell.digest)
            is_done = self.state.is_done(cell) and not (self._again and self._ran_other_code(cell))
            if not is_done and not (entry and entry.job in going):
                found.setdefault(cell.digest, cell)
        return list(found.values())

    def of_other_code(self) -> list[Cell]:
        """The cells that have succeeded with other code than there is now."""
        return [cell for cell in self._cells if self.state.is_done(cell) and self._ran_other_code(cell)]

    def _ran_other_code(self, cell: Cell) -> bool:
        return not cell.trainer and self.state.cells[cell.digest].code != self._code

    def see_through(self, planned: Mapping[str, Job]) -> State:
        """Run those cells whose jobs are planned, by digest, until every cell has ended, one way or the other."""
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
        """Note which jobs have ended, and give those that go on."""
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
                self._note(cell, Entry(job=entry.job, state="failed", cause="its record was removed"))
            else:
                self._ended(cell, job)
        return going

    def _ended(self, cell: Cell, job: JobView) -> None:
        measured = self._measure(job) if job.state is JobState.SUCCEEDED else {}
        cause = "" if job.state is JobState.SUCCEEDED else job.status.cause
        if job.state is JobState.LOST:
            cause = f"its supervisor was gone (killed, or the master restarted); {self._freed(job)}"
        self._note(cell, Entry(job=job.id, state=str(job.state), cause=cause, measured=measured))
        speed = measured.get("images_per_s")
        how = f"{job.state}" + (f": {cause}" if cause else f", {speed} images/s" if speed is not None else "")
        print(f"{cell.number}/{len(self._cells)} {cell}: {how}", file=sys.stderr)

    def _freed(self, job: JobView) -> str:
        """What became of a lost job's hosts, which nobody else gives to the next cell: a cell heals nothing."""
        try:
            left = self._jobs.stop(job.id).status.left
            return f"left behind: {', '.join(left)}" if left else "what was left of it is ended"
        except NothingToDo:
            return "nothing is left of it"
        except ClusterError as e:
            return f"its hosts stay taken: {str(e).splitlines()[0]}"

    def _submit(self, cell: Cell) -> None:
        """Its job is kept before it is there: whoever goes on after an interruption finds either."""
        job = self._planned.pop(cell.digest)
        self._note(cell, Entry(job=job.id))
        try:
            self._jobs.submit(job)
        except ClusterError as e:
            self._note(cell, Entry(job=job.id, state="failed", cause=str(e).splitlines()[0]))
        print(f"{cell.number}/{len(self._cells)} {cell}: job {job.id}", file=sys.stderr)

    def _note(self, cell: Cell, entry: Entry) -> None:
        before = self.state.cells.get(cell.digest)
        ran = before.code if before and before.job == entry.job else "" if cell.trainer else self._code
        entry = dataclasses.replace(entry, code=ran)
        self.state = self.state.with_entry(cell, entry)
        self._keeper.write(self.state, self._cells)


def may_submit(going: Sequence[JobView], *, packed: bool) -> bool:
    """Whether the next cell's turn is now: nothing of the matrix waits for hosts, and unless packed nothing runs."""
    return not any(job.state is JobState.QUEUED for job in going) if packed else not going


def summary(cells: Sequence[Cell], state: State) -> str:
    """How it went, in a line."""
    succeeded = sum(state.is_done(c) for c in cells)
    return f"{succeeded} of {counted(len(cells), 'cell')} succeeded"
