"""Code in a job's folder: copied from the shared folder in the form that ranks run. Runs on the master."""

import base64
import json
import os
import shutil
import tarfile
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from cluster.errors import ClusterError
from cluster.files import write_json
from cluster.ssh.onhost import trusted_files
from cluster.sync.onhost.content import TIME
from cluster.sync.onhost.store import archive_path, description_path, folder_in
from cluster.typed import from_json

_FILE = "code.json"
_WRITERS = 16  # a shared folder takes milliseconds per file, but many at once


@dataclass(frozen=True, kw_only=True)
class OwnCode:
    """Operator's code of a job, from `code.json`."""

    revision: str  # the commit, with `+changes` if files differed from it; "" outside git
    content: str  # digest of its files, whatever the commit

    def __str__(self) -> str:
        return f"{self.revision or 'of no commit'}, content {self.content[:12]}"


def read_code(job_folder: Path) -> OwnCode | None:
    """Return the code of the job in this folder. None if it has none, or this user may not read it."""
    try:
        return from_json(OwnCode, json.loads(trusted_files.read_file(job_folder / _FILE)))
    except (OSError, ValueError, RecursionError):
        return None


def put_code(job_folder: Path, shared: Path, digest: str) -> None:
    """Write `code.tar`, `code.json` and `code.diff`, and `code/` unless hosts have it on their own disks.

    Their content stays, whatever is delivered or removed later. Only this user may read it. Raises ClusterError,
    OSError.
    """
    kept = folder_in(str(shared))
    try:
        about = json.loads(trusted_files.read_file(description_path(kept, digest), owner=os.geteuid(), most=1 << 30))
        archive = archive_path(kept, about["content"])
        _link(archive, job_folder / "code.tar")
    except FileNotFoundError as e:
        raise ClusterError(f"the code is not on the shared folder any more ({e.filename}): start it again") from None
    if not about["is_large"]:
        _unpack(Path(archive), job_folder / "code")
    difference = job_folder / "code.diff"
    difference.touch(mode=0o600)
    difference.write_bytes(base64.b64decode(about.pop("difference")))
    write_json(job_folder / _FILE, about)


def _link(archive: str, place: Path) -> None:
    """Link the archive to a second name, or copy it if it has too many links, or links are not allowed."""
    place.unlink(missing_ok=True)
    try:
        os.link(archive, place)
    except FileNotFoundError:
        raise
    except OSError:
        shutil.copyfile(archive, place)
        place.chmod(0o600)


def _unpack(archive: Path, folder: Path) -> None:
    """Unpack the archive into a folder. If this is interrupted, the whole job's folder is discarded."""
    folder.mkdir(mode=0o700)
    with tarfile.open(archive) as opened, ThreadPoolExecutor(_WRITERS) as writers:
        waiting: list[Future[None]] = []
        for member in opened:
            file = opened.extractfile(member) if member.isreg() else None
            waiting.append(writers.submit(_write, folder / member.name, member, file.read() if file else b""))
            if len(waiting) > 2 * _WRITERS:
                waiting.pop(0).result()
        for one in waiting:
            one.result()


def _write(path: Path, member: tarfile.TarInfo, data: bytes) -> None:
    """Write a file or link of the archive. No member lies behind a link: git tracks none there."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if member.issym():
        path.symlink_to(member.linkname)
        return
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, member.mode), "wb") as file:  # noqa: PTH123
        file.write(data)
    os.utime(path, (TIME, TIME))
