"""The probe by itself, here: limits, chains, and what a child that does not end costs."""

import contextlib
import json
import os
import pwd
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cluster.health import xid
from cluster.health.check import About, Answer, finding_on
from cluster.health.checks import GPU
from cluster.health.onhost.owner import Owners
from cluster.health.onhost.readings import jobs
from cluster.health.questions import Question, read_answers, records
from cluster.health.quick_check import about_host
from cluster.hosts import Host
from cluster.inventory import ROOT, Cluster
from cluster.ssh.onhost.frame import Frames
from cluster.ssh.program import program
from tests.conftest import PATIENCE_S, wait_for


def asked(*chains: list[Question]) -> dict:
    """The answers of the program as it is sent, run here."""
    sent = program("cluster.health.onhost.probe")
    command = ["/bin/sh", "-c", sent.command(records(chains))]
    done = subprocess.run(command, input=sent.stdin, capture_output=True, timeout=PATIENCE_S, check=True)
    return read_answers(Frames().feed(done.stdout)[0])


def test_a_question_over_its_limit_hides_no_other() -> None:
    """The rest of its chain is not asked; other chains are."""
    began = time.monotonic()
    said = asked(
        [
            Question(name="slow", limit_s=0.5, command="echo begun; sleep 1000"),
            Question(name="after", limit_s=1, command="true"),
        ],
        [Question(name="quick", limit_s=5, command="echo here; echo there >&2; exit 3")],
    )

    assert ("timeout", "begun\n") == (said["slow"].status, said["slow"].out)
    assert "skipped" == said["after"].status
    assert ("failed", 3, "here\n", "there\n") == (
        said["quick"].status,
        said["quick"].code,
        said["quick"].out,
        said["quick"].err,
    )
    assert time.monotonic() - began < 40, "it waited for what it gave up"


@pytest.mark.parametrize("command", ["python3 {}", "sh -c 'sh -c \"python3 {}; true\"; true'; true"])
def test_time_on_a_processor_is_no_hang(tmp_path: Path, command: Any) -> None:
    """Nor is waiting for one: a limit is for what waits for something else, however deep in a command."""
    (tmp_path / "work.py").write_text("import time\nwhile time.process_time() < 0.6: pass\nprint('done')\n")
    command = command.format(tmp_path / "work.py")
    said = asked(
        [Question(name="busy", limit_s=0.3, command=command), Question(name="after", limit_s=5, command="true")]
    )

    assert ("ok", "done\n", "ok") == (said["busy"].status, said["busy"].out, said["after"].status)


def test_an_answer_that_is_too_long_is_damaged_and_not_cut() -> None:
    """What was kept of it cannot pass for the whole."""
    from cluster.health.onhost.probe import MOST_BYTES

    said = asked([Question(name="long", limit_s=20, command=f"head -c {MOST_BYTES + 1} /dev/zero | tr '\\0' x")])

    assert ("damaged", "") == (said["long"].status, said["long"].out)


@pytest.mark.parametrize("home", ["/nonexistent", "/tmp"])
def test_a_user_who_may_not_write_the_root_folder_is_not_a_fault_of_the_host(home: Any) -> None:
    """The login user of a DLAMI is not root: what it may not write there says nothing of the disk."""
    sent = program("cluster.health.onhost.probe")
    question = [[Question(name="place:/", limit_s=5, reading="place", arguments=("/",))]]
    done = subprocess.run(
        ["/bin/sh", "-c", sent.command(records(question))],
        input=sent.stdin,
        capture_output=True,
        timeout=PATIENCE_S,
        check=True,
        cwd="/",
        env={**os.environ, "HOME": home},
        user=65534 if os.geteuid() == 0 else None,
    )
    said = json.loads(read_answers(Frames().feed(done.stdout)[0])["place:/"].out)

    assert (True, "") == (said["exists"], said["error"])
    assert said["blocks"] > 0


