"""A matrix of jobs: its file, its cells, runs that are interrupted and go on, and the table of results."""

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from cluster.errors import ClusterError, ConfigError
from cluster.jobs.record import JobStatus, JobView
from cluster.jobs.state import JobState
from cluster.matrix.cells import Cell, cells
from cluster.matrix.file import read
from cluster.matrix.run import MatrixRun
from cluster.matrix.state import CellEntry, MatrixState, parse, rows, text_of
from tests.cluster.jobs_here import a_job
from trainer import matrix as results

EXAMPLE = """
name = "vgg"
program = "benchmark"
flags = ["--num_batches=100"]
env = {NCCL_DEBUG = "INFO"}

[over]
np = [1, 2]
model = ["vgg16", "resnet50"]
use_fp16 = [false, true]

[[skip]]
np = 2
model = "vgg16"

[columns]
loss = 'loss: ([0-9.]+)'
"""


def written(tmp_path: Path, text: str = EXAMPLE) -> Path:
    path = tmp_path / "my matrix.toml"
    path.write_text(text)
    return path


def test_cells_are_every_combination_in_the_file_s_order(tmp_path: Path) -> None:
    """The last axis fastest, without what is skipped; a true flag is there, a false one is not."""
    made = cells(read(written(tmp_path)))

    assert [1, 2, 3, 4, 5, 6] == [c.number for c in made]
    assert "np=1 model=vgg16 use_fp16=True" == str(made[1])
    assert ("--num_batches=100", "--model", "vgg16", "--use_fp16") == made[1].words
    assert (2, "benchmark", {"NCCL_DEBUG": "INFO"}) == (made[5].np, made[5].trainer, made[5].env)
    assert not [c for c in made if c.np == 2 and c.values["model"] == "vgg16"]
    assert "NCCL_DEBUG=INFO train.benchmark --np 1 -- --num_batches=100 --model vgg16" == made[0].command


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("progam = 'x'", ":1: progam: no such field; known here: name, program"),
        ("[over]\nnp = [0]", ":2: over.np: 0 is no number of ranks"),
        ("[over]\nnp = [true]", ":2: over.np: True is no number of ranks"),
        ("[over]\nmodel = 'x'", ":2: over.model: is no list of values; write it like model = [1, 2]"),
        ("[over]\nmodel = ['x', 'x']", ":2: over.model: has a value twice"),
        ("[over]\nmodel = [[1]]", ":2: over.model: [1] is no plain value"),
        ("[over]\nmodel = []", ":2: over.model: is no list of values"),
        ("name = 'Big One'", ":1: name: is 'Big One'; use small letters"),
        ("[columns]\nx = '('", ":2: columns.x: is no pattern"),
        ("[columns]\nx = 'loss'", ":2: columns.x: has 0 groups; put the one thing that is wanted into ( )"),
        ("[[skip]]\nnp = 1", "skip: names 'np', which is no axis; there are none"),
        ("[over]\nnp=[1]\n[[skip]]\nnp = 1", "has no cell: [[skip]] leaves out all of them"),
        ("[over]\na=[%s]\nb=[%s]" % ((",".join(map(str, range(40))),) * 2), "has more than 1000 cells"),
        ("[over", "is not valid TOML"),
    ],
)
def test_a_file_that_is_wrong_says_where_and_what_to_do(tmp_path: Path, text: str, says: str) -> None:
    """Before any host is reached."""
    with pytest.raises(ConfigError) as error:
        cells(read(written(tmp_path, text)))

    assert says in str(error.value)


