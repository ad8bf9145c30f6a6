"""`inv run`: how answers are shown, kept and asked for again."""

import json
import os
import pty
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cluster.hosts import Host
from cluster.inventory import ROOT, Cluster
from cluster.run import folding
from cluster.ssh import capture
from cluster.ssh.capture import MemoryBudget
from cluster.ssh.fanout import Executor
from cluster.ssh.result import FanOut, Result
from lab import nodes
from lab.record import Lab
from tests.conftest import PATIENCE_S, Inv

HOSTS = tuple(Host(rank=r, address=f"10.0.0.{r + 1}", slots=8) for r in range(4))


def answers(*texts: Any, code: int = 0) -> Any:
    return FanOut(
        "x",
        {h: Result(host=h, exit_code=code, stdout=t.encode(), seconds=0.1) for h, t in zip(HOSTS, texts, strict=False)},
    )


def test_mask_folds_what_differs_only_by_the_host_s_own_name() -> None:
    """The address 10.0.0.1 inside 10.0.0.12 is another host's."""
    results = FanOut(
        "x",
        {
            h: Result(
                host=h,
                exit_code=0,
                seconds=0.1,
                stdout=f"{h.address}:/ on ip-{h.rank} and 10.0.0.12 ip-{h.rank}0\n".encode(),
            )
            for h in HOSTS[:2]
        },
    )
    shown = folding.folded(folding.masked(results, {h: [f"ip-{h.rank}"] for h in HOSTS}))

    assert 2 == shown.count("(1)"), "ip-00 and ip-10 are not their own names"
    assert "<host>:/ on <host> and 10.0.0.12 ip-00" in shown


@pytest.mark.parametrize(
    ("usual", "other", "expected"),
    [
        (["a", "b", "c"], ["a", "c"], ["- b"]),
        (["a"], ["a", "b"], ["+ b"]),
        ([], ["x"], ["+ x"]),
        (["a", "b"], ["b", "a"], ["+ b", "- b"]),
        (["a"] * 2000, ["a"] * 1999 + ["b"], ["- a", "+ b"]),
        (
            [f"x{n}" for n in range(3000)],
            [f"y{n}" for n in range(3000)],
            [f"- x{n}" for n in range(3000)] + [f"+ y{n}" for n in range(3000)],
        ),
    ],
)
def test_changes(usual: Any, other: Any, expected: Any) -> None:
    """The lines to take away and to add."""
    assert sorted(expected) == sorted(folding.changes(usual, other))


def test_a_hundred_thousand_different_lines_fold_in_linear_time() -> Any:
    """Ten times the lines take about ten times as long, not a hundred times; also as a difference."""

    def seconds(lines: Any) -> Any:
        results = FanOut(
            "x",
            {
                Host(rank=r, address=f"n{r}", slots=1): Result(
                    host=Host(rank=r, address=f"n{r}", slots=1),
                    exit_code=0,
                    seconds=0.1,
                    stdout="".join(f"{r} line {n}\n" for n in range(lines)).encode(),
                )
                for r in range(50)
            },
        )
        began = time.process_time()
        text = folding.folded(results, diff=True)
        assert 50 * lines < text.count("\n") + 51
        return time.process_time() - began

    assert seconds(2000) < 40 * max(0.01, seconds(200))


def test_output_beyond_the_limit_goes_to_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cluster: Cluster
) -> None:
    """All of it is kept, the beginning is shown with where the rest is."""
    monkeypatch.setattr(capture, "STREAM_BYTES", 1 << 20)
    monkeypatch.setattr(MemoryBudget.__init__, "__defaults__", (1 << 20, 1 << 30))
    with Executor(cluster, spill=tmp_path / "kept") as reach:
        results = reach.run(cluster.hosts[:2], "head -c 5000000 /dev/zero; echo small >&2").check()
        result = results[cluster.master]

    assert capture.HEAD_BYTES == len(result.stdout)
    assert bytes(5_000_000) == result.more["stdout"].path.read_bytes()
    assert b"small\n" == result.stderr
    assert 1 == len(results.groups()), "equal outputs on disk are equal"
    assert "5,000,000 bytes of stdout in all, in " in folding.folded(results)