def test_parts_of_a_question_are_answered_by_their_own_names() -> None:
    """In one child: one that fails spoils no other; a child that does not end has answered none."""
    parts = (
        Question(name="load", limit_s=5, reading="files", arguments=(["/proc/loadavg"],)),
        Question(name="wrong", limit_s=5, reading="files", arguments=(1,)),
        Question(name="late", limit_s=5, reading="processes", arguments=(0.1,)),
    )
    said = asked([Question(name="several", limit_s=20, parts=parts)])

    assert ["late", "load", "wrong"] == sorted(said)
    assert ("ok", "failed", "ok") == tuple(said[name].status for name in ("load", "wrong", "late"))
    assert "/proc/loadavg" in json.loads(said["load"].out)
    assert "TypeError" in said["wrong"].err
    slow = (*parts, Question(name="slow", limit_s=1, reading="processes", arguments=(1000.0,)))
    assert {"timeout"} == {a.status for a in asked([Question(name="several", limit_s=0.5, parts=slow)]).values()}


def test_what_a_question_started_is_ended_with_it() -> None:
    """Also its grandchildren."""
    marker = f"sleep 98765.{time.time_ns() % 10**6}"
    asked([Question(name="slow", limit_s=0.5, command=f"{marker} & {marker}")])

    def is_left() -> bool:
        return subprocess.run(["pgrep", "-f", f"^{marker}$"], capture_output=True, timeout=PATIENCE_S).returncode == 0

    wait_for(lambda: not is_left(), 60, "the kernel has ended what was killed")


def test_tools_answer_in_the_language_that_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever that of the user is."""
    monkeypatch.setenv("LC_ALL", "de_DE.UTF-8")
    said = asked([Question(name="language", limit_s=60, command="echo $LC_ALL")])

    assert "C\n" == said["language"].out


def test_a_missing_tool_and_a_forbidden_question_are_not_asked() -> None:
    """Missing and skipped are not failures."""
    said = asked(
        [
            Question(name="log", limit_s=5, command="echo 'Xid (PCI:0000:53:00): 119, pid=1'"),
            Question(name="tool", limit_s=5, command="no-such-tool", tool="no-such-tool"),
            Question(name="forbidden", limit_s=5, command="echo asked", unless=("log", *xid.HANGS[:2])),
        ]
    )

    assert ("missing", "skipped", "") == (said["tool"].status, said["forbidden"].status, said["forbidden"].out)


def test_a_dead_system_processor_keeps_the_driver_from_being_asked() -> None:
    """Xid 119 in the kernel log: nvidia-smi would hang, so its checks are unknown and one problem says why."""
    from cluster.health.checks import driver_missing

    about = About(host=Host(rank=0, address="10.0.0.1", slots=8), gpus_on_bus=8)
    said = asked(
        [
            Question(name="kernel-log", limit_s=5, command="echo 'NVRM: Xid (PCI:0000:53:00): 119, pid=1'"),
            Question(name="smi", limit_s=5, command="echo asked", unless=("kernel-log", *xid.HANGS[:2])),
        ]
    )

    assert {"unknown"} == {finding_on(c, said, about).verdict.value for c in GPU if c.question == "smi"}
    assert ["nvidia-smi was not asked: the kernel log says that it would hang"] == [
        p.what for p in driver_missing(said, about)
    ]


def test_a_sense_that_fails_says_why() -> None:
    """In one line, with the others' answers untouched."""
    said = asked(
        [Question(name="place", limit_s=5, reading="place", arguments=("a", "b", "c"))],
        [Question(name="files", limit_s=5, reading="files", arguments=(["/proc/loadavg"],))],
    )

    assert "failed" == said["place"].status
    assert "TypeError" in said["place"].err
    assert "/proc/loadavg" in json.loads(said["files"].out)


def test_the_gpu_program_runs_where_there_is_none() -> None:
    """On the processor, small: the rates that it prints are what the judge reads."""
    from cluster.health.check import Answer
    from cluster.health.deep import gpu_speed_problems, rates_of

    words = ["--device", "CPU", "--megabytes", "8", "--side", "64"]
    done = subprocess.run(
        [sys.executable, "-m", "cluster.health.ranks.gpu_speed", *words],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=True,
    )

    assert [] == gpu_speed_problems(done.stdout, About(host=Host(rank=0, address="10.0.0.1", slots=1)))
    rates = rates_of({"gpu-speed": Answer(status="ok", out=done.stdout)})
    assert {"GPU 0 from host", "GPU 0 product"} == set(rates)
    assert all(rate > 1e6 for rate in rates.values())


