"""The system's files of lab hosts as a test found them: what it left changed is named and put back.

A host's files are an overlay over this machine's: its upper part holds what differs, and nothing else is looked at.
"""

import os
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path

from lab.nodes import OF_ITS_OWN
from lab.record import Lab, LabHost

WATCHED = ("usr", "etc", "root/.ssh", "root/.bashrc", "root/.profile")
HOST_KEY = "etc/ssh/ssh_host_ed25519_key"
MOST_BYTES = 1 << 20  # of a file that could be put back
Shown = tuple[int, bytes | str] | None  # mode, and content or target of a link; None for what is not there
Files = dict[tuple[LabHost, str], Shown]


def system_files(lab: Lab) -> Files:
    """What the hosts have otherwise than this machine has it."""
    return {(host, str(path)): _shown(lab, host, path) for host in lab.hosts for path in _in_upper(lab, host)}


def put_back(lab: Lab, before: Files, firsts: dict[str, int]) -> list[str]:
    """`host: path` of each file that is not as it was, after it was made so again on the hosts that live.

    firsts: host -> its first process. A host that was made anew since, with another key, has nothing of the test's.
    """
    now, changed = system_files(lab), []
    new = {host for host in lab.hosts if before.get((host, HOST_KEY)) != now.get((host, HOST_KEY))}
    both = {one for one in (*before, *now) if one[0] not in new}
    for host, path in sorted(both, key=lambda one: (one[0].rank, one[1])):
        was = before[host, path] if (host, path) in before else _below(Path(path))
        if was != _shown(lab, host, Path(path)):
            changed.append(f"{host.name}: /{path}")
            if host.name in firsts:
                _make(Path(f"/proc/{firsts[host.name]}/root", path), was)
    return changed


def _in_upper(lab: Lab, host: LabHost) -> Iterator[Path]:
    upper = lab.host_folder(host) / "upper"
    for top in (upper / name for name in WATCHED):
        if top.is_symlink() or not top.is_dir():
            yield from [top.relative_to(upper)] if os.path.lexists(top) else []
            continue
        for folder, folders, names in os.walk(top):
            folders[:] = [name for name in folders if name != "__pycache__"]
            links = [name for name in folders if Path(folder, name).is_symlink()]
            kept = (
                name for name in (*names, *links) if not name.endswith("-")
            )  # useradd keeps a copy of what it changes
            yield from (Path(folder, name).relative_to(upper) for name in kept)


def _shown(lab: Lab, host: LabHost, path: Path) -> Shown:
    """What the host sees there."""
    own = lab.host_folder(host) / "upper" / path
    return _read(own) if os.path.lexists(own) else _below(path)


def _below(path: Path) -> Shown:
    """What it sees of this machine there."""
    hidden = any(path.is_relative_to(name) for name in OF_ITS_OWN)
    return None if hidden else _read(Path("/", path))


def _read(path: Path) -> Shown:
    try:
        found = path.lstat()
        if stat.S_ISLNK(found.st_mode):
            return 0, str(path.readlink())
        if not stat.S_ISREG(found.st_mode):  # removed on the host: a device of number 0
            return None
        if found.st_size > MOST_BYTES:
            return found.st_mode, f"{found.st_size} bytes"
        return found.st_mode, path.read_bytes()
    except OSError:
        return None


def _make(path: Path, was: Shown) -> None:
    """A file on the host as it was; one that is too large to be kept in memory is left as it is."""
    if was is not None and was[0] and isinstance(was[1], str):
        return
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    path.unlink(missing_ok=True)
    if was is None:
        return
    mode, content = was
    if isinstance(content, str):
        path.symlink_to(content)
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    path.chmod(stat.S_IMODE(mode))
