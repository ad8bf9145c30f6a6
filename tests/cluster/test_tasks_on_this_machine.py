"""Tasks as they are typed where this machine is the whole cluster: what they say, change and exit with."""

import contextlib
import errno
import json
import sys
from pathlib import Path

import pytest

from cluster.inventory import Cluster
from cluster.jobs.record import JobPaths, jobs_folder
from cluster.matrix.cells import cells
from cluster.matrix.file import read
from cluster.matrix.run import MatrixRun
from cluster.matrix.state import CellEntry, MatrixState, ResultStore
from dlami.tasks import data
from dlami.tasks import matrix as typed_matrix
from dlami.tasks.command import unwritten
from tests.cluster.records import on_record
from tests.typed_words import typed

CELLS = """
name = "two"
program = "benchmark"

[over]
np = [1, 2]
"""


@pytest.fixture(autouse=True)
def chosen(here: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is the cluster that tasks mean."""
    monkeypatch.setenv("CLUSTER", str(here.folder))


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A folder of code with what nobody copies, and a copy of it that has more."""
    (tmp_path / "src/.git").mkdir(parents=True)
    (tmp_path / "src/train.py").write_text("train")
    (tmp_path / "dst").mkdir()
    (tmp_path / "dst/old").touch()
    return tmp_path / "src"


def test_a_copy_says_what_each_host_got(source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A dry run changes nothing; what is left out is named; nothing is removed where nobody can be asked."""
    dst = tmp_path / "dst"
    assert 0 == typed("copy", source, dst, "--dry-run")
    said = capsys.readouterr()
    assert "localhost (1)  would get 1 file, 5 bytes, 1 there that are not in the source\n" == said.out
    assert "left out: .git (--everything takes them too)\n" == said.err
    assert ["old"] == [p.name for p in dst.iterdir()]
    assert 2 == typed("copy", source, dst, "--delete")
    assert "There is no terminal to ask on" in capsys.readouterr().err
    assert 0 == typed("copy", source, dst, "--json")
    done = json.loads(capsys.readouterr().out)
    assert ("localhost", 1, None) == tuple(done[name] for name in ("host", "files", "error"))
    assert {"old", "train.py"} == {p.name for p in dst.iterdir()}
    assert 0 == typed("copy", source, dst, "--delete", "--yes", "--everything")
    assert {"train.py", ".git"} == {p.name for p in dst.iterdir()}
    assert 2 == typed("copy", tmp_path / "none", dst)
    assert "none: there is no such file or folder on this machine" in capsys.readouterr().err


def test_a_dry_run_of_a_stop_shows_the_job(here: Cluster, capsys: pytest.CaptureFixture[str]) -> None:
    """For a person, or as JSON; it goes on as it did."""
    folder = jobs_folder(here.shared)
    folder.mkdir(exist_ok=True)
    paths: JobPaths = on_record(folder, "20260101-000000-shown-0001")
    before = paths.status.read_text()
    assert 0 == typed("jobs.stop", "shown", "--dry-run")
    assert "20260101-000000-shown-0001" in capsys.readouterr().out
    assert 0 == typed("jobs.stop", "shown", "--dry-run", "--json")
    assert "20260101-000000-shown-0001" == json.loads(capsys.readouterr().out)["id"]
    assert before == paths.status.read_text()


def test_a_look_for_leftovers_ends_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    """It is well where every host has answered; as JSON it is a record of each."""
    assert 0 == typed("kill", "--dry-run", "--json")
    assert [("localhost", None)] == [(one["host"], one["error"]) for one in json.loads(capsys.readouterr().out)]


def test_a_sample_is_drawn_where_the_cluster_keeps_data(here: Cluster, capfd: pytest.CaptureFixture[str]) -> None:
    """One of images, and one of shapes beside it; a dry run draws neither."""
    for words, name in (((), "sample"), (("--coco",), "shapes")):
        assert 0 == typed("data.sample", *words, "--dry-run")
        said = capfd.readouterr()
        assert f"{here.shared}/data/{name}" in said.out + said.err
    assert not (here.folder / "data").exists()


@pytest.mark.parametrize(
    ("states", "is_uploaded", "status"),
    [(("succeeded", "succeeded"), True, 0), (("succeeded", "failed"), True, 1), (("succeeded", "succeeded"), False, 1)],
)
def test_a_matrix_ends_well_where_each_cell_did_and_the_results_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, states: tuple[str, ...], is_uploaded: bool, status: int
) -> None:
    """Else with 1: a cell that failed, or a bucket that did not take the results. Jobs are not started here."""
    (tmp_path / "two.toml").write_text(CELLS)
    made = cells(read(tmp_path / "two.toml"))
    known = {c.digest: CellEntry(job=f"j{c.number}", state=state) for c, state in zip(made, states, strict=True)}
    monkeypatch.setattr(MatrixRun, "left", lambda self: [])
    monkeypatch.setattr(MatrixRun, "run_to_end", lambda self, planned: MatrixState(cells=known))
    monkeypatch.setattr(typed_matrix, "_planned", lambda *_: None)
    monkeypatch.setattr(typed_matrix, "_results", lambda *_: None)
    monkeypatch.setattr(typed_matrix, "_uploaded", lambda *_: is_uploaded)
    monkeypatch.setattr(typed_matrix, "opened_jobs", lambda cluster: contextlib.nullcontext())
    monkeypatch.setattr(ResultStore, "read", lambda self: MatrixState())

    assert status == typed("train.matrix", tmp_path / "two.toml", "--upload", "s3://bucket/two")


@pytest.mark.parametrize(
    ("typed_flags", "passed_on"),
    [
        ((), []),
        (("--decode",), ["--decode"]),
        (("--json",), ["--json"]),
        (("--decode", "--json"), ["--decode", "--json"]),
    ],
)
def test_what_a_verification_looks_at_is_said_to_the_master(
    monkeypatch: pytest.MonkeyPatch, typed_flags: tuple[str, ...], passed_on: list[str]
) -> None:
    """The folder, and the flags that were typed."""
    said: list[tuple[str, list[str]]] = []
    monkeypatch.setattr(data, "on_master", lambda cluster, module, words: said.append((module, words)))
    assert 0 == typed("data.verify", "/shards", *typed_flags)
    assert [("trainer.verify", ["/shards", *passed_on])] == said


def test_output_that_nobody_takes_ends_the_command_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """Silently for a closed pipe, with a word for a full disk; a file's own error is another thing."""
    monkeypatch.setattr(sys, "stdout", None)
    assert unwritten(OSError(errno.EPIPE, "x", "/file")) is None
    assert unwritten(OSError(errno.ENOENT, "x")) is None
    closed = unwritten(OSError(errno.EPIPE, "x"))
    assert closed
    assert (None, 141) == (closed.message, closed.code)
    for number in (errno.EIO, errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        full = unwritten(OSError(number, "full"))
        assert full
        assert ("its output, or a file, could not be written: full", 1) == (full.message, full.code)
