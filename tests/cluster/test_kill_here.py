"""What `inv kill` says of processes whose job is another's by then, on this machine, without a lab."""

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cluster.inventory import Cluster
from cluster.kill.kill import KnownJobs, Leftovers, describe, describe_end, end_leftovers, find_leftovers
from cluster.kill.onhost.leftovers import processes
from cluster.ssh.fanout import Executor
from tests.conftest import wait_for
from tests.processes import wait_until_it_is

NOTHING_KNOWN = KnownJobs(going=(), over=())
JOB = f"dead-{os.getpid()}"


@pytest.fixture
def reach_here(here: Cluster) -> Iterator[Executor]:
    with Executor(here) as opened:
        yield opened


@pytest.fixture
def record(tmp_path: Path) -> Path:
    """The record of a job that has failed."""
    file = tmp_path / "jobs" / JOB / "state.json"
    file.parent.mkdir(parents=True)
    file.write_text('{"state": "failed"}')
    return file


def rank_of(record: Path, script: str = "echo; exec sleep 4000", program: str = "sleep") -> "subprocess.Popen[bytes]":
    """A process of this record's job that has said a line and is this program now."""
    tags = {"DLAMI_JOB": record.parent.name, "DLAMI_JOB_FOLDER": str(record.parent)}
    environment = {k: v for k, v in os.environ.items() if k != "DLAMI_RUN"} | tags
    rank = subprocess.Popen(["sh", "-c", script], env=environment, start_new_session=True, stdout=subprocess.PIPE)
    assert rank.stdout
    assert rank.stdout.readline()
    wait_until_it_is(program, rank.pid)
    return rank


def found_of_job(reach: Executor, cluster: Cluster) -> Leftovers:
    """What is shown of the job alone: other processes of this machine are none of this test's."""
    found = find_leftovers(reach, cluster, cluster.hosts, NOTHING_KNOWN)
    mine = {h: tuple(p for p in ps if p.job == JOB) for h, ps in found.processes.items()}
    return Leftovers(processes=mine, segments=dict.fromkeys(mine, ()), unanswered={})


@pytest.mark.parametrize(
    ("known", "word", "why"),
    [
        (NOTHING_KNOWN, '{"state": "running"}', "not ended, its job runs by now"),
        (KnownJobs(going=(JOB,), over=()), "", "not ended, its job runs by now"),
        (NOTHING_KNOWN, "", "not ended, its job is not known by now"),
    ],
)
def test_a_shown_process_that_may_not_be_ended_any_more_is_no_zero(
    here: Cluster, reach_here: Executor, record: Path, known: Any, word: str, why: str
) -> None:
    """Its job was resumed while the question waited, or its record cannot be read now: left alone, and told."""
    rank = rank_of(record)
    try:
        shown = found_of_job(reach_here, here)
        assert ["end"] == [p.fate for p in shown.processes[here.master]]
        record.write_text(word)
        ended = end_leftovers(reach_here, here, shown, known, grace_s=1)

        assert rank.poll() is None
        told = describe_end(shown, ended)
        assert f"{here.master.address}  {why}: " in told
        assert "zero" not in told
        assert 1 == ended.num_left
        assert [rank.pid] == [p["pid"] for p in json.loads(json.dumps(ended.record(shown)))[0]["left"]]
    finally:
        rank.kill()
        rank.wait()


def test_whatever_a_process_was_started_with_is_shown_on_one_line(
    here: Cluster, reach_here: Executor, record: Path
) -> None:
    """Line breaks, tabs and what would clear the screen or turn the writing around are blanks; letters stay."""
    rank = rank_of(record, "echo\n\twhile :; do\n sleep 0.1\ndone # \x1b[2J\u202e\x85 é\n", "sh")
    try:
        found = find_leftovers(reach_here, here, here.hosts, NOTHING_KNOWN)
        (line,) = (line for line in describe(found).splitlines() if f" {rank.pid} " in line)
    finally:
        rank.kill()
        rank.wait()

    assert line.endswith("   sh -c echo while :; do sleep 0.1 done # [2J é")


def test_a_zombie_s_name_is_shown_on_one_line(tmp_path: Path) -> None:
    """It has no command any more; its name is its program's, which may have any letters but a slash."""
    program = tmp_path / "a\n\x1bb"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    with subprocess.Popen([program]) as process:
        wait_for(lambda: "Z" == processes()[process.pid].state, 30, "it has ended")
        command = processes()[process.pid].command

    assert "[a b]" == command


def test_a_lost_job_s_ranks_are_left_alone_while_its_supervisor_may_live(
    here: Cluster, reach_here: Executor, record: Path
) -> None:
    """On another machine, which cannot reach the folder perhaps; whatever is asked for."""
    rank = rank_of(record)
    try:
        lost = KnownJobs(going=(), over=(), lost=(JOB,))
        found = find_leftovers(reach_here, here, here.hosts, lost, all_mine=True)
        mine = [p for p in found.processes[here.master] if p.job == JOB]
        assert [("its job is lost", True)] == [(p.fate, p.holds_host) for p in mine]
        assert "'inv jobs.stop' ends it" in describe(found)
    finally:
        rank.kill()
        rank.wait()


def test_a_child_without_its_tag_that_ignores_term_is_killed_when_its_parent_is_gone(
    here: Cluster, reach_here: Executor, record: Path
) -> None:
    """Its job was known by its parent alone."""
    child = """env -i sh -c 'trap "" TERM; echo; while :; do sleep 0.1; done'"""
    rank = rank_of(record, f"{child} & wait", "sh")
    try:
        shown = found_of_job(reach_here, here)
        assert {"end"} == {p.fate for p in shown.processes[here.master]}
        pids = {p.pid for p in shown.processes[here.master] if p.command.startswith("sh -c trap")}
        ended = end_leftovers(reach_here, here, shown, NOTHING_KNOWN, grace_s=1)

        rank.wait()
        assert 1 == len(pids)
        assert 0 == ended.num_left
        wait_for(lambda: not any(Path(f"/proc/{pid}/cmdline").exists() for pid in pids), 60, "it is gone")
    finally:
        subprocess.run(["pkill", "-KILL", "-s", str(rank.pid)], check=False)
        rank.wait()
