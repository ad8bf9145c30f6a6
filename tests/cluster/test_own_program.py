"""A program of the operator's own: what is typed, what is recorded, and the line that mpirun gets for it."""

import os
from pathlib import Path
from typing import Any

import pytest

from cluster.errors import ConfigError
from cluster.hosts import Host
from cluster.jobs.client.resume import from_scratch, next_attempt, with_python
from cluster.jobs.plan import launched, write_hostfiles
from cluster.jobs.program import Program, seats
from cluster.jobs.record import Job, JobPaths, JobStatus, JobView
from cluster.jobs.spec import JobSpec
from cluster.jobs.state import JobState
from cluster.jobs.supervisor.launcher import newest_checkpoint
from cluster.launch.mpirun import plan_launch
from tests.cluster.mpirun_words import exported, facts_of
from tests.cluster.programs import CLUSTER, HOSTS, a_program


@pytest.mark.parametrize(
    ("words", "name"),
    [
        (["python", "train.py", "--lr", "1"], "train"),
        (["python3.11", "-u", "-m", "my.pkg.Train_GPT"], "train-gpt"),
        (["./a.out"], "a"),
        (["A=1 python train.py && ls"], "run"),
        (["torchrun", "-r", "3", "my/train.py", "--lr", "1"], "train"),
        (["env", "A=1", "bash", "-x", "scripts/go.sh"], "go"),
        (["bash", "-c", "ls"], "run"),
        (["Ünïcode"], "n-code"),
        (["python"], "run"),
        (["python", "-m", "my.pkg.train", "--cfg", "a.py"], "train"),
        (["python", "train.py", "-m", "0.9"], "train"),
        (["python", "-c", "pass", "a.py"], "run"),
        (["python", "-m", "torch.distributed.run", "--x", "y", "train.py"], "train"),
        (["python", "-m", "torch.distributed.run", "--nnodes", "2", "train.py", "b.py"], "train"),
        (["torchrun", "--nnodes", "2", "-m", "my.pkg.train", "--cfg", "a.py"], "train"),
        (["accelerate", "launch", "--config_file", "a.sh", "train.py", "-m", "x"], "train"),
        (["nice", "-n", "5", "python", "-m", "my.pkg.train", "--cfg", "a.py"], "train"),
        (["bash", "go.sh", "python", "-m", "x"], "go"),
        (["/opt/tools/bench-3.x", "-m", "0.9"], "bench-3"),
    ],
)
def test_a_job_is_called_as_its_program(words: Any, name: str) -> None:
    """In letters that a folder's name may have."""
    assert name == Program.of(words, "gpu").default_name


@pytest.mark.parametrize(("words", "per", "said"), [([], "gpu", "no program"), ([""], "gpu", "no program"), (["x"], "host", "--per is 'host'")])  # fmt: skip
def test_what_is_no_program_is_refused(words: Any, per: str, said: str) -> None:
    """With what to give instead."""
    with pytest.raises(ConfigError, match=said):
        Program.of(words, per)


def line(job: Job, **facts: Any) -> Any:
    """mpirun's words for it."""
    known = {h: facts_of(free_port=23456, **facts) for h in job.hosts}
    launch = plan_launch(job.hosts, known, environment=job.spec.environment)
    return launched(job, launch, JobPaths(Path("/efs/jobs/x")), 3).plan.mpirun


def test_the_line_of_a_program() -> None:
    """Its ranks are started by the wrapper in the job's folder, in the folder where the operator stood."""
    words = line(a_program("gpu"))
    said = exported(words)

    assert ("-IS", "/efs/jobs/x/rank.py", "/home/me/x", "python", "t.py") == words[-5:]
    assert ("10.0.1.10", "23456") == (said["MASTER_ADDR"], said["MASTER_PORT"])
    assert ("10.0.1.10:8,10.0.1.11:8", "gpu", "3") == (said["DLAMI_NODES"], said["DLAMI_PER"], said["DLAMI_ATTEMPT"])
    assert ("/efs/jobs/x", "/efs/jobs/x/nodes") == (said["DLAMI_JOB_DIR"], said["DLAMI_HOSTFILE"])
    assert "/opt/dlami-cluster/.venv/bin" == said["DLAMI_PATH"]
    assert "DLAMI_RESUME" in words


