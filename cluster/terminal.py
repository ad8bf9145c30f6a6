"""Output of tasks and questions to the operator: JSON records, colours on a terminal, yes or no."""

import json
import os
import shutil
import sys
from typing import Any, Literal, TextIO

from cluster.errors import ConfigError
from cluster.printable import OutputFilter, Sentences, printable

Colour = Literal["red", "green", "yellow"]
_CODES: dict[Colour, str] = {"red": "31", "green": "32", "yellow": "33"}
_filters: dict[str, OutputFilter] = {}  # by the stream's name


def print_json(value: Any, *, one_line: bool = False) -> None:
    """Print a value as JSON, flushed at once. `one_line` is for a sequence of records."""
    # DEL is the only control character that JSON does not escape.
    print(json.dumps(value, indent=None if one_line else 2).replace("\x7f", "\\u007f"), flush=True)


def agreed(what: str) -> bool:
    """Return True if the operator answers yes. Raises ConfigError if there is no terminal."""
    return answer_to(f"{what}? [y/N] ", f"{what}?").lower() in ("y", "yes")


def answer_to(prompt: str, question: str) -> str:
    """Return the operator's answer; "" for an empty one. Raises ConfigError without a terminal."""
    if not sys.stdin.isatty():
        raise ConfigError(f"{question} There is no terminal to ask on: add --yes if you mean it")
    try:
        return input(printable(prompt)).strip()
    except EOFError:
        return ""


def pass_on(host: object, stream: str, data: bytes) -> None:
    """Write a remote command's output to our own stream of that name, flushed at once, filtered on a terminal."""
    target = _stream(stream)
    if target and target.isatty():
        text = _filters.setdefault(stream, OutputFilter()).feed(data)
        data = text.encode(target.encoding or "ascii", "replace")
    pass_on_raw(host, stream, data)


def pass_on_raw(_host: object, stream: str, data: bytes) -> None:
    """Write a remote command's output to our own stream of that name, flushed at once and byte for byte."""
    target = _stream(stream)
    if target:  # a task may be started with its streams closed
        target.flush()
        target.buffer.write(data)
        target.buffer.flush()


def pass_on_to_stderr(host: object, stream: str, data: bytes) -> None:
    """Write a remote command's output to stderr, since a program reads the answer on stdout."""
    pass_on(host, "stderr", data)


def print_output(text: str, *, raw: bool = False) -> None:
    """Print programs' output. Unlike our own sentences it may have any colours."""
    (pass_on_raw if raw else pass_on)(None, "stdout", f"{text}\n".encode(sys.stdout.encoding or "utf-8", "replace"))


def unfiltered(stream: TextIO) -> TextIO:
    """Return the stream without the filter, for drawing with control characters."""
    return stream.unfiltered if isinstance(stream, Sentences) else stream


def painted(text: str, colour: Colour, stream: TextIO | None = None) -> str:
    """Return the text in a colour if the stream (default: stdout) shows colours."""
    return f"\x1b[{_CODES[colour]}m{text}\x1b[0m" if text and shows_colours(stream or sys.stdout) else text


def shows_colours(stream: TextIO) -> bool:
    """Return True if the stream is a terminal with colours. NO_COLOR forbids them: https://no-color.org"""
    return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def terminal_size(fallback: tuple[int, int] = (80, 24)) -> os.terminal_size:
    """Return the current columns and lines of the output's terminal; `fallback` without a terminal.

    The terminal is queried before COLUMNS and LINES, which do not change when a window is resized.
    """
    for stream in (sys.stdout, sys.stderr):
        try:
            size = os.get_terminal_size(stream.fileno())
        except (AttributeError, OSError, ValueError):  # no stream, a closed one, or no terminal
            continue
        if min(size) > 0:
            return size
    return shutil.get_terminal_size(fallback)


def counted(number: float, noun: str) -> str:
    """Return a number with its noun: `1 host`, `2 hosts`, `0.5 hours`, `3 processes`."""
    shown = f"{number:,}" if isinstance(number, int) else f"{number:g}"
    return f"{shown} {noun}" if number == 1 else f"{shown} {noun}{'es' if noun.endswith('s') else 's'}"


def _stream(name: str) -> Any:
    return sys.stdout if name == "stdout" else sys.stderr