class Master:
    """Jobs and the folder of a matrix as the master keeps them; each job ends some looks after it has begun."""

    def __init__(self, ends: Any = JobState.SUCCEEDED, places: int = 1) -> None:
        self.jobs_by_id: dict[str, JobView] = {}
        self.kept: list[MatrixState] = [MatrixState()]
        self.ends, self.places, self.looks = ends, places, 0
        self.most_at_once = 0
        self.begun: list[str] = []

    @property
    def jobs(self) -> tuple[JobView, ...]:
        return tuple(self.jobs_by_id.values())

    def submit(self, job: Any) -> str:
        assert job.id in {e.job for e in self.kept[-1].cells.values()}, "kept before it is there"
        self.jobs_by_id[job.id] = JobView(
            job=job, status=JobStatus(state=JobState.QUEUED), folder="", owner="", age_s=0
        )
        self.begun.append(job.id)
        return ""

    def list(self) -> "Master":
        """One look later: who waits begins if there is room; every third look somebody ends."""
        self.looks += 1
        running = self._in(JobState.RUNNING)
        if running and self.looks % 3 == 0:
            self._turn(running[0], self.ends(running[0]) if callable(self.ends) else self.ends)
        for one in self._in(JobState.QUEUED):
            if len(self._in(JobState.RUNNING)) + len(self._in(JobState.LOST)) < self.places:
                self._turn(one, JobState.RUNNING)
        self.most_at_once = max(self.most_at_once, len(self._in(JobState.RUNNING)))
        return self

    def stop(self, which: str) -> JobView:
        """Free the hosts of a job that is lost."""
        self._turn(which, JobState.STOPPED)
        return self.jobs_by_id[which]

    def _in(self, state: JobState) -> "Sequence[str]":
        return [name for name, job in self.jobs_by_id.items() if job.state is state]

    def _turn(self, name: str, state: JobState) -> None:
        job = self.jobs_by_id[name]
        self.jobs_by_id[name] = dataclasses.replace(job, status=JobStatus(state=state, cause=f"it is {state}"))

    def write(self, state: MatrixState, cells: Any) -> None:
        self.kept.append(state)


def run(
    master: Master, made: list[Cell], *, packed: bool = False, tag: str = "", stop_after: int = 10_000, **more: Any
) -> MatrixState:
    """One run, which is interrupted after so many pauses."""
    pauses = 0

    def sleep(seconds: float) -> None:
        nonlocal pauses
        pauses += 1
        if pauses > stop_after:
            raise KeyboardInterrupt

    one = MatrixRun(
        made, master.kept[-1], jobs=master, keeper=master, measure=lambda job: {"images_per_s": 7.0}, packed=packed,
        sleep=sleep, **more,
    )  # fmt: skip
    planned = {c.digest: a_job("", f"vgg-{c.number}{tag}") for c in one.left()}
    return one.run_to_end(planned)


@pytest.mark.parametrize("stop_after", range(0, 14, 2))
def test_it_goes_on_where_it_was_interrupted(tmp_path: Path, stop_after: int) -> None:
    """What has succeeded, or still runs, is not begun again; every cell has its result in the end."""
    made = cells(read(written(tmp_path)))
    master = Master()
    with pytest.raises(KeyboardInterrupt):
        run(master, made, stop_after=stop_after)
    state = run(master, made, tag="-again")

    assert all(state.is_done(c) for c in made)
    assert 6 == len(master.begun), master.begun


def test_what_failed_is_run_again_and_a_changed_cell_too(tmp_path: Path) -> None:
    """The others are left as they are; equal work in another order is the same cell."""
    made = cells(read(written(tmp_path)))
    master = Master(ends=lambda name: JobState.FAILED if name == "vgg-2" else JobState.SUCCEEDED)
    first = run(master, made)
    assert [made[1]] == [c for c in made if not first.is_done(c)]
    assert "it is failed" == rows(made, first)[1]["cause"]
    run(master, made, tag="-b")
    assert ["vgg-2-b"] == master.begun[6:]

    changed = cells(read(written(tmp_path, EXAMPLE.replace("[1, 2]", "[2, 1]").replace("resnet50", "resnet101"))))
    run(master, changed, tag="-c")
    assert 4 == len(master.begun[7:])  # the resnets: two with one rank, two with two


def test_a_cell_that_is_lost_gives_its_hosts_to_the_next(tmp_path: Path) -> None:
    """It was not to heal, so nobody else frees them; the same command runs it again."""
    made = cells(read(written(tmp_path)))
    master = Master(ends=lambda name: JobState.LOST if name == "vgg-2" else JobState.SUCCEEDED)
    state = run(master, made, stop_after=100)

    gone = "its supervisor was gone (killed, or the master restarted); what was left of it is ended"
    assert ("lost", gone) == (rows(made, state)[1]["state"], rows(made, state)[1]["cause"])
    assert [made[1]] == [c for c in made if not state.is_done(c)]
    run(master, made, tag="-b")
    assert ["vgg-2-b"] == master.begun[6:]


def test_a_lost_cell_whose_hosts_stay_taken_says_why(tmp_path: Path) -> None:
    """In the table, and the others are not given up for it."""
    made = cells(read(written(tmp_path)))
    master = Master(ends=lambda name: JobState.LOST if name == "vgg-2" else JobState.SUCCEEDED, places=2)

    def refusing(which: str) -> JobView:
        raise ClusterError("vgg-2 is of user bob\nand more")

    master.stop = refusing  # type: ignore[method-assign]
    state = run(master, made)
    assert str(rows(made, state)[1]["cause"]).endswith("; its hosts stay taken: vgg-2 is of user bob")
    assert 5 == sum(state.is_done(c) for c in made)


