"""What ranks that were asked to leave had done by then, read from what they said and how far they were."""

import os
from pathlib import Path
from typing import Any

import pytest

from cluster.jobs.record import JobPaths
from cluster.jobs.supervisor.exit_state import Kept, has_finished, kept, shows_progress, what_was_saved
from cluster.recovery.failure_kinds import FailureKind
from tests.cluster.jobs_here import a_job

RESNET = "[1,0]<stdout>:Finished in 9.512\n"
MASKRCNN = "[1,0]<stdout>:Finished 90 steps in 12 s\n"
SAVED = "[1,0]<stdout>:Asked to stop: saved after step 41; the same command resumes from there\n"
LEAVES = "[1,1]<stderr>:Asked to stop: leaves after step 41\n"


@pytest.mark.parametrize(
    ("console", "exit_code", "done", "job", "expected"),
    [
        (RESNET, 0, None, {}, True),
        (MASKRCNN, 0, 90, {}, True),
        ("", 0, 90, {"steps": 90}, True),
        ("", 0, 89, {"steps": 90}, False),
        ("", 0, None, {"steps": 90}, False),
        ("", 0, 90, {}, False),
        (RESNET, 1, 90, {"steps": 90}, False),  # its evaluation was cut off
        (SAVED, 0, 90, {"steps": 90}, False),
        ("", 0, 41, {"program": True}, False),
        ("[1,0]<stdout>:Finished in 3 s\n", 0, 41, {"program": True}, False),  # a program may say that of a save
    ],
)
def test_a_job_has_finished_where_that_is_known(
    console: Any, exit_code: Any, done: Any, job: Any, expected: Any
) -> None:
    """By its trainer's last word or its beats; a program that saves and leaves looks as if it had."""
    assert expected is has_finished(a_job("", "x", **job), console, exit_code, done)


@pytest.mark.parametrize(
    ("console", "is_newer", "expected"),
    [
        (SAVED, False, "saved after step 41"),
        (LEAVES, True, "saved"),
        (LEAVES, False, "asked to save"),
        ("", False, "asked to save"),
    ],
)
def test_saved_is_said_of_what_was(console: Any, is_newer: Any, expected: Any) -> None:
    """That a step was done before is no checkpoint of it; that a program leaves is none either."""
    assert expected == what_was_saved(console, is_newer)


@pytest.mark.parametrize(
    ("before", "after", "what", "expected"),
    [
        ([], [], FailureKind.HOST, False),
        ([], ["last"], FailureKind.RANK_SIGNAL, True),
        (["step-9.npz"], ["step-9.npz", "step-10.npz"], FailureKind.RANK_SIGNAL, True),
        (["step-9.npz", "step-10.npz"], ["step-10.npz"], FailureKind.HOST, False),
        (["step-10.npz"], ["step-10.npz", "best.json"], FailureKind.HANG, True),
        (["step-10.npz"], ["step-10.npz", ".step-20.npz", "step-20.tmp"], FailureKind.HOST, False),
        (
            ["epoch-5"],
            ["epoch-1", "epoch-2"],
            FailureKind.RANK_SIGNAL,
            False,
        ),  # from the beginning, the older ones removed
        (["last"], ["last again"], FailureKind.RANK_SIGNAL, False),
        (["last"], ["last again"], FailureKind.HANG, False),
        (["last"], ["last again"], FailureKind.HOST, True),
        (["last"], ["last again"], FailureKind.NOTICE, True),
    ],
)
def test_new_checkpoints_show_progress(
    tmp_path: Path, before: list[str], after: list[str], what: FailureKind, expected: bool
) -> None:
    """By their names and numbers; one that is written anew only where the program was not what ended."""
    paths, clock = JobPaths(tmp_path), [10**9]
    assert Kept() == kept(paths)
    paths.checkpoints.mkdir()

    def are(names: list[str]) -> Kept:
        for path in paths.checkpoints.iterdir():
            if path.name not in names and "again" not in "".join(names):
                path.unlink()
        for name in names:
            path = paths.checkpoints / name.removesuffix(" again")
            if not path.exists() or "again" in name:
                clock[0] += 10**9
                path.touch()
                os.utime(path, ns=(clock[0], clock[0]))
        return kept(paths)

    had = are(before)
    assert expected is shows_progress(had, are(after), what)
