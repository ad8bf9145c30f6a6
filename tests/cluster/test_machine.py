"""What a machine must allow for a lab, said in one sentence where it does not."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from cluster.inventory import ROOT
from lab import machine
from tests.conftest import PATIENCE_S
from tests.other_users import NOBODY, home_of, words_as

LACKING = {
    "ordinary user": (),
    "both": ("--bounding-set=-sys_admin,-net_admin",),
    "no mounts": ("--bounding-set=-sys_admin",),
    "no network": ("--bounding-set=-net_admin",),
}
SAID = {
    "ordinary user": "needs root, for its network and file system namespaces: run this with sudo",
    "both": "needs CAP_SYS_ADMIN and CAP_NET_ADMIN, which this container's root does not have: start the container with --pri",
    "no mounts": "needs CAP_SYS_ADMIN, which this container's root does not have",
    "no network": "needs CAP_NET_ADMIN, which this container's root does not have",
}


def as_lacking(who: str, *words: object) -> "subprocess.CompletedProcess[str]":
    """A command as somebody who may not do everything."""
    if os.geteuid() != 0 and who != "ordinary user":
        pytest.skip("only root can give up what only root has")
    give_up: list[str] = []
    if os.geteuid() == 0:
        give_up = words_as(NOBODY) if who == "ordinary user" else ["setpriv", *LACKING[who]]
    with home_of(NOBODY if who == "ordinary user" else 0) as home:
        return subprocess.run(
            [*give_up, sys.executable, *map(str, words)],
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            env={**os.environ, "HOME": str(home), "TMPDIR": str(home), "CI": "false"},
        )


@pytest.mark.parametrize("who", LACKING)
def test_lab_up_says_in_one_sentence_what_is_missing(who: Any) -> None:
    """And what would allow it; nothing is made, and nobody sees a traceback."""
    done = as_lacking(who, "-m", "invoke", "lab.up", "--name", "never")

    assert 2 == done.returncode, done.stderr
    assert done.stderr.startswith(f"a lab {SAID[who]}"), done.stderr
    assert 1 == done.stderr.count("\n")
    assert not (machine.LABS / "never").exists()


def test_tests_that_need_a_lab_are_left_out_with_one_line_that_counts_them(tmp_path: Path) -> None:
    """Neither an error nor a skip: the others run, and the line says what would allow the rest."""
    done = as_lacking(
        "ordinary user", "-m", "pytest", "-p", "no:cacheprovider", "-q", "--co", "tests/cluster/test_lab.py"
    )

    assert 0 == done.returncode, done.stdout + done.stderr
    assert "tests were left out, for a lab needs root" in done.stdout
    assert "skipped" not in done.stdout and "test_a_lab_host_is_its_own_machine" not in done.stdout
    assert "test_a_free_network_overlaps_nothing_in_use" in done.stdout


def test_a_machine_that_should_have_a_lab_and_has_none_is_an_error_in_ci(monkeypatch: pytest.MonkeyPatch) -> None:
    """A missing tool is broken; a missing right is how the machine is. Nothing passes there on less than everything."""
    monkeypatch.setattr(machine, "TOOLS", {"no-such-tool": "no-such-package"})
    lack = machine.missing()

    if os.geteuid() == 0 and all(map(machine.has_capability, machine.CAPABILITIES.values())):
        assert lack and not lack.is_permission
        assert "needs no-such-tool: apt-get install no-such-package, or 'make install'" == str(lack)
    else:
        assert lack and lack.is_permission