def test_the_status_line_is_for_terminals_only(inv: Inv, lab: Lab) -> None:
    """A terminal sees it and it is wiped at the end; a pipe never sees it."""
    master, slave = pty.openpty()
    done = subprocess.Popen(
        [sys.executable, "-m", "invoke", "run", "--", "sleep 1"],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=slave,
        env={**os.environ, "CLUSTER": f"lab:{lab.name}"},
    )
    os.close(slave)
    out, _ = done.communicate(timeout=PATIENCE_S)
    said = os.read(master, 65536).decode()
    os.close(master)

    assert "0 of 4 hosts done, 4 running" in said
    assert said.endswith("\r\x1b[K")
    assert b"hosts done" not in out
    assert "hosts done" not in inv("run", "--", "sleep 0.5").stderr


@pytest.mark.parametrize(
    ("first", "expected"),
    [
        ("#!/usr/bin/env python3\nimport sys; print(sys.argv[1:], repr(sys.stdin.read()))", "['a b', \"it's\"] ''"),
        ('echo "$1|$2|$(cat)"', "a b|it's|"),
    ],
)
def test_a_script_runs_by_its_own_interpreter_and_leaves_no_file(
    inv: Inv, reach: Executor, cluster: Cluster, tmp_path: Path, first: Any, expected: Any
) -> None:
    """Arguments as they are; its stdin is empty; nothing is left in /tmp."""
    script = tmp_path / "my script"
    script.write_text(first + "\n")
    before = {h: {*r.text.split("\n")} for h, r in reach.run(cluster.hosts, "ls -A /tmp").check().items()}
    done = inv("run", "--script", str(script), "--", "'a b'", '"it\'s"')

    assert f"(4)\n  {expected}\n" in done.stdout
    after = reach.run(cluster.hosts, "ls -A /tmp").check()
    assert [] == [name for h, r in after.items() for name in r.text.split("\n") if name not in before[h]]


@pytest.mark.parametrize("source", ["/dev/stdin", "a pipe"])
def test_a_script_that_can_be_read_once_only_is_run(lab: Lab, cluster: Cluster, tmp_path: Path, source: str) -> None:
    """All of it, on every host, as a file would be; and so is an input."""
    pipe = tmp_path / "a pipe"
    os.mkfifo(pipe)
    given = "/dev/stdin" if source == "/dev/stdin" else pipe
    for flag, words in (("--script", ()), ("--stdin", ("--", "sh"))):
        text = "echo hello\necho again\n"
        writer = subprocess.Popen(["sh", "-c", 'printf %s "$1" >"$2"', "sh", text, str(pipe)])
        try:
            done = subprocess.run(
                [sys.executable, "-m", "invoke", "run", flag, str(given), *words],
                cwd=ROOT,
                capture_output=True,
                text=True,
                input=text,
                timeout=PATIENCE_S,
                env={**os.environ, "CLUSTER": f"lab:{lab.name}", "XDG_CACHE_HOME": str(tmp_path)},
            )
        finally:
            writer.kill()
            writer.wait()
        assert (0, True) == (done.returncode, "(4)\n  hello\n  again\n" in done.stdout), done.stdout + done.stderr


def test_an_empty_script_is_refused(inv: Inv) -> None:
    """It was meant to have something in it."""
    done = inv("run", "--script", "/dev/null")
    assert (2, "--script /dev/null: it is empty\n") == (done.returncode, done.stderr)


@pytest.fixture(params=["exit 0", "exec sh", "exec cat"])
def taken_over(request: Any, reach: Executor, cluster: Cluster) -> Iterator[Host]:
    """A host whose shell never comes to the command that ssh gives it."""
    host = cluster.hosts[1]
    own = "[ -e /run/well ] || "  # so that it can be mended from here
    keep = "cp /root/.bashrc /root/.bashrc.kept 2>/dev/null; cat >/root/.bashrc"
    reach.run([host], keep, stdin=f"{own}{request.param}\n".encode()).check()
    try:
        yield host
    finally:
        here = request.getfixturevalue("lab")
        pid = nodes.running(here.name)[here.hosts[host.rank].name]
        mend = "rm /root/.bashrc; mv /root/.bashrc.kept /root/.bashrc 2>/dev/null; true"
        subprocess.run(["nsenter", "--all", "--target", str(pid), "sh", "-c", mend], check=True)


