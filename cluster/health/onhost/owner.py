"""Owner of a process: its user, and the job or the run that started it."""

from __future__ import annotations

import os
import time
from typing import Any

from cluster.ssh.onhost.command_line import command_line

_SHOWN = 200  # characters of a command
RECORDS_S = 2.0  # limit for reading all jobs' records, which may be on a dead mount


class Owners:
    """Lookup of processes' owners. Each job's record is read only once."""

    def __init__(self) -> None:
        self._records: dict[str, str] = {}  # folder -> state
        self._deadline = time.monotonic() + RECORDS_S

    def of(self, pid: int) -> dict[str, Any]:
        """Return the command, user, job and run of a process. `user` is None if it is gone or not visible from here.

        `is_other` is True for another user's process, whose environment, and so its job, cannot be read. `record` is
        the state in the job's own record, as read by `cluster/ssh/onhost/job_record.py`.
        """
        said: dict[str, Any] = {"command": "", "job": "", "run": "", "user": None, "is_other": False}
        folder = ""
        try:
            said["command"] = command_line(pid)[:_SHOWN]
            uid = os.stat(f"/proc/{pid}").st_uid
            said["user"], said["is_other"] = _name(uid), uid != os.geteuid()
            with open(f"/proc/{pid}/environ", "rb") as file:
                pairs = [pair.partition(b"=")[::2] for pair in file.read().split(b"\0")]
            values = {name: value.decode("utf-8", "replace") for name, value in pairs}
            said["job"], said["run"] = values.get(b"DLAMI_JOB", ""), values.get(b"DLAMI_RUN", "")
            folder = values.get(b"DLAMI_JOB_FOLDER", "")
        except OSError:
            pass
        return {**said, "record": self._record(folder)}

    def _record(self, folder: str) -> str:
        if folder not in self._records:
            left_s = self._deadline - time.monotonic() if folder else 0.0
            self._records[folder] = _state(folder, left_s) if left_s > 0 else "unknown"
        return self._records[folder]


def _state(folder: str, limit_s: float) -> str:
    from cluster.ssh.onhost.job_record import read_record

    return read_record(folder, limit_s).state


def _name(uid: int) -> str:
    import pwd

    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)
