"""What a task that trains understands before it asks any host."""

import dataclasses
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from cluster.errors import ConfigError
from cluster.inventory import ROOT, Cluster
from cluster.jobs.client.resume import next_attempt
from cluster.jobs.flat_record import as_flat
from cluster.jobs.record import Job, JobStatus, JobView
from cluster.jobs.state import JobState
from cluster.jobs.terms import FLAGS, LEAST_HANG_S, Terms, seconds
from cluster.typed import from_json
from dlami.tasks.command import as_typed
from dlami.tasks.eks import EksTrainOptions
from dlami.tasks.jobs import ResumeOptions
from dlami.tasks.start_options import TermOptions
from tests.cluster.jobs_here import HERE, a_job
from tests.conftest import PATIENCE_S

CLUSTER = Cluster(name="c", hosts=(HERE,), folder=Path(), shared="/efs", project="/p")


@pytest.mark.parametrize("text", ["4", "-1", "1e3", "soon", "1.5", "٣٠", "1" * 5000])
def test_no_seconds(text: Any) -> None:
    """Refused with what was expected: hosts are not heard more often than every few seconds."""
    with pytest.raises(ConfigError, match=r"--hang-after is .*, expected seconds: 0, or 5 and more"):
        seconds(text, "--hang-after", LEAST_HANG_S)


BEFORE = Terms(heal=False, min_np=3, attempts_per_hour=2)


@pytest.mark.parametrize(
    ("typed", "changed"),
    [
        ({}, {}),
        ({"heal": True}, {"heal": True}),
        ({"no_heal": True}, {}),
        ({"min_np": "4"}, {"min_np": 4}),
        ({"attempts_per_hour": "0"}, {"attempts_per_hour": 0}),
    ],
)
def test_a_job_that_is_resumed_keeps_the_terms_that_were_not_typed(typed: Any, changed: Any) -> None:
    """Whatever they were, whoever asks for the next attempt."""
    job = a_job("", "x", **vars(BEFORE))
    view = JobView(job=job, status=JobStatus(state=JobState.FAILED), folder="/f", owner="me", age_s=0.0)
    again = next_attempt(view, CLUSTER, None, None, ResumeOptions(job="x", **typed).terms)

    assert dataclasses.replace(job.spec, np=1, **changed) == again


def test_a_new_job_heals_on_usual_terms() -> None:
    """And on those that were typed."""
    assert {} == TermOptions().terms
    assert BEFORE == Terms(**TermOptions(**{"no_heal": True, "min_np": "3", "attempts_per_hour": "2"}).terms)


def test_every_term_has_its_flag_wherever_a_job_is_started_or_resumed() -> None:
    """A field is all that an option of a job takes: it is typed, recorded and kept when the job is resumed."""
    typed = {
        "min_np": ("4", 4),
        "attempts_per_hour": ("5", 5),
        "hang_after": ("60", 60.0),
        "time_limit": ("2h", 7200.0),
    }
    assert set(typed) == {f.name for f in FLAGS}
    given = {name: text for name, (text, _) in typed.items()}
    values = {name: value for name, (_, value) in typed.items()}
    for options in (TermOptions(**given), ResumeOptions(job="x", **given), EksTrainOptions(**given)):
        assert values == options.terms
    job = dataclasses.replace(a_job("", "x"), spec=dataclasses.replace(a_job("", "x").spec, **values))
    assert values.items() <= as_flat(job).items()
    assert job == from_json(Job, json.loads(json.dumps(dataclasses.asdict(job))))
    view = JobView(job=job, status=JobStatus(state=JobState.FAILED), folder="/f", owner="me", age_s=0.0)
    assert values == {name: getattr(next_attempt(view, CLUSTER, None, None), name) for name in values}


@pytest.mark.parametrize(
    ("typed", "said"),
    [
        ({"attempts_per_hour": "-1"}, "--attempts-per-hour is -1, expected a number, 0 or more"),
        ({"attempts_per_hour": "many"}, "--attempts-per-hour is many, expected a number, 0 or more"),
        ({"min_np": "0"}, "--min-np is '0', expected one number of ranks"),
        ({"heal": True, "no_heal": True}, "--heal and --no-heal say the opposite"),
    ],
)
def test_terms_that_cannot_be(typed: Any, said: str) -> None:
    """Refused with what was expected."""
    with pytest.raises(ConfigError, match=said):
        print(ResumeOptions(job="x", **typed).terms)


@pytest.mark.parametrize("task", ["train.resnet50", "train.maskrcnn", "train.benchmark", "jobs.resume"])
@pytest.mark.parametrize("np", ["two", "1,2"])
def test_inv_says_so_in_a_line(task: Any, np: Any, tmp_path: Path) -> None:
    """Exit code 2, no traceback."""
    words = [sys.executable, "-m", "invoke", task, *(["x"] if task == "jobs.resume" else []), "--np", np]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE_S)

    assert (2, f"--np is {np!r}, expected one number of ranks, such as 4\n") == (done.returncode, done.stderr)


@pytest.mark.seconds
@pytest.mark.parametrize("task", ["train.resnet50", "train.resnet50-torch", "train.maskrcnn", "train.benchmark"])
@pytest.mark.parametrize("flag", ["--help", "-h"])
def test_a_trainer_s_help_starts_no_job(task: Any, flag: Any, tmp_path: Path) -> None:
    """It is printed without a cluster: there is no hostfile here."""
    done = subprocess.run(
        [sys.executable, "-m", "invoke", task, "--", flag],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        env={"PATH": "/usr/bin:/bin", "CLUSTER": str(tmp_path)},
    )

    assert 0 == done.returncode, done.stderr
    assert "usage: " in done.stdout
    assert "--job-dir" in done.stdout


@pytest.mark.parametrize(
    ("program", "said"),
    [("/usr/bin/dlami", "dlami jobs.stop x"), ("/p/dlami/program.py", "dlami jobs.stop x"), ("inv", "inv jobs.stop x")],
)
def test_a_sentence_names_tasks_as_they_are_typed(monkeypatch: pytest.MonkeyPatch, program: str, said: str) -> None:
    """Where there is no checkout there is no `inv`; words that only begin alike stay."""
    monkeypatch.setattr("sys.argv", [program, "jobs.list"])

    assert f"invalid; '{said}' ends it" == as_typed("invalid; 'inv jobs.stop x' ends it")
