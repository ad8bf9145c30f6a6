"""`jobs.logs`: which lines are shown, of which attempts, and what very long lines cost."""

import os
import time
import tracemalloc
from pathlib import Path
from typing import Any

import pytest

from cluster.errors import ConfigError
from cluster.jobs.log_filter import LONGEST, LineFilter, LineSplitter, without_verdicts
from cluster.jobs.master import follow
from cluster.jobs.process import this_process
from cluster.jobs.record import JobPaths, JobStatus
from cluster.jobs.state import JobState
from cluster.jobs.status import write_status
from cluster.jobs.supervisor.console_times import ConsoleTimes, position_at
from cluster.jobs.terms import duration_s
from tests.cluster.records import on_record

SAID = """\
step 1
rank 2: Traceback (most recent call last):
step 2
rank 2:   File "train.py", line 1, in <module>
rank 2:     raise ValueError("x")
rank 2: ValueError: x
rank 1: NCCL WARN Error: no route
step 3, error rate 0.1
rank 2: goes on
"""


def shown(choice: LineFilter) -> list[str]:
    is_wanted = choice.filter()
    return [line for line in SAID.splitlines() if is_wanted(line)]


def test_errors_come_with_their_own_rank_s_traceback() -> None:
    """And not with what other ranks said in between."""
    expected = [1, 3, 4, 5, 6, 7]

    assert [SAID.splitlines()[n] for n in expected] == shown(LineFilter(errors=True))


def test_a_regular_expression_chooses_lines() -> None:
    """Without one all are shown; one that is none is refused in a sentence."""
    assert ["step 1", "step 2"] == shown(LineFilter(grep=r"^step [12]"))
    assert SAID.splitlines() == shown(LineFilter())
    with pytest.raises(ConfigError, match="no regular expression"):
        LineFilter(grep="(").check()


@pytest.mark.parametrize("size", [1, 7, 1000])
def test_lines_are_the_same_however_they_arrive(size: int) -> None:
    """In parts of any size, with signs cut in two."""
    data = "one\n\nzwölf\nlast".encode()
    lines = LineSplitter()
    found = [line for n in range(0, len(data), size) for line in lines.feed(data[n : n + size])]

    assert ["one\n", "\n", "zwölf\n", "last\n"] == [*found, *lines.rest()]


@pytest.fixture
def three_attempts(tmp_path: Path) -> JobPaths:
    """A job of three attempts, of which the first ended two hours ago, the second said much in that time."""
    paths, now = on_record(tmp_path, "a"), time.time()
    for attempt, (text, age) in enumerate({"one\n": 7200, "old\nnew\n": 300, "three\n": 5}.items(), start=1):
        paths.logs(attempt).mkdir(parents=True)
        paths.console(attempt).write_text(text)
        os.utime(paths.console(attempt), (now - age, now - age))
    paths.console_times(2).write_text(f"{now - 4000:.0f} 4\ndamaged\n{now - 300:.0f} 8\n")
    write_status(paths, JobStatus(state=JobState.SUCCEEDED, attempt=3))
    return paths


@pytest.mark.parametrize(
    ("since_s", "expected"),
    [
        (None, ["three"]),
        (60, ["three"]),
        (3600, ["new", "three"]),
        (5000, ["old", "new", "three"]),
        (9999, ["one", "old", "new", "three"]),
    ],
)
def test_what_was_said_since_then_by_all_attempts(
    three_attempts: JobPaths, since_s: Any, expected: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    """By the times that the supervisor wrote down; without any, the newest attempt alone."""
    follow.console(three_attempts, follow=False, since_s=since_s)

    assert expected == capsys.readouterr().out.split()


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"attempt": 1}, ["one"]),
        ({"attempt": 2}, ["old", "new"]),
        ({"attempt": 2, "last": 1}, ["new"]),
        ({"last": 1}, ["three"]),
        ({"last": 0}, []),
        ({"last": 100}, ["three"]),
        ({"since_s": 3600}, ["new", "three"]),
    ],
)
def test_a_log_begins_where_it_was_asked_for(
    three_attempts: JobPaths, options: Any, expected: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """An older attempt is printed alone; the last lines are those of its console."""
    follow.console(three_attempts, follow=False, start=follow.start_of(three_attempts, **options))

    assert expected == capsys.readouterr().out.split()


def test_an_attempt_that_there_is_not_is_refused(three_attempts: JobPaths) -> None:
    """With how many there are."""
    with pytest.raises(ConfigError, match="has 3 attempts: there is no attempt 4"):
        follow.start_of(three_attempts, attempt=4)


@pytest.mark.parametrize("skip", [0, 2, 4, 7, 100])
def test_what_was_printed_before_a_connection_broke_is_not_printed_again(
    three_attempts: JobPaths, skip: int, capsys: pytest.CaptureFixture[str]
) -> None:
    """The next one begins at the same place, and leaves out so many bytes."""
    follow.console(three_attempts, follow=True, start=follow.Start(attempt=2), skip=skip)

    assert "old\nnew\nthree\n"[skip:] == capsys.readouterr().out


@pytest.mark.parametrize("end", ["", "\n"])
@pytest.mark.parametrize("count", [0, 1, 3, 40, 1000])
def test_the_last_lines_of_a_console_are_found_over_several_reads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, count: int, end: str
) -> None:
    """As `tail -n` finds them, whether the last one has ended or not."""
    monkeypatch.setattr(follow, "_PART", 7)
    paths = on_record(tmp_path, "a")
    paths.logs(1).mkdir(parents=True)
    text = "\n".join(f"line {n}" for n in range(50)) + end
    paths.console(1).write_text(text)
    write_status(paths, JobStatus(state=JobState.SUCCEEDED, attempt=1))
    position = follow.start_of(paths, last=count).position

    assert "".join(text.splitlines(keepends=True)[50 - min(count, 50) :]) == text[position:]


