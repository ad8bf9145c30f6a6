"""Staging on one host: moves its share of the objects, and reports progress and result in frames.

The host's instance role, or the credentials that boto3 finds in its environment, decide about access to the bucket.
boto3's transfer layer moves the bytes: large objects in parts and in parallel, with the CRT if it is installed.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, BinaryIO, NamedTuple

from cluster.ssh.onhost.frame import say
from cluster.ssh.onhost.partial_file import part_of
from cluster.stage.onhost.archive import unpack
from cluster.stage.onhost.client import client_of, sentence
from cluster.stage.onhost.etag import etag_of, is_checksum
from cluster.stage.onhost.files import files_below, finished
from cluster.stage.onhost.folder import DestinationFolder
from cluster.stage.onhost.keys import Prefix, digest_of, places, suffix_of
from cluster.stage.onhost.stall_watchdog import Silence

_SHOW_S = 0.5
MOST_NAMED = 10_000  # failed objects in the result, which has to stay readable
_SMALL_AT_ONCE = 16
_TIME = "dlami-mtime-ns"  # metadata key for the mtime of the file that an object was uploaded from
_CLEAN_S = 2.0  # limit for removing partial files, because the disk itself may hang


class S3Object(NamedTuple):
    """Object in S3 and its path below the folder."""

    key: str
    below: str
    size: int
    modified: float = 0.0  # of the object, seconds


class Staging:
    """Transfer of this host's part of a stage."""

    def __init__(self, asked: dict[str, Any]) -> None:
        self._asked, self._bucket = asked, asked["bucket"]
        self._folder = DestinationFolder(asked["folder"])
        self._s3, self._config = client_of(asked["endpoint"])
        self._lock = threading.Lock()
        self._done = self._total = self._files = self._skipped = 0
        self._refused: dict[str, str] = {}
        self._shown = 0.0
        self._moving: set[str] = set()
        self._sent: dict[str, os.stat_result] = {}  # files on their way to S3, as they were at first
        self._ending = threading.Event()
        self._silence = Silence(asked["silence_s"], self._end_in_silence)

    def end(self) -> None:
        """Give up: running transfers stop at their next piece and remove their partial files."""
        self._ending.set()

    def move_all(self) -> dict[str, Any]:
        """Move this host's objects, or with `plan` only count them. Return counts, and the objects that failed."""
        with self._silence.watched(self._s3):
            return self._move_all(time.monotonic())

    def _move_all(self, began: float) -> dict[str, Any]:
        items = self._files_here() if self._asked["upload"] else self._objects()
        part, parts = self._asked["part"]
        mine = items[part::parts]  # every n-th if the hosts share the folder, else all
        self._total = sum(item.size for item in mine)
        refused = dict(list(self._refused.items())[part::parts])
        failed: dict[str, str] = {}

        def move(item: S3Object) -> None:
            try:
                self._still_wanted()
                self._move(item)
            except Exception as e:
                failed[item.key] = sentence(e)

        with ThreadPoolExecutor(_SMALL_AT_ONCE) as pool:
            list(pool.map(move, mine))
        failed.update(refused)
        return {
            "files": self._files,
            "bytes": self._done,
            "skipped": self._skipped,
            "objects": len(mine) + len(refused),
            **({"seen": _seen([*(i.key for i in items), *self._refused])} if parts > 1 else {}),
            "failed": dict(sorted(failed.items())[:MOST_NAMED]),
            "num_failed": len(failed),
            "seconds": time.monotonic() - began,
        }

    def _move(self, item: S3Object) -> None:
        upload = self._asked["upload"]
        is_tar = self._asked["untar"] and suffix_of(item.key) != ""
        if upload:
            is_there = self._is_in_s3(item)
        else:
            with self._silence.asking_disk(self._folder.path_of(item.below)):
                is_there = self._folder.has(item.below, item.modified, None if is_tar else item.size)
        if is_there:
            with self._lock:
                self._skipped += 1
                self._total -= item.size
            return
        if self._asked["plan"]:
            self._moved(item.size)
        elif upload:
            self._upload(item)
        elif is_tar:
            self._while_moving(item, lambda: self._untar(item))
        else:
            self._while_moving(item, lambda: self._download(item))
        with self._lock:
            self._files += 1

    def _objects(self) -> list[S3Object]:
        """Return the requested objects that can be files here. Raises LookupError without any."""
        prefix = Prefix.of(self._asked["prefix"])
        listed = self._listed(prefix.listed)
        if not listed:
            prefix, listed = Prefix.of(self._asked["prefix"] + "*"), self._one_object()
        if not listed:
            raise LookupError(self._nothing_there())
        found, self._refused = places(listed, prefix.above, untar=self._asked["untar"])
        return [S3Object(key, below, *listed[key]) for key, below in found.items()]

    def _listed(self, prefix: str) -> dict[str, tuple[int, float]]:
        """Return size and time of all keys with this prefix that are not folders."""
        pages = self._s3.get_paginator("list_objects_v2").paginate(Bucket=self._bucket, Prefix=prefix)
        return dict(_size_and_time(o) for p in pages for o in p.get("Contents", ()) if not o["Key"].endswith("/"))

    def _one_object(self) -> dict[str, tuple[int, float]]:
        """Return the object whose key is exactly the prefix, if there is one."""
        page = self._s3.list_objects_v2(Bucket=self._bucket, Prefix=self._asked["prefix"], MaxKeys=1)
        return dict(_size_and_time(o) for o in page.get("Contents", ()) if o["Key"] == self._asked["prefix"])

    def _nothing_there(self) -> str:
        """Return the error for a prefix without objects, with the names that exist beside it."""
        prefix = self._asked["prefix"]
        above = prefix.rstrip("/*").rpartition("/")[0]
        above += "/" * bool(above)
        page = self._s3.list_objects_v2(Bucket=self._bucket, Prefix=above, Delimiter="/", MaxKeys=20)
        names = [p["Prefix"] for p in page.get("CommonPrefixes", ())] + [o["Key"] for o in page.get("Contents", ())]
        there = ", ".join(n[len(above) :] for n in names[:8] if n != above) + (", …" if len(names) > 8 else "")
        beside = f"; s3://{self._bucket}/{above} has {there}" if there else ""
        return f"no object is called s3://{self._bucket}/{prefix}{beside}"

    def _files_here(self) -> list[S3Object]:
        top, prefix = self._folder.top, self._asked["prefix"].strip("/")
        above = f"{prefix}/" if prefix else ""
        with self._silence.asking_disk(top):
            if not os.path.isdir(top):
                raise LookupError(f"{top}: there is no such folder")
            files = finished(files_below(top, self._silence.heard))
        return [S3Object(above + below, below, size) for below, size in files.items()]

    def _download(self, item: S3Object) -> None:
        def fill(file: BinaryIO) -> None:
            self._s3.download_fileobj(self._bucket, item.key, file, Config=self._config, Callback=self._moved)
            file.flush()
            self._check(item, file)

        self._folder.write(item.below, item.modified, fill)

    def _untar(self, item: S3Object) -> None:
        """Unpack a tar into a folder of its name, atomically."""

        def fill(folder: str) -> None:
            body = _Counted(self._s3.get_object(Bucket=self._bucket, Key=item.key)["Body"], self._moved)
            unpack(body, item.size, folder)
            while body.read(1 << 16):  # the bytes after the archive's end
                pass
            if body.size != item.size:
                raise OSError(f"{body.size} bytes came of {item.size}")

        self._folder.write_folder(item.below, item.modified, fill)

    def _upload(self, item: S3Object) -> None:
        path = self._folder.path_of(item.below)
        before = self._sent[path] = os.stat(path)
        own = {"Metadata": {_TIME: str(before.st_mtime_ns)}}
        try:
            self._s3.upload_file(path, self._bucket, item.key, ExtraArgs=own, Config=self._config, Callback=self._moved)
        finally:
            del self._sent[path]
        size, after = self._s3.head_object(Bucket=self._bucket, Key=item.key)["ContentLength"], os.stat(path)
        if size != item.size or (before.st_size, before.st_mtime_ns) != (after.st_size, after.st_mtime_ns):
            raise OSError(f"{size} bytes are there of {after.st_size}: it changed while it was sent; stage it again")

    def _is_in_s3(self, item: S3Object) -> bool:
        """Return True if the object equals the file.

        It compares checksums. If S3 has none that can be computed, it compares the file's mtime with the one stored on
        upload.
        """
        with contextlib.suppress(self._s3.exceptions.ClientError):
            head = self._s3.head_object(Bucket=self._bucket, Key=item.key)
            if head["ContentLength"] == item.size:
                with open(self._folder.path_of(item.below), "rb") as file:
                    is_same = self._is_same(item, head, file)
                    time_ns = str(os.fstat(file.fileno()).st_mtime_ns)
                return head["Metadata"].get(_TIME) == time_ns if is_same is None else is_same
        return False

    def _check(self, item: S3Object, file: BinaryIO) -> None:
        """Raise OSError unless size, time, and checksum of what arrived match the object in S3.

        The checksum counts only if S3 has one that can be computed.
        """
        size = file.seek(0, 2)
        head = self._s3.head_object(Bucket=self._bucket, Key=item.key)
        if int(head["LastModified"].timestamp()) != int(item.modified):
            raise OSError("it was replaced in S3 while it was on its way: stage it again")
        if size != head["ContentLength"] or self._is_same(item, head, file) is False:
            raise OSError(f"what arrived is not what is there ({size} bytes, ETag {head['ETag']})")

    def _is_same(self, item: S3Object, head: dict[str, Any], file: BinaryIO) -> bool | None:
        """Return True if the checksums match, None if S3 has none that can be computed here."""
        if not is_checksum(head):
            return None
        etag = head["ETag"].strip('"')
        part = None
        if "-" in etag:
            part = self._s3.head_object(Bucket=self._bucket, Key=item.key, PartNumber=1)["ContentLength"]
            if part >= item.size and not etag.endswith("-1"):
                return None  # the service does not report the part size
        return etag_of(file, part, self._silence.heard) == etag

    def _while_moving(self, item: S3Object, move: Callable[[], None]) -> None:
        """Run `move` while its partial file is registered, so that it is removed if this process is ended."""
        part = part_of(self._folder.path_of(item.below))
        self._moving.add(part)
        try:
            move()
        finally:
            self._moving.discard(part)

    def _moved(self, count: int) -> None:
        self._silence.heard()
        self._still_wanted()
        with self._lock:
            self._done += count
            now = time.monotonic()
            if now - self._shown > _SHOW_S:
                self._shown = now
                say({"at": self._done, "of": self._total})

    def _still_wanted(self) -> None:
        if self._ending.is_set():
            raise InterruptedError("ended before it was whole")

    def _end_in_silence(self) -> None:
        """End this process because nothing moves any more: threads that wait for S3 cannot be ended."""
        say({"error": self._why_silent()})
        cleaning = threading.Thread(target=self._remove_parts, daemon=True)
        cleaning.start()
        cleaning.join(_CLEAN_S)
        os._exit(1)

    def _why_silent(self) -> str:
        limit = f"{self._asked['silence_s']:g} s"
        if asked := list(self._silence.asked_of_disk):
            what = f"{asked[0]}: the file system here has not told for {limit} what is there"
            return f"{what}: does its disk or server answer?"
        if changed := self._shrunk():
            return f"{changed[0]} changed while it was sent: stage it again when nothing writes it"
        whom = self._asked["endpoint"] or os.environ.get("AWS_ENDPOINT_URL") or f"S3 (s3://{self._bucket})"
        said = f"nothing has come from {whom} for {limit}: is there a way to it from here (gateway endpoint, NAT), "
        return said + "and does the disk answer?"

    def _shrunk(self) -> list[str]:
        """Return the files whose end S3 waits for in vain. A disk that does not answer is not waited for."""
        found: list[str] = []

        def look() -> None:
            found.extend(p for p, before in list(self._sent.items()) if os.stat(p).st_size < before.st_size)

        looking = threading.Thread(target=look, daemon=True)
        looking.start()
        looking.join(_CLEAN_S)
        return found

    def _remove_parts(self) -> None:
        for part in list(self._moving):
            with contextlib.suppress(OSError):
                os.unlink(part)


