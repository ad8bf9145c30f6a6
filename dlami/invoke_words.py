"""Error messages and lists for Invoke: nearest name to a mistyped one, place of `--`, values of flags.

Invoke has no hooks for this, so its parser, its lists and a function of its help are replaced.
"""

import functools
import itertools
import re
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import invoke.parser
import invoke.program
from invoke.exceptions import Exit, ParseError
from invoke.parser.context import ParserContext

from dlami import completion, short_flags, task_list
from dlami.completion import TAKE_WORDS
from dlami.suggestions import nearest_option, nearest_task

_UNKNOWN = re.compile(r"No idea what ['\"](.*)['\"] is!", re.DOTALL)
_NO_NUMBER = re.compile(r"(?:invalid literal for int.*|could not convert .* float): '(.*)'", re.DOTALL)
_NOT_GIVEN = re.compile(r"'(.*)' did not receive required positional arguments: (.*)")
_help_for = ParserContext.help_for
_list_tasks = invoke.program.Program.list_tasks


def install() -> None:
    """Install this module's parser, lists and help in Invoke."""
    kind = invoke.program.Program
    invoke.program.Parser = TaskParser
    ParserContext.help_for = _help_with_value
    kind.list_tasks, kind.no_tasks_given = _listed, _overview
    for name in ("parse_core", "parse_tasks", "parse_cleanup"):
        setattr(kind, name, _mistakes_end_with_2(getattr(kind, name)))
    completion.install()


