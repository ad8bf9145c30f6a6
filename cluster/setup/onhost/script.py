"""Runner of a set-up script on a host: once per content, as root, with a log; a stamp file records success."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import subprocess
import tempfile
import time
from typing import Any, BinaryIO

from cluster.ssh.onhost.frame import say

STAMPS = "/var/lib/dlami-cluster/setup"  # on the host's own disk, so that a replacement has none
LOG = "/var/log/dlami-setup.log"
_TAIL_LINES, _TAIL_BYTES = 8, 16384
_GRACE_S = 5.0
_PAUSE_S = 0.2


def run_once(
    name: str, text: str, digest: str, environment: dict[str, str], limit_s: float, force: bool
) -> dict[str, Any]:
    """Run the script unless it has succeeded here before, or `force` is set.

    The result's state is done, before or failed.
    """
    began = time.monotonic()
    os.makedirs(STAMPS, mode=0o755, exist_ok=True)
    with open(os.path.join(STAMPS, ".lock"), "w") as lock:
        while not _taken(lock.fileno()):  # another set-up, or the first boot, holds the lock
            if time.monotonic() - began > limit_s:
                return _ended("failed", began, f"another set-up runs here for {limit_s:g} s: see {LOG}")
            time.sleep(_PAUSE_S)
        if is_done(digest) and not force:
            return _ended("before", began)
        with open(LOG, "wb") as log:
            why = _run(name, text, environment, limit_s - (time.monotonic() - began), log)
        if why:
            return _ended("failed", began, why, _tail(name))
        _stamp(digest, name)
        return _ended("done", began)


def is_done(digest: str) -> bool:
    """Return True if the script has succeeded here."""
    return os.path.exists(os.path.join(STAMPS, digest))


def main(verb: str, *arguments: Any) -> None:
    """Run a verb and send its result.

    `plan DIGEST` sends whether the script would run. `run NAME TEXT DIGEST LIMIT FORCE ENVIRONMENT` runs it.
    """
    if verb == "plan":
        say({"state": "before" if is_done(*arguments) else "would run"})
    else:
        name, text, digest, limit_s, force, environment = arguments
        say(run_once(name, text, digest, environment, limit_s, force))


def _taken(lock: int) -> bool:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _run(name: str, text: str, environment: dict[str, str], limit_s: float, log: BinaryIO) -> str:
    """Run the script and return why it failed; "" if it did not.

    The script is a file in memory, so nothing of it stays.
    """
    script = os.memfd_create(name, 0)
    os.write(script, text.encode())
    path = f"/proc/self/fd/{script}"
    words = [path] if text.startswith("#!") else ["/bin/bash", path]
    try:
        child = subprocess.Popen(
            words,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            cwd="/",
            env={**os.environ, **environment},
            pass_fds=[script],
            start_new_session=True,
        )
    except OSError as e:
        return f"it could not be started, by its first line {text.splitlines()[0]!r}: {e.strerror}"
    finally:
        os.close(script)
    try:
        code = child.wait(max(1.0, limit_s))
    except subprocess.TimeoutExpired:
        _end(child)
        return f"it did not end within {limit_s:.0f} s, and was ended"
    return f"it was ended by signal {-code}" if code < 0 else f"it exited {code}" if code else ""


def _end(child: subprocess.Popen[bytes]) -> None:
    """End the child's whole process group: SIGTERM first, then SIGKILL."""
    for step in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(child.pid, step)
            child.wait(_GRACE_S)
        except (ProcessLookupError, subprocess.TimeoutExpired):
            continue


def _tail(name: str) -> list[str]:
    with open(LOG, "rb") as log:
        log.seek(max(0, os.path.getsize(LOG) - _TAIL_BYTES))
        lines = log.read().decode(errors="replace").splitlines()
    said = [line.rstrip() for line in lines if line.strip()][-_TAIL_LINES:]
    return [_without_path(line, name) for line in said]


def _without_path(line: str, name: str) -> str:
    """Return a shell's error line with the script's name in place of the file in memory."""
    begin, number = "/proc/self/fd/", ""
    if line.startswith(begin):
        number = line[len(begin) :].split(":")[0]
    return name + line[len(begin) + len(number) :] if number.isdigit() else line


def _stamp(digest: str, name: str) -> None:
    """Record the success atomically, synced to disk."""
    handle, new = tempfile.mkstemp(dir=STAMPS, prefix=".new-")
    with os.fdopen(handle, "w") as file:
        json.dump({"name": name, "time": int(time.time())}, file)
        file.flush()
        os.fsync(file.fileno())
    os.chmod(new, 0o644)
    os.rename(new, os.path.join(STAMPS, digest))


def _ended(state: str, began: float, why: str = "", tail: list[str] | None = None) -> dict[str, Any]:
    return {"state": state, "seconds": round(time.monotonic() - began, 2), "why": why, "tail": tail or []}