def test_a_command_that_never_began_is_no_success(taken_over: Host, inv: Inv, cluster: Cluster, tmp_path: Path) -> None:
    """In one sentence with what to look at, whichever way it was asked for; the other hosts' answers are there."""
    script = tmp_path / "script"
    script.write_text("echo hello\n")
    why = "the command did not begin: the login shell there ended before it"
    for words in (("run", "--", "echo hello"), ("run", "--script", script)):
        done = inv(*words)
        assert (1, True) == (done.returncode, "(3)\n  hello\n" in done.stdout), done.stdout + done.stderr
        assert why in done.stdout
        assert "~/.bashrc" in done.stdout
    told = [json.loads(line) for line in inv("run", "--json", "--", "true").stdout.splitlines()]
    (failed,) = [one for one in told if one["exit_code"] != 0]
    assert (taken_over.address, None, "not begun") == (failed["host"], failed["exit_code"], failed["reason"])
    (tmp_path / "data").write_text("x")
    for task in (("health", "--hosts", "1"), ("copy", tmp_path / "data", "/root/data"), ("kill", "--yes")):
        done = inv(*task)
        said = done.stdout + done.stderr
        assert done.returncode != 0, said
        assert why in said, said
        assert "Traceback" not in said
        assert "replaced" not in said


def test_answers_come_before_what_is_kept_of_them(lab: Lab, cluster: Cluster, tmp_path: Path) -> None:
    """A home that cannot be written: every host's answer is shown, and the exit code is the command's."""
    named = {"HOME": "/proc", "CLUSTER": f"lab:{lab.name}", "XDG_CACHE_HOME": ""}
    environment = {k: v for k, v in {**os.environ, **named}.items() if v}
    done = subprocess.run(
        [sys.executable, "-m", "invoke", "run", "--", "echo hello"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        env=environment,
    )
    assert (0, True) == (done.returncode, "(4)\n  hello\n" in done.stdout), done.stdout + done.stderr
    assert "Traceback" not in done.stderr


def test_a_command_arrives_as_it_was_typed(inv: Inv, cluster: Cluster) -> None:
    """Blanks, quotes, dollars, backslashes, a newline in the middle."""
    command = (
        """printf '%s|' 'a  b' "it's" '$HOME' 'two\nlines' '%s' '\\'; x='q"q'\necho "$x $(echo '*')"  # a remark"""
    )
    done = inv("run", "--hosts", "1", "--", command)

    assert f"{cluster.hosts[1].address} (1)\n  a  b|it's|$HOME|two\n  lines|%s|\\|q\"q *\n" == done.stdout


def test_environment_stdin_and_outdir(inv: Inv, cluster: Cluster, tmp_path: Path) -> None:
    """Hostile values arrive as they are; a file per host holds what it said."""
    (tmp_path / "in put").write_bytes(b"\xff\x00line\n")
    done = inv(
        "run",
        "--stdin",
        str(tmp_path / "in put"),
        "--env",
        "X=it's $HOME\nand more",
        "--outdir",
        str(tmp_path / "out"),
        "--",
        "cat; printf '%s' \"$X\"; echo oops >&2",
    )

    assert 0 == done.returncode
    for host in cluster.hosts:
        assert b"\xff\x00line\nit's $HOME\nand more" == (tmp_path / "out" / host.address).read_bytes()
        assert b"oops\n" == (tmp_path / "out" / f"{host.address}.stderr").read_bytes()


def test_failed_runs_the_same_command_again_where_it_failed(inv: Inv, cluster: Cluster) -> None:
    """Without a command it is the last one."""
    inv("run", "--", f"[ $(hostname) != {cluster.name}-2 ] || {{ echo no; exit 3; }}")
    again = inv("run", "--failed")

    assert f"{cluster.hosts[2].address} (1) exited 3\n  no\n" == again.stdout
    assert "1 of 1 host failed" in again.stderr


def test_live_prints_lines_as_they_come(inv: Inv, cluster: Cluster) -> None:
    """Whole lines, each after its host."""
    done = inv("run", "--live", "--hosts", "1-2", "--", "printf 'one\\ntw'; sleep 0.3; echo o; printf end")

    assert sorted(f"{h.address}: {line}" for h in cluster.hosts[1:3] for line in ("one", "two", "end")) == sorted(
        done.stdout.splitlines()
    )


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("run",), "no command"),
        (("run", "--script", "/nowhere"), "--script /nowhere: No such file"),
        (("run", "--stdin", "/nowhere", "--", "cat"), "--stdin /nowhere: No such file"),
        (("run", "--failed", "--hosts", "1", "--", "true"), "exclude each other"),
        (("run", "--env", "NOVALUE", "--", "true"), "'NOVALUE' is not NAME=VALUE"),
    ],
)
def test_bad_input_is_refused_before_any_host_is_reached(inv: Inv, words: Any, expected: Any) -> None:
    """A sentence, exit code 2."""
    done = inv(*words)

    assert expected in done.stderr
    assert 2 == done.returncode
    assert "" == done.stdout
