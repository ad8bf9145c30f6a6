"""What a job on the master's own disk brings to its hosts, and where it does not: on this machine."""

from pathlib import Path
from typing import Any

import pytest

from cluster.hosts import Host
from cluster.jobs.record import JobPaths
from cluster.jobs.supervisor import no_shared_fs
from cluster.jobs.supervisor.no_shared_fs import NotStarted, give_to_hosts
from tests.cluster.jobs_here import HERE, a_job

NOWHERE = Host(rank=1, address="nowhere.invalid", slots=1)


@pytest.fixture
def paths(tmp_path: Path) -> JobPaths:
    """A job's folder with a file in each of its parts."""
    made = JobPaths(tmp_path / "jobs" / "x")
    for part in (made.code / "train.py", made.lib / "dlami/job.py", made.checkpoints / "step-1", made.console(1)):
        part.parent.mkdir(parents=True)
        part.touch()
    for part in (made.rank_program, made.nodes, made.hostfile, made.job, made.status):
        part.touch()
    return made


@pytest.fixture
def given(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What hosts were to be provided with; none is reached."""
    asked: list[Any] = []
    monkeypatch.setattr(no_shared_fs, "provide", lambda _, cluster, hosts, wanted: asked.append((hosts, wanted)))
    return asked


def test_an_attempt_whose_code_did_not_arrive_does_not_begin(paths: JobPaths) -> None:
    """The host is named, with why."""
    with pytest.raises(NotStarted, match=r"^the code is not on nowhere.invalid: .+"):
        give_to_hosts(a_job("", "x", hosts=(HERE, NOWHERE), is_shared=False), paths)


def test_nobody_is_sent_what_is_there(paths: JobPaths, given: list[Any]) -> None:
    """Of a shared folder all hosts have it; so has the master, by rank or as this machine, and a host without ranks needs none."""
    here, far = Host(rank=1, address="localhost", slots=1), Host(rank=2, address="10.0.0.2", slots=1)
    for job in (
        a_job("", "x", hosts=(HERE, NOWHERE), is_shared=True),
        a_job("", "x", hosts=(Host(rank=0, address="nowhere.invalid", slots=1), HERE), is_shared=False),
    ):
        give_to_hosts(job, paths)
    assert [] == given
    give_to_hosts(a_job("", "j", hosts=(HERE, here, far), whole_hosts=(HERE, NOWHERE), is_shared=False), paths)
    assert [[far]] == [hosts for hosts, _ in given]


def test_ranks_get_the_code_and_hostfiles_and_nothing_else(paths: JobPaths, given: list[Any]) -> None:
    """Not the record, which may hold secrets, and nothing that was written since; all at the same paths."""
    give_to_hosts(a_job("", "x", hosts=(HERE, NOWHERE), is_shared=False), paths)
    ((_, wanted),) = given
    expected = {paths.lib / "dlami/job.py", paths.rank_program, paths.nodes, paths.hostfile}
    assert (str(paths.code), {str(p) for p in expected}) == (wanted.folder, {*wanted.files})
    assert (str(paths.rank_logs(1)), str(paths.checkpoints)) == wanted.folders
    assert str(paths.code_archive) == wanted.archive


def test_a_job_of_an_older_version_goes_on_where_it_ran(paths: JobPaths, given: list[Any]) -> None:
    """Its ranks' copies on the hosts' own disks, of which none is made anew on a host that has one."""
    old = a_job("", "x", hosts=(HERE, NOWHERE), is_shared=True, program=True, code="c", own_disk="c")
    give_to_hosts(old, paths)
    ((hosts, wanted),) = given
    assert ((HERE, NOWHERE), "~/.cache/dlami-cluster/code/jobs/x") == (hosts, wanted.folder)
    assert {} == wanted.files
