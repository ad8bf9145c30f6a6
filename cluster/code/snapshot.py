"""Snapshot of the operator's code: what git tracks, with local changes, without secrets and large files."""

import fnmatch
import functools
import hashlib
import json
import os
import stat
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from cluster import secret_scan
from cluster.broadcast.copy import CODE_EXCLUDES
from cluster.code.git import Repository, repository_of
from cluster.code.onhost.content import FILE, LINK, PROGRAM, Row, digest_of, link_digest
from cluster.code.scan_cache import Remembered
from cluster.errors import ConfigError
from cluster.terminal import counted


@dataclass(frozen=True, kw_only=True, order=True)
class File:
    """File or link of a snapshot."""

    path: str  # relative to the root
    kind: str  # one of the kinds in onhost/content.py
    size: int
    digest: str  # SHA-256 of its bytes, or of a link its target as `-> target`

    def row(self) -> Row:
        """Return the file as a row for the hosts."""
        return [self.path, self.kind, self.size, self.digest]


@dataclass(frozen=True, kw_only=True)
class Snapshot:
    """Code of a folder at one moment. The bytes are read again when they are sent, and must not have changed."""

    root: Path
    files: tuple[File, ...]
    below: str = ""  # the folder that the operator stood in, relative to the root
    revision: str = ""  # the commit, with `+changes` if files differ from it; "" outside git
    difference: bytes = b""  # from that commit, as `git diff` prints it
    untracked: tuple[str, ...] = ()  # untracked paths that were left out

    @property
    def size(self) -> int:
        """Return the bytes of all files."""
        return sum(f.size for f in self.files)

    @functools.cached_property
    def rows(self) -> list[Row]:
        """Return the rows of all files."""
        return [f.row() for f in self.files]

    @functools.cached_property
    def content(self) -> str:
        """Return the digest of the files' content, which does not depend on the commit."""
        return digest_of(self.rows)

    @functools.cached_property
    def digest(self) -> str:
        """Return the digest of content, commit, difference, untracked names, and the operator's folder."""
        about = [self.content, self.below, self.revision, self.untracked]
        return hashlib.sha256(json.dumps(about).encode() + self.difference).hexdigest()[:40]

    def described(self) -> str:
        """Return one line about the files that are taken, and one about those that are not."""
        lines = [
            f"code: {counted(len(self.files), 'file')}, {self.size / 1e6:,.1f} MB of {self.root}"
            + (f", {self.revision}" if self.revision else "")
        ]
        if self.untracked:
            some = ", ".join(self.untracked[:5]) + (" …" if len(self.untracked) > 5 else "")
            lines.append(f"untracked, not taken: {some} (--include NAME takes one, --include . all)")
        return "\n".join(lines)


def take(folder: Path, include: Sequence[str] = (), exclude: Sequence[str] = ()) -> Snapshot:
    """Return a snapshot of the tracked files of the folder's repository, and of the included other files.

    Raises ConfigError outside git if nothing is included, and for files that must not leave this machine.

    Args:
        include: paths and patterns, as typed in that folder.
        exclude: names and paths of files to leave out.
    """
    folder = folder.resolve()
    repository = repository_of(folder)
    if repository is None and list(include) != ["."]:
        raise ConfigError(
            f"{folder} is in no git repository, which would say what is code there: "
            "take all of its files with --include . (its caches and environments apart), or none with --no-code"
        )
    root = repository.root if repository else folder
    named = _tracked_or_included(repository, folder, include) if repository else _all_files(folder)
    files = _looked_at(root, _without(sorted(set(named)), exclude))
    if not files:
        raise ConfigError(
            f"there is no code in {root}: git tracks no file there; 'git add' it, or take all with --include ."
        )
    below = "" if folder == root else str(folder.relative_to(root))
    if below and not any(f.path.startswith(f"{below}/") for f in files):
        raise ConfigError(f"git tracks no file in {folder}, where you stand: 'git add' them, or --include .")
    if repository is None:
        return Snapshot(root=root, files=files, below=below)
    taken = {f.path for f in files}
    revision = repository.revision()
    changed = repository.changed() if revision else ()
    return Snapshot(
        root=root,
        files=files,
        below=below,
        revision=revision + ("+changes" if changed else ""),
        difference=_difference(repository, changed, exclude) if changed else b"",
        untracked=tuple(name for name in repository.untracked() if not _is_taken(name, taken)),
    )


def take_all(folder: Path) -> Snapshot:
    """Return a snapshot of all files of a folder, tracked or not, but not of caches and environments."""
    return Snapshot(root=folder, files=_looked_at(folder, sorted(_all_files(folder))))


