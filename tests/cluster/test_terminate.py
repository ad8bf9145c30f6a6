"""The end of what a run started: on every host, whatever the processes do against it, and told as it was found."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from invoke import Context, Exit

from cluster import last_run
from cluster.errors import ConfigError
from cluster.hosts import Host
from cluster.inventory import ROOT, Cluster
from cluster.ssh import fanout, tagged_processes
from cluster.ssh.failure import Reason
from cluster.ssh.fanout import Executor
from cluster.ssh.limits import Limits
from cluster.ssh.progress import HostLines
from cluster.ssh.terminate import Termination, undisturbed
from dlami.tasks.command import command
from lab.record import Lab
from tests.conftest import PATIENCE_S, wait_for
from tests.processes import wait_until_it_is

HERE = Host(rank=0, address="localhost", slots=2)


@pytest.fixture
def here(tmp_path: Path) -> Any:
    """This machine as a cluster of one."""
    (tmp_path / "hosts").write_text("localhost slots=2\n")
    return Cluster(name="here", hosts=(HERE,), folder=tmp_path, shared=str(tmp_path), project=str(ROOT))


def tagged_process(value: Any, command: Any) -> Any:
    """A process with the tag, once it has begun."""
    process = subprocess.Popen(
        ["sh", "-c", command], env={**os.environ, "DLAMI_RUN": value}, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout
    assert "begun\n" == process.stdout.readline()
    return process


def test_a_process_that_ignores_every_signal_it_can_is_ended() -> None:
    """TERM first, and KILL for what is left of it; the script says nothing because nothing stays."""
    stubborn = tagged_process(f"e{os.getpid()}", 'trap "" TERM INT HUP; echo begun; while :; do sleep 0.1; done')
    done = subprocess.run(
        ["sh", "-c", tagged_processes.end_script("DLAMI_RUN", f"e{os.getpid()}", grace_s=1)],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
    )

    assert "" == done.stdout
    assert -signal.SIGKILL == stubborn.wait(timeout=PATIENCE_S)


def test_a_process_that_wants_to_clean_up_has_the_time_for_it() -> None:
    """It hears TERM before it is killed."""
    tidy = tagged_process(f"t{os.getpid()}", 'trap "exit 7" TERM; echo begun; while :; do sleep 0.1; done')
    subprocess.run(
        ["sh", "-c", tagged_processes.end_script("DLAMI_RUN", f"t{os.getpid()}", grace_s=30)], timeout=60, check=True
    )

    assert 7 == tidy.wait(timeout=PATIENCE_S)


def test_a_tag_is_the_whole_value_not_a_part_of_it() -> None:
    """Run 1 does not end run 12, nor 21."""
    value = f"x{os.getpid()}"
    others = [tagged_process(v, "echo begun; exec sleep 1000") for v in (f"{value}2", f"2{value}")]
    try:
        for process in others:
            wait_until_it_is("sleep", process.pid)
        subprocess.run(["sh", "-c", tagged_processes.end_script("DLAMI_RUN", value, grace_s=0)], timeout=60, check=True)

        assert [None, None] == [p.poll() for p in others]
    finally:
        for process in others:
            process.kill()
            process.wait()


@pytest.mark.seconds
def test_a_command_that_goes_on_talking_is_not_silent(here: Any) -> None:
    """The limit of silence is counted from its last word, not from its first."""
    with Executor(here) as reach:
        talks = reach.run([HERE], "for n in $(seq 22); do echo $n; sleep 0.5; done", limits=Limits(silence_s=10))[HERE]

    assert (0, None) == (talks.exit_code, talks.error)
    assert talks.seconds > 10


def test_a_signal_that_somebody_waits_for_is_only_late(capsys: pytest.CaptureFixture[str]) -> None:
    """A job's supervisor that is asked to stop meanwhile still stops; an operator's Ctrl-C has had its effect."""
    came = []
    old = {s: signal.getsignal(s) for s in (signal.SIGINT, signal.SIGTERM)}
    signal.signal(signal.SIGTERM, lambda *_: came.append("asked to stop"))
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with undisturbed():
            for number in (signal.SIGTERM, signal.SIGINT, signal.SIGTERM):
                signal.raise_signal(number)
            assert [] == came
    finally:
        for number, handler in old.items():
            signal.signal(number, handler)

    assert ["asked to stop"] == came
    assert 3 == capsys.readouterr().err.count("ending the processes on the hosts")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_shield_only_delays_the_end_that_somebody_asked_for(number: signal.Signals) -> None:
    """`kill PID` of a command that ends its processes on the hosts ends it afterwards, whether or not it has a handler."""
    held = f"""
