"""Destination of a copy on this host: its missing files, and the mark by which hosts detect that they share it."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import re
import time
from typing import Any

from cluster.broadcast.onhost import file_tree, store
from cluster.broadcast.onhost.errors import LocalError

_MARK = re.compile(r"\.copy-[0-9a-f]{16}\.dlami-part")
_MARK_S = 5.0  # how long its creator may take to write into it
_STALE_S = 60.0  # age from which an unlocked mark counts as left by a killed relay


class CopyTarget:
    """Destination of the copy on this host, if the host is to have one."""

    def __init__(self, spec: dict[str, Any], me: int) -> None:
        self._dst, self._address, self._is_plan = spec["dst"], spec["chain"][me], spec["plan"]
        self._excludes, self._surplus = spec["excludes"], spec["delete"].get(self._address, [])
        digest = hashlib.sha256(b"mark" + bytes.fromhex(spec["secret"])).hexdigest()[:16]
        self._mark = os.path.join(os.path.dirname(self._dst), f".copy-{digest}.dlami-part")
        self._held: int | None = None  # our mark's descriptor, locked: an unlocked mark shows that its relay is gone
        self.keeps = me > 0 or spec["head_keeps"]
        self.shared_with: str | None = None  # address of the host that writes the folder for this host, too
        self.wanted: list[int] = []
        self._entries: list[file_tree.FileEntry] = []

    def prepare(self, entries: list[file_tree.FileEntry]) -> None:
        """Find the missing files and make the folders. Raises LocalError or OSError if the copy cannot go here."""
        self._entries = entries
        if not self.keeps:
            return
        if problem := file_tree.obstacle(entries, self._dst):
            raise LocalError(problem)
        if not self._is_plan:
            os.makedirs(os.path.dirname(self._dst) or "/", exist_ok=True)
        remove_stale_marks(os.path.dirname(self._mark))
        self._leave_mark()
        if self.shared_with is not None:
            self.keeps = False
            return
        self.wanted = file_tree.missing(entries, self._dst)
        if problem := store.room_problem(entries, self.wanted, self._dst):
            raise LocalError(problem)
        if not self._is_plan:
            store.make_folders(entries, self._dst)

    def give_up(self) -> None:
        """Skip this host's own copy. The host may still pass the stream on."""
        self.keeps, self.wanted, self._surplus = False, [], []

    def settle(self) -> None:
        """Remove the agreed surplus, then restore the links and folders of the source. All files must be there.

        The removal comes first because it changes the time of its folder. If it fails, links and folders are restored
        all the same.
        """
        if self.keeps or (self._surplus and self.shared_with is None):
            try:
                store.remove(self._surplus, self._dst)
            finally:
                store.settle(self._entries, self._dst)

    def plan(self) -> dict[str, Any]:
        """Return what this host would get, and what it has that is not in the source."""
        return {
            "files": len(self.wanted),
            "bytes": sum(self._entries[n].size for n in self.wanted),
            "surplus": file_tree.surplus(self._entries, self._dst, self._excludes) if self.keeps else [],
        }

    def remove_mark(self) -> None:
        """Remove the mark with which this host claims the folder."""
        if self._held is not None:
            with contextlib.suppress(OSError):
                os.unlink(self._mark)
            os.close(self._held)
            self._held = None

    def _leave_mark(self) -> None:
        """Create the mark beside the copy, which only the first of the hosts that share the folder can create."""
        try:
            fd = os.open(self._mark, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        except FileExistsError:
            self.shared_with = _written(self._mark)
        except OSError:
            return  # the copy itself reports the problem
        else:
            self._held = fd
            with contextlib.suppress(OSError):  # a file system without locks
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            try:
                os.write(fd, self._address.encode())
            except OSError:  # a full disk: the copy itself reports the space
                self.remove_mark()


def remove_stale_marks(folder: str) -> None:
    """Remove the marks of relays that were killed. A running relay's mark is locked, or too young to be locked."""
    with contextlib.suppress(OSError):
        for name in filter(_MARK.fullmatch, os.listdir(folder)):
            with contextlib.suppress(OSError):
                _remove_if_stale(os.path.join(folder, name))


def _remove_if_stale(mark: str) -> None:
    fd = os.open(mark, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        if time.time() - os.fstat(fd).st_mtime > _STALE_S:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.unlink(mark)
    finally:
        os.close(fd)


def _written(mark: str) -> str | None:
    """Return the address that the mark's creator writes into it after a moment. None if the mark is removed."""
    end = time.monotonic() + _MARK_S
    while time.monotonic() < end:
        try:
            with open(mark) as file:
                if text := file.read():
                    return text
        except OSError:
            return None
        time.sleep(0.01)
    return None