class TaskParser(invoke.parser.Parser):
    """Invoke's parser with few short flags, whose errors suggest what was probably meant."""

    def __init__(self, contexts: Iterable[ParserContext] = (), *args: Any, **kwargs: Any) -> None:
        super().__init__(short_flags.contexts_of(contexts), *args, **kwargs)

    def parse_argv(self, argv: list[str]) -> Any:
        """Return Invoke's result for the words. Raises ParseError with a suggestion."""
        try:
            words, notes = self._with_long_names(argv)
            found = super().parse_argv(self._with_names(words))
            for note in notes if "--complete" not in sys.argv else ():
                print(f"{program()} {note}", file=sys.stderr)
            return found
        except ValueError as e:
            raise ParseError(_not_a_number(str(e), argv), None) from None
        except ParseError as e:
            unknown = _UNKNOWN.fullmatch(str(e))
            if lacking := _NOT_GIVEN.fullmatch(str(e)):
                needed = " ".join(name.upper() for name in re.findall(r"'([^']*)'", lacking[2]))
                raise ParseError(f"it needs more words: {program()} {lacking[1]} {needed}", e.context) from None
            if not unknown:
                raise
            raise ParseError(self._meant(unknown[1], e.context), e.context) from None

    def _with_long_names(self, argv: list[str]) -> tuple[list[str], list[str]]:
        """Replace deprecated short flags by long ones such as `--hosts`. Return the words, and a notice for each."""
        end = argv.index("--") if "--" in argv else len(argv)
        starts = [n for n, word in enumerate(argv[:end]) if word in self.contexts]
        words, notes = argv[: starts[0]] if starts else argv[:end], []
        for start, stop in itertools.pairwise([*starts, end]):
            long, of_task = short_flags.with_long_names(self.contexts[argv[start]], argv[start + 1 : stop])
            notes += [f"{argv[start]}: {note}" for note in of_task]
            if long == ["--help"]:
                return [argv[start], "--help"], notes
            words += [argv[start], *long]
        return [*words, *argv[end:]], notes

    def _with_names(self, argv: list[str]) -> list[str]:
        """Put `--host=` or the like before each word of a task that takes any number of them.

        Invoke itself gives a task a fixed number of words.
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
        """Return the error for a word that is neither a task nor an option, with a suggestion."""
        name = task.name if task else None
        if name is None:
            return self._no_task(word)
        own, takes_words = f"{program()} {name}", _takes_words(name)
        if word.startswith("-"):
            near = _maybe(nearest_option(word, [*task.flags, *task.inverse_flags]))
            if takes_words and not near:
                return f"{own} has no option {word}; for what it runs it goes after --: {_after(name, word)}"
            return f"{own} has no option {word}{near}; all of them: {program()} --help {name}"
        if takes_words:
            return f"{own} takes no {word!r} here; words for what it runs go after --: {_after(name, word)}"
        return f"{own} takes no {word!r}, and there is no such task{_maybe(nearest_task(word, self.contexts))}"

    def _no_task(self, word: str) -> str:
        """Return the error for a word that is no task: the nearest task, or those of the group with that name."""
        if word.startswith("-"):
            return f"there is no option {word}: {program()} --help"
        near, group = _maybe(nearest_task(word, self.contexts)), word.rpartition(".")[0]
        if inside := sorted(n.rpartition(".")[2] for n in self.contexts if group and n.startswith(f"{group}.")):
            return f"there is no task {word!r}{near}; {group} has {', '.join(inside)}"
        return f"there is no task {word!r}{near}; all of them: {program()} --list"


def program() -> str:
    """Return the name of the called program: `inv`, `invoke` or `dlami`."""
    called = Path(sys.argv[0]).name
    return called if called in ("dlami", "invoke") else "inv"


def _takes_words(task: str) -> bool:
    """Return True if a task passes on the words after `--`, which its help then shows."""
    from dlami.collection import ns

    return bool(re.search(r"(^|[ \[])-- ", str(ns[task].__doc__)))


def _after(name: str, word: str) -> str:
    """Return the same command with the words from this one on after `--`."""
    import shlex

    words = sys.argv[sys.argv.index(word) :] if word in sys.argv else [word]
    return f"{program()} {name} -- {shlex.join(w for w in words if w != '--')}"


def _maybe(name: str) -> str:
    """Return the suggestion in brackets; "" without one."""
    return f" (did you mean {name}?)" if name else ""


def _mistakes_end_with_2(step: Callable[..., None]) -> Callable[..., None]:
    """Wrap a step of Invoke so that unparseable words give exit code 2, as our errors do, instead of 1.

    A group's name alone lists its tasks, and `help TASK` prints that task's help.
    """

    @functools.wraps(step)
    def ended(self: Any, *words: Any) -> None:
        try:
            step(self, *words)
        except ParseError as e:
            _answer_instead(self)
            raise Exit(str(e), code=2) from None

    return ended


def _answer_instead(self: Any) -> None:
    """Print the answer to words that Invoke cannot parse: a group's name, or `help` of something.

    Raises Exit if there is an answer.
    """
    words = [word for word in self.core.unparsed if word not in ("-h", "--help")] if "core" in vars(self) else []
    words += [self.args.help.value] if "core" in vars(self) and isinstance(self.args.help.value, str) else []
    if words[:1] == ["help"] and len(words) < 3:
        name = words[1] if words[1:] else ""
        if name in self.parser.contexts:
            self.print_task_help(name)
            raise Exit
        if not name:
            _overview(self)
        words = [name]
    if len(words) == 1 and (text := task_list.of_group(self.collection, words[0].rstrip("."))):
        print(f"{text}\n\n{program()} --help TASK shows a task's options")
        raise Exit


def _overview(self: Any) -> None:
    print(task_list.overview(program(), self.collection))
    raise Exit


def _listed(self: Any) -> None:
    """List our tasks by group. Other formats and other collections are listed by Invoke."""
    if self.list_format != "flat" or self.list_depth or not task_list.is_ours(self.collection):
        _list_tasks(self)
    elif self.list_root:
        print(task_list.of_group(self.collection, self.list_root))
    else:
        print(task_list.all_tasks(self.collection))


def _not_a_number(complaint: str, argv: Sequence[str]) -> str:
    """Return an error that names the option whose value is not a number. Other errors are returned unchanged."""
    match = _NO_NUMBER.fullmatch(complaint)
    if not match:
        return complaint
    value = match[1]
    flags = [before for before, word in itertools.pairwise(argv) if word == value and before.startswith("-")]
    flags += [word.partition("=")[0] for word in argv if word.startswith("-") and word.endswith(f"={value}")]
    return f"{flags[0] if flags else 'an option'} takes a number, not {value!r}"


def _help_with_value(context: Any, flag: str) -> tuple[str, str]:
    """Return a flag and its help. Invoke does not show that an option takes a decimal number or may be repeated."""
    names, text = _help_for(context, flag)
    kind = context.flags[flag].kind
    if kind not in (float, list):
        return names, text
    value = "FLOAT" if kind is float else "STRING"
    return ", ".join(f"{n}={value}" if n.startswith("--") else f"{n} {value}" for n in names.split(", ")), text
