"""The beat of a rank: what its file says while it trains, and that it costs nothing and hinders nobody."""

import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dlami.heartbeat import Beat, Phase, beat_file
from tests.trainer.beats import told


@pytest.fixture
def job() -> Iterator[dict[str, str]]:
    """The environment of rank 0 of a job that is this test's alone."""
    environment = {"DLAMI_JOB": f"beat-{os.getpid()}", "DLAMI_ATTEMPT": "3"}
    yield environment
    beat_file(environment).unlink(missing_ok=True)


def test_a_beat_says_step_phase_and_time(tmp_path: Path) -> None:
    """A phase inside another ends where it began; the longest silence of each is kept."""
    file, beat = tmp_path / "beat", Beat()
    beat.begin(file)
    began = told(file)
    beat.enter(Phase.COMPILE)
    beat.stepped(7)
    stepping = told(file)
    with beat.during(Phase.SAVE):
        time.sleep(0.02)
        assert Phase.SAVE is told(file)["phase"]
        beat.alive()
        saving = told(file)
    beat.stepped(8)
    last = told(file)

    assert (Phase.START, 0, 0, os.getpid()) == (began["phase"], began["step"], began["first"], began["pid"])
    assert (Phase.STEP, 7) == (stepping["phase"], stepping["step"])
    assert saving["at"] > saving["since"] > stepping["at"]
    assert (Phase.STEP, 8, 7, 7) == (last["phase"], last["step"], last["first"], last["count"])
    assert 0.02 <= last["longest"][Phase.SAVE] < 20
    assert last["longest"][Phase.EVALUATE] == 0


def test_its_file_is_the_user_s_alone_and_of_this_attempt_and_rank(job: Any) -> None:
    """What an earlier process left under the name is no hindrance, and is not written into."""
    file = beat_file({**job, "OMPI_COMM_WORLD_RANK": "5"})
    assert f"dlami-beat-{os.getuid()}-{job['DLAMI_JOB']}-3-5" == file.name
    file.write_bytes(b"old")
    with file.open("rb") as before:
        Beat().begin(file)
        assert (0o600, b"old") == (file.stat().st_mode & 0o777, before.read())
    file.unlink()


def test_outside_of_a_job_nobody_beats() -> None:
    """Every call is there all the same."""
    for environment in ({}, {"DLAMI_JOB": "x"}, {"DLAMI_JOB": "../x", "DLAMI_ATTEMPT": "1"}):
        assert beat_file(environment) is None
    beat = Beat()
    beat.begin(None)
    beat.stepped(1)
    with beat.during(Phase.SAVE):
        beat.alive()


def test_a_training_goes_on_where_nobody_can_beat(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It is said once."""
    beat = Beat()
    beat.begin(tmp_path / "nowhere" / "beat")
    beat.stepped(1)
    assert "nobody will see if this rank hangs" in capsys.readouterr().err


def test_trainings_beat(
    job: Any, ranks: Any, mini_shards: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Steps are counted over all of a run, and its last phases leave their mark."""
    monkeypatch.setattr("tests.trainer.conftest.ENVIRONMENT", {**os.environ, **job, "PYTHONPATH": "."})
    small = ("--model", "resnet18", "--image-size", 32, "--batch-size", 2, "--num-batches", 4, "--eval")
    ranks(1, "trainer.resnet50", *small, "--data-dir", mini_shards, "--job-dir", tmp_path, "--checkpoint-every", 2)
    resnet = told(beat_file(job))
    judging = (*small[:-1], "--eval-only", "--data-dir", mini_shards, "--job-dir", tmp_path)
    ranks(1, "trainer.resnet50", *judging)
    judged = told(beat_file(job))
    ranks(1, "trainer.benchmark", "--model", "resnet18", "--image-size", 32, "--batch-size", 2, "--num-batches", 3)
    benchmark = told(beat_file(job))

    assert (Phase.SAVE, 4, True) == (resnet["phase"], resnet["step"], all(resnet["longest"]))
    assert (Phase.SAVE, 0, True) == (judged["phase"], judged["first"], judged["longest"][Phase.EVALUATE] > 0)
    assert (Phase.STEP, 13) == (benchmark["phase"], benchmark["step"])
