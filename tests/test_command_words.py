"""What the command line makes of short flags, mistyped names and groups, and what it completes."""

import contextlib
import io
from pathlib import Path
from typing import Any

import pytest

from cluster import locate
from dlami import completion
from dlami.collection import ns
from dlami.program import made
from dlami.short_flags import KEPT, contexts_of
from dlami.suggestions import is_slip, nearest_option, nearest_task
from dlami.task_list import DAILY, all_tasks, of_group, overview
from dlami.task_page import ANSWERS
from tests.typed_words import help_kept, parsed

TASKS = list(ns.task_names)


def typed(*words: str) -> tuple[int, str, str]:
    """A command line of dlami in this process: exit code, stdout, stderr."""
    out, err = io.StringIO(), io.StringIO()
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        patch.setattr("sys.argv", ["dlami", *words])
        try:
            made().run(["dlami", *words])
        except SystemExit as e:
            return int(e.code or 0), out.getvalue(), err.getvalue()
    return 0, out.getvalue(), err.getvalue()


@pytest.fixture
def contexts() -> dict[str, Any]:
    """Every task's options as the parser has them."""
    with help_kept():
        return {one.name: one for one in contexts_of(ns.to_contexts())}


@pytest.mark.parametrize(
    ("word", "expected"),
    [
        ("helth", "health"),
        ("jobs.lst", "jobs.list"),
        ("jobs.shwo", "jobs.show"),
        ("logs", "jobs.logs"),
        ("stack.stat", "stack.status"),
        ("train.resnet-50", "train.resnet50"),
        ("lab.hael", "lab.heal"),
        ("stack", ""),
        ("jobs", ""),
        ("eks.jobs.show", ""),
        ("lab.show", ""),
        ("state", ""),
        ("jobs.stp", ""),
        ("jobs.remve", ""),
        ("kil", ""),
        ("stack.delet", ""),
        ("xyzzy", ""),
    ],
)
def test_what_ends_or_pays_for_something_is_never_offered(word: str, expected: str) -> None:
    """Whoever wants to look is offered what looks; others only for a slip of one letter."""
    assert expected == nearest_task(word, TASKS)


def test_no_word_for_looking_gets_a_task_that_changes_something() -> None:
    """In whichever group."""
    groups = {name.rpartition(".")[0] for name in TASKS}
    words = {f"{group}.{verb}".lstrip(".") for group in groups for verb in ("show", "list", "status", "log", "info")}

    offered = {word: near for word in words if (near := nearest_task(word, TASKS))}
    assert not {word: near for word, near in offered.items() if near not in ANSWERS}


@pytest.mark.parametrize(("word", "name", "expected"), [
    ("jbos.list", "jobs.list", True), ("jobs.lis", "jobs.list", True), ("jobs.listt", "jobs.list", True),
    ("jobs.lust", "jobs.list", True), ("jobs.list", "jobs.list", False), ("jobs.lit", "jobs.stop", False),
    ("help", "health", False),
])  # fmt: skip
def test_a_slip_is_one_letter(word: str, name: str, expected: bool) -> None:
    """Missing, too many, another one, or two swapped."""
    assert expected == is_slip(word, name)


def test_an_option_that_skips_a_question_is_not_offered() -> None:
    """--yes is typed by who means it."""
    assert "--dry-run" == nearest_option("--dryrun", ["--yes", "--dry-run", "--json"])
    assert "" == nearest_option("--yess", ["--yes", "--force"])


@pytest.mark.parametrize("words", [("stack",), ("eks.jobs",), ("jobs", "--help"), ("--help", "jobs"), ("help", "jobs")])
def test_a_group_alone_lists_its_tasks(words: tuple[str, ...]) -> None:
    """And does nothing."""
    code, out, _ = typed(*words)
    group = next(word for word in words if word not in ("--help", "help"))

    assert 0 == code
    assert f"  {group}.list " in out or f"  {group}.status " in out
    assert all(line.startswith((f"  {group}.", "   ", "dlami", "\n")) for line in out.splitlines() if line)


@pytest.mark.parametrize(
    "words", [("hosts.lst",), ("run", "--tiemout", "5"), ("jobs.show",), ("--lsit",), ("--help", "x")]
)
def test_a_mistyped_line_ends_with_2(words: tuple[str, ...]) -> None:
    """As every mistake of who types does."""
    code, out, err = typed(*words)

    assert (2, "") == (code, out)
    assert 1 == len(err.splitlines())


