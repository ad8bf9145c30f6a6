"""`inv copy`: broadcast of a file or folder from the master to all hosts. Each host sends on while it receives."""

import posixpath
import secrets
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from cluster.broadcast.certificate import certificate
from cluster.errors import ClusterError, ConfigError
from cluster.hosts import Host
from cluster.hostset import fold
from cluster.inventory import Cluster
from cluster.ssh.fanout import Executor
from cluster.ssh.limits import Limits
from cluster.ssh.onhost.frame import Frames
from cluster.ssh.onhost.telling_line import telling_line
from cluster.ssh.program import program
from cluster.ssh.result import Result
from cluster.terminal import counted

_SILENT_S = 60.0  # a relay reports every five seconds that it runs
_RELAY = "cluster.broadcast.onhost.relay"
CODE_EXCLUDES = (
    ".git",
    "__pycache__",
    "*.pyc",
    ".venv",
    "venv",
    "node_modules",
    ".mypy_cache",
    ".ruff_cache",
    ".pytest_cache",
    ".ipynb_checkpoints",
    ".DS_Store",
    "*.egg-info",
    ".*.dlami-part",
)


@dataclass(frozen=True, kw_only=True)
class Transfer:
    """Parameters of a copy: source, destination, excludes and limits."""

    src: str  # on the master, absolute
    dst: str  # on every host, absolute: the copy's own name
    excludes: Sequence[str] = ()
    encrypt: bool = False
    delete: Mapping[str, Sequence[str]] = field(default_factory=dict)  # address -> paths that may be removed there
    rows: Sequence[Sequence[Any]] | None = None  # entries listed on the machine that has the source, sent to DST first
    silence_s: float = 10.0  # a host that sends and receives nothing for so long is skipped
    patience_s: float = 10.0  # how long to wait until a host's relay listens


@dataclass(frozen=True)
class CopyResult:
    """Result of a copy on one host."""

    host: Host
    error: str | None
    files: int = 0  # written
    bytes: int = 0
    seconds: float = 0.0
    plan: Mapping[str, Any] | None = None  # files, bytes and surplus of a planned copy
    shared_with: str | None = None  # address of the host that wrote the folder, which this host shares

    def record(self) -> dict[str, Any]:
        """Return this result as a dict for JSON."""
        return {
            "host": self.host.address,
            "rank": self.host.rank,
            "error": self.error,
            "files": self.files,
            "bytes": self.bytes,
            "seconds": round(self.seconds, 3),
            **({"shared_with": self.shared_with} if self.shared_with else {}),
            **({"plan": dict(self.plan)} if self.plan is not None else {}),
        }


@dataclass(frozen=True)
class Copied:
    """Results of a copy on every requested host."""

    outcomes: tuple[CopyResult, ...]
    left_out: tuple[str, ...] = ()  # of the source, by the excludes

    @property
    def failed(self) -> tuple[CopyResult, ...]:
        """Return the results of the hosts that do not have the copy."""
        return tuple(o for o in self.outcomes if o.error)

    def check(self) -> "Copied":
        """Return self if every host has the copy. Raises ClusterError with the reason of each host that lacks it."""
        if self.failed:
            whys = "".join(f"\n  {o.host}  {o.error}" for o in self.failed)
            raise ClusterError(f"{len(self.failed)} of {counted(len(self.outcomes), 'host')} do not have it:{whys}")
        return self


def transfer(src: str, dst: str, **options: Any) -> Transfer:
    """Return the transfer for SRC and DST. Raises ConfigError if DST cannot be copied to.

    DST is the copy's own name or, if it ends with a slash, the folder that the copy goes into.
    """
    if not dst.startswith("/"):
        raise ConfigError(f"{dst!r} is not an absolute path: hosts have no current folder in common")
    target = posixpath.join(dst, posixpath.basename(src.rstrip("/"))) if dst.endswith("/") else dst
    if posixpath.normpath(target) == "/":
        raise ConfigError("/ is not a place to copy to: name the copy, or end DST with a slash")
    return Transfer(src=posixpath.normpath(src), dst=posixpath.normpath(target), **options)


