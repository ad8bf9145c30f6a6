"""Lists of tasks: the ten most used, the groups, the tasks of a group."""

import textwrap
from collections.abc import Callable, Sequence
from typing import Any

from cluster.terminal import terminal_size
from dlami.task_page import group_of, groups_of

DAILY = (
    "lab.up", "hosts.list", "health", "run", "copy", "train.run", "jobs.list", "jobs.logs", "jobs.stop", "top",
)  # fmt: skip
_INDENT = 2


def is_ours(tasks: Any) -> bool:
    """Return True if these are this project's tasks, and not those of a user's own tasks.py."""
    return set(DAILY) <= set(tasks.task_names)


def overview(program: str, tasks: Any) -> str:
    """Return the output of a bare `dlami`: ten tasks, then the groups and their tasks."""
    names = list(tasks.task_names)
    groups = [(group, title) for group, title in groups_of(names) if group not in ("", "project")]
    rows = [(group, f"{title}: {_members(names, group)}") for group, title in groups]
    return "\n".join(
        (
            f"{program} TASK [options] [-- words]     {program} --help TASK     {program} --list: every task",
            "",
            "The ten you need",
            *_rows([(name, _line(tasks, name)) for name in DAILY], len),
            "",
            f"Groups; '{program} GROUP' lists its tasks",
            *_rows([*rows, ("no group", _members(names, ""))], len),
        )
    )


def all_tasks(tasks: Any) -> str:
    """Return every task by group, the ten most used first."""
    names = sorted(tasks.task_names)
    parts = [("The ten you need", list(DAILY))]
    parts += [(title, [n for n in names if group_of(n) == group]) for group, title in groups_of(names)]
    return "\n\n".join("\n".join((title, *_of(tasks, members))) for title, members in parts)


def of_group(tasks: Any, group: str) -> str:
    """Return the tasks of a group and of the groups below it; "" if there is no such group."""
    return "\n".join(_of(tasks, sorted(n for n in tasks.task_names if n.startswith(f"{group}."))))


def _of(tasks: Any, names: Sequence[str]) -> list[str]:
    return _rows([(name, _line(tasks, name)) for name in names], lambda _: 24)


def _members(names: Sequence[str], group: str) -> str:
    return ", ".join(sorted(name.rpartition(".")[2] for name in names if group_of(name) == group))


def _line(tasks: Any, name: str) -> str:
    """Return the first line of a task's help."""
    return (tasks[name].__doc__ or "").strip().split("\n")[0]


def _rows(pairs: Sequence[tuple[str, str]], width_of: Callable[[str], int]) -> list[str]:
    wide = max((width_of(name) for name, _ in pairs), default=0)
    columns = max(40, terminal_size().columns - _INDENT - wide - 2)
    rows = []
    for name, text in pairs:
        first, *more = textwrap.wrap(text, columns) or [""]
        rows.append(f"{' ' * _INDENT}{name:<{wide}}  {first}".rstrip())
        rows += [" " * (_INDENT + wide + 2) + line for line in more]
    return rows
