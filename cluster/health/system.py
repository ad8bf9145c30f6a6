"""Judges of the host itself: memory, mounts, clock source, devices."""

import json
import posixpath
import re

from cluster.health.check import About
from cluster.health.line_count import counted_lines
from cluster.health.verdict import Problem, Severity, Unreadable
from cluster.terminal import counted

MEMORY_LEAST_SHARE, MEMORY_LOW_SHARE = 0.03, 0.10  # MemAvailable; ours
PRESSURE_MOST = 20.0  # % of the last 10 s that everything waited for memory (PSI full); ours
NETWORK = ("nfs", "nfs4", "efs", "lustre", "ceph", "beegfs", "cifs")
CLOCK_WARNS_S, CLOCK_FAILS_S = 0.1, 1.0


def memory_problems(text: str, about: About) -> list[Problem]:
    """Read /proc/meminfo and /proc/pressure/memory: JSON of path -> text."""
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
                verdict=Severity.RESTART_JOB if share < MEMORY_LEAST_SHARE else Severity.WATCH,
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
                verdict=Severity.WATCH,
                **do,
            )
        ]
    return []


def fstab_problems(text: str, about: About) -> list[Problem]:
    """Read /etc/fstab and /proc/self/mounts: network file systems that should be mounted and are not."""
    files = json.loads(text)
    if "/proc/self/mounts" not in files:
        raise Unreadable("no /proc/self/mounts")
    mounted = {line.split()[1] for line in files["/proc/self/mounts"].splitlines()}
    rows = [line.split() for line in files.get("/etc/fstab", "").splitlines() if not line.lstrip().startswith("#")]
    gone = [
        path
        for row in rows
        if len(row) > 3
        and row[1].startswith("/")
        and ((path := _plain(row[1])) == _plain(about.shared) or row[2] in NETWORK)
        and "noauto" not in row[3].split(",")
        and path not in mounted
    ]
    return [
        Problem(
            check="mounts",
            what=f"{path} is in /etc/fstab but not mounted",
            verdict=Severity.RESTART_JOB,
            means="what is written there stays on the root disk",
            do="mount it",
            command=f"inv run --hosts {{ranks}} --sudo -- mount {path}",
        )
        for path in gone
    ]


def _plain(path: str) -> str:
    """Return the path as in /proc/self/mounts: `/efs/` and `//efs` are `/efs`."""
    return "/" + posixpath.normpath(path).lstrip("/")


def time_problems(text: str, about: About) -> list[Problem]:
    """Read `chronyc -n tracking`, or `ntpq -pn` if there is no chrony: report a clock without a time source.

    A clock that is off by too much is reported, too.
    """
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
                verdict=Severity.RESTART_JOB if off_s > CLOCK_FAILS_S else Severity.WATCH,
            )
        ]
    return (
        [
            Problem(
                check="time-service",
                what="nothing keeps its clock: no time source selected",
                verdict=Severity.WATCH,
                means="it will drift away from the others",
                unfit=False,
                **fix,
            )
        ]
        if lost
        else []
    )


def device_problems(text: str, about: About) -> list[Problem]:
    """Compare the GPUs on the PCI bus with the instance type: no driver can find a GPU that is missing there."""
    said = json.loads(text)
    if about.instance and said["gpus"] < about.instance.gpus:
        return [
            Problem(
                check="devices",
                what=f"{counted(said['gpus'], 'GPU')} on the PCI bus, its type has {about.instance.gpus}",
                means="a GPU is lost",
                verdict=Severity.REBOOT,
                do="reboot it; replace it if that comes back",
                command="inv run --hosts {ranks} --sudo -- reboot",
            )
        ]
    return []
