"""Hosts of the lab as process trees: prepared, started, found by their environment, and killed."""

import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterable
from ipaddress import IPv4Network
from pathlib import Path

from cluster.errors import ClusterError
from cluster.files import shipped
from cluster.inventory import ROOT
from cluster.ssh.fanout import wait_until
from cluster.written import whole_file
from lab import machine
from lab.record import SHARED, Lab, LabHost

_START_S = 60.0  # for a host's own namespaces
_END_S = 60.0  # for the kernel to remove a killed host's processes
_SSHD_CONFIG = """\
Port 22
HostKey /etc/ssh/ssh_host_ed25519_key
AuthorizedKeysFile .ssh/authorized_keys
PermitRootLogin prohibit-password
PasswordAuthentication no
KbdInteractiveAuthentication no
UsePAM no
AcceptEnv LANG LC_*
MaxStartups 100:30:200
MaxSessions 100
PrintMotd no
Subsystem sftp internal-sftp
"""


def make_room(lab: Lab) -> None:
    """Create the folder for the hosts' own files, in memory if the disk cannot hold an overlay's upper part."""
    lab.nodes.mkdir(exist_ok=True)
    if not machine.holds_uppers(lab.nodes):
        subprocess.run(["mount", "-t", "tmpfs", "-o", "mode=700", "tmpfs", str(lab.nodes)], check=True, timeout=60)


def is_prepared(lab: Lab) -> bool:
    """Return True if every host's files exist."""
    return all((lab.host_folder(host) / "upper/etc/ssh/lab_sshd_config").exists() for host in lab.hosts)


# Folders of root that a lab host writes to, and this machine too when it is a cluster of one host.
OF_ITS_OWN = ("root/.ssh", "root/.cache/dlami-cluster/code", "root/.cache/dlami-cluster/environments")

# Lab hosts do not see this machine's kernel log: the right to read it includes the right to clear it.
_KERNEL_LOG = """\
#!/bin/sh
echo '[    0.000000] a lab host: this machine keeps its kernel log to itself'
echo '[    0.000000] booted'
"""


def prepare(lab: Lab, host: LabHost) -> None:
    """Write the host's own files, as its first boot would: host key, authorized keys, known hosts."""
    folder = lab.host_folder(host)
    for part in ("upper/etc/ssh", "upper/root", "work", "root"):
        (folder / part).mkdir(parents=True, exist_ok=True)
    ssh, etc = folder / "upper/root/.ssh", folder / "upper/etc"
    (folder / "upper/root").chmod(0o700)
    for name in OF_ITS_OWN:  # opaque, so that this machine's own files never show through
        (folder / "upper" / name).mkdir(parents=True, exist_ok=True)
        (folder / "upper" / name).chmod(0o700)
        os.setxattr(folder / "upper" / name, "trusted.overlay.opaque", b"y")
    key = etc / "ssh/ssh_host_ed25519_key"
    if not key.exists():
        make_key(key, host.name)
    (etc / "ssh/lab_sshd_config").write_text(_SSHD_CONFIG)
    _give(folder / "upper/root/.bashrc", "", 0o644)  # nor of its shell's start-up, which every remote command runs
    (etc / "fstab").write_text("# a lab host mounts nothing of this machine's\n")
    (folder / "upper/usr/sbin").mkdir(parents=True, exist_ok=True)
    for name, number in {"reboot": "HUP", "poweroff": "TERM"}.items():  # the usual ones need more rights
        _give(folder / f"upper/usr/sbin/{name}", f"#!/bin/sh\nkill -{number} 1\n", 0o755)
    (folder / "upper/usr/bin").mkdir(parents=True, exist_ok=True)
    _give(folder / "upper/usr/bin/dmesg", _KERNEL_LOG, 0o755)
    _give(ssh / "id_ed25519", lab.key.read_text(), 0o600)
    _give(ssh / "authorized_keys", lab.key.with_suffix(".pub").read_text(), 0o600)


def make_master(lab: Lab, host: LabHost) -> None:
    """Write the boot script that a stack's first boot leaves on its master only. It resumes lost jobs."""
    words = [shipped("scripts/heal-lost.sh"), SHARED, lab.project, lab.project.stat().st_uid]
    rc_local = lab.host_folder(host) / "upper/etc/rc.local"
    _give(rc_local, f"#!/bin/bash\n{shlex.join(map(str, words))} &\n", 0o755)


def introduce(lab: Lab) -> None:
    """Write the host keys and names of all hosts to every host and to the lab's folder.

    There they have the mark of `hosts.write`, which may replace them: on the fake AWS the lab is a stack's.
    """
    known = "".join(f"{h.address},{h.name} {_public_key(lab, h)}\n" for h in lab.hosts)
    names = "127.0.0.1 localhost\n" + "".join(f"{h.address} {h.name}\n" for h in lab.hosts)
    (lab.folder / "known_hosts").write_text(whole_file(lab.folder / "known_hosts", known).text)
    for host in lab.hosts:
        upper = lab.host_folder(host) / "upper"
        _give(upper / "root/.ssh/known_hosts", known, 0o600)
        _give(upper / "etc/hosts", names, 0o644)


def make_key(path: Path, comment: str) -> None:
    """Create an ed25519 key pair without a passphrase."""
    subprocess.run(
        ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", comment, "-f", str(path)],
        check=True,
        timeout=30,
        stdin=subprocess.DEVNULL,
    )


