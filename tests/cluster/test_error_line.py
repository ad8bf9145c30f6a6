"""The line of a program's output that tells why it failed, beside what real programs print around it."""

import re
import subprocess

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cluster.hosts import Host
from cluster.inventory import ROOT, SshSettings
from cluster.ssh.failure import failure_to_connect
from cluster.ssh.onhost.telling_line import telling_line
from cluster.ssh.result import Result

SAID = {
    "nvidia-smi": (
        "Failed to initialize NVML: Driver/library version mismatch\nNVML library version: 535.183\n",
        "Failed to initialize NVML: Driver/library version mismatch",
    ),
    "ssh on a Mac's settings": (
        "/root/.ssh/config: line 1: Bad configuration option: usekeychain\n"
        "/root/.ssh/config: terminating, 1 bad configuration options\n",
        "/root/.ssh/config: line 1: Bad configuration option: usekeychain",
    ),
    "a syntax error of Python": (
        '  File "<string>", line 1\n    import\n    ^~~~~~\nSyntaxError: invalid syntax\n',
        "SyntaxError: invalid syntax",
    ),
    "carets below a traceback's line": (
        'Traceback (most recent call last):\n  File "a.py", line 1, in f\n    open(x)\n    ^^^~~~^\n'
        "FileNotFoundError: [Errno 2] No such file or directory: 'x'\n",
        "FileNotFoundError: [Errno 2] No such file or directory: 'x'",
    ),
    "a traceback with a second line in its message": (
        'Traceback (most recent call last):\n  File "a.py", line 1\nvalue.Oops: first\nsecond\n',
        "value.Oops: first",
    ),
    "two tracebacks": (
        "Traceback (most recent call last):\n  x\nKeyError: 'a'\n\nDuring handling of the above exception, another exception "
        "occurred:\n\nTraceback (most recent call last):\n  y\ncluster.errors.ClusterError: no 'a'\n",
        "cluster.errors.ClusterError: no 'a'",
    ),
    "apt-get": (
        "Reading package lists...\nBuilding dependency tree...\nE: Unable to locate package foo\n",
        "E: Unable to locate package foo",
    ),
    "pip": (
        "WARNING: Retrying after connection broken\nERROR: Could not find a version that satisfies the requirement foo\n"
        "ERROR: No matching distribution found for foo\n\n[notice] A new release of pip is available\n",
        "ERROR: Could not find a version that satisfies the requirement foo",
    ),
    "rsync": (
        'rsync: [Receiver] mkdir "/x" failed: Read-only file system (30)\n'
        "rsync error: error in file IO (code 11) at main.c(791) [Receiver=3.2.7]\n",
        'rsync: [Receiver] mkdir "/x" failed: Read-only file system (30)',
    ),
    "git": (
        "fatal: could not read Username for 'https://x': terminal prompts disabled\n",
        "fatal: could not read Username for 'https://x': terminal prompts disabled",
    ),
    "a program's usage after its mistake": (
        "tool: unrecognized option '--x'\nTry 'tool --help' for more information.\n",
        "tool: unrecognized option '--x'",
    ),
    "a warning before, a farewell after": (
        "Warning: Permanently added '10.0.0.1' to the list of known hosts.\nbash: nope: command not found\n"
        "Connection to 10.0.0.1 closed.\n",
        "bash: nope: command not found",
    ),
    "a crash": ("Segmentation fault (core dumped)\n*** End of error message ***\n", "Segmentation fault (core dumped)"),
    "no word of a failure": ("one\ntwo\nthree\n", "one ... three"),
    "only a caret": ("   ^~~~^\n", "^~~~^"),
    "only a warning": ("warning: old\n", "warning: old"),
    "nothing": ("\n \n", ""),
}


@pytest.mark.parametrize("name", SAID)
def test_the_line_that_tells_is_chosen(name: str) -> None:
    """Not the last one, which mostly counts, points or says good-bye."""
    said, line = SAID[name]

    assert line == telling_line(said)


@given(st.text())
def test_any_output_gives_a_line_of_it(said: str) -> None:
    """One line, and none only where there is none."""
    line = telling_line(said)

    assert bool(line) == bool(said.strip())
    assert len(line.splitlines()) <= 1


def test_where_errors_are_shown_it_is_that_line() -> None:
    """Of a command on a host, and of ssh's own complaint."""
    said, line = SAID["nvidia-smi"]
    host = Host(rank=0, address="a", slots=1)
    assert f"exited 18   | {line}" == Result(host=host, exit_code=18, stderr=said.encode(), seconds=0.1).problem
    said, line = SAID["ssh on a Mac's settings"]
    assert f"no ssh session: {line}" == str(failure_to_connect(said, SshSettings(), 1.0))


def test_no_error_is_shown_by_its_last_line() -> None:
    """The one helper chooses: nobody takes the last line of stderr."""
    sources = subprocess.run(["git", "ls-files", "*.py"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    taken = re.compile(r"stderr[^\n]*splitlines\(\)[^\n]*\[-1\]|stderr[^\n]*splitlines\(\)\)\[-1\]")
    found = [
        path
        for path in sources.split()
        if not path.startswith(("tests/", "benchmarks/")) and taken.search((ROOT / path).read_text())
    ]

    assert [] == found
