"""`inv fetch`: copies a file or folder to this machine, from the master, or from every host into its own folder."""

import contextlib
import os
import re
import shlex
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from cluster.errors import ClusterError, ConfigError
from cluster.hosts import Host
from cluster.inventory import Cluster
from cluster.ssh import rsync_filter
from cluster.ssh.fanout import Executor
from cluster.ssh.limits import Limits
from cluster.ssh.noise_filter import marked, output_between_marks, trouble
from cluster.ssh.options import agent_command, way_to
from cluster.ssh.progress import StatusLine
from cluster.terminal import counted

PARTIAL = ".dlami-fetch-part"  # folder for the partial file of an interrupted fetch, which the next fetch resumes
_LOOK = Limits(total_s=60)
_AT_ONCE = 16  # rsyncs of this machine
_SILENCE_S = 600  # a host reads the whole of a large file for its checksum before it sends anything
# Prints the kind of a path and its resolved path. A link counts as the file that it points to.
_KIND = (
    'p={path}; [ -e "$p" ] || exit 0; if [ -d "$p" ]; then echo folder; elif [ -f "$p" ]; then echo file; '
    'else echo odd; fi; readlink -f -- "$p"'
)
_STATS = {
    "files": re.compile(r"^Number of regular files transferred: ([\d,]+)", re.MULTILINE),
    "bytes": re.compile(r"^Total transferred file size: ([\d,]+)", re.MULTILINE),
    "all_files": re.compile(r"^Number of files: .*?\breg: ([\d,]+)", re.MULTILINE),
}
_AT = re.compile(r"^\s*([\d,]+)\s+(\d+)%")
OnProgress = Callable[[dict[Host, tuple[int, int]]], None]


@dataclass(frozen=True, kw_only=True)
class Fetched:
    """Result of a fetch from one host, or of its dry run."""

    host: Host
    target: str  # on this machine
    error: str = ""
    files: int = 0  # transferred, or to be: files that are here already, by checksum, are not counted
    bytes: int = 0
    all_files: int = 0
    seconds: float = 0.0

    def record(self) -> dict[str, Any]:
        """Return this result as a dict for JSON."""
        own = {"host": self.host.address, "rank": self.host.rank, **vars(self), "error": self.error or None}
        return {**own, "host": self.host.address, "seconds": round(self.seconds, 2)}


