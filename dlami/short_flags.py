"""Short flags: the few that are kept, and the long replacement of the others for one more release.

Invoke derives a letter for every option, so the same letter had another meaning in each task.
"""

from collections.abc import Iterable, Sequence
from typing import Any

from invoke.parser.context import ParserContext, to_flag

# Letters and the options that they stand for. `-h` is always help.
KEPT = {"e": ("env",), "f": ("follow",), "n": ("n", "lines"), "y": ("yes",)}


class Context(ParserContext):
    """Options of a task, by long names and by the letters in KEPT. `old` holds deprecated letters."""

    def __init__(self, before: ParserContext) -> None:
        kept, self.old = [], {}
        taken = {letter: argument for argument in before.args.values() for letter in _letters(argument)}
        for argument in before.args.values():
            letters = _letters(argument)
            fitting = [one for one, names in KEPT.items() if argument.name in names and argument.name != one]
            own = [one for one in fitting if taken.get(one, argument) is argument]
            argument.names = (*(one for one in argument.names if one not in letters), *own)
            self.old.update({f"-{one}": argument for one in letters if one not in own and one != "-"})
            kept.append(argument)
        super().__init__(name=before.name, aliases=before.aliases, args=kept)


def _letters(argument: Any) -> list[str]:
    return [one for one in argument.names if len(one) == 1 and one != argument.name]


def with_long_names(context: Context, words: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return a task's words with long options instead of deprecated letters, and a notice for each.

    `-h` means help, whatever is beside it. It used to be an option's letter.
    """
    long, notes, takes_next = [], [], False
    for word in words:
        if takes_next or not word.startswith("-") or word.startswith("--"):
            flag = context.flags.get(word)
            takes_next = not takes_next and flag is not None and flag.takes_value
            long.append(word)
            continue
        if word[:2] == "-h":
            hosts = context.old.get("-h")
            note = f"-h is help; for {hosts.name}: {to_flag(hosts.name)}" if hosts and len(words) > 1 else ""
            return ["--help"], [note] if note else []
        parts = _parts(context, word)
        notes += [f"{old} will not be an option after this release: write {new}" for old, new in parts if old]
        long += [new for _, new in parts]
        flag = context.flags.get(long[-1])
        takes_next = flag is not None and flag.takes_value
    return long, notes


def _parts(context: Context, word: str) -> list[tuple[str, str]]:
    """Return pairs of a deprecated letter ("" if none) and its long option. One word may have several letters."""
    argument = context.old.get(word[:2])
    if argument is None:
        return [("", word)]
    name, rest = to_flag(argument.name), word[2:]
    if not argument.takes_value:
        return [(word[:2], name), *(_parts(context, f"-{rest}") if rest else ())]
    return [(word[:2], f"{name}={rest.removeprefix('=')}" if rest else name)]


def contexts_of(contexts: Iterable[ParserContext]) -> list[Context]:
    """Return the tasks' options with only the letters that are kept."""
    return [Context(one) for one in contexts]
