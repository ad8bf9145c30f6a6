"""Where checkpoints exist and none can be read, a training refuses to begin at step 0, and keeps all files."""

import argparse
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from trainer.common.checkpoints import npz_writer
from trainer.common.checkpoints.checkpoint import CheckpointFolder
from trainer.common.checkpoints.checkpoint_replica import find_newest, local_folder, make_private
from trainer.common.checkpoints.unreadable import add_from_scratch_flags, may_begin_anew
from trainer.common.checkpoints.write_lease import ATTEMPT
from trainer.common.files.errors import CommonError, TrainerError
from trainer.maskrcnn.checkpoint_loader import newest_weights
from trainer.resnet50.export import of_job

ARRAYS = {"w": np.arange(4.0)}


@pytest.fixture
def folder(tmp_path: Path) -> CheckpointFolder:
    """Two checkpoints, of step 10 and 20."""
    found = CheckpointFolder(tmp_path / "job/checkpoints")
    for step in (10, 20):
        found.save(step, ARRAYS)
    return found


DAMAGE: dict[str, Callable[[Path], object]] = {
    "cut off": lambda path: path.write_bytes(path.read_bytes()[:-1]),
    "changed": lambda path: path.write_bytes(path.read_bytes()[:-1] + b"x"),
    "arrays gone": lambda path: path.unlink(),
    "facts cut off": lambda path: path.with_suffix(".json").write_text("{"),
    "facts gone": lambda path: path.with_suffix(".json").unlink(),
    "empty": lambda path: path.write_bytes(b""),
}


def damage(folder: CheckpointFolder, how: str) -> dict[str, bytes]:
    """Damages every checkpoint in this way; what the folder holds then."""
    for step in (10, 20):
        DAMAGE[how](folder.arrays_file(step))
    return content(folder.path)


def content(folder: Path) -> dict[str, bytes]:
    """Every file's bytes."""
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def alone(data: bytes) -> list[bytes]:
    """One rank's gather."""
    return [data]


@pytest.mark.parametrize("how", DAMAGE)
def test_a_training_does_not_begin_anew_over_them(folder: CheckpointFolder, how: str) -> None:
    """They are named, with what is wrong, and stay; when it is asked for they are set aside whole, each time."""
    before = damage(folder, how)
    with pytest.raises(CommonError, match=r"2 checkpoints found and none can be read: .*--from-scratch") as error:
        find_newest(CheckpointFolder(folder.path), ["a"], 0, alone)
    assert "step-000000" in str(error.value) or "step 10" in str(error.value)
    assert before == content(folder.path)

    newest = find_newest(CheckpointFolder(folder.path), ["a"], 0, alone, begins_anew=True)
    assert newest.facts is None and not folder.path.exists()
    assert before == content(folder.path.with_name("checkpoints.unreadable-1"))
    folder.save(10, ARRAYS)
    folder.save(20, ARRAYS)
    again = damage(folder, how)
    find_newest(CheckpointFolder(folder.path), ["a"], 0, alone, begins_anew=True)
    assert again == content(folder.path.with_name("checkpoints.unreadable-2"))


def test_one_that_can_be_read_is_gone_on_from_though_it_may_begin_anew(folder: CheckpointFolder) -> None:
    """The permission to begin anew changes nothing while there is a way to go on; nor is an empty folder refused."""
    DAMAGE["changed"](folder.arrays_file(20))
    newest = find_newest(CheckpointFolder(folder.path), ["a"], 0, alone, begins_anew=True)

    assert newest.facts and 10 == newest.facts.step
    assert find_newest(CheckpointFolder(folder.path.with_name("none")), ["a"], 0, alone).facts is None


def test_a_first_checkpoint_whose_writer_was_killed_is_no_checkpoint(tmp_path: Path) -> None:
    """Its arrays have their name and its facts do not: nothing was promised, so the training begins."""
    folder = CheckpointFolder(tmp_path / "checkpoints")
    folder.save(10, ARRAYS)
    DAMAGE["facts gone"](folder.arrays_file(10))

    assert find_newest(folder, ["a"], 0, alone).facts is None


