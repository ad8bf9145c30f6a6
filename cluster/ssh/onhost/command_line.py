"""Command lines of processes, made fit to show: one line of printable characters."""

from __future__ import annotations

_MOST_BYTES = 4096  # of one that may be megabytes long


def command_line(pid: int) -> str:
    """Return a process's command line, at most its first 4096 bytes. It is empty for a zombie.

    Raises OSError if there is no such process.
    """
    with open(f"/proc/{pid}/cmdline", "rb") as file:
        return on_one_line(file.read(_MOST_BYTES).replace(b"\0", b" ").decode("utf-8", "replace"))


def on_one_line(text: str) -> str:
    """Return the text with each run of blanks, line breaks and unprintable characters replaced by one space."""
    return " ".join("".join(c if c.isprintable() else " " for c in text).split())
