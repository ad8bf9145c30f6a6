"""Words of a command line, as invoke with our parser reads them."""

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from invoke import Program

from dlami.collection import ns
from dlami.invoke_words import TaskParser


@contextlib.contextmanager
def help_kept() -> Iterator[None]:
    """Every task has its help afterwards, which invoke empties as it reads what arguments a task has."""
    tasks = [ns[name] for name in ns.task_names]
    helps = [dict(task.help) for task in tasks]
    try:
        yield
    finally:
        for task, told in zip(tasks, helps, strict=True):
            task.help = told


def parsed(words: Sequence[str]) -> Any:
    """The tasks that they name, each with its arguments. Raises ParseError."""
    with help_kept():
        contexts = ns.to_contexts()
    return TaskParser(contexts=contexts).parse_argv(list(words))


def typed(*words: object) -> int:
    """One task in this process, as a person types it; its exit status."""
    line = ["inv", *map(str, words)]
    with help_kept(), pytest.MonkeyPatch.context() as patch:
        patch.setattr("sys.argv", line)
        try:
            Program(namespace=ns).run(line)
        except SystemExit as e:
            return int(e.code or 0)
    return 0
