"""Folder of one host, served to the others over NFS and mounted there. Runs as root."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess

from cluster.join.onhost.files import read, write
from cluster.join.onhost.own_folders import why_not
from cluster.ssh.onhost import shared_tree
from cluster.ssh.onhost.frame import say
from cluster.ssh.onhost.telling_line import telling_line

_PACKAGES = {"exportfs": ("nfs-kernel-server", "nfs-utils"), "mount.nfs4": ("nfs-common", "nfs-utils")}
_INSTALL_S, _MOUNT_S = 300, 60
_SBIN = ("/usr/sbin", "/sbin")


class NfsError(Exception):
    """Error: the folder cannot be served or mounted. The text is the reason."""


def serve(name: str, folder: str, owner: str, addresses: list[str]) -> str:
    """Make the folder, let these hosts mount it, and return what changed.

    If the folder is new or empty, every user may make folders in it, as on a stack. One that holds files keeps its
    owner and mode.
    """
    _may_be_given(folder)
    _needs("exportfs")
    os.makedirs(folder, exist_ok=True)
    if _is_empty(folder):
        os.chown(folder, pwd.getpwnam(owner).pw_uid, -1)
        os.chmod(folder, 0o1777)
        shared_tree.make(folder)
    squash = "no_root_squash" if owner == "root" else "root_squash"
    clients = " ".join(f"{a}(rw,sync,no_subtree_check,{squash})" for a in addresses)
    os.makedirs("/etc/exports.d", exist_ok=True)
    changed = write(f"/etc/exports.d/dlami-cluster-{name}.exports", f"{folder} {clients}\n", 0o644)
    if _is_systemd():
        _said("systemctl", "enable", "--now", "nfs-server", timeout_s=60)
    _said("exportfs", "-r", timeout_s=30)
    return f"{folder} is served to {', '.join(addresses)}" if changed else f"{folder} was served already"


def mount(folder: str, server: str) -> str:
    """Mount the folder here, now and at each boot, and return what changed."""
    source = f"{server}:{folder}"
    if looked_at(folder, server):
        return f"{folder} was mounted already"
    _needs("mount.nfs4")
    os.makedirs(folder, exist_ok=True)
    options = "nfsvers=4.2,hard,timeo=600,retrans=2"
    try:
        _said("mount", "-t", "nfs4", "-o", options, source, folder, timeout_s=_MOUNT_S)
    except NfsError as e:
        raise NfsError(f"{e}; do the hosts' firewalls (security groups) let them reach {server}:2049?") from None
    row = f"{source} {folder} nfs4 {options},_netdev,nofail 0 0"
    table = read("/etc/fstab")
    if row not in table.splitlines():
        rest = "".join(line + "\n" for line in table.splitlines() if line.split()[1:2] != [folder])
        write("/etc/fstab", f"{rest}{row}\n", 0o644)
    return f"{folder} is mounted from {server}"


def looked_at(folder: str, server: str) -> str:
    """Return the source that is mounted there already; "" if it can be mounted. Raises NfsError if it cannot.

    Nothing is changed.
    """
    there = next((line.split() for line in reversed(_mounts()) if line.split()[1] == folder), None)
    if there and there[0] == f"{server}:{folder}":
        return there[0]
    if there:
        raise NfsError(f"{there[0]} is mounted on {folder}: unmount it, or choose another folder with --shared")
    _may_be_given(folder)
    if os.path.isdir(folder) and os.listdir(folder):
        raise NfsError(f"{folder} holds files of this host: move them away, or choose another folder with --shared")
    return ""


def folders(folder: str, owner: str) -> str:
    """Make the folders of all users in an existing shared folder, and return what is wrong with it."""
    return "\n".join(shared_tree.make(folder, [pwd.getpwnam(owner).pw_uid]))


def main(verb: str, *arguments: object) -> None:
    """Do `look FOLDER SERVER`, `serve NAME FOLDER OWNER ADDRESSES`, `mount FOLDER SERVER` or `folders FOLDER OWNER`.

    Sends what changed, or why it failed.
    """
    try:
        done = {"look": looked_at, "serve": serve, "mount": mount, "folders": folders}[verb](*arguments)  # type: ignore[operator]
        say({"done": done, "failed": ""})
    except (NfsError, OSError, KeyError) as e:
        say({"done": "", "failed": str(e)})


def _may_be_given(folder: str) -> None:
    if why := why_not(folder):
        raise NfsError(why)


def _is_empty(folder: str) -> bool:
    return set(os.listdir(folder)) <= {"lost+found"}  # a new disk has this folder


def _needs(program: str) -> None:
    """Install the package that has the program, from the distribution's own archive. Raises NfsError."""
    if shutil.which(program, path=os.pathsep.join([os.environ.get("PATH", ""), *_SBIN])):
        return
    debian, amazon = _PACKAGES[program]
    if shutil.which("apt-get"):
        words, package = ["apt-get", "-o", "DPkg::Lock::Timeout=120", "install", "-y", debian], debian
    elif shutil.which("dnf"):
        words, package = ["dnf", "install", "-y", amazon], amazon
    else:
        raise NfsError(f"{program} is missing: install it")
    try:
        _said(*words, timeout_s=_INSTALL_S)
    except NfsError as e:
        raise NfsError(f"{program} is missing and {package} cannot be installed: {e}") from None


def _said(*words: str, timeout_s: float) -> str:
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive", "LC_ALL": "C"}
    environment["PATH"] = os.pathsep.join([environment.get("PATH", ""), *_SBIN])
    try:
        done = subprocess.run(
            words, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=timeout_s, env=environment
        )
    except subprocess.TimeoutExpired:
        raise NfsError(f"{words[0]} did not end within {timeout_s:g} s") from None
    except OSError as e:
        raise NfsError(f"{words[0]}: {e.strerror}") from None
    if done.returncode:
        raise NfsError(
            f"{words[0]}: {telling_line(done.stderr) or telling_line(done.stdout) or f'exited {done.returncode}'}"
        )
    return done.stdout


def _is_systemd() -> bool:
    return read("/proc/1/comm").strip() == "systemd"


def _mounts() -> list[str]:
    return read("/proc/self/mounts").splitlines()
