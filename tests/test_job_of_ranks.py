"""`from dlami import job` as a program has it: inside of a job what it says is heard, outside of one nothing happens."""

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from cluster.hang_detection.onhost.ranks import beats
from cluster.inventory import ROOT
from cluster.jobs.supervisor.exit_state import left_early
from dlami.heartbeat import Phase, beat_file
from tests.conftest import PATIENCE_S

LENT = ("dlami/__init__.py", "dlami/heartbeat.py", "dlami/job.py")


def run(code: str, **environment: str) -> "subprocess.CompletedProcess[str]":
    """A program that has nothing of ours but what is lent to it."""
    base = {"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT)}
    return subprocess.run(
        [sys.executable, "-S", "-c", code],
        env={**base, **environment},
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
    )


ALL_CALLS = "from dlami import job; job.beat(1); job.beat(); print(job.resume(), job.stopping()); "


def test_outside_of_a_job_nothing_happens() -> None:
    """Nor is a signal taken from the program."""
    done = run(ALL_CALLS + "import signal; print(signal.getsignal(signal.SIGUSR1) is signal.SIG_DFL)")

    assert ("None False\nTrue\n", "") == (done.stdout, done.stderr)


@pytest.fixture
def job() -> Any:
    """The environment of rank 3 of a job that is this test's alone."""
    environment = {"DLAMI_JOB": f"lent-{os.getpid()}", "DLAMI_ATTEMPT": "2", "OMPI_COMM_WORLD_RANK": "3"}
    yield environment
    if file := beat_file(environment):
        file.unlink(missing_ok=True)


def test_a_beat_is_heard_as_a_trainer_s(job: Any) -> None:
    """With the steps that are done; one without a number says that it goes on, with what is no step once it steps."""

    def told(code: str) -> tuple[Any, ...]:
        done = run(f"from dlami import job; {code}", **job)
        assert "" == done.stderr
        said = beats(job["DLAMI_JOB"], "2")
        assert [3] == list(said)
        return tuple(said[3][n] for n in ("step", "phase", "first", "count"))

    assert (0, Phase.START, 0, 2) == told("job.beat()")
    assert (7, Phase.STEP, 7, 3) == told("job.beat(0); job.beat(7)")
    assert (7, Phase.EVALUATE, 7, 4) == told("job.beat(0); job.beat(7); job.beat()")
    assert (8, Phase.STEP, 7, 4) == told("job.beat(7); job.beat(); job.beat(8)")


NUMBER = "A = type('A', (), {'__int__': lambda self: 7}); "  # a tensor, to who does not import its library


@pytest.mark.parametrize(("step", "heard"), [("7.0", 7), ("7.9", 7), ("A()", 7), ("-1", 0), ("2 ** 70", 2**64 - 1)])
def test_a_step_is_any_number(job: Any, step: str, heard: int) -> None:
    """No training ends by what it counts its steps with, inside of a job or outside."""
    beats_so = f"from dlami import job; {NUMBER} job.beat({step}); "
    leaves = "import os, signal; job.stopping(); os.kill(os.getpid(), signal.SIGUSR1); job.stopping()"
    inside, outside = run(beats_so + leaves, **job), run(beats_so)

    assert (0, f"Asked to stop: leaves after step {heard}\n") == (inside.returncode, inside.stderr)
    assert (0, "") == (outside.returncode, outside.stderr)
    assert heard == beats(job["DLAMI_JOB"], "2")[3]["step"]


@pytest.mark.parametrize(("per", "local", "is_heard"), [("node", "0", True), ("node", "2", False), ("gpu", "2", True)])
def test_of_a_launcher_s_processes_the_first_beats(job: Any, per: str, local: str, is_heard: bool) -> None:
    """Or they would write over each other: all of them have the rank of their launcher."""
    run("from dlami import job; job.beat(1)", **job, DLAMI_PER=per, LOCAL_RANK=local)

    assert is_heard == bool(beats(job["DLAMI_JOB"], "2"))


def test_a_program_that_asks_is_told_once_to_leave_and_says_so(job: Any) -> None:
    """Its last step is in the console, by which its end is told from a success."""
    code = (
        "import os, signal; from dlami import job; print(job.stopping()); job.beat(12); "
        "os.kill(os.getpid(), signal.SIGUSR1); print(job.stopping(), job.stopping())"
    )
    done = run(code, **job)
    cause = left_early(f"[1,3]<stderr>:{done.stderr}")

    assert ("False\nTrue True\n", "Asked to stop: leaves after step 12\n") == (done.stdout, done.stderr)
    assert cause
    assert "not by 'inv jobs.stop': they left after step 12" in cause.text


def test_a_program_that_does_not_ask_ends_by_the_signal(job: Any) -> None:
    """To import it changes nothing."""
    done = run("import os, signal; from dlami import job; job.beat(1); os.kill(os.getpid(), signal.SIGUSR1)", **job)

    assert -signal.SIGUSR1 == done.returncode


def test_stopping_is_no_error_in_another_thread(job: Any) -> None:
    """It is said to nobody there."""
    code = "import threading; from dlami import job; t = threading.Thread(target=lambda: print(job.stopping())); t.start(); t.join()"
    assert ("False\n", "") == (run(code, **job).stdout, run(code, **job).stderr)


def test_what_there_is_to_go_on_from(job: Any) -> None:
    """Its launcher has looked."""
    said = run("from dlami import job; print(repr(job.resume()))", **job, DLAMI_RESUME="/efs/jobs/x/checkpoints/9.pt")

    assert "PosixPath('/efs/jobs/x/checkpoints/9.pt')\n" == said.stdout


@pytest.mark.parametrize("name", LENT)
def test_what_is_lent_is_small_and_runs_on_python_3_9(name: str, tmp_path: Path) -> None:
    """By a checker's word, and it needs nothing but the standard library: other interpreters import it."""
    said = subprocess.run(
        [Path(sys.executable).with_name("vermin"), "-t=3.9-", "--no-tips", "--violations", str(ROOT / name)],
        capture_output=True,
        text=True,
    )
    assert 0 == said.returncode, said.stdout
