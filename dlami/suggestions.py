"""Suggestion of the nearest name to a mistyped one. Tasks that change something are not offered for queries."""

from collections.abc import Iterable

from dlami.task_page import ANSWERS

# Last words of task names that are queries, whether or not such a task exists.
_LOOKS = frozenset((
    "cat", "check", "describe", "diff", "find", "get", "help", "history", "info", "inspect", "list", "log", "logs",
    "ls", "plan", "print", "ps", "query", "read", "report", "search", "show", "state", "stats", "status", "tail",
    "test", "top", "tree", "view", "watch",
))  # fmt: skip
# Tasks that end, remove, break or pay for something. They are never suggested.
_NEVER = frozenset((
    "disconnect", "eks.create", "eks.delete", "eks.jobs.stop", "jobs.remove", "jobs.stop", "kill", "lab.crash",
    "lab.cut", "lab.down", "lab.notice", "lab.slow", "packages.remove", "reboot", "stack.blocks", "stack.create",
    "stack.delete", "stack.replace", "stack.start", "stack.stop", "stack.update",
))  # fmt: skip
_AGREES = frozenset(("--yes", "--force", "-y"))  # options that skip a confirmation


def nearest_task(word: str, tasks: Iterable[str]) -> str:
    """Return the task that a mistyped word probably means; "" if no task may be suggested."""
    names = sorted(tasks, key=lambda name: (name.startswith("eks."), name))
    answers = [name for name in names if name in ANSWERS]
    last = word.rpartition(".")[2]
    if same := [name for name in answers if name.rpartition(".")[2] == last]:
        inside = [name for name in same if name.partition(".")[0] == word.partition(".")[0]]
        return (inside or same)[0] if inside or "." not in word else ""
    if longer := [n for n in answers if len(last) > 2 and n.startswith(word) and "." not in n[len(word) :]]:
        return longer[0]
    if last not in _LOOKS and (slips := [n for n in names if n not in _NEVER and is_slip(word, n)]):
        return slips[0]
    return "" if any(is_slip(word, name) for name in _NEVER) else _alike(word, answers)


def nearest_option(word: str, options: Iterable[str]) -> str:
    """Return the option that a mistyped one probably means; "" without one.

    Options that skip a confirmation are never suggested.
    """
    return _alike(word, [one for one in options if one not in _AGREES and len(one) > 2])


def is_slip(word: str, name: str) -> bool:
    """Return True if one letter is missing, extra or different, or two neighbours are swapped."""
    if abs(len(word) - len(name)) > 1 or word == name:
        return False
    start = next((n for n, (a, b) in enumerate(zip(word, name, strict=False)) if a != b), min(len(word), len(name)))
    mine, theirs = word[start:], name[start:]
    swapped = mine[1:2] + mine[:1] + mine[2:]
    return mine[1:] == theirs or mine == theirs[1:] or mine[1:] == theirs[1:] or swapped == theirs


def _alike(word: str, names: Iterable[str]) -> str:
    import difflib  # imported here, so that `inv --list` is faster

    return next(iter(difflib.get_close_matches(word, list(names), n=1, cutoff=0.7)), "")
