"""Errors that end a relay's work."""

from __future__ import annotations


class LocalError(Exception):
    """Error of this host alone: its disk, its permissions."""


class SenderLost(LocalError):
    """Error of a host to which no earlier host sends any more."""


class Changed(LocalError):
    """Error of a source that has changed since the copy began, so that no host can complete it."""

    def __init__(self, path: str) -> None:
        super().__init__(f"{path}: changed while it was copied: copy again when nothing writes it")


class Over(Exception):
    """Error of the head of the chain, which every host must stop for. Its text gives the reason."""


class CopyStopped(Exception):
    """Signal that another thread has ended this host's part in the copy."""


class WireError(Exception):
    """Error of a connection: an unauthenticated peer, a closed connection, or data that fails its digest."""


def sentence(e: OSError) -> str:
    """Return the error's message, with the file's name if there is one."""
    why = (e.strerror or str(e)).lower()
    return f"{e.filename2 or e.filename}: {why}" if e.filename or e.filename2 else why
