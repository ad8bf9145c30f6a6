"""A watch over ranks on this machine: how far they are, what their host says, and what it makes of silence."""

import dataclasses
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cluster.folder_thread import FolderThread
from cluster.hang_detection.onhost.beats import pause
from cluster.hang_detection.watch import RankWatch
from cluster.inventory import ROOT
from cluster.jobs.cleanup import sweep
from cluster.jobs.record import JobPaths
from cluster.recovery.failure_kinds import FailureKind
from tests.cluster.jobs_here import HERE, a_job, wait_until
from tests.conftest import PATIENCE_S

pytestmark = pytest.mark.slow  # real processes, seconds each
TWO_SLOTS = dataclasses.replace(HERE, slots=2)
# Steps until it is told to stand still, which it then does in `stand`.
STEPS = """\
import pathlib, sys, time
from dlami.heartbeat import Phase, beat, beat_file
beat.begin(beat_file())
def stand():
    while True:
        time.sleep(0.01)
for step in range(1, 10**6):
    beat.stepped(step)
    time.sleep(0.01)
    if pathlib.Path(sys.argv[1]).exists():
        stand()
"""


@pytest.fixture
def rank(job_id: str, tmp_path: Path) -> Iterator[Any]:
    """Starts a rank of the job that steps until a file is there; it is gone afterwards."""
    started = []

    def start(number: int, until: str, program: str = STEPS) -> "subprocess.Popen[bytes]":
        tags = {"DLAMI_JOB": job_id, "DLAMI_ATTEMPT": "1", "OMPI_COMM_WORLD_RANK": str(number)}
        words = [sys.executable, "-c", program, str(tmp_path / until)]
        started.append(subprocess.Popen(words, cwd=ROOT, env={**os.environ, **tags}))
        return started[-1]

    yield start
    sweep([HERE], job_id)
    for one in started:
        one.wait(timeout=PATIENCE_S)
    assert [] == list(Path("/dev/shm").glob(f"dlami-beat-*-{job_id}-*"))


@pytest.mark.promise("a hang")
def test_what_a_watch_tells(
    rank: Any, folder: Path, job_id: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Steps done by all, when the first was, and the rank that stands still, with its line; never before its limit."""
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(temporary))
    paths = JobPaths(folder / job_id)
    paths.logs(1).mkdir(parents=True)
    began, said = time.time(), []
    watch = RankWatch(
        a_job("", job_id, np=2, hosts=(TWO_SLOTS,), hang_after=6.0), paths, FolderThread(), said.append
    ).start()
    try:
        rank(0, "never")
        rank(1, "stand")
        wait_until(lambda: (watch.step() or 0) > 5, "both ranks step")
        assert (1, True) == (watch.first_step(), began <= watch.first_step_at() <= time.time())
        assert watch.trouble() is None
        (tmp_path / "stand").touch()
        wait_until(lambda: watch.trouble() is not None, "the hang is found", 120)
    finally:
        watch.close()
    found = watch.trouble()

    assert (FailureKind.HANG, 1, "localhost") == (found.kind, found.rank, found.host)
    assert found.text.startswith("rank 1 on localhost hangs: it is stepping in stand (<string>:6); no progress for "), (
        found
    )
    assert "stand (<string>:6)" in (paths.logs(1) / "stacks.txt").read_text()
    assert ([], {}) == (said, watch.notices())
    assert (paths.logs(1) / "pace.json").exists(), "what was learnt is kept for the next attempt"
    assert [] == [p for p in temporary.rglob("*") if p.is_file()], "nothing is left of what was sent"


WAITS = """\
import time
from dlami.heartbeat import beat, beat_file
beat.begin(beat_file())
time.sleep(4321)
"""


SAVES = """\
import time
from dlami.heartbeat import Phase, beat, beat_file
beat.begin(beat_file())
beat.stepped(1)
beat.enter(Phase.SAVE)
time.sleep(4321)
"""


@pytest.mark.parametrize("is_there", [True, False])
@pytest.mark.parametrize("programs", [[WAITS], [], [SAVES, SAVES]])
def test_what_the_shared_folder_holds_up_is_not_waited_for(
    is_there: bool, programs: list[str], rank: Any, folder: Path, job_id: str
) -> None:
    """A rank that waits for one that does not appear, none that appears, ranks that save: where a host has none."""
    paths = JobPaths(folder / job_id)
    if is_there:
        paths.logs(1).mkdir(parents=True)
    job = a_job("", job_id, np=2, hosts=(TWO_SLOTS,), hang_after=3.0)
    watch = RankWatch(job, paths, FolderThread(), lambda _: None).start()
    try:
        for number, program in enumerate(programs):
            rank(number, "never", program)
        if is_there:
            wait_until((paths.logs(1) / "stacks.txt").exists, "it has been looked at", 120)
            assert watch.trouble() is None
        else:
            wait_until(lambda: watch.trouble() is not None, "the trouble is found", 120)
            assert (FailureKind.SHARED_FOLDER, "localhost") == (watch.trouble().kind, watch.trouble().host)
    finally:
        watch.close()


HURRIES = """\
import pathlib, sys, time
from dlami.heartbeat import beat, beat_file
beat.begin(beat_file())
beat.stepped(1)
while not pathlib.Path(sys.argv[1]).exists():
    time.sleep(0.01)
for step in range(2, 601):
    beat.stepped(step)
"""


def test_steps_after_the_last_report_are_asked_for(rank: Any, folder: Path, job_id: str, tmp_path: Path) -> None:
    """The ranks have left; their last heartbeats are still on their host."""
    paths = JobPaths(folder / job_id)
    paths.logs(1).mkdir(parents=True)
    watch = RankWatch(a_job("", job_id, np=1), paths, FolderThread(), lambda _: None).start()
    try:
        program = rank(0, "go", HURRIES)
        wait_until(lambda: watch.step() == 1, "it steps")
        (tmp_path / "go").touch()
        program.wait(timeout=PATIENCE_S)
        watch.ask_once_more()
        assert 600 == watch.step()
    finally:
        watch.close()


@pytest.mark.parametrize(
    ("beats", "wait_s"),
    [([], 3), ([None], 3), ([100], 3), ([81, 90], 3), ([79, 100], 1), ([None, 70], 1)],
)
def test_a_host_with_a_rank_that_has_long_been_silent_speaks_oftener(beats: list[float | None], wait_s: int) -> None:
    """So that a hang is known a second after its limit, not three."""
    seen = {"now": 100.0, "ranks": [{"beat": at if at is None else {"at": at}} for at in beats]}
    assert wait_s == pause(seen, 3.0)
