"""Judges of the host itself: room and mounts, memory, clock source, what runs on it that should not."""

import json
import re
from typing import Any

from cluster.health.check import About, Answer
from cluster.health.counted import counted_lines
from cluster.health.verdict import Problem, Unreadable, Verdict
from cluster.health.xid import ACTION

FULL_SHARE, NEARLY_FULL_SHARE = 0.98, 0.90  # of blocks or inodes; ours: a checkpoint must still fit
LEAST_BYTES = 256 << 20  # ours: less than this is full, whatever the share
MEMORY_LEAST_SHARE, MEMORY_LOW_SHARE = 0.03, 0.10  # MemAvailable; ours
PRESSURE_MOST = 20.0  # % of the last 10 s that everything waited for memory (PSI full); ours
# Folders that a host does not live on without; what is under them is not detached either.
SYSTEM = (
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
    "usr",
    "var",
)
NETWORK = ("nfs", "nfs4", "efs", "lustre", "ceph", "beegfs", "cifs")
CLOCK_WARNS_S, CLOCK_FAILS_S = 0.1, 1.0


def place_problems(text: str, about: About) -> list[Problem]:
    """One folder: a file could be written, read and removed there, and there is room for more."""
    said = json.loads(text)
    path = said["path"]
    if not said["exists"]:
        return [
            Problem(
                check="mounts",
                what=f"{path} is not there",
                means="data and jobs are kept there",
                do="mount it",
                verdict=Verdict.RESTART_JOB,
                command=f"inv run --hosts {{ranks}} --sudo -- mount {path}",
            )
        ]
    if space := _space_problem(path, said):
        return [space]
    if said["error"]:
        is_system = path in ("/", "/tmp")  # read-only after errors: a disk to mend, not one to write on
        look = "inv run --hosts {ranks} --sudo -- 'dmesg | grep -iE \"error|read-only\" | tail -5'"
        return [
            Problem(
                check="mounts",
                what=f"{path}: a file written there: {said['error'].lower()}",
                means="jobs cannot write there",
                verdict=Verdict.REBOOT if is_system else Verdict.RESTART_JOB,
                do="see why; reboot it, replace it if that comes back" if is_system else "mount it anew, writable",
                command=look if is_system else f"inv run --hosts {{ranks}} --sudo -- mount -o remount,rw {path}",
            )
        ]
    return []


def project_problems(text: str, about: About) -> list[Problem]:
    """Whether this project and its environment are where a training starts."""
    said = json.loads(text)
    folder = said["folder"]
    if not said["code"]:
        return [
            Problem(
                check="project",
                what=f"this project is not in {folder}",
                means="no training starts there",
                verdict=Verdict.RESTART_JOB,
                do="put it there, from the project's folder here, and then its environment",
                command=f"for h in {{addresses}}; do rsync -a --exclude .venv ./ $h:{folder}/; done",
            )
        ]
    if not said["python"]:
        return [
            Problem(
                check="project",
                what=f"there is no {folder}/.venv/bin/python",
                means="no training starts there",
                verdict=Verdict.RESTART_JOB,
                do="install what the lock file says",
                command=f"inv run --hosts {{ranks}} -- 'cd {folder} && scripts/install.sh'",
            )
        ]
    return []


def scratch_problems(text: str, about: About) -> list[Problem]:
    """The folder on local disks, where the instance type has some or somebody made one."""
    expected = about.instance is not None and about.instance.nvme
    return place_problems(text, about) if expected or json.loads(text)["exists"] else []


def place_hangs(answer: Answer, about: About, path: str) -> Problem:
    """A folder that does not come back: its server is gone, or its mount is dead."""
    stuck = ", and the process that tried cannot be ended" if answer.stuck else ""
    hangs = f"{path} hangs: a file could not be written within {answer.seconds:.0f} s{stuck}"
    if may_detach(path, about.mounts):
        return Problem(
            check="mounts",
            what=hangs,
            means="whatever touches it waits for ever",
            verdict=Verdict.REBOOT if answer.stuck else Verdict.RESTART_JOB,
            do="detach it and mount it again; reboot if that hangs too",
            command=f"inv run --hosts {{ranks}} --sudo -- 'umount -lf {path} && mount {path}'",
        )
    if answer.disk_works:
        return Problem(
            check="mounts",
            what=f"{path} is slow: a file was not written within {answer.seconds:.0f} s, while its disk works",
            means="checkpoints and logs take long there",
            verdict=Verdict.WATCH,
            unfit=False,
            do="see what keeps its disk busy",
            command="inv run --hosts {ranks} -- 'uptime; cat /proc/pressure/io; ps -eo pid,stat,args | grep \" D\"'",
        )
    do, command = ACTION[Verdict.REBOOT]
    means = "whatever touches it waits for ever"
    return Problem(check="mounts", what=hangs, means=means, verdict=Verdict.REBOOT, do=do, command=command)


def may_detach(path: str, mounts: str) -> bool:
    """Whether a host lives on without this folder: it is a network file system's, and no part of the system.

    mounts: the host's /proc/self/mounts.
    """
    kinds = [row[2] for row in (line.split() for line in mounts.splitlines()) if row[1] == path]
    is_remote = bool(kinds) and (kinds[-1] in NETWORK or kinds[-1].startswith("fuse"))
    return is_remote and path.split("/")[1] not in ("", "tmp", *SYSTEM)


