"""`inv copy` for the operator: excludes, deletions, progress and report."""

import dataclasses
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from cluster import hostset
from cluster.broadcast.copy import CODE_EXCLUDES, Copied, CopyResult, Transfer, copy, lines, transfer
from cluster.broadcast.onhost.file_tree import is_excluded
from cluster.broadcast.to_master import listed, source_on, to_master
from cluster.errors import ConfigError
from cluster.hosts import Host
from cluster.inventory import Cluster
from cluster.last_run import last_failed, remember
from cluster.ssh.fanout import Executor
from cluster.ssh.progress import StatusLine
from cluster.terminal import counted, print_json

_OWN = (".*.dlami-part",)
_CODE_SIGNS = (".git", "pyproject.toml", "setup.py", "requirements.txt", "__pycache__")


@dataclass(frozen=True, kw_only=True)
class CopyRequest:
    """Arguments of `inv copy`."""

    src: str
    dst: str
    hosts: str | None = None
    excludes: tuple[str, ...] = ()
    everything: bool = False  # a code folder's .git and caches too
    encrypt: bool = False
    delete: bool = False
    dry_run: bool = False
    as_json: bool = False
    fanout: int = 64


def run_copy(cluster: Cluster, request: CopyRequest, agree: Callable[[str], bool]) -> int:
    """Copy and report the results. Return the exit code: 0 if every host has the copy.

    Raises ConfigError before anything is changed.

    Args:
        agree: prompts the operator before anything is removed.
    """
    return _report(cluster, request, copy_as_asked(cluster, request, agree))


def copy_as_asked(cluster: Cluster, request: CopyRequest, agree: Callable[[str], bool]) -> Copied:
    """Copy, or with `dry_run` only plan the copy. Return the results of every host.

    Raises ConfigError before anything is changed.
    """
    src, is_here = source_on(cluster, request.src)
    chosen = hostset.select(cluster.hosts, request.hosts, failed=last_failed(cluster), for_ranks=True)
    named = f"{src}/" if request.src.endswith("/") else str(src)
    job = transfer(named, request.dst, encrypt=request.encrypt, excludes=excludes_for(src, request))
    if not src.exists() and not src.is_symlink():
        raise ConfigError(f"{src}: there is no such file or folder on this machine")
    left_out: list[str] = []
    first: tuple[CopyResult, ...] = ()  # the master's, where the files go to it from here
    with Executor(cluster, max(request.fanout, len(chosen) + 1)) as reach:
        if not is_here:
            rows, left_out = listed(src, job.excludes)
            job = dataclasses.replace(job, src=job.dst, rows=rows)
        if request.dry_run or request.delete or not is_here:
            planned = copy(reach, cluster, chosen, job, plan=True)
            if request.dry_run:
                return dataclasses.replace(planned, left_out=(*planned.left_out, *left_out))
            if not is_here:
                _refuse_hopeless(planned, cluster.master)
            job = _with_deletions(job, planned, agree) if request.delete else job
        if not is_here:
            first = tuple(_brought(o) for o in planned.outcomes if o.host == cluster.master)
            to_master(reach, cluster, src, job, left_out)
        line = StatusLine()
        try:
            shown = _progress(line) if line.is_shown else None
            copied = copy(reach, cluster, chosen, job, on_progress=shown, on_trouble=_trouble(line))
        finally:
            line.clear()
    return dataclasses.replace(copied, outcomes=(*first, *copied.outcomes), left_out=(*copied.left_out, *left_out))


def _brought(planned: CopyResult) -> CopyResult:
    """Return the result of a host that has received what was planned for it."""
    return dataclasses.replace(
        planned, plan=None, files=(planned.plan or {})["files"], bytes=(planned.plan or {})["bytes"]
    )


def _refuse_hopeless(planned: Copied, master: Host) -> None:
    """Raise ClusterError if the master or every host cannot take the copy, so that nothing is sent in vain."""
    if planned.outcomes and (
        len(planned.failed) == len(planned.outcomes) or master in [o.host for o in planned.failed]
    ):
        planned.check()


def excludes_for(src: Path, request: CopyRequest) -> tuple[str, ...]:
    """Return the exclude patterns: the operator's, and those for our own unfinished files.

    For a folder of code they also cover .git, caches and environments, unless the request includes everything.
    """
    is_code = src.is_dir() and any((src / sign).exists() for sign in _CODE_SIGNS)
    return (*request.excludes, *(CODE_EXCLUDES if is_code and not request.everything else _OWN))


def progress_text(at: dict[Host, tuple[int, int]], seconds: float) -> str:
    """Return the progress of the slowest host, with rate and time left."""
    have, total = min(at.values())
    rate = have / max(seconds, 0.001)
    left = f", {(total - have) / rate:.0f} s left" if rate > 0 else ""
    return (
        f"{have / max(1, total):4.0%} of {total / 1e6:,.0f} MB on the slowest of {counted(len(at), 'host')}, "
        f"{rate / 1e6:,.1f} MB/s{left}"
    )


def _progress(line: StatusLine) -> Callable[[dict[Host, tuple[int, int]]], None]:
    began = time.monotonic()
    return lambda at: line.show(progress_text(at, time.monotonic() - began))


def _trouble(line: StatusLine) -> Callable[[Host, str], None]:
    def show(host: Host, text: str) -> None:
        line.clear()
        print(f"the master {host.address}, which passes it on all the same: {text}", file=sys.stderr)

    return show


def _with_deletions(job: Transfer, planned: Copied, agree: Callable[[str], bool]) -> Transfer:
    """Return the transfer with the files to remove per host. Raises ConfigError if the operator does not agree."""
    surplus = {o.host.address: tuple(o.plan["surplus"]) for o in planned.outcomes if o.plan and o.plan["surplus"]}
    if not surplus:
        return job
    for address, names in surplus.items():
        some = ", ".join(map(repr, names[:5])) + (" …" if len(names) > 5 else "")
        print(f"{address}  {len(names)} to be removed: {some}")
    count = sum(map(len, surplus.values()))
    if not agree(f"remove {counted(count, 'file')} and folders below {job.dst} on {counted(len(surplus), 'host')}"):
        raise ConfigError("nothing was copied and nothing removed")
    return dataclasses.replace(job, delete=surplus)


def left_out_lines(names: Sequence[str], request: CopyRequest) -> list[str]:
    """Return one line per reason for left-out files, naming the option that includes them if there is one."""
    rest = [n for n in names if not is_excluded(n, (*request.excludes, *_OWN))]
    usual = [n for n in rest if is_excluded(n, CODE_EXCLUDES) and not request.everything]
    reasons = {
        "by --exclude": [n for n in names if is_excluded(n, request.excludes)],
        "--everything takes them too": usual,
        "no files: pipes, sockets and devices are not copied": [n for n in rest if n not in usual],
    }
    return [
        f"left out: {', '.join(found[:5])}{' …' if len(found) > 5 else ''} ({why})"
        for why, found in reasons.items()
        if found
    ]


def _report(cluster: Cluster, request: CopyRequest, copied: Copied) -> int:
    if not request.as_json:
        for line in left_out_lines(copied.left_out, request):
            print(line, file=sys.stderr)
    if request.as_json:
        for outcome in copied.outcomes:
            print_json(outcome.record(), one_line=True)
    else:
        print(lines(copied))
    remember(cluster, "", [o.host for o in copied.failed])
    if copied.failed and not request.as_json:
        print(
            f"{len(copied.failed)} of {counted(len(copied.outcomes), 'host')} do not have it; "
            "those again: add --hosts @failed",
            file=sys.stderr,
        )
    return 1 if copied.failed else 0
