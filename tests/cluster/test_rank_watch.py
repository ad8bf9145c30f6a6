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

from cluster.healing.ending import Ending
from cluster.hosts import Host
from cluster.inventory import ROOT, Cluster
from cluster.jobs.folder_thread import FolderThread
from cluster.jobs.record import JobPaths
from cluster.jobs.state import JobState
from cluster.jobs.status import read_status
from cluster.jobs.submit import submit
from cluster.jobs.sweep import sweep
from cluster.ssh.fanout import Reach
from cluster.ssh.program import ask, program
from cluster.watching.looks import Looks
from cluster.watching.onhost.beats import pause
from cluster.watching.seen import Phase
from cluster.watching.watch import RankWatch
from tests.cluster.jobs_here import HERE, a_job, ended, folder, job_id, wait_until
from tests.conftest import PATIENCE_S

__all__ = ["folder", "job_id"]
pytestmark = pytest.mark.slow  # real processes, seconds each
TWO_SLOTS = dataclasses.replace(HERE, slots=2)
SILENT = "export OMPI_COMM_WORLD_RANK=0; echo it begins; exec sleep 4321"
# Steps until it is told to stand still, which it then does in `stand`.
STEPS = """\
import pathlib, sys, time
from dlami.beat import Phase, beat, beat_file
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

    def start(number: int, until: str, program: str = STEPS) -> None:
        tags = {"DLAMI_JOB": job_id, "DLAMI_ATTEMPT": "1", "OMPI_COMM_WORLD_RANK": str(number)}
        words = [sys.executable, "-c", program, str(tmp_path / until)]
        started.append(subprocess.Popen(words, cwd=ROOT, env={**os.environ, **tags}))

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

    assert (Ending.HANG, 1, "localhost") == (found.kind, found.rank, found.host)
    assert found.text.startswith("rank 1 on localhost hangs: it is stepping in stand (<string>:6); no progress for "), (
        found
    )
    assert "stand (<string>:6)" in (paths.logs(1) / "stacks.txt").read_text()
    assert ([], {}) == (said, watch.notices())
    assert (paths.logs(1) / "pace.json").exists(), "what was learnt is kept for the next attempt"
    assert [] == [p for p in temporary.rglob("*") if p.is_file()], "nothing is left of what was sent"


# A rank whose first program has beaten and ended, with something else to do: below our wrapper, as operators' programs are.
GOES_ON = """\
cd "$3"; "$1" -c 'from dlami.beat import beat, beat_file; beat.begin(beat_file()); beat.stepped(7)'
until [ -e "$2" ]; do sleep 0.05; done
"""
BUSY = "import time; time.sleep(4321)"


def test_a_program_s_first_rank_may_beat_alone(
    rank: Any, folder: Path, job_id: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of an operator's program: the other is watched as one that starts, and never said to hang; a trainer's is."""
    for table in ("_LEAST_S", "_MOST_S"):
        monkeypatch.setattr(f"cluster.watching.limits.{table}", dict.fromkeys(Phase, 2.0))
    monkeypatch.setattr("cluster.watching.watch.HANG_AFTER_S", 2.0)
    paths, hosts = JobPaths(folder / job_id), (TWO_SLOTS,)
    paths.logs(1).mkdir(parents=True)
    watches = [
        RankWatch(a_job("", job_id, np=2, hosts=hosts, program=is_program), paths, FolderThread(), print).start()
        for is_program in (True, False)
    ]
    try:
        rank(0, "stand")
        rank(1, "never", BUSY)
        wait_until(lambda: watches[1].trouble() is not None, "of a trainer it is a hang")
        assert "rank 1 on localhost hangs" in watches[1].trouble().text
        assert watches[0].trouble() is None
        (tmp_path / "stand").touch()
        wait_until(lambda: watches[0].trouble() is not None, "the rank that beats stands still")
        assert "rank 0 on localhost hangs: it is stepping" in watches[0].trouble().text
    finally:
        for watch in watches:
            watch.close()


def test_a_program_may_go_on_after_what_has_beaten(folder: Path, job_id: str, tmp_path: Path) -> None:
    """`python train.py && python export.py`: what comes after is watched by its output, and the steps stay done."""
    wrapper, until = tmp_path / "dlami-rank", tmp_path / "until"
    wrapper.symlink_to("/bin/bash")
    tags = {"DLAMI_JOB": job_id, "DLAMI_ATTEMPT": "1", "OMPI_COMM_WORLD_RANK": "0"}
    words = [wrapper, "-c", 'bash -c "$0" rank "$@"; exit', GOES_ON, sys.executable, str(until), str(ROOT)]
    paths = JobPaths(folder / job_id)
    paths.logs(1).mkdir(parents=True)
    watch = RankWatch(a_job("", job_id, program=True), paths, FolderThread(), print)
    watch._pace.least_s = 1.0
    watch.start()
    program = subprocess.Popen(words, cwd=ROOT, env={**os.environ, **tags})
    try:
        wait_until(lambda: watch.step() == 7, "it has beaten")
        wait_until(lambda: [r.phase for r in watch._seen()] == [None], "what has beaten is over")
        assert (7, False) == (watch._seen()[0].step, watch._seen()[0].has_ended)
        paths.console(1).write_text("exporting\n")
        seen_at = watch.alive_at()
        wait_until(lambda: watch.alive_at() != seen_at, "its output counts")
        assert watch.trouble() is None
        assert 7 == watch.step()
        until.touch()
        assert 0 == program.wait(timeout=PATIENCE_S)
        wait_until(lambda: watch.trouble() is not None, "then it has no ranks any more")
        assert Ending.DAEMON == watch.trouble().kind
    finally:
        watch.close()
        program.kill()
        program.wait()
        sweep([HERE], job_id)


