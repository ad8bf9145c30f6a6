"""The scripts for a real account, as far as they go without one: refused unmeant, a file that is read, an end that deletes."""

import os
import subprocess
from pathlib import Path

import pytest

from cfn.tasks import load
from cluster.inventory import ROOT

MEANT = {"DLAMI_SMOKE_AWS": "yes"}


def bash(text: str, folder: Path, stdin: str = "", **more: str) -> "subprocess.CompletedProcess[str]":
    """What a script would do after it has sourced what both have in common."""
    own = {k: v for k, v in os.environ.items() if not k.startswith("AWS_")}
    return subprocess.run(
        ["bash", "-euo", "pipefail", "-c", f". {ROOT}/scripts/smoke.sh\n{text}"],
        input=stdin,
        capture_output=True,
        text=True,
        timeout=300,
        env={**own, "TMPDIR": str(folder), **more},
    )


@pytest.mark.parametrize("script", ["smoke-aws.sh", "smoke-eks.sh"])
@pytest.mark.parametrize(
    ("words", "more", "code", "said"),
    [
        ((), MEANT, 1, "the network you come from"),
        (("203.0.113.7/32",), {}, 2, "set DLAMI_SMOKE_AWS=yes if you mean it"),
        (("203.0.113.7/32",), {**MEANT, "AWS_ENDPOINT_URL": "http://x"}, 2, "this would not reach AWS"),
    ],
)
def test_nothing_begins_that_was_not_meant(
    script: str, words: tuple[str, ...], more: dict[str, str], code: int, said: str
) -> None:
    own = {k: v for k, v in os.environ.items() if not k.startswith(("AWS_", "DLAMI_SMOKE"))}
    command = [str(ROOT / "scripts" / script), *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, env={**own, **more})
    assert (code, True) == (done.returncode, said in done.stderr), done.stderr


def test_its_cluster_file_is_one_host(tmp_path: Path) -> None:
    done = bash('begin one 203.0.113.7/32 eu-west-1 g5.2xlarge; echo "$work"', tmp_path, **MEANT)
    file = load(f"{done.stdout.strip()}/cluster.toml")
    assert (1, ("g5.2xlarge",), "eu-west-1", "203.0.113.7/32") == (
        file.hosts,
        file.nodes.types,
        file.region,
        file.access.ssh_from,
    )
    assert file.name.startswith("smoke-")


@pytest.mark.parametrize(("answer", "code", "deletes"), [("no", 1, False), ("$name", 7, True)])
def test_what_was_agreed_to_is_deleted_whatever_ends_it(tmp_path: Path, answer: str, code: int, deletes: bool) -> None:
    """The plan comes first; with another answer nothing was made, and nothing is deleted."""
    text = f'begin one 203.0.113.7/32\ninv=(echo inv)\nagree eks "$name-eks" "a key" <<<"{answer}"\nexit 7'
    done = bash(text, tmp_path, **MEANT)
    assert code == done.returncode
    assert done.stdout.startswith("inv eks.plan\n")
    assert deletes == ("inv eks.delete --yes" in done.stdout)
