"""The proof that a command began: a mark of our own, which no answer contains and without which no exit code counts."""

import subprocess

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cluster.ssh.limits import with_environment
from cluster.ssh.start_mark import StartMark

MARK = b"\x1edlami-begun\n"


def fed(*parts: bytes) -> tuple[bytes, bool]:
    mark = StartMark()
    return b"".join([*map(mark.feed, parts), mark.rest()]), mark.is_seen


@given(before=st.binary(), after=st.binary(), size=st.integers(1, 40))
def test_the_mark_is_taken_out_and_nothing_else(before: bytes, after: bytes, size: int) -> None:
    """However the bytes are cut on their way."""
    whole = before.replace(MARK, b"") + MARK + after
    parts = [whole[i : i + size] for i in range(0, len(whole), size)]
    expected = whole.partition(MARK)

    assert (expected[0] + expected[2], True) == fed(*parts)


@pytest.mark.parametrize("said", [b"", b"\x1e", MARK[:-1], b"motd\n\x1edlami", MARK[1:]])
def test_without_the_mark_all_of_it_is_the_shell_s(said: bytes) -> None:
    """Also what only looked like its beginning."""
    assert (said, False) == fed(*(bytes([b]) for b in said))


@pytest.mark.parametrize("shell", ["bash", "dash", "zsh", "fish", "tcsh", "ksh"])
@pytest.mark.parametrize(
    ("command", "code", "out"),
    [("echo a", 0, b"a\n"), ("exit 3", 3, b""), ("if", 2, b""), ("cat", 0, b"in"), ("echo $A'$B'", 0, b"x$B\n")],
)
def test_any_login_shell_starts_the_command(shell: str, command: str, code: int, out: bytes) -> None:
    """It parses words in quotes only; a mistake in the command itself is the command's own."""
    text = with_environment(command, {"A": "x"})
    try:
        done = subprocess.run([shell, "-c", text], input=b"in", capture_output=True)
    except FileNotFoundError:
        pytest.skip(f"no {shell} here")

    assert (code, MARK + out) == (done.returncode, done.stdout)


@pytest.mark.parametrize("start_up", ["exit 0", "exec sh", "exec cat", "return 0; exit 0", "exec true"])
def test_a_start_up_file_that_takes_the_shell_s_place_leaves_no_mark(start_up: str) -> None:
    """Though it ends with 0."""
    text = with_environment("echo a", {"A": "x"})
    done = subprocess.run(["sh", "-c", f"{start_up}\n{text}"], stdin=subprocess.DEVNULL, capture_output=True)

    assert (start_up.startswith("return"), 0) == (MARK in done.stdout, done.returncode) or MARK not in done.stdout
