"""Readings: functions that return as JSON what no tool prints well.

Each runs in a child of the probe with a time limit. A reading touches no path besides those asked for, because a dead
mount hangs any process that touches it. Rarely needed modules are imported in their functions, which saves 20 ms of
processor time per start.
"""

from __future__ import annotations

import contextlib
import glob
import json
import os
import time
from typing import Any

from cluster.health.onhost.owner import Owners
from cluster.ssh.onhost.job_record import flat
from cluster.ssh.onhost.pci import devices
from cluster.ssh.onhost.shared_tree import troubles
from cluster.ssh.onhost.telling_line import telling_line
from cluster.ssh.onhost.trusted_files import read_file, trusted_users

_DMI, _BOOT_SETTINGS = "/sys/class/dmi/id", "/etc/dlami-cluster.conf"
_CODE = (
    "tasks.py",
    *(f"{package}/{depth}*.py" for package in ("cluster", "eks", "trainer") for depth in ("", "*/", "*/*/", "*/*/*/")),
    "scripts/*.sh",
)
_PACKAGES = (
    "tensorflow",
    "tensorflow_cpu",
    "horovod",
    "tensorpack",
    "numpy",
    "tf_keras",
    "nvidia_nccl_cu12",
    "nvidia_nccl_cu13",
)


def files(patterns: list[str]) -> dict[str, str]:
    """Return the text of every file that matches. Files that cannot be read are left out."""
    found = {}
    for path in sorted(p for pattern in patterns for p in glob.glob(pattern)):
        try:
            with open(path, encoding="utf-8", errors="replace") as file:
                found[path] = file.read(1 << 20)
        except OSError:
            continue
    return found


def trusted(patterns: list[str], program: str = "") -> dict[str, str]:
    """Return the text of every file that matches and that can be trusted, although other users can write there.

    Links, pipes and files of a wrong owner are left out.

    Args:
        program: only files of this user, of root and of this file's owner count.
    """
    found, owners = {}, trusted_users(program if os.path.exists(program) else os.sep) if program else None
    for path in sorted(p for pattern in patterns for p in glob.glob(pattern)):
        with contextlib.suppress(OSError):
            found[path] = read_file(path, owners=owners).decode(errors="replace")
    return found


