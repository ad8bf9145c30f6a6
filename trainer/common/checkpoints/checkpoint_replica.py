"""Second copy of the newest checkpoints, on the local disk of another host than rank 0's.

In data-parallel training all ranks hold the same state. So the first rank of the second host writes its own state with
the same facts, and nothing is sent. The copy survives a lost, full or slow shared folder, and the loss of rank 0's
host.
"""

import contextlib
import errno
import json
import os
import re
import shutil
import stat
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trainer.common.checkpoints.background_save import Saver, State
from trainer.common.checkpoints.checkpoint import CheckpointFolder
from trainer.common.checkpoints.facts import Facts
from trainer.common.checkpoints.unreadable import refuse, set_aside
from trainer.common.checkpoints.write_lease import ATTEMPT, own_folder
from trainer.common.files.errors import TrainerError
from trainer.common.ranks.horovod_rank import GatherBytes

JOB, DISK = "DLAMI_JOB", "DLAMI_LOCAL_DISK"
DISKS = ("/opt/dlami/nvme", "/var/tmp")  # the DLAMI's local disks, and what every host has
KEPT = 2
SOURCE = "job"  # file that contains the path of the job's folder


def first_ranks(hosts: Sequence[str]) -> list[int]:
    """Return the lowest rank of each host, in the order of the hosts."""
    return sorted({host: rank for rank, host in reversed(list(enumerate(hosts)))}.values())


def copying_rank(hosts: Sequence[str]) -> int | None:
    """Return the rank that writes the second copy: the first one on the second host. Returns None for a single host."""
    return next(iter(first_ranks(hosts)[1:]), None)


def local_folder(environment: Mapping[str, str] = os.environ) -> Path | None:
    """Return this host's local folder for the job's checkpoint copies, which may not exist; None outside a job."""
    job = environment.get(JOB, "")
    if not re.fullmatch(r"\w[\w.-]*", job) or not environment.get(ATTEMPT) or own_folder(environment) is None:
        return None
    disks = [environment[DISK]] if environment.get(DISK) else DISKS
    disk = next((Path(d) for d in disks if os.access(d, os.W_OK)), None)
    return disk / f"dlami-checkpoints-{os.getuid()}" / job if disk else None


def make_private(folder: Path) -> None:
    """Create the folder and its parent for this user alone. Other users can write where the parent lies.

    Raises:
        OSError: one of them is not this user's own.
    """
    for path in (folder.parent, folder):
        with contextlib.suppress(FileExistsError):
            path.mkdir(mode=0o700)
        if not _is_private(path):
            raise PermissionError(errno.EPERM, "it is not a folder of this user alone")


def _is_private(path: Path) -> bool:
    try:
        found = path.lstat()
    except OSError:
        return False
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid() and not found.st_mode & 0o077


def remove_orphans(folder: Path) -> None:
    """Remove copies of jobs without a record. Copies stay if the folder that held the record is not mounted."""
    if not _is_private(folder.parent):
        return
    for source in folder.parent.glob(f"*/{SOURCE}"):
        with contextlib.suppress(OSError):
            record = Path(source.read_text().strip())
            if record.parent.is_dir() and not record.exists():
                shutil.rmtree(source.parent, ignore_errors=True)


class CopySaver(Saver):
    """Writer of the second copy.

    A failure does not end the training: it is reported once, and no more copies are written.
    """

    def __init__(self, path: Path, *, found: Facts | None) -> None:
        super().__init__(CheckpointFolder(path), keep=KEPT, seconds=0, cores=1, rate="the learning rate", found=found)
        self._has_ended = False
        try:
            make_private(path)
            (path / SOURCE).write_text(f"{own_folder()}\n")
            self.folder.remove_partial()
        except OSError as e:
            self._end(f"{path}: {e.strerror or e}")

    def save(self, step: int, state: State, more: Mapping[str, Any]) -> None:
        """Save a copy in the background, as `Saver.save` does.

        Skips this one while the previous copy is still being written.
        """
        self.look()
        if not self._has_ended and self._thread is None:
            super().save(step, state, more)

    def wait(self) -> None:
        """Wait for the copy that is being written, as `Saver.wait` does. Reports a failure instead of raising it."""
        try:
            super().wait()
        except TrainerError as e:
            self._end(str(e))

    def _end(self, why: str) -> None:
        self._has_ended = True
        print(f"warning: no second copy of checkpoints on this host: {why}", file=sys.stderr, flush=True)


