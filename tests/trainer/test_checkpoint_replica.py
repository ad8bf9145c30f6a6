"""A second copy of the newest checkpoints on the disk of another host than rank 0's."""

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.conftest import wait_for
from trainer.common.checkpoints import checkpoint_replica, npz_writer
from trainer.common.checkpoints.checkpoint import CheckpointFolder
from trainer.common.checkpoints.checkpoint_replica import (
    CopySaver,
    Newest,
    copying_rank,
    find_newest,
    first_ranks,
    local_folder,
    make_private,
)
from trainer.common.checkpoints.facts import Facts
from trainer.common.checkpoints.write_lease import ATTEMPT, FILE

TWO_HOSTS = Path(__file__).parent / "two_hosts.py"
ARRAYS = {"w": np.arange(4.0)}


def test_the_next_host_is_the_first_that_is_not_rank_0s() -> None:
    """Whatever the number of its ranks; where there is one host there is none."""
    assert [0, 2, 4] == first_ranks(["a", "a", "b", "b", "c"])
    assert (2, 1, None) == (copying_rank(["a", "a", "b", "b"]), copying_rank(["a", "b"]), copying_rank(["a", "a"]))


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of a job whose third attempt this process is part of; the host's own disk is beside it."""
    folder = tmp_path / "jobs" / "20260101-resnet"
    folder.mkdir(parents=True)
    (tmp_path / "disk").mkdir()
    for name, value in (
        ("DLAMI_JOB", folder.name),
        ("DLAMI_JOB_FOLDER", str(folder)),
        (ATTEMPT, "3"),
        ("DLAMI_LOCAL_DISK", str(tmp_path / "disk")),
    ):
        monkeypatch.setenv(name, value)
    return folder


@pytest.mark.parametrize(
    "lacking", [{"DLAMI_JOB": ""}, {"DLAMI_JOB": "../a"}, {"DLAMI_ATTEMPT": ""}, {"DLAMI_JOB_FOLDER": ""}]
)
def test_outside_a_job_there_is_no_copy(lacking: dict[str, str], tmp_path: Path) -> None:
    """Nothing would say whose it is."""
    environment = {"DLAMI_JOB": "a", "DLAMI_ATTEMPT": "1", "DLAMI_JOB_FOLDER": "/x", "DLAMI_LOCAL_DISK": str(tmp_path)}

    assert local_folder(environment | lacking) is None
    found = local_folder(environment)
    assert found and (tmp_path, "a") == (found.parents[1], found.name)


def save(folder: CheckpointFolder, step: int, attempt: int, monkeypatch: pytest.MonkeyPatch) -> Facts:
    """As that attempt wrote it."""
    with monkeypatch.context() as patch:
        patch.setenv(ATTEMPT, str(attempt))
        return folder.save(step, {"w": ARRAYS["w"] + step}, {"of": attempt})


def spoil(file: Path) -> None:
    """Its last byte is another one, its size and time are the same."""
    content = file.read_bytes()
    file.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))


def look(job: Path, own: list[tuple[int, int, bool]], others: tuple[int, int], monkeypatch: Any) -> list[Newest]:
    """What rank 0 and rank 1 on another host find; `own` is rank 1's disk, `others` the shared folder's newest."""
    shared = CheckpointFolder(job / "checkpoints")
    if others != (-1, -1):
        save(shared, others[1], others[0], monkeypatch)
    path = local_folder()
    assert path
    make_private(path)
    for attempt, step, is_whole in own:
        save(CheckpointFolder(path), step, attempt, monkeypatch)
        if not is_whole:
            spoil(CheckpointFolder(path).arrays_file(step))
    hosts, told = ["a", "b"], [b"", b""]

    def first(data: bytes) -> list[bytes]:
        told[0] = data
        return told

    def second(data: bytes) -> list[bytes]:
        told[1] = data
        return told

    with monkeypatch.context() as patch:
        patch.delenv("DLAMI_JOB")  # rank 0's disk has none
        told[1] = json.dumps([(-1, -1), (-1, -1)]).encode()
        find_newest(shared, hosts, 0, first)
    at_1 = find_newest(shared, hosts, 1, second)
    with monkeypatch.context() as patch:
        patch.delenv("DLAMI_JOB")
        at_0 = find_newest(shared, hosts, 0, first)
    return [at_0, at_1]