class Starting:
    """Host that is starting: its namespaces are being created, and it waits for its cable."""

    def __init__(self, lab: Lab, host: LabHost) -> None:
        environment = {
            "PATH": os.environ.get("PATH", "/usr/sbin:/usr/bin:/sbin:/bin"),
            "LANG": "C.UTF-8",
            "DLAMI_LAB": lab.name,
            "DLAMI_LAB_HOST": host.name,
            "DLAMI_LAB_FOLDER": str(lab.host_folder(host)),
            "DLAMI_LAB_ADDRESS": f"{host.address}/{IPv4Network(lab.network).prefixlen}",
            "DLAMI_LAB_SHARED": str(lab.shared),
            "DLAMI_LAB_MOUNT": SHARED,
            "DLAMI_LAB_BINDS": "\n".join(map(str, binds(lab.project))),
            "DLAMI_LAB_MAY_MOUNT": str(int(lab.may_mount)),
        }
        self._log = lab.host_folder(host) / "boot.log"
        log = self._log.open("ab")
        self.host = host
        self._outer = subprocess.Popen(
            ["unshare", "--net", str(shipped("scripts/lab-host.sh")), "power"],
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=log,
            env=environment,
            start_new_session=True,
        )
        log.close()

    def pid(self) -> int:
        """Wait until the host has its own network namespace. Return a pid in it. Raises ClusterError."""
        pid = self._outer.pid
        if not wait_until(lambda: self._outer.poll() is not None or _is_elsewhere(pid), _START_S, pause_s=0.002):
            raise ClusterError(f"lab host {self.host.name} had no network of its own within {_START_S:g} s")
        if self._outer.returncode is not None:
            raise ClusterError(f"lab host {self.host.name} did not start: see boot.log in its folder")
        return pid

    def go(self) -> None:
        """Signal to the host that its cable is plugged in."""
        assert self._outer.stdin
        self._outer.stdin.write(b"go\n")
        self._outer.stdin.close()

    def has_ended(self) -> bool:
        """Return True if the host's processes have ended, as after a failed start."""
        return self._outer.poll() is not None

    def last_words(self) -> str:
        """Return the last line of the host's boot log."""
        return (self._log.read_text(errors="replace").strip().splitlines() or ["(nothing)"])[-1]


def binds(project: Path) -> list[Path]:
    """Return the folders that a host shares with this machine, live and read-only.

    These are this project, the installed package if it is elsewhere, and the parts of the interpreter that an overlay
    over / does not show: other file systems mounted below /, and folders that every host has for itself.
    """
    hidden = hidden_folders()
    used = (Path(sys.base_prefix).resolve(), (project / ".venv").resolve())
    apart = [p for p in used if p.exists() and any(p.is_relative_to(h) for h in hidden)]
    ours = {ROOT, project}
    return sorted({*ours, *(p for p in apart if not any(p.is_relative_to(one) for one in ours))})


def hidden_folders() -> set[Path]:
    """Return the folders that a host's overlay over / hides: other file systems, and each host's own folders."""
    mounted = (line.split()[1].replace("\\040", " ") for line in Path("/proc/self/mounts").read_text().splitlines())
    return {*map(Path, mounted), Path("/tmp"), Path("/run"), Path("/dev")} - {Path("/")}


def running(lab_name: str) -> dict[str, int]:
    """Return the pid of the first process of every live host of a lab, by host name.

    "" stands for hosts that still start.
    """
    found: dict[str, int] = {}
    for pid, environment in _environments():
        if environment.get("DLAMI_LAB") == lab_name and _is_first(pid):
            found[environment.get("DLAMI_LAB_HOST", "")] = pid
    return found


def end(lab_name: str, pids: Iterable[int] | None = None) -> None:
    """Kill hosts at once, as a power cut does; without `pids`, all of the lab's. Raises ClusterError if one stays."""
    doomed = list(pids) if pids is not None else [p for p, e in _environments() if e.get("DLAMI_LAB") == lab_name]
    # A process of this machine's own network may carry the lab's name by its environment; it is not the lab's.
    doomed = [p for p in doomed if _is_elsewhere(p)]
    for pid in doomed:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue
    if not wait_until(lambda: not any(_is_alive(p) for p in doomed), _END_S, pause_s=0.005):
        raise ClusterError(f"lab {lab_name}: processes {doomed} did not end within {_END_S:g} s of being killed")


def _environments() -> Iterable[tuple[int, dict[str, str]]]:
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                raw = (entry / "environ").read_bytes()
            except OSError:
                continue
            if b"DLAMI_LAB=" in raw:
                pairs = (v.partition("=") for v in raw.decode(errors="replace").split("\0"))
                yield int(entry.name), {k: value for k, _, value in pairs}


def _is_first(pid: int) -> bool:
    """Return True if the process is PID 1 of its PID namespace."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False
    numbers = next(line for line in status.splitlines() if line.startswith("NSpid:")).split()[1:]
    return len(numbers) > 1 and numbers[-1] == "1"


def _is_elsewhere(pid: int) -> bool:
    """Return True if the process is in another network namespace than this one, as every process of a lab is."""
    try:
        return Path(f"/proc/{pid}/ns/net").readlink() != Path("/proc/self/ns/net").readlink()
    except OSError:
        return False


def _is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in ("Z", "X")
    except OSError:
        return False


def _public_key(lab: Lab, host: LabHost) -> str:
    text = (lab.host_folder(host) / "upper/etc/ssh/ssh_host_ed25519_key.pub").read_text()
    return " ".join(text.split()[:2])


def _give(path: Path, text: str, mode: int) -> None:
    path.write_text(text)
    path.chmod(mode)
