"""Which hosts failed, when and for what, on the shared folder; one that failed twice in a week is left out.

A failure is a file of its own: whoever runs a job can add one, none is ever rewritten, and one that is damaged hides no
other. Forgiving adds a file too, so that it works for failures of all users.
"""

import contextlib
import dataclasses
import datetime
import json
import os
import secrets
import stat
import threading
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from cluster.errors import ClusterError
from cluster.files import write_json
from cluster.hosts import Host
from cluster.ssh.onhost import trusted_files
from cluster.typed import from_json

WINDOW_S = 7 * 86400.0
TIMES = 2  # failures within the window after which a host is left out
FORGIVEN = "forgiven"
_MOST_BYTES = 1 << 16  # of one failure
FOLDER = "host-failures"  # on the shared folder
FILES = "[!.]*.json"  # in it


@dataclass(frozen=True, kw_only=True, order=True)
class Entry:
    """One host's failure, or that what it did before is forgiven."""

    time: float  # seconds since 1970, by the master's clock
    host: str  # address
    what: str  # the ending's name, as policy has it; `unfit` for what a look found; `forgiven`
    text: str = ""  # in words
    job: str = ""
    attempt: int = 0

    @property
    def incident(self) -> tuple[str, int | float]:
        """Equal for what is one failure seen twice: the end of an attempt, and the look after it."""
        return (self.job, self.attempt) if self.job else ("", self.time)

    def __str__(self) -> str:
        when = datetime.datetime.fromtimestamp(self.time, datetime.UTC)
        words = f"{when:%m-%d %H:%M} {self.text or self.what}" + (f" ({self.job})" if self.job else "")
        return "".join(c for c in words if c.isprintable())


@dataclass(frozen=True, kw_only=True)
class Memory:
    """What is on record, oldest first, and a sentence for each file that cannot be read."""

    entries: tuple[Entry, ...] = ()
    damaged: tuple[str, ...] = ()


def own_failures(lost: Collection[str], others: Collection[str]) -> tuple[str, ...]:
    """Those of the hosts lost at once that failed by themselves: none where it was the network of all.

    others: every host that might have been lost, these included, without the one that saw it.
    """
    return () if len(lost) > 1 and 2 * len(lost) > len(others) else tuple(lost)


def failures(entries: Iterable[Entry], now: float) -> dict[str, tuple[Entry, ...]]:
    """Each host's failures of the last week that nobody has forgiven, one per incident, oldest first."""
    found: dict[str, dict[tuple[str, int | float], Entry]] = {}
    for entry in sorted(entries):
        if entry.what == FORGIVEN:
            found.pop(entry.host, None)
        elif entry.time > now - WINDOW_S:
            found.setdefault(entry.host, {}).setdefault(entry.incident, entry)
    return {host: tuple(each.values()) for host, each in found.items()}


def left_out(entries: Iterable[Entry], now: float) -> dict[str, str]:
    """The hosts that failed too often, with why, the worst first."""
    often = {host: found for host, found in failures(entries, now).items() if len(found) >= TIMES}
    worst = sorted(often, key=lambda host: (-len(often[host]), -often[host][-1].time, host))
    return {
        host: f"failed {len(often[host])} times in 7 days: {'; '.join(map(str, often[host][-TIMES:]))}"
        for host in worst
    }


def left_out_here(shared: str, wait_s: float = 2.0) -> dict[str, str]:
    """The same where this machine has the shared folder; nothing where it has not, or where that hangs."""
    found: dict[str, str] = {}

    def look() -> None:
        found.update(left_out(read_memory(Path(shared)).entries, time.time()))

    looking = threading.Thread(target=look, daemon=True)
    looking.start()
    looking.join(wait_s)
    return dict(found)


def how_left_out(out: Mapping[str, str]) -> list[str]:
    """A sentence for each host that is left out, with what takes it back."""
    return [f"{a}: trainings leave it out: {why}; 'inv hosts.forgive {a}' takes it back" for a, why in out.items()]


def spared(hosts: Sequence[Host], out: Mapping[str, str], least: int) -> dict[str, str]:
    """Those of `out` that these hosts can do without: one stays, and slots for `least` ranks.

    out: addresses with why, the worst first.
    """
    staying, without = list(hosts), {}
    for address, why in out.items():
        rest = [h for h in staying if h.address != address]
        if len(rest) < len(staying) and rest and sum(h.slots for h in rest) >= least:
            staying, without[address] = rest, why
    return without


def parse_memory(files: Mapping[str, str]) -> Memory:
    """What is on record, from the files' text by path."""
    entries, damaged = [], []
    for path, text in sorted(files.items()):
        try:
            entry = from_json(Entry, json.loads(text))
            datetime.datetime.fromtimestamp(entry.time, datetime.UTC)
            entries.append(entry)
        except (ValueError, OverflowError, OSError, RecursionError) as e:
            why = " ".join(str(e).split())[:80]
            damaged.append(_damaged(path, why))
    return Memory(entries=tuple(sorted(entries)), damaged=tuple(damaged))


def _damaged(path: str | Path, why: str) -> str:
    shown = "".join(c for c in str(path) if c.isprintable())
    return f"{shown} is damaged ({why}) and passed over: remove it"


def read_memory(shared: Path) -> Memory:
    """What is on record of this cluster's hosts; nothing where there is no record or no shared folder."""
    files, refused = {}, []
    with contextlib.suppress(OSError):
        for path in sorted(folder_of(shared).glob(FILES)):
            try:
                files[str(path)] = trusted_files.read_file(path, most=_MOST_BYTES).decode(errors="replace")
            except trusted_files.Untrusted as e:
                refused.append(_damaged(path, str(e.strerror)))
            except OSError:  # tidied away this moment
                continue
    found = parse_memory(files)
    return dataclasses.replace(found, damaged=(*found.damaged, *refused))


def note(shared: Path, entry: Entry) -> None:
    """Keep it, and remove what of this user's is too old to count. Raises ClusterError."""
    folder = folder_of(shared)
    try:
        _make(folder)
        write_json(folder / file_name(entry), dataclasses.asdict(entry))
    except OSError as e:
        raise ClusterError(f"{folder} cannot be written, where it is kept which hosts fail: {e.strerror or e}") from e
    _tidy(folder, entry.time - WINDOW_S)


def pardon(entries: Iterable[Entry], address: str, now: float) -> Entry:
    """What forgives all that a host did."""
    newest = max((e.time for e in entries if e.host == address), default=0.0)
    return Entry(time=max(now, newest + 0.001), host=address, what=FORGIVEN)


def file_name(entry: Entry) -> str:
    """A name that no other entry has."""
    return f"{entry.time:.3f}-{entry.host}-{secrets.token_hex(3)}.json"


def folder_of(shared: Path) -> Path:
    """Where failures are kept."""
    return shared / FOLDER


def _make(folder: Path) -> None:
    """The folder, open to all users as the jobs' is; never the shared folder itself, which may not be mounted."""
    with contextlib.suppress(FileExistsError):
        folder.mkdir()
    if trusted_files.folder_owner(folder) == os.getuid() and stat.S_IMODE(folder.lstat().st_mode) != 0o1777:
        folder.chmod(0o1777)
    trusted_files.require_place(folder, f": as root, 'chown root {folder}'")


def _tidy(folder: Path, before: float) -> None:
    with contextlib.suppress(OSError):
        for path in folder.iterdir():
            found = path.lstat()
            if found.st_uid == os.getuid() and found.st_mtime < before - 86400:
                path.unlink()
