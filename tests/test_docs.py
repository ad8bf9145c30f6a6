"""Documentation that cannot fall behind: every task, every launch setting, no forgotten help."""

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

from invoke.exceptions import ParseError

from cluster.inventory import ROOT
from cluster.launch.profiles import NOT_SET, PROFILES
from dlami.task_page import ANSWERS, arguments_of, page
from tests.typed_words import parsed
from tests.walking import walked


def all_tasks() -> Any:
    """Every task with its dotted name."""
    import tasks

    return {name: tasks.ns[name] for name in tasks.ns.task_names}


@walked("name", sorted(all_tasks()))
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
    named = set(re.findall(r"\binv ([a-z][a-z0-9]*(?:\.[a-z0-9_]+)*)", written))

    assert set() == {n for n in named if n not in known}


FLAG = re.compile(r"(?<![\w-])--[a-z][a-z0-9_-]*[a-z0-9]")
# Other programs', and invoke's own.
OF_OTHERS = {"--channel", "--fast", "--framework", "--print-completion-script", "--skip-download"}
OF_OTHERS |= {
    "--deepspeed",
    "--num_machines",
    "--machine_rank",
    "--main_process_ip",
    "--main_process_port",
    "--num_processes",
    "--cluster-name",
    "--nodegroup-name",
    "--scaling-config",
}
# Beside ours in the table of docs/resnet50.md, where most have a "_".
OF_THE_REFERENCE = {"--inter", "--mom", "--leta", "--wdecay"}


def test_the_documentation_names_no_flag_that_is_not_there() -> None:
    """Of a task, of a trainer (whose flags are its settings' fields), or of a program that is started somewhere here."""
    tracked = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split(
        "\n"
    )
    sources = [f for f in tracked if f.endswith((".py", ".sh")) and not f.startswith("tests/")]
    written = "\n".join((ROOT / f).read_text() for f in [*sources, "Makefile", ".ci/run"])
    known = OF_OTHERS | OF_THE_REFERENCE | set(FLAG.findall(written))
    names = {a for task in all_tasks().values() for argument in arguments_of(task) for a in argument.names}
    for trainer in ("resnet50", "resnet50_torch"):
        names |= set(re.findall(r"^    (\w+): ", (ROOT / f"trainer/{trainer}/config.py").read_text(), re.M))
    known |= {"--" + name.replace("_", "-") for name in names}
    for page_ in (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))):
        unknown = set(FLAG.findall(page_.read_text())) - known
        assert set() == {f for f in unknown if page_.name != "resnet50.md" or "_" not in f}, page_.name


def test_every_committed_figure_is_listed() -> None:
    """`inv bench --report`: each file of results by its name, and no benchmark is run."""
    done = subprocess.run(
        [sys.executable, "-m", "invoke", "bench", "--report"], cwd=ROOT, capture_output=True, text=True
    )

    assert 0 == done.returncode, done.stderr
    listed = [line for line in done.stdout.splitlines() if not line.startswith(" ")]
    assert {"broadcast", "recovery", "resnet50"} <= set(listed)
    assert [] == [line for line in done.stdout.splitlines() if line.startswith(" ") and "; against " not in line]


def test_every_test_that_the_page_of_tests_names_exists() -> None:
    """By its file and a part of its name."""
    folders = {"C": "cluster", "F": "cfn", "H": "health", "T": "trainer", "M": "trainer_maskrcnn"}
    page_ = (ROOT / "docs/testing.md").read_text()
    named = re.findall(r"\b([CFHTM])/(test_\w+)((?: [a-z]\w+,?)*)", page_)
    assert len(named) > 20
    for letter, file, parts in named:
        text = (ROOT / "tests" / folders[letter] / f"{file}.py").read_text()
        assert [] == [p for p in parts.replace(",", "").split() if not re.search(rf"def test_\w*{p}", text)], file
    assert [] == [f for f in re.findall(r"`(\w+/test_\w+\.py)`", page_) if not (ROOT / "tests" / f).exists()]


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