class _Counted:
    """Stream that counts the bytes read from it."""

    def __init__(self, body: Any, moved: Callable[[int], None]) -> None:
        self._body, self._moved, self.size = body, moved, 0

    def read(self, count: int = -1) -> bytes:
        data: bytes = self._body.read(count if count >= 0 else None)
        self.size += len(data)
        self._moved(len(data))
        return data


def _size_and_time(found: dict[str, Any]) -> tuple[str, tuple[int, float]]:
    return found["Key"], (found["Size"], found["LastModified"].timestamp())


def _seen(keys: list[str]) -> tuple[int, str]:
    """Return the number and the digest of the keys.

    Hosts that share a folder must get the same, or some objects are in no host's part.
    """
    return len(keys), digest_of(keys)


def main(asked: dict[str, Any], own: dict[str, Any]) -> int:
    """Run this host's part of the stage. Return the exit code.

    Args:
        asked: parameters of all hosts.
        own: parameters of this host.
    """
    os.environ.update(asked["environment"])
    try:
        staging = Staging({**asked, **own})
        signal.signal(signal.SIGTERM, lambda *_: staging.end())
        result = staging.move_all()
    except ModuleNotFoundError as e:
        say({"error": f"{e.name} is not installed for the Python here: put the project's runtime on this host"})
        return 1
    except Exception as e:
        say({"error": sentence(e)})
        return 1
    say({"result": result})
    return 1 if result["num_failed"] else 0
