"""Proof that a command began on its host: a mark that our own shell prints before it, taken out of the result.

A start-up file of the login shell (~/.bashrc) may exit, or exec another shell, and end with 0 before our command runs.
"""

_MARK = b"\x1edlami-begun\n"
PRINT_MARK = r"printf '\036dlami-begun\n'"


class StartMark:
    """Filter of a command's stdout that takes out the mark of its start."""

    def __init__(self) -> None:
        self.is_seen = False
        self._held = b""  # may be the beginning of the mark

    def feed(self, data: bytes) -> bytes:
        """Return what the command printed, without the mark."""
        if self.is_seen:
            return data
        data = self._held + data
        before, mark, after = data.partition(_MARK)
        if mark:
            self.is_seen, self._held = True, b""
            return before + after
        held = next((n for n in range(min(len(data), len(_MARK) - 1), 0, -1) if data.endswith(_MARK[:n])), 0)
        self._held = data[len(data) - held :]
        return data[: len(data) - held]

    def rest(self) -> bytes:
        """Return held-back bytes that turned out not to be a mark. Call it at the end of the output."""
        held, self._held = self._held, b""
        return held