def test_a_program_per_node_has_a_rank_per_host_and_is_told_of_all_slots(tmp_path: Path) -> None:
    """mpirun's hostfile has one slot a host; the one for programs all of them, a host's that has come since too."""
    new = Host(rank=1, address="10.0.1.99", slots=1)
    job = a_program("node", hosts=(seats(HOSTS, "node")[0], new))
    words = line(job)
    write_hostfiles(job, JobPaths(tmp_path))

    assert ("-np", "2") == words[1:3]
    assert "10.0.1.10:8,10.0.1.99:8" == exported(words)["DLAMI_NODES"]
    assert "10.0.1.10 slots=1\n10.0.1.99 slots=1\n" == (tmp_path / "hosts").read_text()
    assert "10.0.1.10 slots=8\n10.0.1.99 slots=8\n" == (tmp_path / "nodes").read_text()


def test_variables_of_packages_come_before_the_operator_s_and_their_path_before_the_host_s() -> None:
    """What was typed wins; PATH is never the whole one of another host."""
    job = a_program(
        "gpu", variables={"PATH": "/envs/1/bin", "VIRTUAL_ENV": "/envs/1", "A": "1"}, prefix=("apptainer", "exec", "i"),
        environment={"A": "2", "MASTER_PORT": "9"},
    )  # fmt: skip
    words = line(job)
    said = exported(words)

    assert ("/envs/1/bin", "/envs/1", "2", "9") == tuple(said[n] for n in ("DLAMI_PATH", "VIRTUAL_ENV", "A", "MASTER_PORT"))  # fmt: skip
    assert "PATH" not in said
    assert ("apptainer", "exec", "i", "python", "t.py") == words[-5:]


def test_on_this_machine_alone_ranks_meet_on_the_loopback() -> None:
    """And a master that the hostfile calls localhost is told to others by its address."""
    here = Host(rank=0, address="localhost", slots=2)
    alone = plan_launch([here], {here: facts_of(free_port=1, own_address="10.0.1.10")})
    first = plan_launch([here, HOSTS[1]], {h: facts_of(free_port=1, own_address="10.0.1.10") for h in (here, HOSTS[1])})

    assert ("127.0.0.1", 1) == alone.rendezvous
    assert ("10.0.1.10", 1) == first.rendezvous


@pytest.mark.parametrize("per", ["gpu", "node", "once"])
def test_a_program_that_is_resumed_is_the_same_on_today_s_hosts(per: str) -> None:
    """Words, code, packages, folder; with a slot for each start."""
    job = a_program(per, code="abc", prefix=("p",), variables={"A": "1"}, hosts=seats(HOSTS[:1] if per == "once" else HOSTS, per))  # fmt: skip
    status = JobStatus(state=JobState.FAILED)
    again = next_attempt(JobView(job=job, status=status, folder="/f", owner="me", age_s=0.0), CLUSTER, None, None)

    assert Program(words=("python", "t.py"), per=per) == again.program
    assert ("abc", "/home/me/x") == (again.code, again.workdir)
    assert ({"gpu": 8}.get(per, 1), {"once": 1}.get(per, 2)) == (again.hosts[0].slots, len(again.hosts))


def test_one_attempt_alone_is_told_to_begin_anew() -> None:
    """By its number, so that a retry after it is not; a program of the user's own is refused."""
    trainer = JobSpec(name="t", program=Program(trainer="trainer.resnet50", words=("--x",)))
    assert ("--x", "--from-scratch-attempt", "4") == from_scratch(trainer, 4).program.words
    with pytest.raises(ConfigError, match="t reads its own checkpoints"):
        from_scratch(JobSpec(name="t", program=Program(words=("x",))), 4)


def test_only_a_trainer_with_an_interpreter_of_its_own_takes_another() -> None:
    """As it was on the hosts when the job began, it may not be any more."""
    torch = Program(trainer="trainer.resnet50_torch", words=("--x",), python="/old/python")
    asked = with_python(JobSpec(name="t", program=torch), "/new/python").program

    assert ("/new/python", ("--x",)) == (asked.python, asked.words)
    for program in (Program(trainer="trainer.resnet50", words=()), Program(words=("python", "x.py"))):
        with pytest.raises(ConfigError, match="--python is for PyTorch trainings: t runs with"):
            with_python(JobSpec(name="t", program=program), "/new/python")


def test_the_newest_checkpoint_is_the_whole_one_that_was_changed_last(tmp_path: Path) -> None:
    """What is being written is hidden or ends with .tmp."""
    paths = JobPaths(tmp_path)
    assert "" == newest_checkpoint(paths)
    paths.checkpoints.mkdir()
    assert "" == newest_checkpoint(paths)
    for n, name in enumerate(("step-9.pt", "step-10", "step-11.pt.tmp", ".step-12")):
        (paths.checkpoints / name).touch()
        os.utime(paths.checkpoints / name, (n, n))

    assert str(paths.checkpoints / "step-10") == newest_checkpoint(paths)
