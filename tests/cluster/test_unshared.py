"""What a job on the master's own disk brings to its hosts, and where it does not: on this machine."""

import tarfile
from pathlib import Path

import pytest

from cluster.hosts import Host
from cluster.jobs import unshared
from cluster.jobs.record import JobPaths, write_job
from cluster.jobs.unshared import NotStarted, give_to_hosts, take_from_hosts
from tests.cluster.jobs_here import HERE, a_job

NOWHERE = Host(rank=1, address="nowhere.invalid", slots=1)


@pytest.fixture
def paths(tmp_path: Path) -> JobPaths:
    """A job's folder with a file in each of its parts."""
    made = JobPaths(tmp_path / "jobs" / "x")
    for part in (made.code / "train.py", made.lib / "dlami.py", made.checkpoints / "step-1", made.console(1)):
        part.parent.mkdir(parents=True)
        part.touch()
    for part in (made.rank_program, made.nodes, made.workers, made.hostfile, made.job, made.status):
        part.touch()
    return made


def test_an_attempt_whose_code_did_not_arrive_does_not_begin(paths: JobPaths) -> None:
    """The host is named, with why."""
    with pytest.raises(NotStarted, match=r"^the job's code could not be brought to nowhere.invalid: .+"):
        give_to_hosts(a_job("", "x", hosts=(HERE, NOWHERE), is_shared=False), paths)


def test_nobody_is_sent_what_is_there(paths: JobPaths, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a shared folder all hosts have it, and nothing of it is taken from any; neither is from the master."""
    monkeypatch.setattr(unshared, "Reach", lambda _: pytest.fail("a host was reached"))
    for job in (
        a_job("", "x", hosts=(HERE, NOWHERE), is_shared=True),
        a_job("", "x", hosts=(Host(rank=0, address="nowhere.invalid", slots=1), HERE), is_shared=False),
    ):
        write_job(paths, job)
        give_to_hosts(job, paths)
        take_from_hosts(paths)


def test_ranks_get_the_code_and_hostfiles_and_nothing_else(paths: JobPaths) -> None:
    """Not the record, which may hold secrets, and nothing that was written since."""
    expected = [paths.code / "train.py", paths.lib / "dlami.py", paths.rank_program, paths.nodes, paths.workers]
    with unshared._packed(paths) as archive, tarfile.open(archive) as tar:
        found = {member.name for member in tar if member.isfile()}

    assert {str(p.relative_to(paths.folder)) for p in (*expected, paths.hostfile)} == found


def test_what_a_job_never_had_is_not_packed(paths: JobPaths) -> None:
    """One without a program of its own has no workers' file."""
    paths.workers.unlink()
    with unshared._packed(paths) as archive, tarfile.open(archive) as tar:
        assert "workers" not in tar.getnames()
