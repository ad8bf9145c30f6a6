"""Transfer from the operator's machine to the master by rsync, over the SSH connection that is already open."""

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from cluster.broadcast.copy import Transfer
from cluster.broadcast.onhost import file_tree
from cluster.errors import ClusterError, ConfigError
from cluster.hosts import Host, is_this_machine
from cluster.inventory import Cluster
from cluster.ssh import rsync_filter
from cluster.ssh.fanout import Executor
from cluster.ssh.noise_filter import marked, output_between_marks, trouble
from cluster.ssh.onhost.telling_line import telling_line
from cluster.ssh.options import agent_command, way_to

# Prints "l" for a link, "d" for a folder, "f" for a file, "e" for anything. All but "l" follow links.
_THERE = (
    'd={path}; [ -L "$d" ] && printf l; [ -d "$d" ] && printf d; [ -f "$d" ] && printf f; [ -e "$d" ] && printf e; :'
)
RSYNC_SILENCE_S = 60  # from a laptop to the master: long enough for a slow connection, short enough for a lost one


def listed(src: Path, excludes: Sequence[str]) -> tuple[list[list[Any]], list[str]]:
    """Return the entries of this machine's file or folder, and the paths left out. Raises ConfigError."""
    try:
        entries, left_out = file_tree.scan(str(src), excludes)
    except OSError as e:
        raise ConfigError(f"{e.filename or src}: {(e.strerror or 'cannot be read').lower()}") from e
    return [e.row() for e in entries], left_out


def to_master(reach: Executor, cluster: Cluster, src: Path, asked: Transfer, left_out: Sequence[str]) -> None:
    """Send the differences from this machine to the master's DST with rsync. Raises ClusterError if it fails.

    It uses the SSH connection that is already open. This machine is not the master.
    """
    reach.connect([cluster.master]).check()
    there = _what_is_at(reach, cluster.master, asked.dst)
    if problem := place_problem(is_folder(src), there, is_link=src.is_symlink()):
        raise ClusterError(f"the master {cluster.master}: {asked.dst}: {problem}")
    way = way_to(cluster.master, cluster.access)
    ssh = " ".join([f'"{sys.executable}"', "-I", "-S", f'"{rsync_filter.__file__}"', *agent_command(way)])
    source = f"{src}/" if is_folder(src) else str(src)
    # -s: the remote shell sees no name, as there is no way to quote a newline for every version of rsync
    # --modify-window=-1: in nanoseconds; in whole seconds a folder that was just made passes for as old as the source's
    words = [
        "rsync",
        "-a",
        "-s",
        "--sparse",
        "--mkpath",
        "--modify-window=-1",
        f"--timeout={RSYNC_SILENCE_S}",
        f"--rsync-path={rsync_filter.PRINT_MARK}; exec rsync",
        "--from0",
        "--exclude-from=-",
        "-e",
        ssh,
        "--",
        source,
        f"{way.address}:{asked.dst}",
    ]
    try:
        done = subprocess.run(words, input=os.fsencode("\0".join(map(_pattern, left_out))), capture_output=True)
    except FileNotFoundError:
        raise ClusterError(
            "rsync is not on this machine; it takes the files to the master: install it, or run this task on the master"
        ) from None
    if done.returncode:
        why = telling_line(done.stderr.decode(errors="replace")) or f"exited {done.returncode}"
        raise ClusterError(f"rsync to the master {cluster.master}: {why}")


def is_folder(src: Path) -> bool:
    """Return True if the path is a folder itself. A link to a folder is copied as a link."""
    return src.is_dir() and not src.is_symlink()


def place_problem(is_folder: bool, there: str, *, is_link: bool = False) -> str:
    """Return why the source cannot go to DST, "" if it can.

    `there` is the output of `_THERE` for DST. A copy from the master follows no link at DST and puts nothing into a
    folder there, but rsync would do both.
    """
    if "l" in there and (is_folder or ("d" not in there and not is_link)):
        return "is a link there, and a copy follows none: name the place that it leads to, or remove it"
    if there == "e":
        return "is a device, pipe or socket there, which a copy does not replace: name another DST, or remove it"
    if is_folder and "f" in there:
        return "is a file there and a folder here"
    if not is_folder and "d" in there:
        return "is a folder there and none here: with a slash at its end it is the folder that the copy goes into"
    return ""


def _what_is_at(reach: Executor, master: Host, path: str) -> str:
    result = reach.run([master], marked(_THERE.format(path=shlex.quote(path))))[master]
    if problem := trouble(result):
        raise ClusterError(f"the master {master}: {problem}")
    return output_between_marks(result) or ""


def _pattern(below: str) -> str:
    """Return the rsync pattern that matches exactly this path. rsync unescapes only if there is a wildcard."""
    return "/" + (re.sub(r"([\\*?\[])", r"\\\1", below) if re.search(r"[*?\[]", below) else below)


def source_on(cluster: Cluster, src: str) -> tuple[Path, bool]:
    """Return the absolute path of SRC, and True if it is on the master (else it is on this machine)."""
    path = Path(os.path.abspath(Path(src).expanduser()))  # noqa: PTH100 - links on the way stay what they are
    return path, is_this_machine(cluster.master.address)
