"""Cause of an attempt's end, parsed from mpirun's output: which rank failed, on which host, in one line."""

import contextlib
import functools
import re
import signal
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from cluster.recovery.failure_kinds import FailureKind
from cluster.recovery.last_words import LastWords, first_to_fail, last_words

_SIGNAL = re.compile(
    r"process rank (?P<rank>\d+) with PID \d+ on node (?P<node>\S+) exited on\s+signal (?P<signal>\d+)"
    r"(?: \((?P<name>[^)]*)\))?"
)
_STATUS = re.compile(r"Process name: \[\[\d+,\d+\],(?P<rank>\d+)\]\s+Exit code:\s+(?P<code>\d+)")
_ABORT = re.compile(r"MPI_ABORT was invoked on rank (?P<rank>\d+)")
_IMPROPERLY = re.compile(
    r"exited due to process rank (?P<rank>\d+) with PID \d+ on\s+node (?P<node>\S+) exiting improperly"
)
_LOST = re.compile(
    r"lost communication with a remote daemon\.\s+HNP daemon\s*:.*?on node (?P<master>\S+)\s+"
    r"Remote daemon\s*:.*?on node (?P<node>\S+)",
    re.DOTALL,
)
_NO_DAEMON = re.compile(r"ORTE (?:was unable to reliably start one or more daemons|does not know how to route)")
_NO_START = re.compile(
    r"mpirun was unable to (?:find the specified executable file|launch the specified application)"
    r"|WARNING: The following .*working directory|Could not chdir",
    re.IGNORECASE,
)
_NO_FOLDER = re.compile(
    r"could not\s+change to the specified working directory:\s+Working directory: (?P<folder>\S+)\s+Node: (?P<node>\S+)"
)
_COMPLAINT = re.compile(
    r"ssh: |Permission denied|Host key verification failed|.*Connection (refused|timed out|closed)|\S+: .*orted.*: "
)
_SOME_RANK = re.compile(r"process(?:es)? returned\s+a non-zero exit code")
_FULL_ON = re.compile(r"^\[(?P<node>[^:\]\s]+):\d+\] .*(?:OUT-OF-RESOURCE|No space left on device)", re.MULTILINE)
_FULL = re.compile(r"No space left on device")
_NO_STORE = re.compile(r"PMIX ERROR: .*gds_ds\d+_\w+\.c")  # printed by a rank's PMIx library if its store in /tmp fails
_TAG = re.compile(r"^\[\d+,(?P<rank>\d+)\]<(?P<stream>stdout|stderr)>:", re.MULTILINE)

_BY_SIGTERM = 143  # exit code of a rank that saved and left on SIGTERM: 128 + 15
_FOLDER_TROUBLE = re.compile(
    r"No space left on device|Read-only file system|Disk quota exceeded|Stale file handle|Input/output error"
    r"|Transport endpoint is not connected"
)
_TAG_INSIDE = re.compile(r"\[\d+,\d+\]<std(?:out|err)>:")  # inside a line that a rank wrote in pieces


@dataclass(frozen=True, kw_only=True)
class Cause:
    """Cause of an attempt's end: its kind, a sentence, and the rank and host if they are known."""

    kind: FailureKind
    text: str
    rank: int | None = None
    host: str = ""

    @property
    def is_host_lost(self) -> bool:
        """Return True if a host was lost. mpirun reports the loss of its daemon on a host in the same words."""
        return self.kind is FailureKind.HOST


