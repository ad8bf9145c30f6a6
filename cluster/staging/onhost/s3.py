"""One host's part in staging: what it is asked for, moved; how far it is and how it went, said in frames.

Whoever may read the bucket is decided by the host's instance role (or what boto3 finds otherwise); no key is passed.
boto3's transfer layer moves the bytes: large objects in parts and in parallel, with the CRT where that is installed.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import tarfile
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cluster.ssh.onhost.frame import say
from cluster.staging.onhost.etag import etag_of, is_checksum

_TARS = (".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tar.xz")
_SHOW_S = 0.5
_SMALL_AT_ONCE = 16


@dataclass(frozen=True)
class Thing:
    """An object and its file."""

    key: str
    path: Path
    size: int
    modified: float = 0.0  # of the object, seconds


class Staging:
    """What this host was asked for."""

    def __init__(self, asked: dict[str, Any]) -> None:
        self._asked = asked
        self._bucket, self._prefix, self._folder = asked["bucket"], asked["prefix"], Path(asked["folder"])
        self._s3, self._config = _client(asked["endpoint"])
        self._lock = threading.Lock()
        self._done = self._total = self._files = self._skipped = 0
        self._shown = 0.0
        self._ending = threading.Event()

    def end(self) -> None:
        """Give up: what is being moved is broken off at its next piece and its part removed."""
        self._ending.set()

    def _still_wanted(self) -> None:
        if self._ending.is_set():
            raise InterruptedError("ended before it was whole")

    def run(self) -> dict[str, Any]:
        """Do it; what was moved, and what could not be."""
        began = time.monotonic()
        upload = self._asked["upload"]
        mine = self._of_this_host(self._files_here() if upload else self._objects())
        self._total = sum(t.size for t in mine)
        move = self._upload if upload else self._untar if self._asked["untar"] else self._download
        failed: dict[str, str] = {}

        def one(thing: Thing) -> None:
            try:
                self._still_wanted()
                move(thing)
            except Exception as e:
                failed[thing.key] = _sentence(e)

        with ThreadPoolExecutor(_SMALL_AT_ONCE) as pool:
            list(pool.map(one, mine))
        return {
            "files": self._files,
            "bytes": self._done,
            "skipped": self._skipped,
            "objects": len(mine),
            "failed": dict(list(failed.items())[:20]),
            "num_failed": len(failed),
            "seconds": time.monotonic() - began,
        }

    def _objects(self) -> Iterator[Thing]:
        """Everything below the prefix. A key that leads out of the folder is refused."""
        for page in self._s3.get_paginator("list_objects_v2").paginate(Bucket=self._bucket, Prefix=self._prefix):
            for found in page.get("Contents", ()):
                below = found["Key"][len(self._prefix) :].lstrip("/") or found["Key"].rpartition("/")[2]
                if found["Key"].endswith("/"):
                    continue
                if ".." in below.split("/"):
                    raise ValueError(f"the key {found['Key']!r} leads out of {self._folder}")
                yield Thing(found["Key"], self._folder / below, found["Size"], found["LastModified"].timestamp())

    def _files_here(self) -> Iterator[Thing]:
        for path in sorted(p for p in self._folder.rglob("*") if p.is_file()):
            key = "/".join(p for p in (self._prefix.strip("/"), path.relative_to(self._folder).as_posix()) if p)
            yield Thing(key, path, path.stat().st_size)

    def _of_this_host(self, things: Iterator[Thing]) -> list[Thing]:
        """Every n-th where the hosts share the folder, all otherwise."""
        part, parts = self._asked["part"]
        return [t for n, t in enumerate(things) if n % parts == part]

    def _download(self, thing: Thing) -> None:
        with contextlib.suppress(OSError):
            there = thing.path.stat()
            if there.st_size == thing.size and int(there.st_mtime) == int(thing.modified):
                self._skip(thing)
                return
        part = _part(thing.path)
        part.parent.mkdir(parents=True, exist_ok=True)
        try:
            self._s3.download_file(self._bucket, thing.key, str(part), Config=self._config, Callback=self._moved)
            self._check(thing, part)
            os.utime(part, (thing.modified, thing.modified))
            part.replace(thing.path)
        finally:
            part.unlink(missing_ok=True)
        self._files += 1

    def _untar(self, thing: Thing) -> None:
        """A tar becomes a folder of its name, all of it or none; anything else is downloaded as it is."""
        suffix = next((s for s in _TARS if thing.key.endswith(s)), None)
        if suffix is None:
            self._download(thing)
            return
        folder = thing.path.with_name(thing.path.name.removesuffix(suffix))
        with contextlib.suppress(OSError):
            if int(folder.stat().st_mtime) == int(thing.modified):
                self._skip(thing)
                return
        part = _part(folder)
        shutil.rmtree(part, ignore_errors=True)
        part.mkdir(parents=True)
        try:
            body = self._s3.get_object(Bucket=self._bucket, Key=thing.key)["Body"]
            counted = _Counted(body, self._moved)
            with tarfile.open(fileobj=counted, mode="r|*") as tar:  # type: ignore[call-overload]
                tar.extractall(part, filter="data")
            while counted.read(1 << 16):  # what follows the archive's end
                pass
            if counted.size != thing.size:
                raise OSError(f"{counted.size} bytes came of {thing.size}")
            if folder.exists():
                raise OSError(f"{folder} is there already and is of another object: remove it first")
            part.replace(folder)
            os.utime(folder, (thing.modified, thing.modified))
        finally:
            shutil.rmtree(part, ignore_errors=True)
        self._files += 1

    def _upload(self, thing: Thing) -> None:
        with contextlib.suppress(self._s3.exceptions.ClientError):
            head = self._s3.head_object(Bucket=self._bucket, Key=thing.key)
            if head["ContentLength"] == thing.size and self._is_same(thing, head, thing.path):
                self._skip(thing)
                return
        self._s3.upload_file(str(thing.path), self._bucket, thing.key, Config=self._config, Callback=self._moved)
        size = self._s3.head_object(Bucket=self._bucket, Key=thing.key)["ContentLength"]
        if size != thing.size:
            raise OSError(f"{size} bytes are there of {thing.size}: it changed while it was sent")
        self._files += 1

    def _check(self, thing: Thing, path: Path) -> None:
        """Size, and the checksum where S3 keeps one that can be computed again."""
        size = path.stat().st_size
        head = self._s3.head_object(Bucket=self._bucket, Key=thing.key)
        if size != head["ContentLength"] or not self._is_same(thing, head, path):
            raise OSError(f"what arrived is not what is there ({size} bytes, ETag {head['ETag']})")

    def _is_same(self, thing: Thing, head: dict[str, Any], path: Path) -> bool:
        if not is_checksum(head):
            return True
        etag = head["ETag"].strip('"')
        part = None
        if "-" in etag:
            part = self._s3.head_object(Bucket=self._bucket, Key=thing.key, PartNumber=1)["ContentLength"]
            if part >= thing.size and not etag.endswith("-1"):
                return True  # the store does not say how it was cut
        return etag_of(path, part) == etag

    def _skip(self, thing: Thing) -> None:
        self._skipped += 1
        self._total -= thing.size

    def _moved(self, count: int) -> None:
        self._still_wanted()
        with self._lock:
            self._done += count
            now = time.monotonic()
            if now - self._shown > _SHOW_S:
                self._shown = now
                say({"at": self._done, "of": self._total})


class _Counted:
    """A stream that counts what is read of it."""

    def __init__(self, body: Any, moved: Any) -> None:
        self._body, self._moved, self.size = body, moved, 0

    def read(self, count: int = -1) -> bytes:
        data: bytes = self._body.read(count if count >= 0 else None)
        self.size += len(data)
        self._moved(len(data))
        return data


def _client(endpoint: str | None) -> tuple[Any, Any]:
    import boto3
    from boto3.s3.transfer import TransferConfig
    from botocore.config import Config

    config = Config(
        retries={"mode": "adaptive", "max_attempts": 12}, max_pool_connections=64, connect_timeout=10, read_timeout=30
    )
    client = boto3.client("s3", endpoint_url=endpoint, config=config)
    return client, TransferConfig(max_concurrency=8, multipart_threshold=32 << 20, multipart_chunksize=16 << 20)


def _part(path: Path) -> Path:
    return path.with_name(f".{path.name[:200]}.dlami-part")


def _sentence(e: Exception) -> str:
    return " ".join(str(e).split()) or type(e).__name__


def main(asked: dict[str, Any]) -> int:
    """Do it; the exit code."""
    try:
        staging = Staging(asked)
        signal.signal(signal.SIGTERM, lambda *_: staging.end())
        result = staging.run()
    except Exception as e:
        say({"error": _sentence(e)})
        return 1
    say({"result": result})
    return 1 if result["num_failed"] else 0