import os, signal
from cluster.ssh.terminate import undisturbed
with undisturbed():
    signal.raise_signal(signal.SIGINT)
    os.kill(os.getpid(), {int(number)})
    print("all ended", flush=True)
print("goes on", flush=True)
"""
    done = subprocess.run([sys.executable, "-c", held], capture_output=True, text=True, timeout=PATIENCE_S)
    assert (-number, "all ended\n") == (done.returncode, done.stdout)


def test_what_was_not_seen_to_end_is_not_called_ended() -> None:
    """The count and the hosts with what stays there."""
    two = (HERE, Host(rank=1, address="b", slots=1))

    assert "its processes were ended on 1 of 2 hosts\n  not on b: 17 D sleep" == str(
        Termination(two, {two[1]: "17 D sleep"})
    )


def test_a_command_given_up_at_its_limit_says_what_of_it_stays(here: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a process in the kernel's state D does, which no signal ends."""
    stuck = "printf '17 D sleep 98'"
    monkeypatch.setattr(tagged_processes, "end_script", lambda *_args, **_kwargs: stuck)
    told = []
    with Executor(here) as reach:
        results = reach.run([HERE], "sleep 30", limits=Limits(total_s=0.3), on_result=told.append)

    assert Reason.TIME_LIMIT is results[HERE].failure.reason
    assert "did not end within 0.3 s; still there: 17 D sleep 98" == results[HERE].error
    assert [results[HERE]] == told, "told once, and with what stays"


def test_whoever_cannot_take_a_result_leaves_no_process_behind(here: Any, tmp_path: Path) -> None:
    """The pipe that output goes to was closed: what runs on the hosts is ended, the reason goes on to the caller."""

    def closed(*_: Any) -> None:
        raise BrokenPipeError

    with Executor(here) as reach, pytest.raises(BrokenPipeError):
        reach.run(
            [HERE],
            f"setsid sh -c 'echo $$ >{tmp_path}/pid; exec sleep 1000' & until [ -s {tmp_path}/pid ]; do sleep 0.05; done; "
            "echo x; sleep 1000",
            on_output=closed,
        )
    state = Path(f"/proc/{int((tmp_path / 'pid').read_text())}/stat")

    assert not state.exists() or " Z " in state.read_text(), "ended, if not yet taken by its new parent"


def test_a_very_long_line_is_put_together_once(capfdbinary: Any) -> Any:
    """At its end: until then its parts are kept as they came, and nothing is copied with each that comes."""
    lines, data = HostLines(), bytes([120]) * 65536
    before = sys.getrefcount(data)
    for _ in range(20):
        lines.took(HERE, "stdout", data)
    assert 20 == sys.getrefcount(data) - before
    lines.took(HERE, "stdout", b"end\nnext")
    lines.end()

    written = capfdbinary.readouterr().out
    assert b"localhost: " + b"x" * 65536 * 20 + b"end\nlocalhost: next\n" == written


