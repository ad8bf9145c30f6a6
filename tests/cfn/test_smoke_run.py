"""The paid run, step by step, with a stub for every program: each step fails once, is said, and is gone on with."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from cluster.inventory import ROOT
from tests.conftest import PATIENCE_S

# A program that is asked for everything: it writes down its words, and fails at those that FAIL matches.
STUB = """#!/usr/bin/env bash
said="${0##*/} $*"
echo "$said" >>"$STUB_LOG"
if [ -n "${FAIL:-}" ] && [[ $said =~ $FAIL ]] && [ "$(grep -cE "$FAIL" "$STUB_LOG")" -gt "${FAIL_AFTER:-0}" ]; then echo "injected: $said" >&2; exit 9; fi
case $said in
    *'stack.plan --json'*) echo '{"usd_per_hour": 4.03, "changes": []}' ;;
    *'stack.orphans'*) name=$(sed -n 's/^name = "\\(.*\\)"/\\1/p' cluster.toml)
        echo "{\\"unasked\\": [], \\"orphans\\": [{\\"cluster\\": \\"$name\\", \\"command\\": \\"true delete-file-system\\"}]}" ;;
    *'jobs.list --json'*) echo '[{"id": "j-1"}]' ;;
    *'jobs.show'*) echo '{"id": "j-1", "state": "succeeded", "attempts": [{}, {}]}' ;;
    *'jobs.logs last'*) echo 'NCCL INFO Using network AWS Libfabric' ;;
    *'checkpoints'*) echo step-20.json ;;
    *'describe-scheduled-actions'*) name=$(sed -n 's/^name = "\\(.*\\)"/\\1/p' cluster.toml); printf '"%s-master"\\n"%s-workers"\\n' "$name" "$name" ;;
    *'list-users'*) exit 1 ;;
    *'describe-stacks'*) echo '[{"Key": "dlami-cluster:cluster"}]' ;;
esac
""".replace("\\\\", "\\")
STEPS = {  # the words of a program by which each fails
    "identity": "get-caller-identity",
    "create": "stack.create",
    "status": "inv .*stack.status$",
    "unchanged": "stack.plan --json",
    "hosts": "inv .* sync",
    "machines": "nvidia-smi",
    "efa": "fi_info",
    "guard": "describe-scheduled-actions",
    "health": "inv .* health",
    "train": "num-batches 50$",
    "heal": "pkill",
    "replace": "stack.replace",
    "halt": "stack.stop",
    "start": "stack.start",
    "tags": "describe-stacks",
}


class Desk:
    """A checkout with the scripts and stubs for all else."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.log = folder, folder / "log"
        (folder / "checkout/scripts").mkdir(parents=True)
        (folder / "checkout/.venv/bin").mkdir(parents=True)
        for name in ("smoke.sh", "smoke-aws.sh"):
            shutil.copy(ROOT / "scripts" / name, folder / "checkout/scripts")
        (folder / "bin").mkdir()
        for path in (folder / "checkout/.venv/bin/inv", folder / "bin/aws"):
            path.write_text(STUB)
            path.chmod(0o755)
        (folder / "checkout/.venv/bin/python").symlink_to(sys.executable)

    def runs(self, *words: str, types: str = "", **more: str) -> "subprocess.CompletedProcess[str]":
        own = {k: v for k, v in os.environ.items() if not k.startswith(("AWS_", "SMOKE", "DLAMI_SMOKE"))}
        path = f"{self.folder / 'bin'}:{os.environ['PATH']}"
        return subprocess.run(
            ["bash", "-c", 'read -r -p "" name </dev/null; exec "$@"', "-", str(self.script), *words],
            input=types, capture_output=True, text=True, timeout=PATIENCE_S, cwd=self.folder,
            env={**own, "DLAMI_SMOKE_AWS": "yes", "PATH": path, "STUB_LOG": str(self.log), **more},
        )  # fmt: skip

    @property
    def script(self) -> Path:
        return self.folder / "checkout/scripts/smoke-aws.sh"

    def agrees(self, **more: str) -> "subprocess.CompletedProcess[str]":
        """A run whose name is known before: it is made of the time."""
        (self.folder / "bin/date").write_text(
            '#!/bin/bash\n[ "$1" != +%m%d%H%M%S ] || { echo 0101000000; exit; }\nexec /bin/date "$@"\n'
        )
        (self.folder / "bin/date").chmod(0o755)
        return self.runs("203.0.113.7/32", types="smoke-0101000000\n", **more)

    @property
    def run_folder(self) -> Path:
        return self.folder / "smoke-0101000000"

    def said(self) -> str:
        return self.log.read_text() if self.log.exists() else ""


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    return Desk(tmp_path)