@contextlib.contextmanager
def sleeper(**how: Any) -> Iterator[int]:
    """The number of a process that is there until the end."""
    process = subprocess.Popen(["sleep", "1000"], **how)
    try:
        yield process.pid
    finally:
        process.kill()
        process.wait()


@pytest.mark.parametrize(
    ("state", "record"), [("running", "going"), ("lost", "going"), ("succeeded", "over"), (None, "unknown")]
)
def test_a_process_is_told_with_what_its_jobs_own_record_says(tmp_path: Path, state: Any, record: str) -> None:
    """Of whatever cluster and shared folder the job is."""
    folder = tmp_path / "jobs" / "j1"
    folder.mkdir(parents=True)
    if state:
        (folder / "state.json").write_text(json.dumps({"state": state, "attempt": 1}))
    tags = {"DLAMI_JOB": "j1", "DLAMI_JOB_FOLDER": str(folder)}
    with sleeper(env={**os.environ, **tags}) as pid:
        wait_for(lambda: Owners().of(pid)["job"], 60, "its environment is there, which is a moment after its start")
        who = Owners().of(pid)

    assert ("sleep 1000", "j1", record, False) == (who["command"], who["job"], who["record"], who["is_other"])
    assert pwd.getpwuid(os.geteuid()).pw_name == who["user"]


def test_whatever_a_process_was_started_with_is_told_on_one_line() -> None:
    """A program of several lines would break those of a report."""
    script = "\nimport sys\nprint(flush=True)\nsys.stdin.read()  # \x1b[2J\tend\n" + "#" * 5000
    words = [sys.executable, "-c", script]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout
        assert process.stdout.readline(), "it is there"
        command = Owners().of(process.pid)["command"]
        process.communicate()

    assert 200 == len(command)
    assert (
        f"{sys.executable} -c import sys print(flush=True) sys.stdin.read() # [2J end ###"
        == command.rstrip("#") + "###"
    )


def test_another_users_process_has_his_name() -> None:
    """His environment is not ours to read, so that no job of it is no sign."""
    him = next(u for u in pwd.getpwall() if u.pw_uid not in (0, os.geteuid()))
    with sleeper(user=him.pw_uid) if os.geteuid() == 0 else contextlib.nullcontext(1) as pid:
        who, owner = Owners().of(pid), Path(f"/proc/{pid}").owner()

    assert (owner, True) == (who["user"], who["is_other"])


def test_a_process_that_is_not_there_has_no_user() -> None:
    """In a pod nvidia-smi says the node's numbers, which nobody may take for this one's."""
    assert (None, "") == (Owners().of(2**22 + 1)["user"], Owners().of(2**22 + 1)["command"])


def test_the_masters_records_say_which_jobs_run_and_which_have_ended(tmp_path: Path) -> None:
    """Where the folder is on the master alone, no other host has a job's own record."""
    for job, state in (("a", "running"), ("b", "failed")):
        (tmp_path / "jobs" / job).mkdir(parents=True)
        (tmp_path / "jobs" / job / "state.json").write_text(json.dumps({"state": state}))
        (tmp_path / "jobs" / job / "public.json").write_text(json.dumps({"id": job, "hosts": [{"address": "h"}]}))
    host = Host(rank=0, address="10.0.0.1", slots=8)
    cluster = Cluster(name="x", hosts=(host,), folder=ROOT, shared=str(tmp_path), project="/opt/x")
    said = jobs(str(tmp_path), ["failed"])
    about = about_host(cluster, host, {}, {"jobs": Answer(status="ok", out=json.dumps(said))}, ())

    assert (frozenset("a"), frozenset("b")) == (about.jobs, about.over)
    assert [("a", ["h"]), ("b", [])] == [(j["id"], j["hosts"]) for j in said]
