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
from cluster.errors import ClusterError
from cluster.inventory import Cluster
from cluster.ssh.fanout import Reach
from cluster.ssh.limits import Limits
from cluster.ssh.marked import marked, trouble
from cluster.ssh.program import Program, ask, program
from cluster.sync.archive import compressed, is_worth_compressing, write_archive
from cluster.sync.snapshot import Snapshot

_STORE = "cluster.sync.onhost.store"
_ANSWER = Limits(total_s=120)  # an idle shared folder may be slow at first, and a large archive is read once more
_SENDING = Limits(total_s=3600)


@dataclass(frozen=True, kw_only=True)
class Delivered:
    """Code that is complete on the master's shared folder."""

    digest: str  # of the snapshot; a job keeps it
    content: str  # of its files alone
    folder: str  # on the master
    was_there: bool  # nothing had to be sent

    @property
    def archive(self) -> str:
        """Return the path of the archive of its files on the master."""
        return f"{self.folder}/{self.content}.tar"


def deliver(reach: Reach, cluster: Cluster, snapshot: Snapshot) -> Delivered:
    """Bring a snapshot to the master's shared folder, unless it is there. Raises ClusterError, ConfigError.

    An interrupted delivery leaves nothing that could be mistaken for a complete one.
    """
    answer = _ask(reach, cluster, _store(cluster, snapshot))
    was_there = bool(answer["is_there"])
    if not was_there:
        part = f"{snapshot.content}.{secrets.token_hex(4)}.part"
        _send(reach, cluster, snapshot, f"{answer['folder']}/{part}")
        answer = _ask(reach, cluster, _store(cluster, snapshot, part))
    return Delivered(
        digest=snapshot.digest, content=snapshot.content, folder=str(answer["folder"]), was_there=was_there
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
        "is_large": snapshot.is_large,
        "untracked": list(snapshot.untracked[:1000]),
        "difference": base64.b64encode(snapshot.difference).decode(),
    }


def _store(cluster: Cluster, snapshot: Snapshot, part: str = "") -> Program:
    rows = snapshot.rows if part else []
    return program(_STORE, cluster.shared, snapshot.digest, description(snapshot), rows, part)


def _ask(reach: Reach, cluster: Cluster, asked: Program) -> dict[str, Any]:
    results, answers = ask(reach, [cluster.master], asked, limits=_ANSWER)
    results.check()
    answer = dict(answers[cluster.master])
    if why := answer.get("error"):
        raise ClusterError(f"the master {cluster.master}: the code is not there: {why}")
    return answer


def _send(reach: Reach, cluster: Cluster, snapshot: Snapshot, part: str) -> None:
    """Send the archive to a file on the master. The file is removed if it did not arrive completely."""
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
    finally:
        for one in (path, Path(f"{name}.gz")):
            one.unlink(missing_ok=True)
