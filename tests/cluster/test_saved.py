"""What ranks that were asked to leave had done by then, read from what they said and how far they were."""

from typing import Any

import pytest

from cluster.jobs.saved import has_finished, what_was_saved
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