def test_the_whole_run_costs_what_it_said_and_leaves_its_evidence(desk: Desk) -> None:
    """The price is of the hours at most; every step has its log; the key is gone with the cluster."""
    done = desk.agrees()
    assert 0 == done.returncode, done.stdout + done.stderr
    assert "at most 12.83 USD: 3 hours of 4.03" in done.stdout
    logs = sorted(p.name for p in (desk.run_folder / "evidence").glob("*.log"))
    assert [f"{n:02d}-{step}.log" for n, step in enumerate(STEPS, 1)] == [n for n in logs if n[:2].isdigit()]
    assert "Using network AWS Libfabric" in (desk.run_folder / "evidence/train.log").read_text()
    file = (desk.run_folder / "cluster.toml").read_text()
    assert "max_hours = 3" in file and 'source = "checkout"' in file
    assert not (desk.run_folder / "key").exists()
    assert "stack.delete --yes --unsaved" in desk.said() and "the end of smoke-" in done.stderr


def test_another_answer_and_an_unknown_price_spend_nothing(desk: Desk) -> None:
    assert 1 == desk.runs("203.0.113.7/32", types="no\n").returncode
    unknown = desk.agrees(FAIL="stack.plan --json")
    assert 0 != unknown.returncode
    assert "stack.create" not in desk.said() and "stack.delete" not in desk.said()


@pytest.mark.seconds
@pytest.mark.parametrize("step", STEPS)
def test_a_step_that_fails_is_said_deleted_or_kept_and_gone_on_with(desk: Desk, step: str) -> None:
    """What was done before is not done again; what failed is."""
    passed = "1" if step == "unchanged" else "0"  # the price was asked for by the same words
    kept = desk.agrees(FAIL=STEPS[step], FAIL_AFTER=passed, DLAMI_SMOKE_KEEP="yes")
    assert 0 != kept.returncode and f"{step}    FAILED" in kept.stdout, kept.stdout + kept.stderr
    assert "stack.delete" not in desk.said() and "--resume" in kept.stderr
    before = desk.said()
    resumed = desk.runs("--resume", str(desk.run_folder))
    assert 0 == resumed.returncode, resumed.stdout + resumed.stderr
    after = desk.said()[len(before) :]
    names = list(STEPS)
    done_before = names[: names.index(step)]
    assert [f"{n}    done before" for n in done_before] == re.findall(r"^\w+    done before$", resumed.stdout, re.M)
    assert ("stack.create" in after) == (step in ("identity", "create"))
    assert "stack.delete --yes --unsaved" in after
    summary = (desk.run_folder / "evidence/summary.txt").read_text()
    assert re.search(rf"^{step} [1-9]", summary, re.M) and re.search(rf"^{step} 0 ", summary, re.M)


@pytest.mark.parametrize("step", ["create", "train"])
def test_without_a_word_a_failure_ends_in_the_deletion(desk: Desk, step: str) -> None:
    done = desk.agrees(FAIL=STEPS[step])
    assert 0 != done.returncode and "stack.delete --yes --unsaved" in desk.said()
    assert "the evidence is in" in done.stdout


def test_past_its_hours_a_run_only_deletes(desk: Desk) -> None:
    """Its own hard end; the guard's is in the cluster file."""
    desk.agrees(FAIL=STEPS["train"], DLAMI_SMOKE_KEEP="yes")
    (desk.run_folder / "deadline").write_text("1\n")
    before = len(desk.said())
    late = desk.runs("--resume", str(desk.run_folder), DLAMI_SMOKE_KEEP="yes")
    assert 0 != late.returncode and "hours of this run are over" in late.stdout
    assert "train.resnet50" not in desk.said()[before:] and "stack.delete" in desk.said()[before:]
    assert 2 == desk.runs("--resume", str(desk.folder)).returncode
