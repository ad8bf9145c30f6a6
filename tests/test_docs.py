"""Documentation that cannot fall behind: every task, every launch setting, no forgotten help."""

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from cluster.inventory import ROOT
from cluster.launch.profiles import NOT_SET, PROFILES
from cluster.taskpage import ANSWERS, arguments_of, page


def all_tasks() -> Any:
    """Every task with its dotted name."""
    import tasks

    return {name: tasks.ns[name] for name in tasks.ns.task_names}


@pytest.mark.parametrize("name", sorted(all_tasks()))
def test_every_task_has_a_line_and_help_for_each_option(name: Any) -> None:
    """The first line of its docstring is what `inv --list` shows."""
    task = all_tasks()[name]
    line = (task.__doc__ or "").strip().splitlines()[0]

    assert 10 < len(line) <= 140, line
    assert line.endswith((".", "]", "'"))
    missing = [a.name for a in arguments_of(task) if not a.help]
    assert [] == missing


def test_only_what_is_a_task_is_said_to_answer() -> None:
    """The list from which docs/tasks.md says which tasks lack --json or --dry-run."""
    assert set() == ANSWERS - set(all_tasks())
    assert not [n for n in ANSWERS if "dry_run" in {a.name for a in arguments_of(all_tasks()[n])}]


def test_every_task_is_documented() -> None:
    """docs/tasks.md is what `inv docs` writes of the tasks there are."""
    import tasks

    assert page(tasks.ns) == (ROOT / "docs/tasks.md").read_text(), "run 'inv docs' and commit docs/tasks.md"


def test_the_documentation_names_no_task_that_is_not_there() -> None:
    """Also the README's and the other pages' commands exist."""
    known = set(all_tasks())
    written = "\n".join(p.read_text() for p in [ROOT / "README.md", *(ROOT / "docs").glob("*.md")])
    named = set(re.findall(r"\binv ([a-z]+(?:\.[a-z0-9_]+)?)", written))

    assert set() == {n for n in named if n not in known}


def test_links_between_pages_lead_somewhere() -> None:
    """A page that moved takes its links along."""
    for path in [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]:
        for target in re.findall(r"\]\(([^)#]+)[^)]*\)", path.read_text()):
            if not target.startswith("http"):
                assert (path.parent / target).exists(), f"{path.relative_to(ROOT)} links to {target}"


def test_every_launch_setting_is_documented_with_its_reason() -> None:
    """docs/launch.md is the profiles' own text."""
    text = (ROOT / "docs/launch.md").read_text()

    for setting in [s for p in PROFILES.values() for s in p.settings] + list(NOT_SET):
        assert setting.name in text
        assert setting.reason in text, f"{setting.name}: its reason in docs/launch.md is not the code's"


def test_the_command_line_imports_nothing_heavy() -> None:
    """`inv --list` answers at once because nothing of this is imported for it."""
    heavy = [
        "tensorflow",
        "horovod",
        "tensorpack",
        "boto3",
        "botocore",
        "troposphere",
        "fabric",
        "paramiko",
        "numpy",
        "matplotlib",
        "cv2",
    ]
    code = f"import tasks, sys; print([m for m in {heavy!r} if m in sys.modules])"
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )

    assert "[]\n" == done.stdout


@pytest.mark.parametrize("package", ["cluster", "cfn", "trainer"])
def test_imports_point_one_way(package: Any) -> None:
    """cluster knows neither trainer nor cfn; trainer knows neither of the others."""
    forbidden = {"cluster": ("trainer", "cfn"), "trainer": ("cluster", "cfn"), "cfn": ("trainer",)}[package]
    for path in (ROOT / package).rglob("*.py"):
        imported = re.findall(r"^\s*(?:from|import) (\w+)", path.read_text(), re.MULTILINE)
        assert not set(imported) & set(forbidden), f"{path.relative_to(ROOT)} imports {set(imported) & set(forbidden)}"


def test_nothing_tracked_is_this_machine_s() -> None:
    """No absolute path of a developer's machine, no registry's address in the lock file."""
    lock = (ROOT / "requirements.lock").read_text()
    assert "://" not in lock
    package = r"[A-Za-z0-9._-]+==[^ ]+( --hash=sha256:[0-9a-f]{64})+(  # (cpu|gpu|source))?"
    assert [] == [line for line in lock.splitlines() if not line.startswith("#") and not re.fullmatch(package, line)]
    assert Path(ROOT / "LICENSE").read_text().strip().startswith("Apache License")
