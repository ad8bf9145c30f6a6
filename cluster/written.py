"""Files that `hosts.write` makes for the other tasks. A person's edits are never overwritten without --force."""

import difflib
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from cluster.clusterfile.edit import with_fields
from cluster.clusterfile.reader import decode
from cluster.errors import ConfigError, NothingToDo
from cluster.files import write_atomically
from cluster.terminal import counted

_MARK = "# written by inv {by}, which asks for --force once this file was edited: "
MARK = _MARK.format(by="hosts.write")
FIELD_MARK = "inv hosts.write"
MOST_LINES = 12


@dataclass(frozen=True, kw_only=True)
class TargetFile:
    """File to be written: its new text, and the edits of a person that would be lost."""

    path: Path
    text: str
    lost: tuple[str, ...]

    @property
    def is_so_already(self) -> bool:
        return self.path.exists() and self.path.read_text() == self.text


def whole_file(path: Path, text: str, by: str = "hosts.write") -> TargetFile:
    """Return the target for a file that is generated completely. Its last line is a mark that shows later edits.

    Args:
        by: the task that writes it.
    """
    mark = _MARK.format(by=by)
    new = f"{text}{mark}{_digest(text)}\n"
    old = path.read_text(errors="replace") if path.exists() else new
    if old == new or not old.strip() or _is_ours(old, mark):
        return TargetFile(path=path, text=new, lost=())
    there = _plain(old, mark).splitlines()
    differing = difflib.unified_diff(there, text.splitlines(), "there", "new", lineterm="", n=0)
    return TargetFile(path=path, text=new, lost=tuple(line for line in differing if not line.startswith("@@"))[2:])


def some_fields(path: Path, table: str, values: Mapping[str, str]) -> TargetFile:
    """Return the target for fields of one table of a cluster file. The rest stays as the operator wrote it."""
    text, there = decode(path)
    own = there.get(table, {})
    lines = text.splitlines()
    lost = [
        f'{table}.{name} is "{own[name]}", would be "{value}"'
        for name, value in values.items()
        if own.get(name) not in (None, "", value) and not any(_sets(line, name, FIELD_MARK) for line in lines)
    ]
    return TargetFile(path=path, text=with_fields(text, table, values, FIELD_MARK), lost=tuple(lost))


def write(targets: Sequence[TargetFile], *, force: bool) -> str:
    """Write the files that differ. Return a text with the replaced edits, "" if there are none.

    Raises NothingToDo if no file differs. Raises ConfigError, unless `force`, if a person's edits would be lost.
    """
    if all(t.is_so_already for t in targets):
        raise NothingToDo(f"{targets[0].path} and what belongs to it are so already")
    if any(t.lost for t in targets) and not force:
        raise ConfigError(
            f"this was written by hand and would be lost:\n{_lost(targets)}\n"
            "move away what you need of it, or add --force"
        )
    return write_all(targets)


def write_all(targets: Sequence[TargetFile]) -> str:
    """Write the files that differ, even over a person's edits. Return a text with these edits, "" if there are none."""
    for target in targets:
        if not target.is_so_already:
            write_atomically(target.path, target.text)
    said = _lost(targets)
    return f"replaced what was written by hand:\n{said}" if said else ""


def _lost(targets: Sequence[TargetFile]) -> str:
    edited = [t for t in targets if t.lost]
    return "\n".join(f"{t.path}: " + "\n  ".join(["", *_cut(t.lost)]).strip("\n") for t in edited)


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode(errors="replace")).hexdigest()[:16]


def _is_ours(text: str, mark: str) -> bool:
    """Return True if the last line is our mark with the digest of the text above it."""
    above, found, digest = text.rpartition(mark)
    return bool(found) and digest.strip() == _digest(above)


def _plain(text: str, mark: str) -> str:
    return "".join(line for line in text.splitlines(keepends=True) if not line.startswith(mark))


def _sets(line: str, name: str, mark: str) -> bool:
    return line.partition("=")[0].strip().endswith(name) and line.rstrip().endswith(f"# {mark}")


def _cut(lines: tuple[str, ...]) -> list[str]:
    more = len(lines) - MOST_LINES
    return [*lines[:MOST_LINES], f"... and {counted(more, 'more line')}"] if more > 0 else list(lines)
