"""Delivery of a snapshot to the master over the open connection. Nothing is sent that is already there."""

import base64
import os
import secrets
import shlex
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cluster import scratch
from cluster.code.archive import compressed, is_worth_compressing, write_archive
from cluster.code.snapshot import Snapshot
from cluster.errors import ClusterError
from cluster.inventory import Cluster
from cluster.ssh.fanout import Executor
from cluster.ssh.limits import Limits
from cluster.ssh.noise_filter import marked, trouble
from cluster.ssh.program import HostProgram, ask, program

_STORE = "cluster.code.onhost.store"
_ANSWER = Limits(total_s=300)  # a large archive is read once more, and unpacked
_SENDING = Limits(total_s=3600)


@dataclass(frozen=True, kw_only=True)
class Delivered:
    """Code that is complete in the master's store."""

    digest: str  # of the snapshot; a job keeps it
    content: str  # of its files alone
    folder: str  # on the master
    sent_bytes: int = 0  # over the connection; 0: it was there

    @property
    def archive(self) -> str:
        """Return the path of the archive of its files on the master."""
        return f"{self.folder}/{self.content}.tar"

    @property
    def unpacked(self) -> str:
        """Return the folder of its files on the master, which exists if `deliver` was called with `is_read`."""
        return f"{self.folder}/{self.content}"


def deliver(reach: Executor, cluster: Cluster, snapshot: Snapshot, *, is_read: bool = False) -> Delivered:
    """Bring a snapshot to the master's store, unless it is there. Raises ClusterError, ConfigError.

    An interrupted delivery leaves nothing that could be mistaken for a complete one. is_read: also unpack it there.
    """
    answer = _ask(reach, cluster, _store(snapshot, "", is_read=is_read))
    sent_bytes = 0
    if not answer["is_there"]:
        part = f"{snapshot.content}.{secrets.token_hex(4)}.part"
        sent_bytes = _send(reach, cluster, snapshot, f"{answer['folder']}/{part}")
        answer = _ask(reach, cluster, _store(snapshot, part, is_read=is_read))
    return Delivered(
        digest=snapshot.digest, content=snapshot.content, folder=str(answer["folder"]), sent_bytes=sent_bytes
    )


def description(snapshot: Snapshot) -> dict[str, Any]:
    """Return the content of a job's `code.json`, and the difference from the commit."""
    return {
        "digest": snapshot.digest,
        "content": snapshot.content,
        "revision": snapshot.revision,
        "root": str(snapshot.root),
        "below": snapshot.below,
        "files": len(snapshot.files),
        "bytes": snapshot.size,
        "untracked": list(snapshot.untracked[:1000]),
        "difference": base64.b64encode(snapshot.difference).decode(),
    }


def _store(snapshot: Snapshot, part: str, *, is_read: bool) -> HostProgram:
    rows = snapshot.rows if part else []
    return program(_STORE, snapshot.digest, description(snapshot), rows, part, is_read)


def _ask(reach: Executor, cluster: Cluster, asked: HostProgram) -> dict[str, Any]:
    results, answers = ask(reach, [cluster.master], asked, limits=_ANSWER)
    results.check()
    answer = dict(answers[cluster.master])
    if why := answer.get("error"):
        raise ClusterError(f"the master {cluster.master}: the code is not there: {why}")
    return answer


def _send(reach: Executor, cluster: Cluster, snapshot: Snapshot, part: str) -> int:
    """Send the archive to a file on the master. Return the bytes sent. The file is removed if it arrived in part."""
    handle, name = tempfile.mkstemp(prefix="code-", dir=scratch.folder())
    path = Path(name)
    try:
        with os.fdopen(handle, "wb") as file:
            write_archive(snapshot, file)
        size, place = path.stat().st_size, shlex.quote(part)
        take, given = "cat", path
        if is_worth_compressing(path):
            take, given = "gzip -dc", compressed(path)
        script = (
            f"umask 077; trap 'rm -f {place}' HUP INT TERM; {take} >{place} && "
            f'[ "$(wc -c <{place})" -eq {size} ] || {{ rm -f {place}; echo "it did not arrive whole" >&2; exit 1; }}'
        )
        result = reach.run([cluster.master], marked(script), stdin=given, limits=_SENDING)[cluster.master]
        if why := trouble(result):
            raise ClusterError(f"the master {cluster.master}: the code could not be sent: {why}")
        return given.stat().st_size
    finally:
        for one in (path, Path(f"{name}.gz")):
            one.unlink(missing_ok=True)