def read_cause(
    console: str, exit_code: int, host_of_rank: Mapping[int, str], shared: str = "", is_alone: bool = False
) -> Cause:
    """Return the first failure that mpirun reports in an attempt's console.

    Only mpirun's own lines decide what happened. The ranks' output is only quoted, since a rank may print an old log
    with the same messages.

    shared: path of the shared folder. Errors that name it are not the program's fault.
    is_alone: the job is a single process, so it cannot have lost a peer.
    """
    own = _own_lines(console)
    if exit_code == 0:
        return _no_rank_began(console, own) or Cause(kind=FailureKind.DONE, text="")
    if m := _LOST.search(own):
        return Cause(kind=FailureKind.HOST, text=f"host {m['node']} was lost in mid-run", host=m["node"])
    words = last_words(console)
    if m := _SIGNAL.search(own):
        what = f"ended by signal {m['signal']}" + (f" ({m['name']})" if m["name"] else "")
        return _of_a_rank(m, what, words, host_of_rank, _kind_of_signal)
    storeless = next((rank for rank, said in sorted(words.items()) if said.line_with(_NO_STORE)), None)
    if storeless is not None and "MPI_INIT failed" in own:
        return no_store(host_of_rank.get(storeless, ""))
    for pattern, what in (
        (_STATUS, "exited {code}"),
        (_ABORT, "called MPI_Abort"),
        (_IMPROPERLY, "exited without MPI_Finalize, or before others called MPI_Init"),
    ):
        if m := pattern.search(own):
            code = int(m.groupdict().get("code") or 1)
            kind = functools.partial(_kind_of_exit, code, shared=shared, is_alone=is_alone)
            what = what.format(code=_exit_in_words(code))
            return _of_a_rank(m, what, words, host_of_rank, kind)
    if cause := _of_launch(own, words, storeless, exit_code, host_of_rank, shared):
        return cause
    if _SOME_RANK.search(own):  # mpirun does not know which rank it was
        what = f"exited {_exit_in_words(exit_code)}"
        common = _common_error(words)
        text = f"a rank {what}: {str(common) or 'see the log'}"
        return Cause(kind=_kind_of_exit(exit_code, common, shared, is_alone), text=text)
    return Cause(
        kind=FailureKind.DAEMON if exit_code < 0 else FailureKind.LAUNCH,
        text=f"mpirun ended with {exit_code}: see the log",
    )


def _of_a_rank(
    m: re.Match[str],
    what: str,
    words: Mapping[int, LastWords],
    host_of_rank: Mapping[int, str],
    kind_of: Callable[[LastWords], FailureKind],
) -> Cause:
    """Return the cause for the rank that mpirun reports as the first to end.

    If that rank only lost a peer, return the cause for the peer.
    """
    told = int(m["rank"])
    rank = first_to_fail(told, words)
    return Cause(
        kind=kind_of(_of(rank, words)),
        text=_rank_text(rank, host_of_rank, what if rank == told else "failed", words),
        rank=rank,
        host=host_of_rank.get(rank, m.groupdict().get("node", "")),
    )


def _own_lines(console: str) -> str:
    """Return the console's lines by mpirun and its daemons, without those of the ranks and of the supervisor."""
    return "\n".join(line for line in console.split("\n") if not _TAG.match(line) and not line.startswith("dlami: "))


def _of_launch(
    own: str,
    words: Mapping[int, LastWords],
    storeless: int | None,
    exit_code: int,
    host_of_rank: Mapping[int, str],
    shared: str,
) -> Cause | None:
    """Return the cause if a host had no space, could not be reached, or lacked the folder or the program; else None."""
    if m := _FULL_ON.search(own):  # searched first: the other patterns do not name the host
        return Cause(kind=FailureKind.LAUNCH, text=_no_room(f"on {m['node']}"), host=m["node"])
    if storeless is not None:  # mpirun ended before the rank could print more
        return no_store(host_of_rank.get(storeless, ""))
    if cause := _full(own, words, exit_code, host_of_rank, shared):
        return cause
    if _NO_DAEMON.search(own):
        text = "mpirun could not reach every host: " + (_ssh_complaint(own) or "see the log")
        return Cause(kind=FailureKind.LAUNCH, text=text)
    if m := _NO_FOLDER.search(own):
        text = f"{m['node']} has no {m['folder']}: is the shared folder mounted there, and on the master?"
        return Cause(kind=FailureKind.LAUNCH, text=text, host=m["node"])
    if _NO_START.search(own):
        return Cause(kind=FailureKind.LAUNCH, text="its program could not be started: see the log")
    return None


def _full(
    own: str, words: Mapping[int, LastWords], exit_code: int, host_of_rank: Mapping[int, str], shared: str
) -> Cause | None:
    """Return the cause if a disk is full, by a daemon's line or else by a rank's last lines. Otherwise return None."""
    if line := next((one for one in own.split("\n") if _FULL.search(one)), ""):
        if shared and shared in line:
            return Cause(kind=FailureKind.SHARED_FOLDER, text=line.strip())
        return Cause(kind=FailureKind.LAUNCH, text=_no_room("on a host"))
    for rank, said in sorted(words.items()):
        if line := said.line_with(_FULL):
            is_shared = bool(shared) and shared in line
            kind = (
                FailureKind.SHARED_FOLDER if is_shared else FailureKind.DAEMON if exit_code < 0 else FailureKind.LAUNCH
            )
            host = host_of_rank.get(rank, "")
            text = f"rank {rank} on {host or 'an unknown host'}: {_TAG_INSIDE.sub('', line).strip()}"
            return Cause(kind=kind, text=text, rank=rank, host=host)
    return None


