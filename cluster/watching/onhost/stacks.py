"""The Python stacks of a job's ranks on this host, taken by py-spy; and whether the shared folder answers here.

Arguments: the job's id, its attempt, its folder, and folders in which py-spy may be besides that of a rank's Python.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from cluster.ssh.onhost.frame import say
from cluster.ssh.onhost.telling_line import telling_line
from cluster.watching.onhost.ranks import Process, beats, main_processes, processes

_DUMP_S = 20.0  # for one rank
_FOLDER_S = 10.0  # a busy file server may take some
_THREADS = 40  # of a rank, at most


def stack(process: Process, folders: list[str]) -> dict[str, Any]:
    """A rank's threads, innermost frames first; or why there are none."""
    told: dict[str, Any] = {"pid": process.pid, "state": process.state, "threads": [], "error": ""}
    with open(f"/proc/{process.pid}/cmdline", "rb") as file:
        python = os.fsdecode(file.read().split(b"\0")[0])
    beside = [os.path.join(f, "py-spy") for f in (os.path.dirname(python), *folders) if f]
    tool = next((p for p in beside if os.access(p, os.X_OK)), None) or shutil.which("py-spy")
    if not tool:
        return {**told, "error": "py-spy is not installed there"}
    words = [tool, "dump", "--json", "--pid", str(process.pid)]
    if process.state in "TtD":  # it cannot be halted for the look
        words.append("--nonblocking")
    error = ""
    for before in ([], ["sudo", "-n"]) if os.geteuid() else ([],):  # a kernel may let only root look
        try:
            done = subprocess.run([*before, *words], capture_output=True, text=True, timeout=_DUMP_S)
        except (OSError, subprocess.TimeoutExpired) as e:
            error = error or f"py-spy: {type(e).__name__}"
            continue
        if done.returncode == 0:
            return {**told, "threads": [_thread(t, process.pid) for t in json.loads(done.stdout)[:_THREADS]]}
        error = error or f"py-spy: {telling_line(done.stderr) or f'exited {done.returncode}'}"
    return {**told, "error": error[:200]}


def python_of(main: Process, found: list[Process]) -> Process:
    """The first Python of a rank, whatever shells and launchers are before it; its main process if there is none."""
    own = sorted(p for p in found if p.rank == main.rank)
    return next((p for p in (main, *own) if p.name.startswith("python")), main)


def _thread(thread: dict[str, Any], pid: int) -> dict[str, Any]:
    frames = [[f["name"], f["filename"], f["line"]] for f in thread["frames"]]
    is_main = thread.get("os_thread_id") == pid or thread.get("thread_name") == "MainThread"
    return {"name": thread.get("thread_name") or "", "is_main": is_main, "frames": frames}


def _folder_trouble(folder: str) -> str:
    """What is wrong with a folder, found out by a child with a time limit: a dead mount hangs whoever touches it."""
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


def main(job: str, attempt: int, folder: str, folders: list[str]) -> None:
    """Say every rank's stack, and the trouble with the folder."""
    found = processes(job, str(attempt))
    by_pid, mains = {p.pid: p for p in found}, main_processes(found)
    said = beats(job, str(attempt))
    chosen = {
        rank: by_pid.get(said[rank]["pid"], main) if rank in said else python_of(main, found)
        for rank, main in mains.items()
    }
    with ThreadPoolExecutor(8) as pool:
        taken = list(pool.map(lambda one: _stack_or_error(one, folders), chosen.values()))
    say({"stacks": {rank: taken[n] for n, rank in enumerate(chosen)}, "folder": _folder_trouble(folder)})


def _stack_or_error(process: Process, folders: list[str]) -> dict[str, Any]:
    try:
        return stack(process, folders)
    except (OSError, ValueError, KeyError, TypeError) as e:
        return {
            "pid": process.pid,
            "state": process.state,
            "threads": [],
            "error": f"no stack: {type(e).__name__}: {e}",
        }
