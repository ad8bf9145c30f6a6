"""Record of host failures on the shared folder. A host that failed twice in a week is left out of trainings.

Each failure is a file: any user who runs a job can add one, none is ever rewritten, and a damaged one hides no other.
Forgiving adds a file, too. A file affects its owner's jobs only. Files of root and of this program's owner affect all
jobs. So no user can take hosts from another, or bring bad ones back for him.
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
class FailureRecord:
    """Record of one host's failure, or of the forgiveness of all its earlier ones."""

    time: float  # seconds since 1970, by the master's clock
    host: str  # address
    what: str  # an `Ending`, `unfit` if a check found it, or `forgiven`
    text: str = ""  # in words
    job: str = ""
    attempt: int = 0

    @property
    def incident(self) -> tuple[str, int | float]:
        """Return a key that is equal for one failure recorded twice.

        That is at the end of an attempt, and in the check after it.
        """
        return (self.job, self.attempt) if self.job else ("", self.time)

    def __str__(self) -> str:
        when = datetime.datetime.fromtimestamp(self.time, datetime.UTC)
        words = f"{when:%m-%d %H:%M} {self.text or self.what}" + (f" ({self.job})" if self.job else "")
        return "".join(c for c in words if c.isprintable())


@dataclass(frozen=True, kw_only=True)
class HostFailures:
    """All records, oldest first, and a sentence for each file that cannot be read."""

    entries: tuple[FailureRecord, ...] = ()
    damaged: tuple[str, ...] = ()


def own_failures(lost: Collection[str], others: Collection[str]) -> tuple[str, ...]:
    """Return which of the hosts lost at once failed by themselves.

    Return none if more than one and over half of them were lost: then the network failed.

    others: every host that might have been lost, these included, without the one that noticed it.
    """
    return () if len(lost) > 1 and 2 * len(lost) > len(others) else tuple(lost)


def failures(entries: Iterable[FailureRecord], now: float) -> dict[str, tuple[FailureRecord, ...]]:
    """Return each host's failures of the last week that were not forgiven, one per incident, oldest first."""
    found: dict[str, dict[tuple[str, int | float], FailureRecord]] = {}
    for entry in sorted(entries):
        if entry.what == FORGIVEN:
            found.pop(entry.host, None)
        elif entry.time > now - WINDOW_S:
            found.setdefault(entry.host, {}).setdefault(entry.incident, entry)
    return {host: tuple(each.values()) for host, each in found.items()}


def left_out(entries: Iterable[FailureRecord], now: float) -> dict[str, str]:
    """Return the hosts that failed too often, with the reason. The worst comes first."""
    often = {host: found for host, found in failures(entries, now).items() if len(found) >= TIMES}
    worst = sorted(often, key=lambda host: (-len(often[host]), -often[host][-1].time, host))
    return {
        host: f"failed {len(often[host])} times in 7 days: {'; '.join(map(str, often[host][-TIMES:]))}"
        for host in worst
    }


def left_out_here(shared: str, wait_s: float = 2.0) -> dict[str, str]:
    """Return the hosts that failed too often, read from the shared folder of this machine.

    Return none if it is not mounted here, or does not answer within `wait_s`.
    """
    found: dict[str, str] = {}

    def look() -> None:
        found.update(left_out(read_memory(Path(shared)).entries, time.time()))

    looking = threading.Thread(target=look, daemon=True)
    looking.start()
    looking.join(wait_s)
    return dict(found)


def how_left_out(out: Mapping[str, str]) -> list[str]:
    """Return a sentence for each host that is left out, with the command that takes it back."""
    return [f"{a}: trainings leave it out: {why}; 'inv hosts.forgive {a}' takes it back" for a, why in out.items()]


def spared(hosts: Sequence[Host], out: Mapping[str, str], least: int) -> dict[str, str]:
    """Return the hosts in `out` that these hosts can do without. At least one host and slots for `least` ranks stay.

    out: addresses with the reason, the worst first.
    """
    staying, without = list(hosts), {}
    for address, why in out.items():
        rest = [h for h in staying if h.address != address]
        if len(rest) < len(staying) and rest and sum(h.slots for h in rest) >= least:
            staying, without[address] = rest, why
    return without


def parse_memory(files: Mapping[str, str]) -> HostFailures:
    """Return the records in these files. files: text by path."""
    entries, damaged = [], []
    for path, text in sorted(files.items()):
        try:
            entry = from_json(FailureRecord, json.loads(text))
            datetime.datetime.fromtimestamp(entry.time, datetime.UTC)
            entries.append(entry)
        except (ValueError, OverflowError, OSError, RecursionError) as e:
            why = " ".join(str(e).split())[:80]
            damaged.append(_damaged(path, why))
    return HostFailures(entries=tuple(sorted(entries)), damaged=tuple(damaged))


def _damaged(path: str | Path, why: str) -> str:
    shown = "".join(c for c in str(path) if c.isprintable())
    return f"{shown} is damaged ({why}) and passed over: remove it"


def read_memory(shared: Path) -> HostFailures:
    """Return the recorded failures of this cluster's hosts. Return none if there is no record or no shared folder."""
    files, refused, owners = {}, [], trusted_files.trusted_users(__file__)
    with contextlib.suppress(OSError):
        for path in sorted(folder_of(shared).glob(FILES)):
            try:
                if path.lstat().st_uid in owners:
                    text = trusted_files.read_file(path, owners=owners, most=_MOST_BYTES)
                    files[str(path)] = text.decode(errors="replace")
            except trusted_files.Untrusted as e:
                refused.append(_damaged(path, str(e.strerror)))
            except OSError:  # removed by its owner meanwhile
                continue
    found = parse_memory(files)
    return dataclasses.replace(found, damaged=(*found.damaged, *refused))


def note(shared: Path, entry: FailureRecord) -> None:
    """Write the record, and remove this user's files that are too old to count. Raises ClusterError if that fails."""
    folder = folder_of(shared)
    try:
        _make(folder)
        write_json(folder / file_name(entry), dataclasses.asdict(entry))
    except OSError as e:
        raise ClusterError(f"{folder} cannot be written, where it is kept which hosts fail: {e.strerror or e}") from e
    _tidy(folder, entry.time - WINDOW_S)


def pardon(entries: Iterable[FailureRecord], address: str, now: float) -> FailureRecord:
    """Return the record that forgives all failures of a host."""
    newest = max((e.time for e in entries if e.host == address), default=0.0)
    return FailureRecord(time=max(now, newest + 0.001), host=address, what=FORGIVEN)


def file_name(entry: FailureRecord) -> str:
    """Return a file name that no other record has."""
    return f"{entry.time:.3f}-{entry.host}-{secrets.token_hex(3)}.json"


def folder_of(shared: Path) -> Path:
    """Return the folder of the records."""
    return shared / FOLDER


def _make(folder: Path) -> None:
    """Create the folder, writable for all users like that of the jobs.

    Does not create the shared folder itself, which may not be mounted.
    """
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
