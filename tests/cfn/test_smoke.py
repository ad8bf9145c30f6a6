"""The scripts for a real account before they ask one: refused unmeant, a file that is read, an end that deletes."""

import os
import subprocess
from pathlib import Path

import pytest

from cluster.inventory import ROOT
from dlami.tasks.stack_actions import load
from tests.conftest import PATIENCE_S

MEANT = {"DLAMI_SMOKE_AWS": "yes"}


def bash(text: str, folder: Path, stdin: str = "", **more: str) -> "subprocess.CompletedProcess[str]":
    """What a script would do after it has sourced what both have in common."""
    own = {k: v for k, v in os.environ.items() if not k.startswith("AWS_")}
    (folder / "aws").symlink_to("/bin/false")  # it has to be here, and nothing asks it
    return subprocess.run(
        ["bash", "-euo", "pipefail", "-c", f". '{ROOT}/scripts/smoke.sh'\n{text}"],
        input=stdin,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        env={**own, "TMPDIR": str(folder), "PATH": f"{folder}:{os.environ['PATH']}", **more},
    )


@pytest.mark.parametrize("script", ["smoke-aws.sh", "smoke-eks.sh"])
@pytest.mark.parametrize(
    ("words", "more", "code", "said"),
    [
        ((), MEANT, 1, "the network you come from"),
        (("203.0.113.7/32",), {}, 2, "set DLAMI_SMOKE_AWS=yes if you mean it"),
        (("203.0.113.7/32",), {**MEANT, "AWS_ENDPOINT_URL": "http://x"}, 2, "this would not reach AWS"),
        (("203.0.113.7/32",), {**MEANT, "AWS_ENDPOINT_URL_EKS": "http://x"}, 2, "AWS_ENDPOINT_URL_EKS is set"),
    ],
)
def test_nothing_begins_that_was_not_meant(
    script: str, words: tuple[str, ...], more: dict[str, str], code: int, said: str
) -> None:
    own = {k: v for k, v in os.environ.items() if not k.startswith(("AWS_", "DLAMI_SMOKE"))}
    command = [str(ROOT / "scripts" / script), *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, env={**own, **more})
    assert (code, True) == (done.returncode, said in done.stderr), done.stderr


def test_without_its_programs_nothing_begins(tmp_path: Path) -> None:
    done = bash("needs=no-such-program; begin one 203.0.113.7/32; echo begun", tmp_path, **MEANT)
    assert (2, "there is no no-such-program here: install it first\n", "") == (
        done.returncode,
        done.stderr,
        done.stdout,
    )


def test_its_cluster_file_is_one_host(tmp_path: Path) -> None:
    text = f"begin one 203.0.113.7/32 eu-west-1 g5.2xlarge; cp cluster.toml {tmp_path}"
    assert 0 == bash(text, tmp_path, **MEANT).returncode
    file = load(f"{tmp_path}/cluster.toml")
    assert (1, ("g5.2xlarge",), "eu-west-1", "203.0.113.7/32") == (
        file.hosts,
        file.nodes.types,
        file.region,
        file.access.ssh_from,
    )
    assert file.name.startswith("smoke-")
    assert [] == list(tmp_path.glob("tmp*")), "its own folder is gone"


@pytest.mark.parametrize(("answer", "code", "deletes"), [("no", 1, False), ("$name", 7, True)])
def test_what_was_agreed_to_is_deleted_whatever_ends_it(tmp_path: Path, answer: str, code: int, deletes: bool) -> None:
    """The plan comes first; with another answer nothing was made, and nothing is deleted."""
    text = f'begin one 203.0.113.7/32\ninv=(echo inv)\nleft() {{ :; }}\nagree eks "$name-eks" "a key" <<<"{answer}"\nexit 7'
    done = bash(text, tmp_path, **MEANT)
    assert code == done.returncode
    assert done.stdout.startswith("inv eks.plan\n")
    assert deletes == ("inv eks.delete --yes" in done.stderr)


@pytest.mark.parametrize(
    ("then", "code", "said"),
    [
        ("left() { echo true delete-file-system; }", 0, "the end of "),
        ("left() { echo false delete-file-system; }", 1, "NOT REMOVED, and it may cost: false delete-file-system\n"),
        ("left() { false; }", 1, "NOT SEEN whether anything of "),
        ("left() { true; }", 1, "its file system is gone with the stack: a deletion should have kept it\n"),
        ("inv=(false)", 1, "NOT DELETED, and it costs: stack "),
    ],
    ids=["nothing", "not removed", "not seen", "not kept", "not deleted"],
)
def test_it_ends_well_only_when_nothing_is_left(tmp_path: Path, then: str, code: int, said: str) -> None:
    """Whatever the steps before said: each way in which something may stay is told, and is an exit code."""
    text = f'begin one 203.0.113.7/32\ninv=(echo inv)\nagree eks "$name-eks" "a key" <<<"$name"\n{then}\nexit 0'
    done = bash(text, tmp_path, **MEANT)
    assert (code, True) == (done.returncode, said in done.stderr), done.stderr
