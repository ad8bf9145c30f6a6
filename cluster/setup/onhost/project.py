"""Update of this project's folder to the files of a checkout. Other files in it stay. Runs on every host."""

from __future__ import annotations

import contextlib
import hashlib
import os
import stat
import subprocess
import tarfile
from collections.abc import Sequence

from cluster.code.onhost.content import LINK, PROGRAM, Row, link_digest
from cluster.code.onhost.store import archive_path, store_folder
from cluster.ssh.onhost.frame import say
from cluster.ssh.onhost.partial_file import part_of
from cluster.ssh.onhost.telling_line import telling_line

# In the project's folder: paths that a sync brought, one per line, so that a later sync can remove them.
KNOWN = ".synced"
_OF_THE_NODE = (KNOWN, "cluster.toml", "hosts", "known_hosts")  # never removed, even if an archive had such a name
_SOME = 5  # names that are reported
_NODE = "/etc/dlami-cluster.conf"  # on a stack's node: written by its first boot
_SERVICES = "/usr/local/lib/dlami-cluster/.installed"  # exists once they were started, by the first boot or from here
_SERVICES_S = 120.0


def main(project: str, rows: Sequence[Row], content: str = "") -> int:
    """Report the differences from these rows. With `content`, apply them from the archive on this host's own disk."""
    try:
        changed = [row for row in rows if not _is_equal(os.path.join(project, row[0]), row)]
        gone = sorted(known(project) - {row[0] for row in rows})
        services = "missing" if os.path.exists(_NODE) and not os.path.exists(_SERVICES) else ""
        if changed or gone:
            if os.path.exists(os.path.join(project, ".git")):
                say({"error": f"{project} is a git checkout of its own: bring it up to date with git there"})
                return 0
            if content:
                _make(project, [str(row[0]) for row in rows], changed, gone, _archive(content))
        if content and services:
            _start_services(project)
            services = "started"
        names = [str(row[0]) for row in changed]
        say(
            {
                "changed": len(changed),
                "removed": len(gone),
                "some": [*names, *gone][:_SOME],
                "services": services,
                "needs_install": "requirements.lock" in names or not os.path.exists(os.path.join(project, ".venv")),
            }
        )
    except subprocess.SubprocessError as e:
        say({"error": f"the project is there, its services are not: {e}"})
    except OSError as e:
        say({"error": f"{e.filename or project}: {(e.strerror or str(e)).lower()}"})
    except (tarfile.TarError, KeyError) as e:
        with contextlib.suppress(OSError):
            os.unlink(_archive(content))  # the next sync sends it again
        say({"error": f"{_archive(content)} is damaged: {e}; sync again"})
    return 0


def _archive(content: str) -> str:
    """Return the path of the archive in this host's store."""
    return archive_path(store_folder(), content)


def _is_equal(path: str, row: Row) -> bool:
    _, kind, size, digest = row
    try:
        s = os.lstat(path)
        if kind == LINK:
            return stat.S_ISLNK(s.st_mode) and link_digest(os.readlink(path)) == digest
        is_program = bool(s.st_mode & 0o100)
        if not stat.S_ISREG(s.st_mode) or s.st_size != size or is_program != (kind == PROGRAM):
            return False
        with open(path, "rb") as file:
            return hashlib.sha256(file.read()).hexdigest() == digest
    except OSError:
        return False


def known(project: str) -> set[str]:
    """Return the paths that an earlier sync brought here and that are still there."""
    try:
        with open(os.path.join(project, KNOWN), errors="surrogateescape") as file:
            names = {os.path.normpath(line) for line in file.read().splitlines() if line and not line.endswith("/")}
    except FileNotFoundError:
        return set()
    ours = {n for n in names if not n.startswith(("/", "..", ".venv/")) and n not in _OF_THE_NODE}
    return {n for n in ours if os.path.lexists(os.path.join(project, n))}


def _make(project: str, names: Sequence[str], changed: Sequence[Row], gone: Sequence[str], archive: str) -> None:
    """Apply the changes, each file atomically.

    Then remove the files that are gone, and record the brought files last.
    """
    _make_folder(project)
    with tarfile.open(archive) as opened:
        for row in changed:
            _put(row, opened, os.path.join(project, row[0]))
    for name in gone:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(os.path.join(project, name))
        with contextlib.suppress(OSError):  # up to the first that holds something else
            os.removedirs(os.path.dirname(os.path.join(project, name)))
    part = part_of(os.path.join(project, KNOWN))
    with open(part, "w", errors="surrogateescape") as file:
        file.write("".join(f"{name}\n" for name in names))
    os.replace(part, os.path.join(project, KNOWN))


def _put(row: Row, archive: tarfile.TarFile, place: str) -> None:
    """Replace a file or link. Raises TarError if the archive does not hold it as it was sent."""
    member, part = archive.getmember(row[0]), part_of(place)
    source = archive.extractfile(member) if member.isreg() else None
    data = source.read() if source else b""
    if source and hashlib.sha256(data).hexdigest() != row[3]:
        raise tarfile.ReadError(f"{row[0]} is not what was sent")
    os.makedirs(os.path.dirname(place), exist_ok=True)
    if os.path.isdir(place) and not os.path.islink(place):
        os.rmdir(place)
    with contextlib.suppress(FileNotFoundError):
        os.unlink(part)
    if source:
        with open(part, "wb") as target:
            target.write(data)
        os.chmod(part, member.mode)
    else:
        os.symlink(member.linkname, part)
    os.replace(part, place)


def _make_folder(project: str) -> None:
    """Make the project's folder, with sudo if only root may create it."""
    try:
        os.makedirs(project, exist_ok=True)
    except PermissionError:
        owner, group = str(os.geteuid()), str(os.getegid())
        words = ["sudo", "-n", "install", "-d", "-o", owner, "-g", group, project]
        if subprocess.run(words, capture_output=True, timeout=30).returncode:
            raise


def _start_services(project: str) -> None:
    """Start the services that a first boot without the project left out, above all the guard.

    Raises SubprocessError if they do not start.
    """
    words = [*([] if os.geteuid() == 0 else ["sudo", "-n"]), "bash", os.path.join(project, "scripts/services.sh")]
    done = subprocess.run(words, capture_output=True, text=True, timeout=_SERVICES_S, stdin=subprocess.DEVNULL)
    if done.returncode:
        said = telling_line(done.stderr) or f"it exited {done.returncode}"
        raise subprocess.SubprocessError(f"{' '.join(words)}: {said}")