def _exit_in_words(code: int) -> str:
    """Format an exit code. One above 128 gets the name of its signal: "137 (SIGKILL, often for lack of memory)"."""
    if not _is_signal(code):
        return str(code)
    with contextlib.suppress(ValueError):
        name = signal.Signals(code - 128).name
        return f"{code} ({name}, often for lack of memory)" if name == "SIGKILL" else f"{code} ({name})"
    return f"{code} (signal {code - 128})"


def _is_signal(code: int) -> bool:
    """Return True if a shell's exit code means that a signal ended its command."""
    return 128 < code < 160


def _kind_of_signal(words: LastWords) -> FailureKind:
    return FailureKind.GPU if words.gpu_fault else FailureKind.RANK_SIGNAL


def _kind_of_exit(code: int, words: LastWords, shared: str, is_alone: bool) -> FailureKind:
    """Return the kind of failure for a rank's exit code and last lines."""
    code = 128 + words.signal if words.signal else words.worker.code if words.worker else code
    if code == _BY_SIGTERM:
        return FailureKind.TOLD
    if words.gpu_fault:
        return FailureKind.GPU
    if _is_signal(code):
        return FailureKind.RANK_SIGNAL
    if shared and shared in str(words) and _FOLDER_TROUBLE.search(str(words)):
        return FailureKind.SHARED_FOLDER
    is_alone = is_alone and not words.worker
    return FailureKind.RANK_SIGNAL if words.tell_of_another_s_loss and not is_alone else FailureKind.PROGRAM


def _no_rank_began(console: str, own: str) -> Cause | None:
    """Return the cause if mpirun gave up before it started any rank but exited with 0, else None.

    Open MPI 4.1 does so if a forwarded signal, such as the SIGCONT that wakes mpirun, meets a daemon that is starting.
    """
    if _TAG.search(console) or not _NO_DAEMON.search(own):
        return None
    return Cause(kind=FailureKind.LAUNCH, text="mpirun ended before any rank had begun: see the log")


def host_lost(address: str, how: str) -> Cause:
    """Return the cause for a host that was lost in mid-run. how: how that was noticed."""
    return Cause(kind=FailureKind.HOST, text=f"host {address} was lost in mid-run: {how}", host=address)


def daemon_gone(address: str) -> Cause:
    """Return the cause for a host that answers but whose mpirun daemon is gone."""
    return Cause(
        kind=FailureKind.DAEMON,
        text=f"mpirun's daemon on {address} is gone; the host answers: the daemon was ended, or the host or its "
        "network was away for a moment",
        host=address,
    )


def plain(line: str) -> str:
    """Return a console line for display: rank 0's without its tag, other ranks' prefixed with "rank N: "."""
    m = _TAG.match(line)
    if not m:
        return line
    text = _TAG_INSIDE.sub("", line[m.end() :])
    return text if m["rank"] == "0" else f"rank {m['rank']}: {text}"


def of_rank(line: str, rank: int) -> str | None:
    """Return a console line as this rank wrote it to stdout or stderr, or None if it is another rank's."""
    m = _TAG.match(line)
    return _TAG_INSIDE.sub("", line[m.end() :]) if m and int(m["rank"]) == rank else None


def no_store(host: str) -> Cause:
    """Return the cause for a host on which Open MPI has no space for its files. host: "" if unknown."""
    return Cause(kind=FailureKind.LAUNCH, text=_no_room(f"on {host}" if host else "on a host"), host=host)


def _no_room(where: str) -> str:
    return f"there is no room {where}, where Open MPI keeps its files: inv run -- 'df /tmp /dev/shm'"


def _rank_text(rank: int, host_of_rank: Mapping[int, str], what: str, words: Mapping[int, LastWords]) -> str:
    said = str(_of(rank, words))
    return f"rank {rank} on {host_of_rank.get(rank, 'an unknown host')} {what}" + (f": {said}" if said else "")


def _of(rank: int, words: Mapping[int, LastWords]) -> LastWords:
    """Return the rank's last lines. If it has none, return the error that rank 0 reports for all ranks."""
    own = words.get(rank, LastWords())
    return own if str(own) else _common_error(words)


def _common_error(words: Mapping[int, LastWords]) -> LastWords:
    """Return rank 0's last lines if they report an error that all ranks found alike, else empty ones."""
    said = words.get(0, LastWords())
    return said if str(said).startswith("error: ") else LastWords()


def _ssh_complaint(own: str) -> str:
    """Return the line in which ssh or the remote shell reports why no daemon started on a host, or ""."""
    return next((line.strip() for line in own.split("\n") if _COMPLAINT.match(line)), "")
