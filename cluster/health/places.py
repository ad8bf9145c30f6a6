"""Judges of folders: writable, enough space, no hang, and this project where trainings expect it."""

import json
from typing import Any

from cluster.health.check import About, Answer
from cluster.health.known_faults import ACTION
from cluster.health.system import NETWORK
from cluster.health.verdict import Problem, Severity

FULL_SHARE, NEARLY_FULL_SHARE = 0.98, 0.90  # of blocks or inodes; ours: a checkpoint must still fit
LEAST_BYTES = 256 << 20  # ours: less than this is full, whatever the share
# Folders that the operating system needs. Mounts below them are not detached either.
SYSTEM_FOLDERS = frozenset(
    [
        "bin",
        "boot",
        "dev",
        "etc",
        "home",
        "lib",
        "lib64",
        "opt",
        "proc",
        "root",
        "run",
        "sbin",
        "sys",
        "tmp",
        "usr",
        "var",
    ]
)


def place_problems(text: str, about: About) -> list[Problem]:
    """Report a folder that is missing or full, or where no file can be written."""
    said = json.loads(text)
    path = said["path"]
    if not said["exists"]:
        return [
            Problem(
                check="mounts",
                what=f"{path} is not there",
                means="data and jobs are kept there",
                do="mount it",
                verdict=Severity.RESTART_JOB,
                command=f"inv run --hosts {{ranks}} --sudo -- mount {path}",
            )
        ]
    if space := _space_problem(path, said):
        return [space]
    if said["error"]:
        is_system = path in ("/", "/tmp")  # read-only after errors: the disk needs repair, not a remount
        look = "inv run --hosts {ranks} --sudo -- 'dmesg | grep -iE \"error|read-only\" | tail -5'"
        return [
            Problem(
                check="mounts",
                what=f"{path}: a file written there: {said['error'].lower()}",
                means="jobs cannot write there",
                verdict=Severity.REBOOT if is_system else Severity.RESTART_JOB,
                do="see why; reboot it, replace it if that comes back" if is_system else "mount it anew, writable",
                command=look if is_system else f"inv run --hosts {{ranks}} --sudo -- mount -o remount,rw {path}",
            )
        ]
    return [
        Problem(
            check="mounts",
            what=trouble,
            means="another user can replace what you keep there",
            verdict=Severity.WATCH,
            do="let root own it",
            command=f"inv run --hosts 0 --sudo -- 'ls -ld {trouble.split()[0]}; {trouble.rpartition(': ')[2]}'",
            unfit=False,
        )
        for trouble in said.get("others", [])
    ]


def scratch_problems(text: str, about: About) -> list[Problem]:
    """Report problems of the scratch folder, if the instance type has local disks or the folder exists."""
    expected = about.instance is not None and about.instance.nvme
    return place_problems(text, about) if expected or json.loads(text)["exists"] else []


def place_hangs(answer: Answer, about: About, path: str) -> Problem:
    """Return the problem of a folder where writing a file timed out.

    Either its server is gone, its disk fails, or its disk is busy.
    """
    stuck = ", and the process that tried cannot be ended" if answer.stuck else ""
    hangs = f"{path} hangs: a file could not be written within {answer.seconds:.0f} s{stuck}"
    if may_detach(path, about.mounts):
        return Problem(
            check="mounts",
            what=hangs,
            means="whatever touches it waits for ever",
            verdict=Severity.REBOOT if answer.stuck else Severity.RESTART_JOB,
            do="detach it and mount it again; reboot if that hangs too",
            command=f"inv run --hosts {{ranks}} --sudo -- 'umount -lf {path} && mount {path}'",
        )
    if answer.disk_works:
        return Problem(
            check="mounts",
            what=f"{path} is slow: a file was not written within {answer.seconds:.0f} s, while its disk works",
            means="checkpoints and logs take long there",
            verdict=Severity.WATCH,
            unfit=False,
            do="see what keeps its disk busy",
            command="inv run --hosts {ranks} -- 'uptime; cat /proc/pressure/io; ps -eo pid,stat,args | grep \" D\"'",
        )
    do, command = ACTION[Severity.REBOOT]
    means = "whatever touches it waits for ever"
    return Problem(check="mounts", what=hangs, means=means, verdict=Severity.REBOOT, do=do, command=command)


def may_detach(path: str, mounts: str) -> bool:
    """Return True if the host can do without this folder.

    That is a network file system that is not part of the operating system.

    Args:
        mounts: the host's /proc/self/mounts.
    """
    kinds = [row[2] for row in (line.split() for line in mounts.splitlines()) if row[1] == path]
    is_remote = bool(kinds) and (kinds[-1] in NETWORK or kinds[-1].startswith("fuse"))
    return is_remote and path.split("/")[1] not in {"", *SYSTEM_FOLDERS}


def project_problems(text: str, about: About) -> list[Problem]:
    """Report this project or its environment if it is not where a training starts."""
    said = json.loads(text)
    folder = said["folder"]
    if not said["code"]:
        return [
            Problem(
                check="project",
                what=f"this project is not in {folder}",
                means="no training starts there",
                verdict=Severity.RESTART_JOB,
                do="bring it there; the start of a training does that by itself",
                command="inv sync --hosts {ranks}",
            )
        ]
    if not said["python"]:
        return [
            Problem(
                check="project",
                what=f"there is no {folder}/.venv/bin/python",
                means="no training starts there",
                verdict=Severity.RESTART_JOB,
                do="install what the lock file says",
                command="inv setup --hosts {ranks}",
            )
        ]
    return []


def _space_problem(path: str, said: dict[str, Any]) -> Problem | None:
    """Return the problem of too few free blocks or inodes, whichever is worse, None if there are enough.

    File systems without inode counts report 0 inodes.
    """
    free = said["bavail"] * said["frsize"]
    used = 1 - said["bavail"] / said["blocks"] if said["blocks"] else 0.0
    inodes = 1 - said["ffree"] / said["files"] if said["files"] else 0.0
    full = (
        (used > FULL_SHARE and free < LEAST_BYTES) or inodes > FULL_SHARE or said["error"] == "No space left on device"
    )
    if not full and max(used, inodes) < NEARLY_FULL_SHARE:
        return None
    of = f"{inodes:.0%} of its inodes" if inodes > used else f"{used:.0%}"
    return Problem(
        check="space",
        what=f"{path} is {'full' if full else 'nearly full'}: {of} used, {_human(free)} free",
        means="checkpoints and logs fail" if full else "checkpoints and logs may fail soon",
        verdict=Severity.RESTART_JOB if full else Severity.WATCH,
        unfit=full,
        do="make room",
        command=f"inv run --hosts {{ranks}} --sudo -- 'du -xh -d2 {path} | sort -h | tail -5'",
    )


def _human(size: float) -> str:
    return f"{size / (1 << 30):.1f} GiB" if size >= 1 << 30 else f"{size / (1 << 20):.0f} MiB"