@pytest.fixture(scope="module")
def long_lines(tmp_path_factory: pytest.TempPathFactory) -> JobPaths:
    """A job of ten attempts of four ranks; in each rank 1 says a line of 10 MB, and rank 3 ends with an error."""
    paths = on_record(tmp_path_factory.mktemp("jobs"), "a", np=4)
    for attempt in range(1, 11):
        paths.logs(attempt).mkdir(parents=True)
        said = "[1,1]<stdout>:" + "x" * 10_000_000 + f"\n[1,0]<stdout>:step {attempt}\n"
        said += "[1,3]<stderr>:Traceback (most recent call last):\n[1,3]<stderr>:  File\n[1,3]<stderr>:OSError: gone\n"
        paths.console(attempt).write_text(said)
    write_status(paths, JobStatus(state=JobState.SUCCEEDED, attempt=10))
    return paths


@pytest.mark.parametrize(
    ("options", "first", "of_each"),
    [
        ({}, "rank 1: xxx", 5),
        ({"rank": 1}, "xxx", 1),
        ({"rank": 3}, "Traceback", 3),
        ({"choice": LineFilter(grep="^step|more$")}, "rank 1: xxx", 2),
        ({"choice": LineFilter(errors=True)}, "rank 3: Traceback", 3),
        ({"rank": 3, "choice": LineFilter(grep="OSError", errors=True)}, "OSError: gone", 1),
    ],
)
def test_lines_of_10_mb_over_ten_attempts_take_little_memory(
    long_lines: JobPaths, options: Any, first: str, of_each: int, capsys: pytest.CaptureFixture[str]
) -> None:
    """Whatever is chosen of them: a few megabytes at a time, and what is shown."""
    tracemalloc.start()
    try:
        follow.console(long_lines, follow=False, since_s=3600.0, **options)
        most = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    said = capsys.readouterr().out.splitlines()

    assert most < 8 << 20
    assert said[0].startswith(first)
    assert 10 * of_each == len(said)
    assert max(map(len, said)) < LONGEST + 100


def test_the_supervisor_writes_down_how_the_console_grows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Once it has grown, and not more often than is worth it."""
    paths = on_record(tmp_path, "a")
    paths.logs(1).mkdir(parents=True)
    clock = [1000.0]
    monkeypatch.setattr("cluster.jobs.supervisor.console_times.steady_now", lambda: clock[0])
    times = ConsoleTimes(paths)
    with pytest.raises(FileNotFoundError):
        times.note(1)
    for seconds, said in ((0, "a"), (5, "b"), (15, "c"), (30, "")):
        clock[0] = 1000.0 + seconds
        with paths.console(1).open("a") as console:
            console.write(said)
        times.note(1)

    assert "1000 1\n1015 3\n" == paths.console_times(1).read_text()
    assert [0, 1, 3] == [position_at(paths, 1, since) for since in (999.0, 1010.0, 2000.0)]


@pytest.mark.parametrize("text", ["10", "m", "1w", "-1m", "1.5h", "٣m"])
def test_what_is_no_time_is_refused(text: str) -> None:
    """With what one looks like."""
    with pytest.raises(ConfigError, match="expected a time as 90s, 10m, 2h or 1d"):
        duration_s(text, "--since")


def test_mpirun_s_own_verdicts_are_not_shown() -> None:
    """The job's comes after them; whatever else mpirun says stays, and what ranks print among its lines."""
    ruler = "-" * 74 + "\n"
    verdicts = [
        ruler, "Primary job  terminated normally, but 1 process returned\n", "[1,0]<stdout>:between\n", "aborted.\n", ruler,
        ruler, "mpirun noticed that process rank 2 with PID 1 on node b exited on signal 9 (Killed).\n", ruler,
    ]  # fmt: skip
    others = [
        ruler,
        "ORTE was unable to reliably start one or more daemons.\n",
        ruler,
        "dlami: attempt 1 ended\n",
        ruler,
    ]
    said = ["[1,0]<stdout>:" + ruler, *verdicts, *others]
    expected = ["[1,0]<stdout>:" + ruler, "[1,0]<stdout>:between\n", *others]
    assert expected == list(without_verdicts(said))


def test_who_follows_hears_that_the_console_was_cut_or_removed(tmp_path: Path) -> None:
    """And what is written after that, as far as it can be seen."""
    paths = on_record(tmp_path, "a")
    write_status(paths, JobStatus(state=JobState.RUNNING, supervisor=this_process()))
    console = paths.console(1)
    console.parent.mkdir(parents=True)
    console.write_text("one\ntwo\n")
    said = follow.lines(paths, follow=True)
    assert ["one\n", "two\n"] == [next(said), next(said)]
    console.write_text("new\n")
    assert "was cut or written anew" in next(said)
    assert "new\n" == next(said)
    console.unlink()
    assert "was removed" in next(said)
    console.write_text("x\n")
    write_status(paths, JobStatus(state=JobState.FAILED))
    assert "x\n" == list(said)[-1]