def _difference(repository: Repository, changed: Sequence[str], exclude: Sequence[str]) -> bytes:
    """Return the difference from the last commit, without excluded files and files with secrets.

    Removed lines may hold secrets, too.
    """
    kept = set(_without(changed, exclude))
    hidden = [name for name in changed if name not in kept or secret_scan.by_name(name)]
    return secret_scan.without_secrets(repository.difference(without=hidden))


def _tracked_or_included(repository: Repository, folder: Path, include: Sequence[str]) -> Iterator[str]:
    """Yield the tracked files, and the included untracked ones. Ignored files are included if no other matches."""
    yield from repository.tracked()
    for asked in include:
        found = repository.untracked_in(asked, folder)
        if not found and asked != ".":
            found = tuple(_without(repository.untracked_in(asked, folder, ignored=True), CODE_EXCLUDES))
        if not found and asked != "." and not repository.is_tracked(asked, folder):
            raise ConfigError(f"--include {asked}: there is no such file in {folder}")
        yield from found


def _all_files(folder: Path) -> Iterator[str]:
    """Yield the paths of all files below a folder that is in no repository, without caches and environments."""

    def complain(e: OSError) -> None:
        raise ConfigError(f"{e.filename}: {(e.strerror or str(e)).lower()}")

    for top, folders, names in os.walk(folder, onerror=complain):
        links = [name for name in folders if os.path.islink(f"{top}/{name}")]  # noqa: PTH114 - of thousands
        folders[:] = _without(folders, CODE_EXCLUDES)
        paths = (os.path.relpath(f"{top}/{name}", folder) for name in (*names, *links))
        yield from _without(list(paths), CODE_EXCLUDES)


def _without(names: Iterable[str], exclude: Sequence[str]) -> list[str]:
    """Return the paths that no pattern matches, neither as a whole nor in one of their parts."""
    patterns = [x.removeprefix("./").rstrip("/") for x in exclude]

    def is_out(name: str) -> bool:
        parts = name.split("/")
        above = ["/".join(parts[: n + 1]) for n in range(len(parts))]
        return any(one == x or fnmatch.fnmatchcase(one, x) for x in patterns for one in (*parts, *above))

    return [name for name in names if not is_out(name)]


def _looked_at(root: Path, names: Sequence[str]) -> tuple[File, ...]:
    """Return the files of these names that exist.

    Raises ConfigError with the files that must not leave this machine.
    """
    bad: list[str] = []
    files: list[File] = []
    remembered = Remembered(root)
    real_folders: dict[str, bool] = {}
    for name in names:
        if not _is_in_real_folders(root, name, real_folders):
            continue
        try:
            found = _look(root, name, remembered)
        except (FileNotFoundError, NotADirectoryError):
            continue  # tracked but removed: a local change like others
        except OSError as e:
            raise ConfigError(f"{root / name}: {(e.strerror or str(e)).lower()}") from e
        if isinstance(found, str):
            bad.append(f"  {name}: {found}")
        elif found:
            files.append(found)
    remembered.keep()
    if bad:
        raise ConfigError(
            "\n".join(
                [
                    f"{counted(len(bad), 'file')} of {root} must not leave this machine; nothing was sent:",
                    *bad,
                    "leave one out with --exclude NAME; large files have a way of their own: inv copy, inv stage",
                ]
            )
        )
    return tuple(files)


def _look(root: Path, name: str, remembered: Remembered) -> File | str | None:
    """Return a file, or why it is refused. None if it is neither a file nor a link."""
    path = root / name
    s = path.lstat()
    if why := secret_scan.by_name(name):
        return why
    if stat.S_ISLNK(s.st_mode):
        return File(path=name, kind=LINK, size=0, digest=link_digest(os.readlink(path)))  # noqa: PTH115 - as it is
    if not stat.S_ISREG(s.st_mode):
        return None
    if why := secret_scan.by_size(s.st_size):
        return why
    kind = PROGRAM if s.st_mode & 0o100 else FILE
    if digest := remembered.digest_of(name, s):
        return File(path=name, kind=kind, size=s.st_size, digest=digest)
    data = path.read_bytes()
    if why := secret_scan.by_size(len(data)) or secret_scan.by_content(data):
        return why
    digest = hashlib.sha256(data).hexdigest()
    if len(data) == s.st_size:
        remembered.note(name, s, digest)
    return File(path=name, kind=kind, size=len(data), digest=digest)


def _is_in_real_folders(root: Path, name: str, known: dict[str, bool]) -> bool:
    """Return True if no folder above is a link, which may lead out of the repository.

    Git takes files behind such a link for removed.
    """
    folder = name.rpartition("/")[0]
    if not folder:
        return True
    if folder not in known:
        known[folder] = _is_in_real_folders(root, folder, known) and not (root / folder).is_symlink()
    return known[folder]


def _is_taken(name: str, taken: set[str]) -> bool:
    return any(path.startswith(name) for path in taken) if name.endswith("/") else name in taken
