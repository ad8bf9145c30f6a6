"""Why an attempt ended, read from what mpirun printed: which rank, on which host, in one line."""

import re
from collections.abc import Mapping
from dataclasses import dataclass

_SIGNAL = re.compile(
    r"process rank (?P<rank>\d+) with PID \d+ on node (?P<node>\S+) exited on\s+signal (?P<signal>\d+)"
    r"(?: \((?P<name>[^)]*)\))?"
)
_STATUS = re.compile(r"Process name: \[\[\d+,\d+\],(?P<rank>\d+)\]\s+Exit code:\s+(?P<code>\d+)")
_ABORT = re.compile(r"MPI_ABORT was invoked on rank (?P<rank>\d+)")
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
_FULL = re.compile(r"^\[(?P<node>[^:\]\s]+):\d+\] .*OUT-OF-RESOURCE|No space left on device", re.MULTILINE)
_TAG = re.compile(r"^\[\d+,(?P<rank>\d+)\]<(?P<stream>stdout|stderr)>:", re.MULTILINE)

_EARLY = re.compile(r"^(?:\[\d+,\d+\]<stdout>:)?Asked to stop: saved after step (?P<step>\d+)", re.MULTILINE)
_NOTICE = re.compile(
    r"[IW]\d{4} \d\d:|WARNING: All log messages before absl|\d{4}-\d\d-\d\d \S+: [IW] "
)  # TensorFlow's
_TAG_INSIDE = re.compile(r"\[\d+,\d+\]<std(?:out|err)>:")  # where a rank wrote a line in pieces


@dataclass(frozen=True, kw_only=True)
class Cause:
    """What ended an attempt."""

    text: str
    rank: int | None = None
    host: str = ""
    is_host_lost: bool = False  # as mpirun says, which cannot tell a host from its daemon there


def read_cause(console: str, exit_code: int, host_of_rank: Mapping[int, str]) -> Cause:
    """The first failure that mpirun reports in an attempt's console, in words."""
    if exit_code == 0:
        return Cause(text="")
    if m := _LOST.search(console):
        return Cause(text=f"host {m['node']} was lost in mid-run", host=m["node"], is_host_lost=True)
    if m := _SIGNAL.search(console):
        rank = int(m["rank"])
        name = f" ({m['name']})" if m["name"] else ""
        return Cause(
            text=_rank_text(rank, host_of_rank, f"ended by signal {m['signal']}{name}", console),
            rank=rank,
            host=host_of_rank.get(rank, m["node"]),
        )
    for pattern, what in ((_STATUS, "exited {code}"), (_ABORT, "called MPI_Abort")):
        if m := pattern.search(console):
            rank = int(m["rank"])
            return Cause(
                text=_rank_text(rank, host_of_rank, what.format(**m.groupdict()), console),
                rank=rank,
                host=host_of_rank.get(rank, ""),
            )
    if m := _FULL.search(console):
        where = f"on {m['node']}" if m["node"] else "on a host"
        return Cause(text=f"there is no room {where}, where Open MPI keeps its files: inv run -- 'df /tmp /dev/shm'")
    if _NO_DAEMON.search(console):
        return Cause(text="mpirun could not reach every host: " + (_ssh_complaint(console) or "see the log"))
    if _NO_START.search(console):
        return Cause(text="the trainer could not be started: see the log")
    return Cause(text=f"mpirun ended with {exit_code}: see the log")


def left_early(console: str) -> Cause | None:
    """The cause where ranks left in good order before their last step, because a signal asked them to."""
    m = _EARLY.search(console)
    return m and Cause(
        text=f"a rank was told to end (SIGTERM or SIGUSR1), not by 'inv jobs.stop': all saved after step {m['step']} "
        "and left; was a host shut down?"
    )


def plain(line: str) -> str:
    """A console line as a person wants it: rank 0's as it is, another rank's with its number before it."""
    m = _TAG.match(line)
    if not m:
        return line
    text = _TAG_INSIDE.sub("", line[m.end() :])
    return text if m["rank"] == "0" else f"rank {m['rank']}: {text}"


def _rank_text(rank: int, host_of_rank: Mapping[int, str], what: str, console: str) -> str:
    said = _last_words(rank, console) or _common_error(console)
    return f"rank {rank} on {host_of_rank.get(rank, 'an unknown host')} {what}" + (f": {said}" if said else "")


def _last_words(rank: int, console: str) -> str:
    """The last line that a rank wrote to stderr, its libraries' notices aside."""
    tag = f"[1,{rank}]<stderr>:"
    lines = [line[len(tag) :].strip() for line in console.splitlines() if line.startswith(tag)]
    return next((line for line in reversed(lines) if line and not _NOTICE.match(line)), "")


def _common_error(console: str) -> str:
    """What all ranks found alike, which rank 0 says for them."""
    said = _last_words(0, console)
    return said if said.startswith("error: ") else ""


def _ssh_complaint(console: str) -> str:
    return next(
        (
            line.strip()
            for line in console.splitlines()
            if re.match(
                r"(ssh: |Permission denied|Host key verification failed|.*Connection (refused|timed out|closed))", line
            )
        ),
        "",
    )
