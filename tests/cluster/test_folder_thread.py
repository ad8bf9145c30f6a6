"""Work on a folder that may not answer: done in its order, waited for only so long, and never by who may not any more."""

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cluster.folder_thread import FolderThread, Unanswered
from cluster.jobs.process import ProcessId
from cluster.jobs.record import JobPaths, JobStatus, load
from cluster.jobs.record_lease import Fenced, read_lease, take_lease
from cluster.jobs.state import JobState
from cluster.jobs.status import words_file
from cluster.jobs.supervisor.lease_holder import LeaseHolder

SHORT_S, LONG_S = 0.3, 300.0  # for a folder that is silent here, and for one that answers, however busy the machine is


@pytest.fixture
def folder() -> FolderThread:
    return FolderThread(SHORT_S)


@pytest.fixture
def silence(folder: FolderThread) -> Iterator[threading.Event]:
    """The folder does not answer until this is set."""
    answers = threading.Event()
    folder.later(answers.wait)
    yield answers
    answers.set()
    closed(folder)


def closed(folder: FolderThread) -> None:
    """All that was to be done is done, as long as it may take."""
    folder._limit_s = LONG_S
    folder.close()


def test_work_is_done_in_its_order_and_what_it_raises_is_the_caller_s() -> None:
    folder, done = FolderThread(LONG_S), list[int]()
    for n in range(50):
        folder.later(lambda n=n: done.append(n))
    assert 7 == folder.do(lambda: 7)
    assert [*range(50)] == done
    with pytest.raises(ZeroDivisionError):
        folder.do(lambda: 1 / 0)
    folder.check()


def test_a_silent_folder_is_waited_for_once(folder: FolderThread, silence: threading.Event) -> None:
    """Then known to be silent, until it answers; what was to be done is done then, of one name the newest alone."""
    done: list[str] = []
    with pytest.raises(Unanswered, match="the shared folder does not answer"):
        folder.do(lambda: done.append("probe"), "probe")
    began = time.monotonic()
    for n in range(20):
        with pytest.raises(Unanswered):
            folder.do(lambda n=n: done.append(f"status {n}"), "status")
    assert folder.is_silent
    assert time.monotonic() - began < 20 * SHORT_S, "nobody waits for each"
    silence.set()
    closed(folder)
    assert ["probe", "status 19"] == done
    assert not folder.is_silent


def test_what_nobody_waited_for_is_raised_by_every_call_after_it(
    folder: FolderThread, silence: threading.Event
) -> None:
    """But a folder's own errors: what cannot be written now is with the next word."""
    folder.later(lambda: Path("/nowhere/at/all").read_text())
    with pytest.raises(Unanswered):
        folder.do(lambda: 1 / 0)
    silence.set()
    closed(folder)
    for _ in range(2):
        with pytest.raises(ZeroDivisionError):
            folder.later(lambda: None)


def test_a_word_that_comes_late_is_not_said_by_who_has_lost_the_lease(
    folder: FolderThread, silence: threading.Event, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The job went on from elsewhere while our folder hung: its record is the other's, and we leave."""
    monkeypatch.setattr("cluster.jobs.status.LAST_WORDS", tmp_path / "words")
    (tmp_path / "words").mkdir()
    paths = JobPaths(tmp_path / "j")
    paths.logs(1).mkdir(parents=True)
    holder = LeaseHolder(paths, 1, folder)
    with pytest.raises(Unanswered):
        holder.check()
    running: Any = JobStatus(state=JobState.RUNNING, supervisor=holder.process)
    holder.write(running)
    assert JobState.RUNNING is load(words_file(paths), JobStatus).state, "it is on this machine's own disk"
    other = ProcessId(host="elsewhere", pid=1, started=1, boot="b")
    taken = take_lease(paths, 2, other)
    silence.set()
    closed(folder)

    assert not paths.status.exists()
    assert taken == read_lease(paths)
    with pytest.raises(Fenced):
        holder.renew_if_due()