def test_the_installed_command_writes_the_same_page() -> None:
    """`dlami docs` as `inv docs`: with every option, though reading a command line empties what tasks say of theirs."""
    code = (
        "import sys\nfrom dlami.task_page import page\nfrom dlami.collection import ns\nfrom dlami.program import made\n"
        "try:\n    made().run(['dlami', '--list'])\nexcept SystemExit:\n    pass\n"
        "sys.exit(page(ns) != open('docs/tasks.md').read())"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, env={**os.environ, "PYTHONPATH": str(ROOT)}
    )

    assert (0, b"") == (done.returncode, done.stderr)


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
        "eks",  # and nothing of Kubernetes
        "eks.stack",
        "lab.kube",
    ]
    code = f"import tasks, sys; print([m for m in {heavy!r} if m in sys.modules])"
    assert "[]\n" == printed(code)


def test_other_tasks_know_nothing_of_kubernetes() -> None:
    """Beside `eks.*` only what tells of bills and leftovers loads any of it."""
    kubernetes = re.compile(r"eks\.|lab\.kube\.|cfn\.orphans$|dlami\.tasks\.(eks|cost_actions)")
    files = [
        p.relative_to(ROOT) for folder in ("cluster", "cfn", "dlami", "lab") for p in (ROOT / folder).rglob("*.py")
    ]
    names = [".".join(f.with_suffix("").parts) for f in files if f.name not in ("__init__.py", "__main__.py")]
    others = [name for name in names if not kubernetes.match(name)]
    code = (
        f"import importlib, sys\nfor name in {others!r}: importlib.import_module(name)\n"
        "print(sorted(n for n in sys.modules if n.startswith(('eks.', 'eks.stack.', 'lab.kube.'))))"
    )
    assert "[]\n" == printed(code)


def printed(code: str) -> str:
    """By a Python of its own that finds this project."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True, env=environment
    ).stdout


def test_nothing_tracked_is_this_machine_s() -> None:
    """No absolute path of a developer's machine, no registry's address in the lock file."""
    lock = (ROOT / "requirements.lock").read_text()
    assert "://" not in lock
    package = r"[A-Za-z0-9._-]+==[^ ]+( --hash=sha256:[0-9a-f]{64})+(  # (cpu|gpu|source|tests))?"
    assert [] == [line for line in lock.splitlines() if not line.startswith("#") and not re.fullmatch(package, line)]
    assert Path(ROOT / "LICENSE").read_text().strip().startswith("Apache License")


def _typed() -> list[tuple[str, list[str]]]:
    """Commands that the documents show in blocks, without those with places to fill in: file, words up to `--`."""
    found = []
    for document in [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]:
        for line in re.findall(r"(?m)^ {4}(?:\$ )?inv (\S.*)", document.read_text()):
            command = re.split(r"\s{2,}|\s#", line)[0]
            if re.search(r"[<>…\[\]|;]|\.\.\.|\b[A-Z]\b", command) or command.startswith("-") or command.endswith("\\"):
                continue
            words = shlex.split(command)
            found.append((document.name, words[: words.index("--")] if "--" in words else words))
    return found


def test_commands_are_shown_as_they_are_taken() -> None:
    """Every one in a block is one that the command line understands."""
    typed = _typed()
    assert len(typed) > 50
    wrong = []
    for document, words in typed:
        try:
            parsed(words)
        except ParseError as e:
            wrong.append(f"{document}: inv {' '.join(words)}: {e}")
    assert not wrong


def test_the_night_that_healed_is_told_as_it_was_kept() -> None:
    """docs/jobs.md shows what `inv jobs.show` said after the run whose record the picture is drawn from."""
    kept = json.loads((ROOT / "benchmarks/results/healed_night.json").read_text())
    said = kept["show"][kept["show"].index("  time") :].splitlines()
    page_ = (ROOT / "docs/jobs.md").read_text()

    assert "\n".join(f"    {line}" for line in said) in page_
    assert "](healed.png)" in page_ and (ROOT / "docs/healed.png").stat().st_size < 150_000
    assert 6 == len(kept["json"]["attempts"])
    assert 5 == len(kept["told"])


def test_pictures_in_the_docs_are_small_and_all_there() -> None:
    """Less than 150 kB each."""
    named = {
        (path.parent / name).resolve()
        for path in (ROOT / "README.md", *(ROOT / "docs").glob("*.md"))
        for name in re.findall(r"!\[[^]]+\]\(([\w./-]+)\)", path.read_text())
    }
    assert [] == [path.name for path in named if not path.exists() or path.stat().st_size > 150_000]
    assert {p for p in (ROOT / "docs").iterdir() if p.suffix in (".png", ".svg")} <= named
