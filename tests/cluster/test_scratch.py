"""What commands need on their machine's disk goes with their process, however that ends."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from cluster.inventory import ROOT
from tests.processes import begun

PROGRAM = """
import os, sys
from cluster import scratch
if "tidied" in sys.argv:
    scratch.folder().rmdir()
folder = scratch.folder()
(folder / "sent").write_bytes(b"x")
assert scratch.folder() == folder
print(folder, flush=True)
if sys.stdin.readline() == "fork\\n":
    child = os.fork()
    if not child:
        print(scratch.folder(), flush=True)
        sys.exit()  # with all that a process does at its end
    os.waitpid(child, 0)
    assert (folder / "sent").exists(), "gone with a child"
    print("whole", flush=True)
"""


@contextmanager
def holder(disk: Path, *said: str) -> Iterator[tuple["subprocess.Popen[str]", Path]]:
    """A process that has its folder on this disk, and the folder."""
    words = [sys.executable, "-c", PROGRAM, *said]
    environment = {**os.environ, "TMPDIR": str(disk)}
    with begun(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT, env=environment) as one:
        assert one.stdout
        yield one, Path(one.stdout.readline().strip())


def test_of_a_killed_process_the_next_removes_it_and_nothing_of_one_that_lives(tmp_path: Path) -> None:
    """Another user's folder of that name is nobody's here, nor is what a link leads to."""
    with holder(tmp_path) as (_, left):  # and is killed
        assert 0o700 == left.stat().st_mode & 0o777
    assert (left / "sent").exists()
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "kept").touch()
    link = tmp_path / f"dlami-scratch-{os.getuid()}-link"
    link.symlink_to(elsewhere)
    theirs = tmp_path / f"dlami-scratch-{os.getuid()}-theirs"
    theirs.mkdir()
    if os.getuid() == 0:
        os.chown(theirs, 65534, 65534)

    with holder(tmp_path) as (_, living), holder(tmp_path) as (_, other):
        assert not left.exists()
        assert living != other
        assert (living / "sent").exists()
    assert (elsewhere / "kept").exists()
    assert theirs.exists() == (os.getuid() == 0)


def test_it_goes_at_the_end_and_a_forked_child_s_is_its_own(tmp_path: Path) -> None:
    with holder(tmp_path) as (one, own):
        child_s, whole = one.communicate("fork\n")[0].split()
        assert 0 == one.returncode
        assert own != Path(child_s)
        assert "whole" == whole
        assert [] == list(tmp_path.iterdir())


def test_where_it_was_tidied_away_there_is_another_one(tmp_path: Path) -> None:
    """As a machine does with what lies in its temporary folder for weeks, where a supervisor may be as old."""
    with holder(tmp_path, "tidied") as (one, own):
        assert (own / "sent").exists()
        one.communicate("\n")
        assert 0 == one.returncode
        assert [] == list(tmp_path.iterdir())
