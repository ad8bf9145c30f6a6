"""Generator of the page that documents every task, from the tasks themselves."""

import copy
from collections.abc import Callable, Iterable
from typing import Any

_HEAD = """\
# Every task

`.venv/bin/inv TASK [options]` in a checkout, `dlami TASK [options]` once installed; `--help TASK` says the same in the
terminal. Words after `--` go to the command or trainer that the task runs. `CLUSTER=lab:NAME` or `CLUSTER=/a/folder`
chooses the cluster; without it, it is that of the nearest `cluster.toml` or `hosts` from where one stands upwards. This
page is written by `inv docs`.
"""
_GROUPS = {
    "": "Every node",
    "project": "This project",
    "stack": "The stack on AWS",
    "hosts": "Hosts",
    "data": "Data",
    "train": "Training",
    "maskrcnn": "Using Mask R-CNN",
    "jobs": "Jobs",
    "eks": "On EKS",
    "eks.train": "Training on Kubernetes",
    "eks.jobs": "Jobs on Kubernetes",
    "notify": "Who is told",
    "lab": "The lab",
    "demo": "Demos",
    "resnet50": "Using a ResNet",
    "packages": "Environments of your programs",
}
_OF_THE_PROJECT = ("bench", "docs")  # tasks for developers only


# Tasks that only print. All others change something, or run a given command.
ANSWERS = frozenset(
    (
        "data.status",
        "data.verify",
        "eks.jobs.list",
        "eks.jobs.logs",
        "eks.plan",
        "eks.status",
        "health",
        "hosts.list",
        "jobs.list",
        "jobs.logs",
        "jobs.compare",
        "jobs.report",
        "jobs.show",
        "jobs.watch",
        "stack.policy",
        "lab.status",
        "maskrcnn.evaluate",
        "stack.cost",
        "stack.orphans",
        "stack.plan",
        "stack.status",
        "metrics",
        "packages.list",
        "top",
        "train.estimate",
        "train.scaling",
    )
)


def page(collection: Any) -> str:
    """Return Markdown: tasks by group, each with its line, its arguments and its options."""
    names = sorted(collection.task_names)
    return (
        _HEAD
        + _what_has_what(collection)
        + "".join(
            f"\n## {title}\n" + "".join(_task(name, collection[name]) for name in names if group_of(name) == group)
            for group, title in groups_of(names)
        )
    )


def group_of(task: str) -> str:
    """Return the group of a task: the part of its name before the last dot, "" for a task of every node."""
    return "project" if task in _OF_THE_PROJECT else task.rpartition(".")[0]


def groups_of(tasks: Iterable[str]) -> list[tuple[str, str]]:
    """Return the groups of these tasks in the order of the page, each with its title."""
    there = {group_of(task) for task in tasks}
    order = [*(g for g in _GROUPS if g in there and g != "project"), *sorted(there - {*_GROUPS}), "project"]
    return [(group, _GROUPS.get(group, group)) for group in order if group in there]


def _what_has_what(collection: Any) -> str:
    """Return the Markdown table of the tasks with and without `--json` and `--dry-run`."""
    options = {name: {a.name for a in arguments_of(collection[name])} for name in sorted(collection.task_names)}

    def listed(keep: Callable[[str], bool]) -> str:
        return ", ".join(f"`{name}`" for name in options if keep(name)) or "none"

    rows = (
        ("answer, with `--json`", listed(lambda n: n in ANSWERS and "json" in options[n])),
        ("answer, without `--json`", listed(lambda n: n in ANSWERS and "json" not in options[n])),
        ("change something, with `--dry-run`", listed(lambda n: n not in ANSWERS and "dry_run" in options[n])),
        ("change something, without `--dry-run`", listed(lambda n: n not in ANSWERS and "dry_run" not in options[n])),
    )
    table = "".join(f"| {what} | {names} |\n" for what, names in rows)
    return f"\n## What has `--json` and `--dry-run`\n\n| these tasks | |\n|---|---|\n{table}"


def arguments_of(task: Any) -> list[Any]:
    """Return a task's arguments, read from a copy of the task: reading them empties its help."""
    untouched = copy.copy(task)
    untouched.help = dict(task.help)
    return list(untouched.get_arguments())


def _task(name: str, task: Any) -> str:
    arguments = arguments_of(task)
    words = " ".join(f"<{a.name}>" for a in arguments if a.positional)
    title = f"`inv {name}{' ' + words if words else ''}`"
    text = " ".join((task.__doc__ or "").split())
    rows = [f"| {_flag(a)} | {a.help} |" for a in arguments if a.help]
    table = "\n| option | |\n|---|---|\n" + "\n".join(rows) + "\n" if rows else ""
    return f"\n### {title}\n\n{text}\n{table}"


def _flag(argument: Any) -> str:
    if argument.positional:
        return f"`<{argument.name}>`"
    flag = f"--{argument.name.replace('_', '-')}"
    if argument.kind is bool:
        return f"`{flag}`"
    default = argument.default
    shown = f" (default {default})" if default not in (None, "", 0, 0.0, []) else ""
    return f"`{flag} {argument.kind.__name__.upper() if argument.kind is not str else 'TEXT'}`{shown}"
