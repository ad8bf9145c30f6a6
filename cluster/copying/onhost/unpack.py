"""Unpacking of a tar archive as it arrives, into a folder that appears atomically. Runs on every host."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess

_PIECE = 1 << 20


class Unpacking:
    """Folder being filled from an archive by tar. It gets its name when it is complete."""

    def __init__(self, folder: str) -> None:
        """Start tar in a new temporary folder. Raises OSError if the folder cannot be made."""
        self._folder = folder
        self._fresh = f"{folder}.{os.urandom(4).hex()}.part"
        self._at = 0  # bytes of the archive that tar has been given
        self._complaints = os.memfd_create("complaints")
        os.makedirs(os.path.dirname(folder), mode=0o700, exist_ok=True)
        os.mkdir(self._fresh, 0o700)
        words = ["tar", "-x", "-p", "--no-same-owner", "-f", "-", "-C", self._fresh]
        try:
            self._tar = subprocess.Popen(
                words, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=self._complaints, bufsize=0
            )
        except OSError:
            self._remove()
            raise

    def feed(self, offset: int, data: bytes | bytearray, archive: str) -> None:
        """Pass the archive's bytes at this offset to tar. Earlier bytes that tar lacks are read from the archive."""
        self._catch_up(archive, offset)
        self._give(memoryview(data)[self._at - offset :])

    def finish(self, archive: str) -> None:
        """Pass the rest of the archive to tar and name the folder. Raises OSError if it cannot be unpacked."""
        self._catch_up(archive, os.stat(archive).st_size)
        assert self._tar.stdin
        self._tar.stdin.close()
        if self._tar.wait():
            raise self._failure()
        with contextlib.suppress(OSError):  # another host of the same folder was first
            os.rename(self._fresh, self._folder)
        if not os.path.isdir(self._folder):
            raise OSError(0, "could not be made", self._folder)

    def abandon(self) -> None:
        """Stop tar and remove the incomplete folder."""
        if self._tar.poll() is None:
            self._tar.kill()
            self._tar.wait()
        self._remove()

    def _catch_up(self, archive: str, offset: int) -> None:
        if self._at < offset:
            with open(archive, "rb") as file:
                file.seek(self._at)
                while self._at < offset and (data := file.read(min(_PIECE, offset - self._at))):
                    self._give(memoryview(data))

    def _give(self, data: memoryview) -> None:
        assert self._tar.stdin
        try:
            while data:
                n = self._tar.stdin.write(data)
                data, self._at = data[n:], self._at + n
        except BrokenPipeError:
            self._tar.wait()
            raise self._failure() from None

    def _failure(self) -> OSError:
        said = os.pread(self._complaints, _PIECE, 0).decode(errors="replace").strip().splitlines()
        return OSError(0, said[0] if said else f"tar exited {self._tar.returncode}", self._folder)

    def _remove(self) -> None:
        os.close(self._complaints)
        shutil.rmtree(self._fresh, ignore_errors=True)
