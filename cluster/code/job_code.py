"""Code in a job's folder: an archive, its description, and the working copy that ranks run. Runs on the master."""

import base64
import json
import os
import shutil
from dataclasses import dataclass
from pathlib import Path

from cluster.code.archive import write_archive
from cluster.code.onhost import store
from cluster.code.onhost.unpack import Damaged, unpack
from cluster.code.snapshot import take_all
from cluster.errors import ClusterError
from cluster.files import write_json
from cluster.ssh.onhost import trusted_files
from cluster.typed import from_json

ARCHIVE, _FILE = "code.tar", "code.json"


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


def put_code(job_folder: Path, digest: str) -> None:
    """Write `code.tar`, `code.json`, `code.diff` and the working copy `code/`.

    Their content stays, whatever is delivered or removed later. Only this user may read it. Raises ClusterError,
    OSError.
    """
    kept = store.store_folder()
    try:
        described = store.description_path(kept, digest)
        about = json.loads(trusted_files.read_file(described, owner=os.geteuid(), most=1 << 30))
        archive = store.archive_path(kept, about["content"])
        _link(archive, job_folder / ARCHIVE)
        unpack(archive, about["content"], str(job_folder / "code"))
    except FileNotFoundError as e:
        raise ClusterError(f"the code is not in the master's store any more ({e.filename}): start it again") from None
    except Damaged as e:
        Path(archive).unlink(missing_ok=True)
        raise ClusterError(f"{e}: start it again, which sends the code again") from None
    difference = job_folder / "code.diff"
    difference.touch(mode=0o600)
    difference.write_bytes(base64.b64decode(about.pop("difference")))
    write_json(job_folder / _FILE, about)


def archived(job_folder: Path) -> tuple[Path, str]:
    """Return the archive of a job's code, and the digest of its content. A trainer's archive is made on first use.

    Raises ClusterError, OSError.
    """
    archive = job_folder / ARCHIVE
    if archive.exists() and (own := read_code(job_folder)):
        return archive, own.content
    snapshot = take_all(job_folder / "code")
    part = job_folder / f".{ARCHIVE}"
    with part.open("wb") as file:
        write_archive(snapshot, file)
    part.replace(archive)
    write_json(job_folder / _FILE, {"revision": "", "content": snapshot.content})
    return archive, snapshot.content


def _link(archive: str, place: Path) -> None:
    """Link the archive to a second name, or copy it to another file system, or if it has too many links."""
    place.unlink(missing_ok=True)
    try:
        os.link(archive, place)
    except FileNotFoundError:
        raise
    except OSError:
        shutil.copyfile(archive, place)
        place.chmod(0o600)
