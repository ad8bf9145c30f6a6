"""S3's own checksum of an object, computed from a file, to compare what arrived with what is stored."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable
from typing import Any, BinaryIO

_BLOCK = 1 << 20


def is_checksum(head: dict[str, Any]) -> bool:
    """Return True if an object's ETag is made of MD5 sums. With a KMS key or a customer's key it is not."""
    return (
        bool(re.fullmatch(r'"?[0-9a-f]{32}(-\d+)?"?', head["ETag"]))
        and head.get("ServerSideEncryption") not in ("aws:kms", "aws:kms:dsse")
        and "SSECustomerAlgorithm" not in head
    )


def etag_of(file: BinaryIO, part_bytes: int | None, heard: Callable[[], None] = lambda: None) -> str:
    """Return the ETag that S3 gives to a file's bytes.

    Args:
        part_bytes: size of the parts in which the file was sent, None if it was sent in one.
        heard: callback after each block, so that the watchdog does not report a stall.
    """
    size = file.seek(0, 2)
    file.seek(0)
    if part_bytes is None:
        return _md5(file, None, heard).hexdigest()
    sums = []
    while file.tell() < size:
        sums.append(_md5(file, part_bytes, heard).digest())
    return f"{hashlib.md5(b''.join(sums), usedforsecurity=False).hexdigest()}-{len(sums)}"


def _md5(file: BinaryIO, limit: int | None, heard: Callable[[], None]) -> Any:
    digest = hashlib.md5(usedforsecurity=False)
    left = limit
    while data := file.read(_BLOCK if left is None else min(_BLOCK, left)):
        digest.update(data)
        heard()
        left = None if left is None else left - len(data)
    return digest