def fetch(
    cluster: Cluster,
    src: str,
    dst: str,
    hosts: Sequence[Host],
    *,
    folder_each: bool,
    dry_run: bool = False,
    on_progress: OnProgress | None = None,
) -> tuple[Fetched, ...]:
    """Fetch SRC from these hosts to this machine. Return a result for each host.

    Raises ConfigError if SRC is no valid path.

    Every file is compared by its checksum, also those that are here already. A file gets its name once it is complete.

    Args:
        folder_each: write to DST/ADDRESS. Otherwise DST is the copy's name or, with a slash at its end, its folder.
    """
    path = _checked(src)
    at, lock = {}, threading.Lock()
    with Executor(cluster) as reach:
        kinds = _kinds(reach, hosts, path)
        reach.connect([h for h in hosts if not h.is_local and isinstance(kinds[h], tuple)])
        running: list[subprocess.Popen[str]] = []

        def one(host: Host) -> Fetched:
            target = _target(path, dst, host, folder_each)
            there = kinds[host]
            if isinstance(there, ClusterError):
                return Fetched(host=host, target=str(target), error=str(there))
            kind, real = there
            if problem := _problem(kind, target):
                return Fetched(host=host, target=str(target), error=problem)

            def show(have: int, percent: int) -> None:
                with lock:
                    at[host] = (have, have * 100 // max(percent, 1))
                    if on_progress:
                        on_progress(dict(at))

            words = _words(cluster, host, real, target, is_folder=kind == "folder", dry_run=dry_run)
            return _run(words, host, target, running, show, dry_run=dry_run)

        with ThreadPoolExecutor(_AT_ONCE) as pool:
            try:
                return tuple(pool.map(one, hosts))
            except BaseException:  # Ctrl-C: partial files are kept, and the next fetch resumes them
                pool.shutdown(wait=False, cancel_futures=True)
                for process in running:
                    with contextlib.suppress(ProcessLookupError):
                        process.terminate()
                raise


def lines(done: Sequence[Fetched], *, dry_run: bool) -> str:
    """Return a line per host."""
    return "\n".join(_line(one, dry_run) for one in done)


def progress_shown(line: StatusLine) -> OnProgress:
    """Return a callback that shows the slowest host's progress on this status line."""
    began = time.monotonic()

    def show(at: dict[Host, tuple[int, int]]) -> None:
        have, total = min(at.values(), key=lambda one: one[0] / max(1, one[1]))
        rate = sum(one for one, _ in at.values()) / max(0.001, time.monotonic() - began) / 1e6
        line.show(f"{have / max(1, total):4.0%} of the slowest of {counted(len(at), 'host')}, {rate:,.1f} MB/s")

    return show


def _line(one: Fetched, dry_run: bool) -> str:
    if one.error:
        return f"{one.host.address}  FAILED: {one.error}"
    came = f"{counted(one.files, 'file')}, {one.bytes / 1e6:,.1f} MB"
    same = one.all_files - one.files
    here = f"; {counted(same, 'file')} here already" if same > 0 else ""
    return f"{one.host.address}  {'would bring' if dry_run else 'brought'} {came}{here}: {one.target}"


def _checked(src: str) -> str:
    """Return SRC without a slash at its end. Raises ConfigError if it is not absolute or below ~/."""
    path = src.rstrip("/") or "/"
    if not (path.startswith(("/", "~/")) and len(path) > 2):
        raise ConfigError(f"SRC is {src!r}, expected a path on the host that begins with / or ~/")
    if "\n" in path or "\0" in path:
        raise ConfigError("SRC has a newline in it: fetch the folder that it is in")
    return path


def _kinds(reach: Executor, hosts: Sequence[Host], path: str) -> dict[Host, "tuple[str, str] | ClusterError"]:
    """Return for each host the kind of SRC and its resolved path, or the reason why it cannot be fetched."""
    quoted = f'"$HOME"/{shlex.quote(path[2:])}' if path.startswith("~/") else shlex.quote(path)
    results = reach.run(hosts, marked(_KIND.format(path=quoted)), limits=_LOOK)
    found: dict[Host, tuple[str, str] | ClusterError] = {}
    for host, result in results.items():
        kind, _, real = (output_between_marks(result) or "").rstrip("\n").partition("\n")
        if why := trouble(result):
            found[host] = ClusterError(why)
        elif not kind:
            found[host] = ClusterError(f"{path}: there is no such file or folder")
        elif kind == "odd":
            found[host] = ClusterError(f"{path} is no file and no folder")
        else:
            found[host] = (kind, real)
    return found


def _target(path: str, dst: str, host: Host, folder_each: bool) -> Path:
    name, place = PurePosixPath(path).name, Path(dst).expanduser().absolute()
    if folder_each:
        return place / host.address / name
    return place / name if dst.endswith("/") or dst in (".", "..") or dst.endswith(("/.", "/..")) else place


def _problem(kind: str, target: Path) -> str:
    """Return why the target is no place for a folder or a file, "" if it is one."""
    if kind == "folder" and (target.is_symlink() or (target.exists() and not target.is_dir())):
        return f"{target} is here and no folder: name another, or a folder with a slash at its end"
    if kind == "file" and target.is_dir():
        return f"{target} is a folder here: with a slash at its end the file goes into it"
    return ""


def _words(cluster: Cluster, host: Host, path: str, target: Path, *, is_folder: bool, dry_run: bool) -> list[str]:
    """Return the rsync command. rsync verifies each transferred file by a checksum of the whole file.

    With -c it compares files that are already here by checksum, not by size and time.
    """
    slash = "/" if is_folder else ""
    words = ["rsync", "-rlpt", "-s", "--no-h", f"--partial-dir={PARTIAL}", "--stats", "--info=progress2", "--outbuf=L"]
    words += [*(["-n"] if dry_run else []), *(["-c"] if target.exists() else [])]
    if host.is_local:
        return [*words, "--", f"{path}{slash}", f"{target}{slash}"]
    way = way_to(host, cluster.access)
    ssh = " ".join([f'"{sys.executable}"', "-I", "-S", f'"{rsync_filter.__file__}"', *agent_command(way)])
    words += [f"--timeout={_SILENCE_S}", f"--rsync-path={rsync_filter.PRINT_MARK}; exec rsync", "-e", ssh]
    address = f"[{way.address}]" if ":" in way.address else way.address
    return [*words, "--", f"{address}:{path}{slash}", f"{target}{slash}"]


def _run(
    words: list[str],
    host: Host,
    target: Path,
    running: "list[subprocess.Popen[str]]",
    show: Callable[[int, int], None],
    *,
    dry_run: bool,
) -> Fetched:
    began = time.monotonic()
    if not dry_run:
        target.parent.mkdir(parents=True, exist_ok=True)
    try:
        process = subprocess.Popen(
            words,
            env={**os.environ, "LC_ALL": "C"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
        )
    except FileNotFoundError:
        return Fetched(host=host, target=str(target), error="rsync is not on this machine: install it")
    running.append(process)
    complaints: list[str] = []
    assert process.stdout and process.stderr
    listening = threading.Thread(target=lambda: complaints.extend(process.stderr or ()))
    listening.start()
    told = []
    for line in process.stdout:  # a carriage return ends a line, too
        if at := _AT.match(line):
            show(_number(at[1]), int(at[2]))
        else:
            told.append(line)
    code = process.wait()
    listening.join()
    numbers = {name: _number(found[1]) for name, kind in _STATS.items() if (found := kind.search("".join(told)))}
    why = _why(code, complaints) if code else ""
    return Fetched(host=host, target=str(target), error=why, seconds=time.monotonic() - began, **numbers)


def _why(code: int, complaints: Sequence[str]) -> str:
    """Return rsync's reason for its exit code."""
    first = next((line.strip() for line in complaints if line.strip()), f"rsync exited {code}")
    if code == 127 or "rsync: not found" in first or "rsync: command not found" in first:
        return "rsync is not on the host: install it there"
    return f"{first.removeprefix('rsync: ')}; what came is kept: the same command goes on"


def _number(text: str) -> int:
    return int(text.replace(",", ""))
