"""Python stacks of a job's ranks on this host, taken with py-spy, and a check that the shared folder answers here.

Arguments: the job's id, its attempt, its folder, and folders in which to look for py-spy besides that of a rank's
Python. `is_bare`: the program sends no heartbeats, and each worker of torchrun is a rank. `is_native`: include frames
of C.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from cluster.hang_detection.onhost.activity import activity, members, network_bytes
from cluster.hang_detection.onhost.ranks import RankProcess, beats, main_processes, processes
from cluster.ssh.onhost.frame import say
from cluster.ssh.onhost.telling_line import telling_line

_DUMP_S = 20.0  # for one rank
_FOLDER_S = 10.0  # a busy file server may take some
_THREADS = 40  # of a rank, at most


def stack(process: RankProcess, folders: list[str], is_native: bool = False) -> dict[str, Any]:
    """Return the stacks of a rank's threads, innermost frames first, or the error if py-spy could not take them."""
    told: dict[str, Any] = {"pid": process.pid, "state": process.state, "threads": [], "error": ""}
    with open(f"/proc/{process.pid}/cmdline", "rb") as file:
        python = os.fsdecode(file.read().split(b"\0")[0])
    beside = [os.path.join(f, "py-spy") for f in (os.path.dirname(python), *folders) if f]
    tool = next((p for p in beside if os.access(p, os.X_OK)), None) or shutil.which("py-spy")
    if not tool:
        return {**told, "error": "py-spy is not installed there"}
    words = [tool, "dump", "--json", "--pid", str(process.pid)]
    if process.state in "TtD":  # py-spy cannot halt it
        words.append("--nonblocking")
    elif is_native:
        words.append("--native")
    error = ""
    for before in ([], ["sudo", "-n"]) if os.geteuid() else ([],):  # a kernel may let only root trace processes
        try:
            done = subprocess.run([*before, *words], capture_output=True, text=True, timeout=_DUMP_S)
        except (OSError, subprocess.TimeoutExpired) as e:
            error = error or f"py-spy: {type(e).__name__}"
            continue
        if done.returncode == 0:
            return {**told, "threads": [_thread(t, process.pid) for t in json.loads(done.stdout)[:_THREADS]]}
        error = error or f"py-spy: {telling_line(done.stderr) or f'exited {done.returncode}'}"
    return {**told, "error": error[:200]}


def python_of(main: RankProcess, found: list[RankProcess]) -> RankProcess:
    """Return the first Python of a rank's processes, after its shells and launchers, else its main process."""
    pythons = {p.pid: p for p in found if p.rank == main.rank and _is_python(p)}
    first = [p for p in pythons.values() if p.ppid not in pythons]
    return main if main.pid in pythons else min(first, default=main)


def _is_python(process: RankProcess) -> bool:
    """Return True for a Python process, even if its main thread was renamed (PyTorch calls it pt_main_thread)."""
    try:
        program = os.path.basename(os.readlink(f"/proc/{process.pid}/exe"))
    except OSError:
        program = process.name
    return program.startswith("python")


def _thread(thread: dict[str, Any], pid: int) -> dict[str, Any]:
    frames = [[f["name"], f["filename"], f["line"]] for f in thread["frames"]]
    is_main = thread.get("os_thread_id") == pid or thread.get("thread_name") == "MainThread"
    return {"name": thread.get("thread_name") or "", "is_main": is_main, "frames": frames}


def _folder_trouble(folder: str) -> str:
    """Return what is wrong with a folder.

    A child process with a time limit checks it, because a dead mount would block this process for ever.
    """
    nothing = subprocess.DEVNULL
    try:
        child = subprocess.Popen(["ls", "-d", folder + "/."], stdin=nothing, stdout=nothing, stderr=nothing)
    except OSError:
        return ""
    try:
        return "is not there" if child.wait(_FOLDER_S) else ""
    except subprocess.TimeoutExpired:
        child.kill()  # and is not waited for: its end may have to wait for the mount, too
        return f"does not answer within {_FOLDER_S:g} s"


def main(
    job: str, attempt: int, folder: str, folders: list[str], is_bare: bool = False, is_native: bool = False
) -> None:
    """Send the stack and activity of every rank, the folder's trouble, and the host's network byte count."""
    found = processes(job, str(attempt))
    own = members(found) if is_bare else _by_rank(found)
    chosen = _bare_mains(own) if is_bare else _beating_mains(job, str(attempt), found)
    with ThreadPoolExecutor(8) as pool:
        taken = list(pool.map(lambda one: _stack_or_error(one, folders, is_native), chosen.values()))
    stacks = {r: {**taken[n], **activity(main, own.get(r, [main]))} for n, (r, main) in enumerate(chosen.items())}
    say({"stacks": stacks, "folder": _folder_trouble(folder), "network_bytes": network_bytes()})


def _by_rank(found: list[RankProcess]) -> dict[int, list[RankProcess]]:
    return {rank: [p for p in found if p.rank == rank] for rank in {p.rank for p in found if p.rank is not None}}


def _bare_mains(own: dict[int, list[RankProcess]]) -> dict[int, RankProcess]:
    """Return the first Python process of each rank of a program without heartbeats."""
    return {rank: python_of(min(group), group) for rank, group in own.items()}


def _beating_mains(job: str, attempt: str, found: list[RankProcess]) -> dict[int, RankProcess]:
    """Return for each rank the process that sends its heartbeats, or else its first Python process."""
    by_pid, sent, own = {p.pid: p for p in found}, beats(job, attempt), _by_rank(found)
    return {
        rank: by_pid.get(sent[rank]["pid"], main) if rank in sent else python_of(main, own[rank])
        for rank, main in main_processes(found).items()
    }


def _stack_or_error(process: RankProcess, folders: list[str], is_native: bool = False) -> dict[str, Any]:
    try:
        return stack(process, folders, is_native)
    except (OSError, ValueError, KeyError, TypeError) as e:
        return {
            "pid": process.pid,
            "state": process.state,
            "threads": [],
            "error": f"no stack: {type(e).__name__}: {e}",
        }