def make_saver(
    newest: "Newest", shared: CheckpointFolder | None, hosts: Sequence[str], rank: int, **more: Any
) -> Saver | None:
    """Return this rank's saver: rank 0 saves to the shared folder, one other rank saves copies, all others get None.

    Args:
        newest: the checkpoint that the training resumes from.
        more: arguments of `Saver`.
    """
    if shared is None:
        return None
    if rank == 0:
        return Saver(shared, **more, found=None if newest.is_copy else newest.facts)
    path = local_folder()
    if path is None or rank != copying_rank(hosts):
        return None
    return CopySaver(path, found=newest.facts)


@dataclass(frozen=True)
class Newest:
    """Newest intact checkpoint that any rank can read."""

    rank: int = 0  # that has it
    folder: CheckpointFolder | None = None  # its folder, on the rank that can read it
    facts: Facts | None = None  # its facts, on that rank; None without any checkpoint
    is_copy: bool = False  # on all ranks: it is on that rank's local disk only


def find_newest(
    shared: CheckpointFolder | None, hosts: Sequence[str], rank: int, gather: GatherBytes, *, begins_anew: bool = False
) -> Newest:
    """Return the newest checkpoint of the shared folder, which rank 0 reads, and of the hosts' local disks.

    All ranks must call it. An attempt's checkpoints are newer than those of any attempt before it, whatever their
    steps. If a newer attempt resumed from a checkpoint, what an older one wrote after it belongs to no run any more.

    Args:
        begins_anew: set unreadable checkpoints aside instead of refusing to start.

    Raises:
        CommonError: checkpoints exist and none can be read; all stay.
    """
    of_shared = shared.newest() if shared and rank == 0 else None
    path = local_folder() if shared and rank in first_ranks(hosts) else None
    if path:
        remove_orphans(path)
    copies = CheckpointFolder(path) if path and _is_private(path) else None
    of_copies = copies.newest() if copies else None
    damage = [one for folder in (shared if rank == 0 else None, copies) if folder for one in folder.damage]
    told = gather(json.dumps([_age(of_shared), _age(of_copies), *damage]).encode())
    ages = [tuple(age) for both in told for age in json.loads(both)[:2]]
    all_damage = [one for both in told for one in json.loads(both)[2:]]
    if shared and all_damage and max(ages) == _age(None):
        if not begins_anew:
            refuse(shared.path, all_damage)
        for folder in (shared if rank == 0 else None, copies):
            if folder and folder.path.exists():
                print(f"warning: set aside as {set_aside(folder.path)}; beginning anew", file=sys.stderr, flush=True)
        return Newest()
    best = max(range(len(ages)), key=lambda place: (ages[place], -place))  # on equal ages the shared folder wins
    holder, is_copy = best // 2, best % 2 == 1
    if copies:
        copies.remove_newer(ages[best][1])
    if rank != holder:
        return Newest(holder, is_copy=is_copy)
    return Newest(holder, copies, of_copies, True) if is_copy else Newest(0, shared, of_shared)


def _age(facts: Facts | None) -> tuple[int, int]:
    return (facts.attempt, facts.step) if facts else (-1, -1)


def source_sentence(newest: Newest, hosts: Sequence[str]) -> str:
    """Return the sentence that names the host whose local copy the training resumes from."""
    return f"The newest checkpoint is on the own disk of {hosts[newest.rank]}: it goes on from there"


def remove_copies(hosts: Sequence[str], rank: int, gather: GatherBytes) -> None:
    """Remove the copies from the hosts' disks after the training. All ranks must call it."""
    gather(b"done")  # rank 0's last checkpoint is on the shared folder
    if rank in first_ranks(hosts) and (path := local_folder()):
        shutil.rmtree(path, ignore_errors=True)