def copy(
    reach: Executor,
    cluster: Cluster,
    hosts: Sequence[Host],
    asked: Transfer,
    *,
    plan: bool = False,
    on_progress: Callable[[dict[Host, tuple[int, int]]], None] | None = None,
    on_trouble: Callable[[Host, str], None] | None = None,
) -> Copied:
    """Copy to these hosts, or with `plan` only report what each would get. Every host has an outcome.

    Raises ClusterError if the master cannot send the copy.

    Args:
        on_progress: called with the bytes copied and the total bytes of each host.
        on_trouble: called at once with the reason if the master's own copy fails. The other hosts still get theirs.
    """
    is_foreseen = plan and asked.rows is not None
    wanted = [h for h in hosts if is_foreseen or (h, asked.src) != (cluster.master, asked.dst)]
    reached = reach.connect(dict.fromkeys((cluster.master, *wanted)))
    if not reached[cluster.master].ok:
        raise ClusterError(f"the master {cluster.master}, from which it is copied: {reached[cluster.master].problem}")
    source = shlex.quote(asked.src)  # before any relay starts: they would wait for the head
    is_there = f"[ -e {source} ] || [ -L {source} ]"
    if not (is_foreseen or reach.run([cluster.master], is_there)[cluster.master].ok):
        raise ClusterError(f"the master {cluster.master}: {asked.src}: no such file or folder")
    chain = [cluster.master, *(h for h in wanted if h != cluster.master and reached[h].ok)]
    spec = _spec(asked, chain, head_keeps=cluster.master in wanted, plan=plan)
    place = {h: n for n, h in enumerate(chain)}
    listener = _Listener(on_progress, on_trouble)
    heads, others = (program(_RELAY, s, python=cluster.python) for s in (spec, {**spec, "rows": None}))
    results = reach.run(
        chain,
        lambda h: heads.command(place[h]),
        on_output=listener.took,
        stdin=lambda h: (heads if h == cluster.master else others).stdin,
        limits=Limits(silence_s=_SILENT_S),
        on_result=lambda r: _check_head(r, cluster.master, listener.said),
    )
    said = listener.said
    head = said[cluster.master]  # present, else _check_head would have raised
    if head["error"] and cluster.master not in wanted:
        raise ClusterError(f"the master {cluster.master}: {head['error']}")
    lost = {a: why for h in chain if h in said for a, why in said[h]["lost"].items()}
    outcomes = {
        h: _outcome(results[h], said.get(h), lost) if h in place else CopyResult(h, reached[h].problem) for h in wanted
    }
    writers = {h.address: o.error for h, o in outcomes.items()}
    shared = (replace(o, error=o.error or writers.get(o.shared_with or "")) for o in outcomes.values())
    return Copied(tuple(shared), tuple(listener.left_out))


def lines(copied: Copied) -> str:
    """Return one line per distinct result, with the hosts that share it."""
    same: dict[str, list[str]] = {}
    for o in copied.outcomes:
        if o.error:
            text = f"FAILED: {o.error}"
        elif o.shared_with:
            text = f"one folder with {o.shared_with}'s"
        elif o.plan is not None:
            surplus = f", {len(o.plan['surplus'])} there that are not in the source" if o.plan["surplus"] else ""
            text = f"would get {counted(o.plan['files'], 'file')}, {counted(o.plan['bytes'], 'byte')}{surplus}"
        elif o.files == 0:
            text = "nothing to copy, all there"
        else:
            text = f"{counted(o.files, 'file')}, {counted(o.bytes, 'byte')}"
        same.setdefault(text, []).append(o.host.address)
    return "\n".join(f"{fold(hosts)} ({len(hosts)})  {text}" for text, hosts in same.items())


class _Listener:
    """Parser of the records that relays print while they work, one per frame, and of their final results.

    A copy that takes a day prints more frames than fit in memory, so each record is handled as it arrives.
    """

    def __init__(
        self,
        on_progress: Callable[[dict[Host, tuple[int, int]]], None] | None,
        on_trouble: Callable[[Host, str], None] | None,
    ) -> None:
        self.left_out: list[str] = []
        self.said: dict[Host, dict[str, Any]] = {}  # final results of the hosts that reported one
        self._on_progress, self._on_trouble = on_progress, on_trouble
        self._frames: dict[Host, Frames] = {}
        self._at: dict[Host, tuple[int, int]] = {}

    def took(self, host: Host, stream: str, data: bytes) -> None:
        """Handle more output of one host."""
        if stream != "stdout":
            return
        for record in self._frames.setdefault(host, Frames()).feed(data):
            if "manifest" in record:
                self.left_out = record["manifest"]["left_out"]
            elif "result" in record:
                self.said[host] = record["result"]
            elif "trouble" in record and self._on_trouble:
                self._on_trouble(host, record["trouble"])
            elif "at" in record:
                self._at[host] = (record["at"], record["of"])
                if self._on_progress:
                    self._on_progress(self._at)


def _spec(asked: Transfer, chain: Sequence[Host], *, head_keeps: bool, plan: bool) -> dict[str, Any]:
    return {
        "secret": secrets.token_hex(32),
        "chain": [h.address for h in chain],
        "src": asked.src,
        "dst": asked.dst,
        "excludes": list(asked.excludes),
        "head_keeps": head_keeps,
        "plan": plan,
        "silence_s": asked.silence_s,
        "patience_s": asked.patience_s,
        "delete": {a: list(x) for a, x in asked.delete.items()},
        "rows": asked.rows,
        "tls": certificate() if asked.encrypt else None,
    }


def _check_head(result: Result, master: Host, said: Mapping[Host, Any]) -> None:
    """Raise ClusterError if this is the master's result and its relay reported none: the others would wait for it."""
    if result.host == master and master not in said:
        raise ClusterError(f"the master {master}: {_why(None, result, {})}; copy again")


def _outcome(result: Result, said: Mapping[str, Any] | None, lost: Mapping[str, str]) -> CopyResult:
    if said is None or said["error"]:
        return CopyResult(result.host, _why(said, result, lost))
    return CopyResult(
        result.host, None, said["files"], said["bytes"], said["seconds"], said["plan"], said["shared_with"]
    )


def _why(said: Mapping[str, Any] | None, result: Result, lost: Mapping[str, str]) -> str:
    if said and said["error"]:
        return str(said["error"])
    why = result.error or f"its part of the copy came to no end: it exited {result.exit_code}"
    if not result.failure and (complaint := telling_line(result.stderr.decode(errors="replace"))):
        why += f"   | {complaint}"
    return f"{why}; the host before it: {lost[result.host.address]}" if result.host.address in lost else why