def test_damaged_copies_on_a_hosts_own_disk_count_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They alone are a reason to refuse, are named and kept, and are set aside when it is asked for."""
    job = tmp_path / "jobs/20260101-resnet"
    job.mkdir(parents=True)
    (tmp_path / "disk").mkdir()
    told = {
        "DLAMI_JOB": job.name,
        "DLAMI_JOB_FOLDER": str(job),
        ATTEMPT: "3",
        "DLAMI_LOCAL_DISK": str(tmp_path / "disk"),
    }
    for name, value in told.items():
        monkeypatch.setenv(name, value)
    path = local_folder()
    assert path
    make_private(path)
    copies = CheckpointFolder(path)
    copies.save(10, ARRAYS)
    copies.save(20, ARRAYS)
    before = damage(copies, "changed")
    shared = CheckpointFolder(job / "checkpoints")
    with pytest.raises(CommonError, match=f"'inv jobs.resume {job.name} --from-scratch'"):
        find_newest(shared, ["a"], 0, alone)
    assert before == content(path)

    assert find_newest(shared, ["a"], 0, alone, begins_anew=True).facts is None
    assert before == content(path.with_name(f"{path.name}.unreadable-1"))


def test_all_ranks_refuse_alike(folder: CheckpointFolder) -> None:
    """Only rank 0 has looked at the shared folder; the others learn of it and end with the same sentence."""
    damage(folder, "cut off")
    told: list[bytes] = []

    def first(data: bytes) -> list[bytes]:
        told.append(data)
        return [data, json.dumps([(-1, -1), (-1, -1)]).encode()]

    said = []
    for rank, gather in ((0, first), (1, lambda data: [told[0], data])):
        with pytest.raises(CommonError) as error:
            find_newest(CheckpointFolder(folder.path), ["a", "b"], rank, gather)
        said.append(str(error.value))
    assert said[0] == said[1] and "has" in said[0]


@pytest.mark.parametrize(
    ("words", "attempt", "may"),
    [
        ([], "", False),
        (["--from-scratch"], "", True),  # by hand, outside of a job
        (["--from-scratch"], "1", True),
        (["--from-scratch"], "2", False),  # a retry has the same command line
        (["--from-scratch-attempt", "4"], "4", True),
        (["--from-scratch-attempt", "4"], "5", False),
        (["--from-scratch-attempt", "4"], "", False),
    ],
)
def test_a_retry_is_never_told_to_begin_anew(
    words: list[str], attempt: str, may: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a person allowed for one attempt does not hold for those that recovery starts after it."""
    monkeypatch.setenv(ATTEMPT, attempt)
    parser = argparse.ArgumentParser()
    add_from_scratch_flags(parser)

    assert may == may_begin_anew(parser.parse_args(words))


@pytest.mark.parametrize(
    "use",
    [lambda job: of_job(job, None, best=False), newest_weights],
    ids=["export", "evaluate and predict"],
)
def test_what_uses_a_checkpoint_says_that_none_can_be_read(
    folder: CheckpointFolder, use: Callable[[Path], Any]
) -> None:
    """Not that there is none yet."""
    damage(folder, "cut off")
    with pytest.raises(TrainerError, match="2 checkpoints found and none can be read"):
        use(folder.path.parent)


def test_a_folder_that_cannot_be_listed_is_not_an_empty_one(folder: CheckpointFolder) -> None:
    """A link whose disk is not mounted, a file in its place: nobody knows what checkpoints there are."""
    elsewhere = folder.path.with_name("disk")
    folder.path.rename(elsewhere)
    folder.path.symlink_to(elsewhere)
    assert [20, 10] == folder.steps()
    shutil.rmtree(elsewhere)
    with pytest.raises(CommonError, match=r"is a link to .*disk, which is missing: mount it first"):
        find_newest(CheckpointFolder(folder.path), ["a"], 0, alone)
    folder.path.unlink()
    folder.path.write_text("")
    with pytest.raises(CommonError, match="cannot be listed: Not a directory"):
        find_newest(CheckpointFolder(folder.path), ["a"], 0, alone)


def test_a_folder_that_is_removed_while_a_checkpoint_is_written_is_made_again(
    folder: CheckpointFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was being written is written once more; the best one is noted as well."""
    write = npz_writer.write

    def removed(file: Any, arrays: Any) -> str:
        sha256 = write(file, arrays)
        monkeypatch.setattr(npz_writer, "write", write)
        shutil.rmtree(folder.path)
        return sha256

    monkeypatch.setattr(npz_writer, "write", removed)
    folder.save(30, ARRAYS)
    assert [30] == folder.steps() and folder.facts(30)
    shutil.rmtree(folder.path)
    folder.mark_best(30, 1.0)
    folder.keep_newest(1)
    folder.save(40, ARRAYS)
    assert [40] == folder.steps()


@pytest.mark.parametrize(("number", "remedy"), [(28, "free the disk"), (122, "free the disk"), (30, "mend the folder")])
def test_a_checkpoint_that_cannot_be_written_says_which_others_are_there(
    folder: CheckpointFolder, monkeypatch: pytest.MonkeyPatch, number: int, remedy: str
) -> None:
    """A full disk is to be freed, any other trouble is the folder's; none is said to be there that is not."""

    def fails(*_: Any) -> str:
        raise OSError(number, "why")

    monkeypatch.setattr(npz_writer, "write", fails)
    with pytest.raises(TrainerError, match=rf"\(why\); checkpoints of step 10, 20 are there; {remedy} and start again"):
        folder.save(30, ARRAYS)
    shutil.rmtree(folder.path)
    with pytest.raises(TrainerError, match=rf"\(why\); there is no other checkpoint; {remedy} and start again$"):
        folder.save(30, ARRAYS)