def place(path: str, of_all: bool = False) -> dict[str, Any]:
    """Test that a folder takes a file, gives it back and lets it be removed. Return also its file system's free space.

    Other users may not write to the root folder. They test their home, or the mount's read-only flag if home is
    elsewhere.

    Args:
        of_all: the folder is the shared one, in which all users' folders are checked, too.
    """
    if not os.path.isdir(path):
        return {"path": path, "exists": False}
    stat = os.statvfs(path)
    said: dict[str, Any] = {
        "path": path,
        "exists": True,
        "error": "",
        "device": os.stat(path).st_dev,
        **{name: getattr(stat, f"f_{name}") for name in ("frsize", "blocks", "bavail", "files", "ffree")},
        **({"others": troubles(path)} if of_all else {}),
    }
    folder = path
    if path == "/" and os.geteuid() != 0:
        folder = os.path.expanduser("~")
        if not os.access(folder, os.W_OK) or os.stat(folder).st_dev != said["device"]:
            said["error"] = "Read-only file system" if stat.f_flag & os.ST_RDONLY else ""
            return said
    probe = f"{folder}/.probe-{os.uname().nodename}-{os.getpid()}"
    text = os.urandom(64)
    try:
        handle = os.open(probe, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            os.write(handle, text)
            os.fsync(handle)
            os.lseek(handle, 0, 0)
            said["error"] = "" if os.read(handle, 64) == text else "gives back other bytes than were written"
        finally:
            os.close(handle)
            os.unlink(probe)
    except OSError as e:
        said["error"] = e.strerror or str(e)
    return said


def processes(window_s: float) -> list[dict[str, Any]]:
    """Return the processes that were busy or stuck in the kernel throughout the window: CPU share, states, owner."""
    seen: dict[int, list[tuple[str, int, int]]] = {}
    rounds = 5
    for i in range(rounds):
        for pid in map(int, filter(str.isdigit, os.listdir("/proc"))):
            try:
                with open(f"/proc/{pid}/stat") as file:
                    fields = file.read().rpartition(")")[2].split()
            except OSError:
                continue
            if int(fields[6]) & 0x200000 == 0:  # no kernel thread
                seen.setdefault(pid, []).append((fields[0], int(fields[11]) + int(fields[12]), int(fields[19])))
        if i + 1 < rounds:
            time.sleep(window_s / (rounds - 1))
    hertz = os.sysconf("SC_CLK_TCK")
    found, owners = [], Owners()
    for pid, samples in seen.items():
        states = "".join(s[0] for s in samples)
        share = (samples[-1][1] - samples[0][1]) / hertz / window_s
        if len(samples) == rounds and (share >= 0.5 or states in ("R" * rounds, "D" * rounds)):
            who = owners.of(pid)
            if who["run"] and who["run"] == os.environ.get("DLAMI_RUN"):
                continue  # a process of this check
            age_s = _uptime_s() - samples[-1][2] / hertz
            found.append({"pid": pid, "states": states, "cpu": round(share, 2), "age_s": round(age_s, 1), **who})
    return found


def _uptime_s() -> float:
    with open("/proc/uptime") as file:
        return float(file.read().split()[0])


def output(words: list[str]) -> str:
    """Return a program's output. Raises OSError if it cannot be started or fails."""
    said, code = output_and_code(words)
    if code:
        raise OSError(f"{words[0]} exited with {code}: {telling_line(said)}".rstrip(": "))
    return said


def output_and_code(words: list[str]) -> tuple[str, int]:
    """Return a program's output and exit code. Raises OSError if it cannot be started.

    This avoids the import of subprocess, which takes longer.
    """
    out, to = os.pipe()
    try:
        duplicate, silent = (os.POSIX_SPAWN_DUP2, to, 1), (os.POSIX_SPAWN_OPEN, 2, os.devnull, os.O_WRONLY, 0)
        pid = os.posix_spawnp(words[0], words, os.environ, file_actions=[duplicate, silent])
    finally:
        os.close(to)
    with open(out, "rb") as pipe:
        said = pipe.read()
    return said.decode("utf-8", "replace"), os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def gpu_processes() -> dict[str, Any]:
    """Return nvidia-smi's lines of the processes that hold GPU memory, and each process's owner by pid."""
    apps, code = output_and_code(["nvidia-smi", "--query-compute-apps=pid,used_memory", "--format=csv,noheader"])
    pids = [line.split(",")[0].strip() for line in apps.splitlines() if line.strip()]
    owners = Owners()
    return {"apps": apps, "code": code, "owners": {pid: owners.of(int(pid)) for pid in pids if pid.isdigit()}}


def versions(project: str) -> dict[str, str]:
    """Return the versions that must be equal on all hosts, read from files without importing or starting anything."""
    said = {"our own code": _code(project)}
    for line in files([f"{project}/.venv/pyvenv.cfg"]).get(f"{project}/.venv/pyvenv.cfg", "").splitlines():
        if line.startswith("version"):
            said["Python"] = line.partition("=")[2].strip()
    for folder in glob.glob(f"{project}/.venv/lib/python3*/site-packages"):
        for entry in os.listdir(folder):
            name = entry.partition("-")[0]
            if name in _PACKAGES and entry.endswith(".dist-info"):
                text = "".join(files([f"{folder}/{entry}/METADATA"]).values())
                said[name.replace("_cpu", "")] = next(
                    (line[9:].strip() for line in text.splitlines() if line.startswith("Version: ")), "unreadable"
                )
    for path, text in files(["/proc/driver/nvidia/version", "/opt/amazon/efa_installed_packages"]).items():
        said["NVIDIA kernel module" if "nvidia" in path else "EFA installer"] = text.splitlines()[0] if text else ""
    for path in glob.glob("/usr/local/cuda"):
        said["CUDA"] = os.path.realpath(path)
    for path in glob.glob("/opt/amazon/ofi-nccl/lib*/libnccl-net*.so") + glob.glob("/opt/aws-ofi-nccl/lib/*-net*.so"):
        said["OFI plug-in"] = f"{os.path.basename(os.path.realpath(path))}, {os.path.getsize(path)} bytes"
    return said


def project(folder: str) -> dict[str, Any]:
    """Return whether this project and the environment for training are there."""
    python = f"{folder}/.venv/bin/python"
    return {
        "folder": folder,
        "code": os.path.isfile(f"{folder}/tasks.py") and os.path.isdir(f"{folder}/trainer"),
        "python": os.path.exists(python) and os.access(python, os.X_OK),
    }


def _code(project: str) -> str:
    import zlib

    total = 0
    for pattern in _CODE:
        for path in sorted(glob.glob(f"{project}/{pattern}")):
            with open(path, "rb") as file:
                total = zlib.crc32(path[len(project) :].encode() + b"\0" + file.read() + b"\0", total)
    return f"{total:08x}"


def instance() -> dict[str, str]:
    """Return this machine's image, type and id on EC2, an empty dict elsewhere."""
    if "Amazon EC2" not in "".join(files([f"{_DMI}/sys_vendor"]).values()):
        return {}
    with contextlib.suppress(OSError):
        return _by_metadata()
    return _by_files()


def _by_files() -> dict[str, str]:
    """Return what instance() does where only root may ask the metadata service, as on the nodes of a stack."""
    import re

    found = {path: text.strip() for path, text in files([f"{_DMI}/*", _BOOT_SETTINGS]).items()}
    image = re.search(r"\bAMI=\"?(ami-\w+)", found.get(_BOOT_SETTINGS, ""))
    return {
        "ami-id": image[1] if image else "no-ami",
        "instance-type": found.get(f"{_DMI}/product_name", ""),
        "instance-id": found.get(f"{_DMI}/board_asset_tag", ""),
    }


def _by_metadata() -> dict[str, str]:
    import urllib.request

    base = "http://169.254.169.254/latest/"
    ask = urllib.request.Request(
        f"{base}api/token", method="PUT", headers={"X-aws-ec2-metadata-token-ttl-seconds": "60"}
    )
    with urllib.request.urlopen(ask, timeout=2) as answer:
        token = answer.read().decode()
    said = {}
    for name in ("ami-id", "instance-type", "instance-id"):
        ask = urllib.request.Request(f"{base}meta-data/{name}", headers={"X-aws-ec2-metadata-token": token})
        with urllib.request.urlopen(ask, timeout=2) as answer:
            said[name] = answer.read().decode()
    return said


def jobs(shared: str, over: list[str]) -> list[dict[str, Any]]:
    """Return the jobs on record: id, whether each has ended, and the hosts of those that have not.

    Records that cannot be read are skipped.

    Args:
        over: the states of jobs that have ended.
    """
    found = []
    for path, text in trusted([f"{glob.escape(shared)}/jobs/*/state.json"]).items():
        try:
            folder = os.path.dirname(path)
            if json.loads(text)["state"] in over:
                found.append({"id": os.path.basename(folder), "over": True, "hosts": []})
            else:
                # The second can be read only by its user.
                records = trusted([f"{glob.escape(folder)}/{name}.json" for name in ("public", "job")])
                asked = flat(json.loads(records.get(f"{folder}/public.json") or records[f"{folder}/job.json"]))
                found.append({"id": asked["id"], "over": False, "hosts": [h["address"] for h in asked["hosts"]]})
        except (ValueError, KeyError, TypeError, RecursionError):
            continue
    return found


def history(shared: str, most: int, program: str) -> list[Any]:
    """Return the last checks of this cluster, oldest first. Records that cannot be read are skipped.

    Args:
        program: checks of this user, of root and of this file's owner count.
    """
    found: list[Any] = []
    owners = trusted_users(program if os.path.exists(program) else os.sep)
    paths = sorted(glob.glob(f"{glob.escape(shared)}/health/looks/*.json"))
    for path in reversed(paths):
        with contextlib.suppress(OSError, ValueError, RecursionError):
            if os.lstat(path).st_uid in owners and len(found) < most:
                found.append(json.loads(read_file(path, owners=owners)))
    return found[::-1]


READINGS: dict[str, Any] = {
    f.__name__: f
    for f in (
        files,
        trusted,
        place,
        processes,
        gpu_processes,
        versions,
        project,
        devices,
        instance,
        jobs,
        history,
    )
}