@pytest.mark.parametrize(
    ("own", "others", "wins"),
    [
        ([(1, 20, True)], (1, 10), (1, 20)),  # the shared folder's was not written any more
        ([(1, 20, True)], (1, 20), None),  # equal: the shared folder's
        ([(1, 20, True)], (1, 30), None),
        ([(1, 20, True), (1, 30, False)], (1, 10), (1, 20)),  # a damaged one is passed over
        ([(1, 30, False)], (1, 10), None),
        ([(1, 90, True)], (2, 50), None),  # of an attempt whose work a newer one has not gone on from
        ([(2, 50, True)], (1, 90), (2, 50)),
        ([(1, 20, True)], (-1, -1), (1, 20)),  # the shared folder has none
        ([], (1, 10), None),
    ],
)
def test_the_newest_whole_one_wins_wherever_it_is(
    job: Path, monkeypatch: pytest.MonkeyPatch, own: Any, others: Any, wins: Any
) -> None:
    """All ranks agree who has it; what is newer than it on that disk is no part of the run and goes."""
    at_0, at_1 = look(job, own, others, monkeypatch)

    assert (at_0.rank, at_0.is_copy) == (at_1.rank, at_1.is_copy) == ((1, True) if wins else (0, False))
    winner, loser = (at_1, at_0) if wins else (at_0, at_1)
    assert loser.facts is None and winner.facts and winner.folder
    assert (wins or others) == (winner.facts.attempt, winner.facts.step)
    assert (winner.folder.load(winner.facts)["w"] == ARRAYS["w"] + winner.facts.step).all()
    path = local_folder()
    assert path and all(step <= winner.facts.step for step in CheckpointFolder(path).steps())


@given(written=st.lists(st.tuples(st.integers(1, 4), st.integers(1, 9)), min_size=1, max_size=6))
def test_a_newer_attempts_checkpoint_is_newer_whatever_its_step(
    tmp_path_factory: pytest.TempPathFactory, written: list[tuple[int, int]]
) -> None:
    """Also in one folder: an older attempt's later step that came back to light is not gone on from."""
    folder = CheckpointFolder(tmp_path_factory.mktemp("folder"))
    last: dict[int, int] = {}
    with pytest.MonkeyPatch.context() as patch:
        for attempt, step in written:
            save(folder, step, attempt, patch)
            last[step] = attempt
    newest = folder.newest()

    assert newest and max((attempt, step) for step, attempt in last.items()) == (newest.attempt, newest.step)
    folder.keep_newest(1)
    assert [newest.step] == folder.steps()
    shutil.rmtree(folder.path)


def test_by_hand_a_run_goes_on_with_the_jobs_last_attempt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is written outside of a job after a job's is newer than that."""
    folder = CheckpointFolder(tmp_path)
    save(folder, 10, 2, monkeypatch)
    folder.save(20, ARRAYS)

    assert (2, 20) == (folder.save(30, ARRAYS).attempt, folder.facts(20).step)


