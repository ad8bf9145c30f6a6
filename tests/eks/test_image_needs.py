"""What a build of the image needs of this machine and its user, said in one line before anything begins."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from cluster.errors import ConfigError
from cluster.inventory import ROOT
from eks import image_needs
from tests.conftest import PATIENCE_S
from tests.other_users import NOBODY, home_of, words_as

ALONE = "0 1000 1\n\n0 1000 1"
GROUPS_LACK = "0 1000 1\n1 100000 65536\n\n0 1000 1"


@pytest.fixture
def somebody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Who is not root on a machine with all tools; what `buildah unshare` says there is in `says`, its exit in `rc`."""
    for name in ("buildah", "git", "mmdebstrap", "newuidmap"):
        (tmp_path / name).write_text(f"#!/bin/sh\n. {tmp_path}/answer\n")
        (tmp_path / name).chmod(0o755)
    for table, end in (("subuid", 200_000), ("subgid", 300_000)):
        (tmp_path / table).write_text(f"other:100000:65536\nthird:{end}:65536\n")
    monkeypatch.setattr(image_needs, "_TABLES", (tmp_path / "subuid", tmp_path / "subgid"))
    monkeypatch.setattr(image_needs, "_SYSTEM", tmp_path)
    monkeypatch.setattr(image_needs, "ROOM", 0)
    monkeypatch.setattr(image_needs, "_user", lambda: "anna")
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.defpath}")
    return tmp_path


def answers(machine: Path, text: str, code: int = 0) -> None:
    """What a namespace of this user's own shows, or why there is none."""
    (machine / "answer").write_text(f"cat {'>&2' if code else ''} <<'EOF'\n{text}\nEOF\nexit {code}\n")


@pytest.mark.parametrize("maps", [ALONE, GROUPS_LACK])
def test_who_lacks_numbers_is_told_the_line_that_gives_them(somebody: Path, maps: str) -> None:
    """Which nobody else has, in either table: buildah itself only warns, and fails when a file has another owner."""
    answers(somebody, maps)
    with pytest.raises(ConfigError, match=r"^anna has too few numbers .* echo anna:365536:65536 \| sudo tee -a "):
        image_needs.check("", "")


@pytest.mark.parametrize(
    ("switch", "closed", "said"),
    [
        ("user/max_user_namespaces", "0", "sudo sysctl -w user.max_user_namespaces=15000 opens them"),
        ("kernel/apparmor_restrict_unprivileged_userns", "1", "kernel.apparmor_restrict_unprivileged_userns=0 opens"),
        ("user/max_user_namespaces", "9000", "cannot build an image here, root can: newuidmap: not allowed"),
    ],
)
def test_where_there_are_no_namespaces_the_kernels_switch_is_named(
    somebody: Path, switch: str, closed: str, said: str
) -> None:
    """Or else the first thing that buildah said."""
    (somebody / switch).parent.mkdir()
    (somebody / switch).write_text(f"{closed}\n")
    answers(somebody, "newuidmap: not allowed\nlevel=error", 1)
    with pytest.raises(ConfigError, match=re.escape(said)):
        image_needs.check("", "")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be somebody else")
def test_a_user_whom_this_machine_gives_nothing_sees_one_line() -> None:
    """Really somebody else, with this machine's own tools: no traceback, and nothing is begun."""
    with home_of(NOBODY) as home:
        words = [sys.executable, "-m", "invoke", "eks.image"]
        theirs = dict.fromkeys(("HOME", "WORK", "TMPDIR", "XDG_RUNTIME_DIR"), str(home))
        done = subprocess.run(
            [*words_as(NOBODY), *words, "--out", str(home / "never.tar")],
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            env={"PATH": os.environ["PATH"], **theirs},
        )
        assert not (home / "never.tar").exists()

    assert 2 == done.returncode, done.stderr
    short_of = f"nobody (cannot build an image|has too few)|.* missing here: apt-get|{re.escape(str(home))}.* has "
    assert re.match(short_of, done.stderr), done.stderr
    assert 1 == done.stderr.count("\n")