def memory_problems(text: str, about: About) -> list[Problem]:
    """Reads /proc/meminfo and /proc/pressure/memory: JSON of path -> text."""
    files = json.loads(text)
    sizes = {k: int(v) for k, v in re.findall(r"^(\w+):\s+(\d+) kB", files["/proc/meminfo"], re.MULTILINE)}
    share = sizes["MemAvailable"] / sizes["MemTotal"]
    do = {
        "do": "see what takes it, end what is no job's",
        "command": "inv run --hosts {ranks} -- 'ps aux --sort -rss | head -4'",
    }
    if share < MEMORY_LOW_SHARE:
        gib = sizes["MemAvailable"] / (1 << 20)
        return [
            Problem(
                check="memory",
                what=f"{share:.0%} of memory available ({gib:.1f} GiB)",
                **do,
                means="a training may be ended for lack of it",
                unfit=share < MEMORY_LEAST_SHARE,
                verdict=Verdict.RESTART_JOB if share < MEMORY_LEAST_SHARE else Verdict.WATCH,
            )
        ]
    full = re.search(r"^full avg10=([\d.]+)", files.get("/proc/pressure/memory", ""), re.MULTILINE)
    if full and float(full[1]) > PRESSURE_MOST:
        return [
            Problem(
                check="memory",
                what=f"everything waited for memory {full[1]} % of the last 10 s",
                unfit=False,
                means="it runs many times slower",
                verdict=Verdict.WATCH,
                **do,
            )
        ]
    return []


def fstab_problems(text: str, about: About) -> list[Problem]:
    """Reads /etc/fstab and /proc/self/mounts: network file systems that should be mounted and are not."""
    files = json.loads(text)
    if "/proc/self/mounts" not in files:
        raise Unreadable("no /proc/self/mounts")
    mounted = {line.split()[1] for line in files["/proc/self/mounts"].splitlines()}
    rows = [line.split() for line in files.get("/etc/fstab", "").splitlines() if not line.lstrip().startswith("#")]
    gone = [
        row[1]
        for row in rows
        if len(row) > 3
        and row[1].startswith("/")
        and (row[2] in NETWORK or row[1] == about.shared)
        and "noauto" not in row[3].split(",")
        and row[1] not in mounted
    ]
    return [
        Problem(
            check="mounts",
            what=f"{path} is in /etc/fstab but not mounted",
            verdict=Verdict.RESTART_JOB,
            means="what is written there stays on the root disk",
            do="mount it",
            command=f"inv run --hosts {{ranks}} --sudo -- mount {path}",
        )
        for path in gone
    ]


def time_problems(text: str, about: About) -> list[Problem]:
    """Reads `chronyc -n tracking`, or `ntpq -pn` where there is no chrony: whether anything keeps the clock right."""
    text = "\n".join(counted_lines(text))
    if "Leap status" in text:
        leap = re.search(r"^Leap status\s*: (.+)$", text, re.MULTILINE)
        offset = re.search(r"^System time\s*: ([\d.]+) seconds (slow|fast)", text, re.MULTILINE)
        if not leap or not offset:
            raise Unreadable("chronyc without an offset")
        off_s, lost = float(offset[1]), leap[1].strip() == "Not synchronised"
        how = f"{off_s:.3f} s {offset[2]}"
    elif "offset" in text and "refid" in text:
        peer = re.search(r"^\*\S+(?:\s+\S+){7}\s+([-\d.]+)", text, re.MULTILINE)
        off_s, lost = abs(float(peer[1])) / 1000 if peer else 0.0, peer is None
        how = f"{off_s:.3f} s off"
    else:
        raise Unreadable(f"{text.strip()[:60]!r}")
    fix = {"do": "set it", "command": "inv run --hosts {ranks} --sudo -- 'systemctl restart chrony*; chronyc makestep'"}
    if off_s > CLOCK_WARNS_S:
        return [
            Problem(
                check="time-service",
                what=f"the time service says: {how}",
                unfit=off_s > CLOCK_FAILS_S,
                **fix,
                means="times in logs and certificates do not fit",
                verdict=Verdict.RESTART_JOB if off_s > CLOCK_FAILS_S else Verdict.WATCH,
            )
        ]
    return (
        [
            Problem(
                check="time-service",
                what="nothing keeps its clock: no time source selected",
                verdict=Verdict.WATCH,
                means="it will drift away from the others",
                unfit=False,
                **fix,
            )
        ]
        if lost
        else []
    )


def device_problems(text: str, about: About) -> list[Problem]:
    """GPUs and EFA cards on the PCI bus, against the instance type: what is not there no driver can find."""
    said = json.loads(text)
    if about.instance and said["gpus"] < about.instance.gpus:
        return [
            Problem(
                check="devices",
                what=f"{said['gpus']} GPUs on the PCI bus, its type has {about.instance.gpus}",
                means="a GPU is lost",
                verdict=Verdict.REBOOT,
                do="reboot it; replace it if that comes back",
                command="inv run --hosts {ranks} --sudo -- reboot",
            )
        ]
    return []


def _space_problem(path: str, said: dict[str, Any]) -> Problem | None:
    """The worse of blocks and inodes; file systems without a number of inodes (NFS, overlays) say 0."""
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
        verdict=Verdict.RESTART_JOB if full else Verdict.WATCH,
        unfit=full,
        do="make room",
        command=f"inv run --hosts {{ranks}} --sudo -- 'du -xh -d2 {path} | sort -h | tail -5'",
    )


def _human(size: float) -> str:
    return f"{size / (1 << 30):.1f} GiB" if size >= 1 << 30 else f"{size / (1 << 20):.0f} MiB"