def test_the_last_command_is_this_user_s_alone(here: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It may hold a password; a record from before, open to others, is closed."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    last_run.remember(here, "mysql -psecret", [])
    (kept,) = (tmp_path / "cache/dlami-cluster/last").iterdir()
    kept.chmod(0o644)
    last_run.remember(here, "mysql -psecret", [HERE])

    assert 0o600 == kept.stat().st_mode & 0o777
    assert 0 == kept.parent.stat().st_mode & 0o077
    assert ("mysql -psecret", ["localhost"]) == (last_run.last_command(here), last_run.last_failed(here))


def test_outputs_of_yesterday_are_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that were too long for memory; today's can still be looked at."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    folder = last_run.output_folder()
    folder.mkdir(parents=True)
    for name, age_s in (("output-old", 25 * 3600), ("output-new", 3600)):
        (folder / name).touch()
        os.utime(folder / name, (time.time() - age_s,) * 2)

    assert folder == last_run.output_folder()
    assert ["output-new"] == [p.name for p in folder.iterdir()]


@pytest.fixture
def started(lab: Lab, cluster: Cluster, reach: Executor) -> Iterator[Any]:
    """`inv run` of a command on all hosts, once it runs there, and how many of its processes there are now."""
    running = []

    def start(command: Any, *options: Any) -> Any:
        mark = f"m{os.getpid()}x{time.monotonic_ns()}"
        process = subprocess.Popen(
            [sys.executable, "-m", "invoke", "run", *options, "--", f": {mark}; {command}"],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "CLUSTER": f"lab:{lab.name}"},
        )
        running.append(process)

        def count() -> Any:
            found = reach.run(cluster.hosts, f"ps -eo args | grep -c '[{mark[0]}]{mark[1:]}' || true").check()
            return [int(r.text) for r in found.values()]

        wait_for(lambda: all(count()), 120, "it runs on every host")
        return process, count

    yield start
    for process in running:
        process.kill()
        process.communicate()


def test_a_second_ctrl_c_does_not_change_the_report(started: Any) -> None:
    """The processes ignore what they can, and the operator is impatient: what is said is what was found at the end."""
    process, count = started('trap "" TERM INT HUP; while :; do sleep 1; done')
    while process.poll() is None:
        process.send_signal(signal.SIGINT)
        time.sleep(0.05)
    said = process.stderr.read()

    assert [0, 0, 0, 0] == count()
    assert "interrupted; its processes were ended on 4 of 4 hosts" in said
    assert "ending the processes on the hosts" in said
    assert 130 == process.returncode


@pytest.fixture
def own_signals() -> Iterator[None]:
    """What a task does about signals ends with the test."""
    before = {s: signal.getsignal(s) for s in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize(
    ("first", "said"),
    [
        (fanout.Interrupted("interrupted; its processes were ended on 4 of 4 hosts"), "its processes were ended on 4"),
        (KeyboardInterrupt(), "^interrupted$"),
        (ConfigError("there is no such host"), "^interrupted$"),
    ],
)
def test_a_second_ctrl_c_while_the_report_is_on_its_way_does_not_take_its_place(
    own_signals: None, first: BaseException, said: str
) -> None:
    """It comes while connections are closed behind what the first one ended."""

    @command
    def interrupted(c: Context) -> None:
        try:
            raise first
        finally:
            raise KeyboardInterrupt

    with pytest.raises(Exit, match=said) as ended:
        interrupted.body(Context())
    assert 130 == ended.value.code


def test_a_run_that_was_killed_leaves_nothing_on_the_hosts(started: Any) -> None:
    """kill -9 gives it no time to end its commands: the shell beside it does."""
    process, count = started("sleep 1000")
    process.kill()

    wait_for(lambda: [0, 0, 0, 0] == count(), 90, "its commands are ended")


def test_a_reader_that_has_enough_ends_the_run(started: Any) -> None:
    """`inv run --live -- tail -f … | head -1`: no traceback here, no process there."""
    process, count = started("while :; do echo x; sleep 0.05; done", "--live")
    assert process.stdout.readline().endswith(": x\n")
    process.stdout.close()
    said = process.stderr.read()

    assert 141 == process.wait(timeout=PATIENCE_S)
    assert "" == said
    wait_for(lambda: [0, 0, 0, 0] == count(), 60, "its commands are ended")
