"""What a process was started with, to be shown: one line of printable characters, whatever it was given."""

from __future__ import annotations

_MOST_BYTES = 4096  # of one that may be megabytes long


def command_line(pid: int) -> str:
    """The words of a process; nothing of a zombie, which has none. Raises OSError where there is no such process."""
    with open(f"/proc/{pid}/cmdline", "rb") as file:
        return on_one_line(file.read(_MOST_BYTES).replace(b"\0", b" ").decode("utf-8", "replace"))


def on_one_line(text: str) -> str:
    """The text with a space for each run of blanks, line breaks and whatever a terminal would not show, or obey."""
    return " ".join("".join(c if c.isprintable() else " " for c in text).split())
