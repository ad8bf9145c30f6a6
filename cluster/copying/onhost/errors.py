"""Why a relay does not go on."""

from __future__ import annotations


class LocalError(Exception):
    """This host cannot go on: its disk, its permissions."""


class Lost(LocalError):
    """No host before this one sends anything any more."""


class Changed(LocalError):
    """The source is not what it was when the copy began, so there is nothing that anybody could have."""

    def __init__(self, path: str) -> None:
        super().__init__(f"{path}: changed while it was copied: copy again when nothing writes it")


class Over(Exception):
    """The head gave up, and so must everybody; the text says why."""


class Stopped(Exception):
    """Another thread has ended this host's part."""


class WireError(Exception):
    """The other side is not one of us, is silent, or what it sent is not what it was."""


def sentence(e: OSError) -> str:
    """What went wrong, with the file's name if there is one."""
    why = (e.strerror or str(e)).lower()
    return f"{e.filename2 or e.filename}: {why}" if e.filename or e.filename2 else why