WAITS = """\
import time
from dlami.beat import beat, beat_file
beat.begin(beat_file())
time.sleep(4321)
"""


SAVES = """\
import time
from dlami.beat import Phase, beat, beat_file
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
            assert (Ending.SHARED_FOLDER, "localhost") == (watch.trouble().kind, watch.trouble().host)
    finally:
        watch.close()


def test_a_silent_program_is_warned_of_as_long_as_it_is_silent(
    folder: Path, job_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the console once, and for the job's record until it prints again."""
    monkeypatch.setattr("cluster.watching.quiet.WARN_AFTER_S", 1.0)
    paths, said = JobPaths(folder / job_id), list[str]()
    paths.logs(1).mkdir(parents=True)
    tags = {"DLAMI_JOB": job_id, "DLAMI_ATTEMPT": "1", "OMPI_COMM_WORLD_RANK": "0"}
    program = subprocess.Popen(["sleep", "4321"], env={**os.environ, **tags})
    watch = RankWatch(a_job("", job_id), paths, FolderThread(), said.append).start()
    try:
        wait_until(lambda: bool(watch.silence()), "its silence is seen")
        assert "rank 0 on localhost has used no processor time in it: it may hang" in watch.silence()
        assert [f"warning: {watch.silence()}"] == said
        paths.console(1).write_text("a line")
        wait_until(lambda: not watch.silence(), "it is silent no more")
    finally:
        watch.close()
        program.kill()
        program.wait()


def test_silence_is_a_hang_where_that_was_asked_for(folder: Path, job_id: str) -> None:
    """A program that does not beat, under a real supervisor: ended after so many seconds without a line."""
    paths = submit(folder, a_job(SILENT, job_id, hang_after=4.0))
    ended(paths)
    status = read_status(paths)

    assert (JobState.FAILED, 0, "localhost") == (status.state, status.rank, status.host), status
    assert status.cause.startswith("rank 0 on localhost hangs: it runs ("), status.cause
    assert "no progress for " in status.cause
    assert "rank 0 on localhost (1)\n  no stack: " in (paths.logs(1) / "stacks.txt").read_text()
    assert () == status.left


def test_what_starts_ranks_does_not_go_on_without_them(folder: Path, job_id: str) -> None:
    """As mpirun does that was stopped, or whose daemon was: it would never end."""
    step = "from dlami.beat import beat, beat_file; beat.begin(beat_file()); beat.stepped(1)"
    script = f"cd '{ROOT}'; OMPI_COMM_WORLD_RANK=0 '{sys.executable}' -c '{step}'; exec sleep 4321"
    paths = submit(folder, a_job(script, job_id, hang_after=4.0))
    ended(paths)
    status = read_status(paths)

    assert (JobState.FAILED, Ending.DAEMON, None) == (status.state, status.ended_by, status.rank), status
    assert status.cause.startswith("all ranks have ended, and mpirun has not for "), status.cause
    assert () == status.left


def test_a_host_s_notice_comes_with_its_beats(reach: Reach, cluster: Cluster) -> None:
    """As its own unit has written it; a damaged one is none."""
    first, second = cluster.hosts[:2]
    asked = program("cluster.watching.onhost.beats", "no-job", 1, 0.1, 0)
    write = 'printf %s \'{"kind": "spot", "at": 12.5, "text": "so it is"}\' > /run/dlami-notice.json'
    reach.run([first], write).check()
    reach.run([second], "printf %s '{' > /run/dlami-notice.json").check()
    try:
        _, told = ask(reach, [first, second], asked)
    finally:
        reach.run([first, second], "rm /run/dlami-notice.json").check()

    assert ({"kind": "spot", "at": 12.5, "text": "so it is"}, None) == (told[first]["notice"], told[second]["notice"])
    assert ([], "") == (told[first]["ranks"], told[first]["stopped"])


@pytest.mark.parametrize(
    ("beats", "wait_s"),
    [([], 3), ([None], 3), ([100], 3), ([81, 90], 3), ([79, 100], 1), ([None, 70], 1)],
)
def test_a_host_with_a_rank_that_has_long_been_silent_speaks_oftener(beats: list[float | None], wait_s: int) -> None:
    """So that a hang is known a second after its limit, not three."""
    seen = {"now": 100.0, "ranks": [{"beat": at if at is None else {"at": at}} for at in beats]}
    assert wait_s == pause(seen, 3.0)


def test_why_a_host_tells_nothing_is_in_the_supervisor_s_log(capfd: pytest.CaptureFixture[str]) -> None:
    """An address that nobody has."""
    looks = Looks([Host(rank=0, address="no.such.host.invalid", slots=1)], "no-job", 1, lambda host, told: None)
    looks.start()
    said = []
    try:
        wait_until(
            lambda: said.append(capfd.readouterr().err) or "watching: no.such.host.invalid: " in said[-1], "a word"
        )
    finally:
        looks.close()