def test_cells_that_ran_other_code_are_known_and_run_again_when_asked(tmp_path: Path) -> None:
    """Those of the project's trainers have none; what is found again is not run because its code is the same."""
    made = cells(read(written(tmp_path, "[over]\nprogram = ['python a.py', 'python b.py', 'maskrcnn']")))
    master = Master()
    run(master, made, code="one")
    run(master, made, code="two", tag="-b")
    assert 3 == len(master.begun)

    def other(code: str) -> list[int]:
        one = MatrixRun(made, master.kept[-1], jobs=master, keeper=master, measure=dict, packed=False, code=code)
        return [cell.number for cell in one.of_other_code()]

    assert ([], [1, 2]) == (other("one"), other("two"))
    run(master, made, code="two", again=True, tag="-c")
    assert ["vgg-1-c", "vgg-2-c"] == master.begun[3:]
    assert [] == other("two")
    assert master.kept[-1] == parse(text_of(master.kept[-1], made))


def test_the_state_is_read_as_it_was_written(tmp_path: Path) -> None:
    """And one that is damaged is said to be, whatever it holds."""
    made = cells(read(written(tmp_path)))
    entry = CellEntry(job="x", state="succeeded", measured={"images_per_s": 7.5, "loss": None})
    state = MatrixState().with_entry(made[0], entry)

    assert state == parse(text_of(state, made))
    assert MatrixState() == parse("")
    for damage in ("{", "[]", "{}", "null", '{"cells": [1]}', '{"cells": {"a": 1}}', '{"cells": {"a": {"job": 1}}}'):
        with pytest.raises(ValueError):
            parse(damage)


def test_a_submission_that_is_refused_hides_no_other_cell(tmp_path: Path) -> None:
    """Its sentence is the cell's, and the next one goes on."""
    made = cells(read(written(tmp_path)))
    master = Master()
    submit = master.submit

    def refusing(job: Any) -> str:
        if job.id == "vgg-1":
            raise ConfigError("the disk is full\nand more")
        return submit(job)

    master.submit = refusing  # type: ignore[method-assign]
    state = run(master, made)
    assert ("failed", "the disk is full") == (rows(made, state)[0]["state"], rows(made, state)[0]["cause"])
    assert 5 == sum(state.is_done(c) for c in made)


def test_results_are_a_table_a_picture_and_json(tmp_path: Path) -> None:
    """Of what every job's folder says, in the order of the cells; what did not succeed has its cause."""
    made = cells(read(written(tmp_path)))
    master = Master(ends=lambda name: JobState.FAILED if name == "vgg-6" else JobState.SUCCEEDED)
    state = run(master, made)
    (tmp_path / "state.json").write_text(json.dumps({"rows": rows(made, state)}))
    found = results.write(tmp_path)

    table = (tmp_path / "results.csv").read_text().splitlines()
    assert "np,model,use_fp16,job,state,images_per_s,cause" == table[0]
    assert "1,vgg16,True,vgg-2,succeeded,7.0," == table[2]
    assert "2,resnet50,True,vgg-6,failed,,it is failed" == table[6]
    assert found == json.loads((tmp_path / "results.json").read_text())
    assert (tmp_path / "results.png").read_bytes().startswith(b"\x89PNG")


def test_what_a_job_has_reached_is_read_from_its_folder(tmp_path: Path) -> None:
    """Its own metrics or tf_cnn_benchmarks' last line, its seconds, and what the columns look for; or nothing."""
    assert {"loss": None} == results.measure(tmp_path, {"loss": "loss: (.*)"})
    log = tmp_path / "logs/attempt-10/console.log"
    log.parent.mkdir(parents=True)
    (tmp_path / "logs/attempt-9").mkdir()
    log.write_text("[1,0]<stdout>:loss: 3\n[1,0]<stdout>:loss: 2.5\n[1,0]<stdout>:total images/sec: 12.50 +/- 1\n")
    (tmp_path / "attempts.json").write_text('{"attempts": [{"started": 10.0, "ended": 14.5}]}')
    assert {"images_per_s": 12.5, "seconds": 4.5, "loss": 2.5} == results.measure(tmp_path, {"loss": "^loss: (.*)"})

    lines = [{"kind": "train", "step": s, "ranks": 4, "images_per_s": v} for s, v in enumerate([1, 1, 80, 100, 120])]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert {"images_per_s": 100, "per_rank": 25.0, "seconds": 4.5} == results.measure(tmp_path, {})