def test_a_copy_that_fails_ends_no_training(
    job: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It is said once, and no other is tried."""
    path = local_folder()
    assert path
    saver = CopySaver(path, found=None)

    def full(file: Any, arrays: Any) -> str:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(npz_writer, "write", full)
    for step in (1, 2, 3):
        saver.save(step, lambda: ARRAYS, {})
        saver.wait()

    assert 1 == capsys.readouterr().err.count("warning: no second copy of checkpoints on this host")


def _removed(folder: Path) -> Path:
    """The folder, without what could be removed of it: somebody may still write there."""
    shutil.rmtree(folder, ignore_errors=True)
    return folder


def test_the_place_is_this_users_alone(job: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Where all users may write somebody else could have made it first; a link leads elsewhere."""
    path = local_folder()
    assert path
    CopySaver(path, found=None).save(1, lambda: ARRAYS, {})
    assert [0o700, 0o700] == [p.stat().st_mode & 0o777 for p in (path, path.parent)]
    path.parent.chmod(0o777)
    CopySaver(path, found=None).save(2, lambda: ARRAYS, {})
    assert "not a folder of this user alone" in capsys.readouterr().err
    wait_for(lambda: not _removed(path.parent).exists(), 60, "its writer has ended")
    path.parent.symlink_to(job)
    CopySaver(path, found=None)

    assert "not a folder of this user alone" in capsys.readouterr().err
    assert [] == list(job.iterdir())


def test_copies_of_a_removed_job_go_when_the_next_one_starts(job: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And only where the folder that held its record is there: a shared folder that is gone says nothing."""
    path = local_folder()
    assert path
    CopySaver(path, found=None)
    monkeypatch.setenv("DLAMI_JOB", "next")
    after = local_folder()
    assert after
    checkpoint_replica.remove_orphans(after)
    assert path.exists()
    away = job.parent.rename(job.parents[1] / "away")
    checkpoint_replica.remove_orphans(after)
    assert path.exists()
    away.rename(job.parent)
    shutil.rmtree(job)
    checkpoint_replica.remove_orphans(after)

    assert not path.exists()


def test_a_fenced_attempts_copy_is_not_written(job: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The lease is the job's, wherever the file lies."""
    path = local_folder()
    assert path
    saver = CopySaver(path, found=None)
    (job / FILE).write_text('{"attempt": 4}')
    saver.save(1, lambda: ARRAYS, {})
    saver.wait()

    assert [] == CheckpointFolder(path).steps()
    assert "attempt 4 has begun" in capsys.readouterr().err


FLAGS = (
    *("--model", "resnet18", "--image-size", 32, "--threads", 1, "--display-every", 1, "--lr", 0.02, "--synthetic"),
    *("--classes", 10, "--batch-size", 4, "--deterministic", "--checkpoint-every", 3),
)


def test_the_copy_is_bit_by_bit_what_rank_0_wrote_and_the_run_goes_on_from_it(ranks: Any, tmp_path: Path) -> None:
    """All of the shared folder's checkpoints are damaged: rank 1's is handed over, and saved there again."""
    job = tmp_path / "job"
    words = ("trainer.resnet50", *FLAGS, "--job-dir", job, "--num-batches", 8)
    ranks(2, TWO_HOSTS, 1, *words, "--checkpoint-seconds", 0.001, "--keep", 9)
    assert 1 in CheckpointFolder(job / "checkpoints").steps(), "a checkpoint by time, as rank 0 asks for at every step"
    whole = arrays_of(CheckpointFolder(job / "checkpoints"))
    assert not list(tmp_path.glob("disk-*/dlami*/job")), "a training that is done leaves nothing on the hosts"
    shutil.rmtree(job)

    stopped = ranks(2, TWO_HOSTS, 1, TWO_HOSTS.with_name("interrupted.py"), "stop", *words)
    assert "Asked to stop" in stopped.stdout
    shared = CheckpointFolder(job / "checkpoints")
    (disk,) = tmp_path.glob("disk-1/dlami-checkpoints-*/job")
    copy = CheckpointFolder(disk)
    assert not list(tmp_path.glob("disk-0/dlami*"))
    last = shared.steps()[0]
    assert last == copy.steps()[0] and shared.facts(last).more == copy.facts(last).more
    assert shared.facts(last).sha256 == copy.facts(last).sha256
    for step in shared.steps():
        spoil(shared.arrays_file(step))

    done: subprocess.CompletedProcess[str] = ranks(2, TWO_HOSTS, 2, *words)
    assert "The newest checkpoint is on the own disk of host1" in done.stdout
    assert f"Resuming after step {last - 1}" in done.stdout
    for name, array in arrays_of(CheckpointFolder(job / "checkpoints")).items():
        np.testing.assert_array_equal(array, whole[name], strict=True)


def arrays_of(folder: CheckpointFolder) -> dict[str, np.ndarray]:
    """Of the newest."""
    newest = folder.newest()
    assert newest
    return folder.load(newest)


def test_each_rank_writes_its_own_checkpoints_or_none(job: Path) -> None:
    """Rank 0 the shared ones, going on from its newest; the next host's first its copies; the others nothing."""
    shared, hosts = CheckpointFolder(job / "checkpoints"), ["a", "a", "b", "b", "c"]
    facts = shared.save(7, ARRAYS)
    more: dict[str, Any] = {"keep": 3, "seconds": 0.0, "cores": 1, "rate": "--lr"}

    def saver(newest: Newest, rank: int, folder: CheckpointFolder | None = shared) -> Any:
        return checkpoint_replica.make_saver(newest, folder, hosts, rank, **more)

    first, second = saver(Newest(0, shared, facts), 0), saver(Newest(0, None, None), 2)
    assert (7, shared.path, False) == (first.step, first.folder.path, isinstance(first, CopySaver))
    assert isinstance(second, CopySaver) and local_folder() == second.folder.path
    assert saver(Newest(2, shared, facts, is_copy=True), 0).step is None
    assert [None] * 4 == [saver(Newest(), rank) for rank in (1, 3, 4)] + [saver(Newest(), 0, None)]
    assert checkpoint_replica.make_saver(Newest(), shared, ["a", "a"], 1, **more) is None


def test_copies_are_removed_by_the_first_rank_of_each_host(job: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """When all have said that they are done; outside a job there is nothing to remove."""
    path = local_folder()
    assert path
    told: list[bytes] = []

    def gather(data: bytes) -> list[bytes]:
        told.append(data)
        return [data]

    make_private(path)
    checkpoint_replica.remove_copies(["a", "a", "b"], 1, gather)
    assert path.exists() and 1 == len(told)
    checkpoint_replica.remove_copies(["a", "a", "b"], 2, gather)
    assert not path.exists()
    checkpoint_replica.remove_copies(["a", "a", "b"], 0, gather)
    monkeypatch.delenv("DLAMI_JOB")
    checkpoint_replica.remove_copies(["a", "a", "b"], 0, gather)
    assert 4 == len(told)
