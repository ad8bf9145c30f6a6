"""What invoke's parser says, in words that help: the nearest name to a mistyped one, where `--` goes, a flag's value.

invoke has no place for this, so its parser and a function of its help are replaced by ours.
"""

import itertools
import re
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import invoke.parser
import invoke.program
from invoke.exceptions import ParseError
from invoke.parser.context import ParserContext

# Tasks of which every further word is one of any number, and what that is.
TAKE_WORDS = {
    "hosts.join": "host",
    "jobs.report": "job",
    "jobs.compare": "job",
    "jobs.watch": "job",
    "keep": "time",
    "tensorboard": "job",
    "tunnels": "id",
}
_UNKNOWN = re.compile(r"No idea what ['\"](.*)['\"] is!", re.DOTALL)
_NO_NUMBER = re.compile(r"(?:invalid literal for int.*|could not convert .* float): '(.*)'", re.DOTALL)
_help_for = ParserContext.help_for


def install() -> None:
    """Make invoke say what is in this module."""
    invoke.program.Parser = Parser
    ParserContext.help_for = _help_with_value


class Parser(invoke.parser.Parser):
    """invoke's parser, whose complaints say what was probably meant."""

    def parse_argv(self, argv: list[str]) -> Any:
        """What invoke makes of the words. Raises ParseError that says what to write instead."""
        try:
            return super().parse_argv(self._with_names(argv))
        except ValueError as e:
            raise ParseError(_not_a_number(str(e), argv), None) from None
        except ParseError as e:
            unknown = _UNKNOWN.fullmatch(str(e))
            if not unknown:
                raise
            raise ParseError(self._meant(unknown[1], e.context), e.context) from None

    def _with_names(self, argv: list[str]) -> list[str]:
        """The words with `--host=`, or the like, before each one of a task that takes any number of them.

        invoke itself gives a task a fixed number of words.
        """
        task = next((n for n, word in enumerate(argv) if word in TAKE_WORDS and word in self.contexts), None)
        if task is None:
            return argv
        name, flags = TAKE_WORDS[argv[task]], self.contexts[argv[task]].flags
        words, takes_next = argv[: task + 1], False
        for n, word in enumerate(argv[task + 1 :], start=task + 1):
            if word == "--" or (word in self.contexts and not takes_next):
                return [*words, *argv[n:]]
            words.append(word if takes_next or word.startswith("-") else f"--{name}={word}")
            takes_next = not takes_next and word in flags and flags[word].takes_value
        return words

    def _meant(self, word: str, task: Any) -> str:
        """What to write instead of a word that is neither a task nor an option."""
        name = task.name if task else None
        if name is None:
            return f"there is no task {word!r}{_nearest(word, self.contexts)}; all of them: {program()} --list"
        own, takes_words = f"{program()} {name}", _takes_words(name)
        if word.startswith("-"):
            near = _nearest(word, [*task.flags, *task.inverse_flags])
            if takes_words and not near:
                return f"{own} has no option {word}; for what it runs it goes after --: {_after(name, word)}"
            return f"{own} has no option {word}{near}; all of them: {program()} --help {name}"
        if takes_words:
            return f"{own} takes no {word!r} here; words for what it runs go after --: {_after(name, word)}"
        return f"{own} takes no {word!r}, and there is no such task{_nearest(word, self.contexts)}"


def program() -> str:
    """What the operator called: `inv` or `dlami`."""
    called = Path(sys.argv[0]).name
    return called if called in ("dlami", "invoke") else "inv"


def _takes_words(task: str) -> bool:
    """Whether a task passes on what comes after two dashes: its help shows that."""
    from dlami.collection import ns

    return bool(re.search(r"(^|[ \[])-- ", str(ns[task].__doc__)))


def _after(name: str, word: str) -> str:
    """The same command with what comes from this word on after two dashes."""
    import shlex

    words = sys.argv[sys.argv.index(word) :] if word in sys.argv else [word]
    return f"{program()} {name} -- {shlex.join(w for w in words if w != '--')}"


def _nearest(word: str, names: Iterable[str]) -> str:
    """What was probably meant, in brackets; "" if nothing is like it."""
    import difflib  # here, like shlex: an `inv --list` does without

    found = difflib.get_close_matches(word, list(names), n=1, cutoff=0.6)
    return f" (did you mean {found[0]}?)" if found else ""


def _not_a_number(complaint: str, argv: Sequence[str]) -> str:
    """Which option was given something that is not a number."""
    match = _NO_NUMBER.fullmatch(complaint)
    if not match:
        return complaint
    value = match[1]
    flags = [before for before, word in itertools.pairwise(argv) if word == value and before.startswith("-")]
    flags += [word.partition("=")[0] for word in argv if word.startswith("-") and word.endswith(f"={value}")]
    return f"{flags[0] if flags else 'an option'} takes a number, not {value!r}"


def _help_with_value(context: Any, flag: str) -> tuple[str, str]:
    """A flag and its help; invoke leaves out that an option takes a decimal number or may be repeated."""
    names, text = _help_for(context, flag)
    kind = context.flags[flag].kind
    if kind not in (float, list):
        return names, text
    value = "FLOAT" if kind is float else "STRING"
    return ", ".join(f"{n}={value}" if n.startswith("--") else f"{n} {value}" for n in names.split(", ")), text
