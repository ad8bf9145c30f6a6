"""Workers of an MPIJob as hosts, read from mpi-operator's hostfile and reached over SSH with the job's own keys."""

import json
import re
import socket
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from cluster.errors import ClusterError, ConfigError
from cluster.files import write_atomically
from cluster.hosts import Host, hostfile, read_hostfile
from cluster.hostset import fold
from cluster.terminal import counted
from eks.image import SSH_FOLDER, SSH_PORT

HOSTFILE = Path("/etc/mpi/hostfile")  # mounted by mpi-operator
LAUNCHER = Host(rank=0, address="localhost", slots=0)
_LOOK_S = 1.0
_ANSWER_S = 3.0
_AT_ONCE = 64


def await_workers(wait_s: float, is_over: Callable[[], bool], file: Path = HOSTFILE) -> tuple[Host, ...]:
    """Wait until every worker's sshd answers. Return the launcher and the workers after it.

    Raises ClusterError that names unreachable workers after `wait_s`, or as soon as `is_over` returns True.
    """
    began, why = time.monotonic(), {str(file): "is not there"}
    while True:
        if file.exists():
            workers = read_hostfile(file)
            with ThreadPoolExecutor(_AT_ONCE) as asking:
                said = list(asking.map(lambda w: sshd_trouble(w.address), workers))
            why = {w.address: text for w, text in zip(workers, said, strict=True) if text}
            if not why:
                names = [_short(w.address) for w in workers]
                return (
                    LAUNCHER,
                    *(_host(n + 1, name, w) for n, (name, w) in enumerate(zip(names, workers, strict=True))),
                )
        is_told_to_end, waited_s = is_over(), time.monotonic() - began
        if is_told_to_end or waited_s > wait_s:
            break
        time.sleep(_LOOK_S)
    first, text = next(iter(why.items()))
    raise ClusterError(
        f"{'this pod was told to end: ' if is_told_to_end else ''}after {waited_s:.0f} s "
        f"{counted(len(why), 'worker')} of the job cannot be reached: {fold(why)}; {first}: {text}. "
        "'kubectl describe pod' says why a pod does not run"
    )


def mpijob_name(file: Path = HOSTFILE) -> str:
    """Return the name of this pod's MPIJob, taken from its workers' names in the hostfile; "" if it is unknown."""
    named = re.match(r"([^.\s]+)-worker-\d+[.\s]", file.read_text() if file.exists() else "")
    return named[1] if named else ""


def sshd_trouble(address: str, port: int = SSH_PORT) -> str:
    """Return why there is no sshd at this address; "" if one sends its greeting."""
    try:
        with socket.create_connection((address, port), timeout=_ANSWER_S) as connection:
            return "" if connection.recv(4) == b"SSH-" else f"what answers on port {port} is no sshd"
    except OSError as e:
        return f"port {port}: {e.strerror or e}"


def write_cluster(folder: Path, hosts: Sequence[Host], settings: dict[str, str], keys: Path = Path(SSH_FOLDER)) -> Path:
    """Write a cluster folder for tasks to the shared folder. Return the path of its SSH configuration.

    All pods of a job share one key pair, both as user key and host key, so other hosts are refused.
    Raises ConfigError if the job's Secret is not mounted.
    """
    try:
        public = (keys / "id_rsa.pub").read_text().strip()
    except OSError as e:
        raise ConfigError(f"the job's key pair cannot be read: {e.filename}: {e.strerror}") from e
    folder.mkdir(parents=True, exist_ok=True)
    config, known = folder / "ssh_config", folder / "known_hosts"
    write_atomically(known, f"[*]:{SSH_PORT} {public}\n")
    write_atomically(config, ssh_config(keys / "id_rsa", known))
    write_atomically(folder / "hosts", hostfile(hosts))
    write_atomically(
        folder / "cluster.toml", "".join(f"{name} = {json.dumps(value)}\n" for name, value in settings.items())
    )
    return config


def ssh_config(key: Path, known_hosts: Path) -> str:
    """Return the SSH configuration between pods of one job: the job's key, its port, and no other host keys."""
    return (
        "Host *\n"
        f"    Port {SSH_PORT}\n"
        f"    IdentityFile {key}\n"
        "    IdentitiesOnly yes\n"
        f"    UserKnownHostsFile {known_hosts}\n"
        "    GlobalKnownHostsFile /dev/null\n"
        "    StrictHostKeyChecking yes\n"
    )


def _host(rank: int, name: str, worker: Host) -> Host:
    return Host(rank=rank, address=name, slots=worker.slots)


def _short(name: str) -> str:
    """Return the pod's short name if it resolves to the same address, else the full name.

    Control sockets are named after hosts, and a pod's full name is longer than the name of a socket may be.
    """
    short = name.partition(".")[0]
    try:
        return short if socket.gethostbyname(short) == socket.gethostbyname(name) else name
    except OSError:
        return name
