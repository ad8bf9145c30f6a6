"""Keyboard input without waiting for a line; the terminal's mode is restored afterwards."""

import os
import select
import sys
import termios
import tty
from typing import Any

_ARROWS = {b"[A": "up", b"[B": "down", b"[5~": "page up", b"[6~": "page down", b"OA": "up", b"OB": "down"}


class Keys:
    """Context in which single key presses can be read; it yields none if stdin is no terminal."""

    def __enter__(self) -> "Keys":
        self._before: list[Any] | None = None
        if sys.stdin and sys.stdin.isatty():
            self._fd = sys.stdin.fileno()
            self._before = termios.tcgetattr(self._fd)
            tty.setcbreak(self._fd)
        return self

    def __exit__(self, *exc: object) -> None:
        if self._before is not None:
            termios.tcsetattr(self._fd, termios.TCSADRAIN, self._before)

    def pressed(self) -> list[str]:
        """Return the keys since the last call: letters, or names of arrows. A closed terminal counts as "q"."""
        if self._before is None or not select.select([self._fd], [], [], 0)[0]:
            return []
        data = os.read(self._fd, 256)
        return names_of(data) if data else ["q"]  # the terminal is gone


def names_of(data: bytes) -> list[str]:
    """Translate a terminal's input to names of keys. Bytes that are neither a letter nor an arrow are skipped."""
    found = []
    for n, part in enumerate(data.split(b"\x1b")):
        rest = part
        if n:
            arrow = next((a for a in _ARROWS if part.startswith(a)), None)
            if arrow is None:
                continue
            found.append(_ARROWS[arrow])
            rest = part[len(arrow) :]
        found += [chr(byte) for byte in rest if 0x20 < byte < 0x7F]
    return found