@pytest.mark.parametrize("words", [(), ("help",)])
def test_the_bare_command_shows_the_ten_tasks_and_the_groups(words: tuple[str, ...]) -> None:
    """Not 100 lines, and no options of invoke."""
    code, out, _ = typed(*words)

    assert (0, overview("dlami", ns)) == (code, out.rstrip("\n"))
    assert 10 == len(DAILY) and set(DAILY) <= set(TASKS)
    assert all(f"  {name} " in out for name in DAILY)


def test_the_list_has_every_task_in_its_group() -> None:
    """The project's own tasks come last."""
    text = all_tasks(ns)

    assert {name for name in TASKS if f"  {name} " in text} == set(TASKS)
    assert text.index("The ten you need") < text.index("The stack on AWS") < text.index("This project")
    assert "" == of_group(ns, "nothing")


def test_short_flags_are_the_five_that_everybody_knows(contexts: dict[str, Any]) -> None:
    """-h is help, and no letter means two things."""
    used = {
        (flag[1], context.flags[flag].name)
        for context in contexts.values()
        for argument in context.args.values()
        for flag in (f"-{name}" for name in argument.names if len(name) == 1 and flag_is_short(name, argument))
    }

    assert used <= {(letter, name) for letter, names in KEPT.items() for name in names}
    assert {"e", "f", "n", "y"} == {letter for letter, _ in used}


def flag_is_short(name: str, argument: Any) -> bool:
    """Whether this is a letter besides the option's own name."""
    return name != argument.name or len(argument.names) == 1


def test_h_is_help() -> None:
    """It was --hosts in 24 tasks."""
    for words in (("run", "-h"), ("run", "-h", "0,2", "--", "reboot"), ("help", "run")):
        code, out, _ = typed(*words)
        assert 0 == code and "--timeout=FLOAT" in out
    assert "for hosts: --hosts" in typed("run", "-h", "0,2", "--", "reboot")[2]


@pytest.mark.parametrize(
    ("words", "option", "expected"),
    [
        (["jobs.list", "-aj"], "all", True),
        (["jobs.list", "-aj"], "json", True),
        (["train.run", "-t"], "detach", True),
        (["train.run", "-n", "3"], "np", "3"),
        (["train.run", "-n3"], "np", "3"),
        (["train.run", "--np", "-t"], "np", "-t"),
    ],
)
def test_an_old_short_flag_is_taken_with_a_note(
    words: list[str], option: str, expected: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    """It says what to write; a value that looks like one is a value."""
    (task,) = [one for one in parsed(words) if one.name]

    assert expected == task.args[option].value
    assert (words[1] != "--np") == ("after this release: write --" in capsys.readouterr().err)


def test_help_does_not_show_the_separator_as_an_option() -> None:
    """`--no-code` was shown as `--` as well."""
    out = typed("--help", "train.run")[1]

    assert "--no-code" in out and "--, " not in out


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A cluster's folder to stand in, and a lab beside it."""
    monkeypatch.delenv("CLUSTER", raising=False)
    monkeypatch.setattr(locate, "LABS", tmp_path / "labs")
    monkeypatch.setattr(completion, "job_ids", lambda: ["last", "mine-1"])
    (tmp_path / "labs/walk").mkdir(parents=True)
    (tmp_path / "hosts").write_text("10.9.8.7 slots=4\n10.9.8.8 slots=4\n")
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("dlami jobs.show ", ["last", "mine-1"]),
        ("dlami jobs.logs -f m", ["last", "mine-1"]),
        ("dlami jobs.report mine-1 ", ["last", "mine-1"]),
        ("dlami lab.status --name ", ["walk"]),
        ("dlami lab.status --name = w", ["walk"]),
        ("dlami run --hosts ", ["@all", "@master", "@workers", "@failed", "0", "10.9.8.7", "1", "10.9.8.8"]),
        (
            "dlami run --hosts 0,1",
            ["0,@all", "0,@master", "0,@workers", "0,@failed", "0,0", "0,10.9.8.7", "0,1", "0,10.9.8.8"],
        ),
        ("dlami jobs.sh", None),
        ("dlami run --ho", None),
        ("dlami run -- ", None),
        ("dlami ", None),
        ("dlami eks.jobs.logs ", None),
    ],
)
def test_jobs_hosts_and_labs_are_completed(line: str, expected: Any, contexts: dict[str, Any], folder: None) -> None:
    """Tasks and options are left to invoke."""
    assert expected == completion.candidates(line, contexts)


def test_n_and_f_are_lines_and_follow_of_a_log() -> None:
    """As of `tail`."""
    (task,) = [one for one in parsed(["jobs.logs", "last", "-n", "5", "-f"]) if one.name]

    assert (5, True) == (task.args["lines"].value, task.args["follow"].value)
