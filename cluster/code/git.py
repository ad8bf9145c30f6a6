"""Queries to git about a folder: its repository, tracked and untracked files, the difference from the last commit."""

import os
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from cluster.errors import ClusterError, ConfigError

_LIMIT_S = 60.0  # enough for a repository on a slow network folder; one that takes longer counts as hanging


@dataclass(frozen=True)
class Repository:
    """Git repository that is checked out."""

    root: Path

    def tracked(self) -> tuple[str, ...]:
        """Return the tracked paths relative to the root, including those of submodules. Some files may be missing."""
        return self._paths("ls-files", "-z", "--cached", "--recurse-submodules")

    def untracked(self) -> tuple[str, ...]:
        """Return the untracked paths that git would add: files, and folders without tracked files as `name/`."""
        return self._paths("ls-files", "-z", "--others", "--exclude-standard", "--directory", "--no-empty-directory")

    def untracked_in(self, path: str, standing: Path, *, ignored: bool = False) -> tuple[str, ...]:
        """Return the untracked files that match a path or pattern which was typed in the folder `standing`.

        Args:
            ignored: include the files that git ignores.
        """
        which = [] if ignored else ["--exclude-standard"]
        return self._paths("ls-files", "-z", "--others", *which, "--full-name", "--", path, standing=standing)

    def is_tracked(self, path: str, standing: Path) -> bool:
        """Return True if this path or pattern matches any tracked file."""
        return bool(self._paths("ls-files", "-z", "--cached", "--full-name", "--", path, standing=standing))

    def revision(self) -> str:
        """Return the first 12 digits of the commit that is checked out, or "" before the first commit."""
        said = _git(self.root, "rev-parse", "--short=12", "--verify", "-q", "HEAD")
        return said.stdout.decode().strip() if said.returncode == 0 else ""

    def changed(self) -> tuple[str, ...]:
        """Return the tracked paths that differ from the last commit."""
        return self._paths("diff", "-z", "--name-only", "--no-renames", "HEAD")

    def difference(self, without: Sequence[str] = ()) -> bytes:
        """Return the difference of the tracked files from the last commit, without some paths."""
        leave_out = [f":(top,exclude,literal){path}" for path in without]
        return self._said("diff", "--no-color", "--no-ext-diff", "--no-textconv", "HEAD", "--", ":(top)", *leave_out)

    def _paths(self, *words: str, standing: Path | None = None) -> tuple[str, ...]:
        return tuple(os.fsdecode(one) for one in self._said(*words, standing=standing).split(b"\0") if one)

    def _said(self, *words: str, standing: Path | None = None) -> bytes:
        said = _git(standing or self.root, *words)
        if said.returncode:
            raise ConfigError(f"git {words[0]} in {standing or self.root}: {_complaint(said)}")
        return said.stdout


def repository_of(folder: Path) -> Repository | None:
    """Return the repository that the folder is in, None if in none. Raises ConfigError if git cannot open it."""
    said = _git(folder, "rev-parse", "--show-toplevel")
    if said.returncode == 0:
        return Repository(Path(os.fsdecode(said.stdout.removesuffix(b"\n"))))
    if b"not a git repository" in said.stderr:
        return None
    raise ConfigError(f"git in {folder}: {_complaint(said)}")


def _git(folder: Path, *words: str) -> "subprocess.CompletedProcess[bytes]":
    environment = {k: v for k, v in os.environ.items() if k not in ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE")}
    environment |= {"LC_ALL": "C", "GIT_OPTIONAL_LOCKS": "0", "GIT_LITERAL_PATHSPECS": "0"}
    try:
        return subprocess.run(["git", *words], cwd=folder, capture_output=True, env=environment, timeout=_LIMIT_S)
    except FileNotFoundError:
        raise ClusterError("there is no git on this machine, which says what your code is: install it") from None
    except subprocess.TimeoutExpired:
        raise ClusterError(f"git {words[0]} in {folder} did not answer in {_LIMIT_S:g} s") from None


def _complaint(said: "subprocess.CompletedProcess[bytes]") -> str:
    lines = said.stderr.decode(errors="replace").strip().splitlines()
    return lines[0].removeprefix("fatal: ") if lines else f"it exited {said.returncode}"
