"""Wrapper of one rank of the operator's program: sets its environment, starts it, and waits for its end.

Arguments: the folder to run in, and the program's words. Open MPI's environment variables give the rank, the job's
(`cluster/jobs/plan.py`) give the hosts. The program has a session of its own, and this process stands between it and
mpirun. It forwards SIGUSR1 ("save and leave") to those of the program's processes that handle it, wherever in a tree of
shells and launchers they are. If none does, all of them get SIGTERM. Once the program has ended, this process kills
what remains of it. It also forwards the output line by line, because mpirun tags each piece that it reads.

It is two processes, a keeper and its child, the wrapper. If one is killed, by mpirun or the kernel, the other kills all
that the program has started, including daemons without the job's tags.
"""

from __future__ import annotations

import contextlib
import errno
import os
import resource
import select
import signal
import socket
import struct
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import NoReturn

NAME = b"dlami-rank"  # name that distinguishes this process from the program
_SIGNALS = (signal.SIGUSR1, signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGCHLD)
_DEATH_SIGNAL, _SET_NAME, _SUBREAPER = 1, 15, 36  # options of prctl
_PIECE_S = 0.1  # an incomplete line is forwarded after this time: a prompt, a progress bar
_MOST_HELD = 65536  # bytes
_ROUNDS, _ROUND_S = 40, 0.05  # wait for killed processes: two seconds in all
_FAREWELL_S = 2.0  # wait for the rest of its output
_ADDRESS_OF_CARD = 0x8915  # SIOCGIFADDR


def world(told: Mapping[str, str]) -> dict[str, str]:
    """Translate the variables of Open MPI and the job to those of PyTorch, dstack, SkyPilot and AWS's own cluster."""
    nodes = [one.rpartition(":") for one in told["DLAMI_NODES"].split(",")]
    addresses, slots = [n[0] for n in nodes], [int(n[2]) for n in nodes]
    rank, size = int(told["OMPI_COMM_WORLD_RANK"]), int(told["OMPI_COMM_WORLD_SIZE"])
    node = _node_of(rank, slots if told["DLAMI_PER"] == "gpu" else [1] * len(nodes))
    master, port = told.get("MASTER_ADDR", addresses[0]), told.get("MASTER_PORT", "")
    own, ips = str(slots[node]), "\n".join(addresses)
    said = {
        "RANK": str(rank),
        "WORLD_SIZE": str(size),
        "LOCAL_RANK": told["OMPI_COMM_WORLD_LOCAL_RANK"],
        "LOCAL_WORLD_SIZE": told["OMPI_COMM_WORLD_LOCAL_SIZE"],
        "NODE_RANK": str(node),
        "NNODES": str(len(nodes)),
        "DSTACK_NODES_IPS": ips,
        "DSTACK_MASTER_NODE_IP": master,
        "DSTACK_NODE_RANK": str(node),
        "DSTACK_NODES_NUM": str(len(nodes)),
        "DSTACK_GPUS_PER_NODE": own,
        "DSTACK_GPUS_NUM": str(sum(slots)),
        "DSTACK_MPI_HOSTFILE": told["DLAMI_HOSTFILE"],
        "DEEPLEARNING_WORKERS_COUNT": str(len(nodes)),
        "DEEPLEARNING_WORKERS_PATH": os.path.join(told["DLAMI_JOB_DIR"], "workers"),
        "DEEPLEARNING_WORKER_GPU_COUNT": own,
        "EFS_MOUNT": os.path.dirname(os.path.dirname(told["DLAMI_JOB_DIR"])),
        "SKYPILOT_NODE_RANK": str(node),
        "SKYPILOT_NODE_IPS": ips,
        "SKYPILOT_NUM_NODES": str(len(nodes)),
        "SKYPILOT_NUM_GPUS_PER_NODE": own,
        "SKYPILOT_TASK_ID": told["DLAMI_JOB"],
    }
    if told["DLAMI_PER"] != "gpu":  # defaults of torchrun's command line
        said.update(
            PET_NNODES=str(len(nodes)), PET_NPROC_PER_NODE=own, PET_NODE_RANK=str(node), PET_MASTER_ADDR=master,
            PET_MASTER_PORT=port,
        )  # fmt: skip
    return said


def _node_of(rank: int, ranks_on: list[int]) -> int:
    """Return the index of the rank's host, if ranks fill the hosts in order. Raises ValueError if it is on none."""
    placed = 0
    for node, held in enumerate(ranks_on):
        placed += held
        if rank < placed:
            return node
    raise ValueError(f"rank {rank} is on no host")


def defaults(told: Mapping[str, str], card: str) -> dict[str, str]:
    """Return variables that are set unless already present: network device, threads per rank, unbuffered output."""
    said = {"PYTHONUNBUFFERED": "1"}
    if told["DLAMI_PER"] == "gpu":
        cores = len(os.sched_getaffinity(0))
        said["OMP_NUM_THREADS"] = str(max(1, cores // int(told["OMPI_COMM_WORLD_LOCAL_SIZE"])))
    if card:
        said.update(GLOO_SOCKET_IFNAME=card, TP_SOCKET_IFNAME=card, NCCL_SOCKET_IFNAME=card)
    is_usable = {k: v for k, v in told.items() if not (k == "NCCL_SOCKET_IFNAME" and "/" in v and card)}
    return {k: v for k, v in said.items() if k not in is_usable}  # NCCL takes device names, not networks


def card_with(address: str) -> str:
    """Return the network device of this host that has the address; "" if none has."""
    with contextlib.suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        import fcntl

        wanted = socket.inet_aton(socket.gethostbyname(address))
        for _, name in socket.if_nameindex():
            with contextlib.suppress(OSError):
                said = fcntl.ioctl(probe, _ADDRESS_OF_CARD, struct.pack("256s", name.encode()))
                if said[20:24] == wanted:
                    return name
    return ""


def folders(told: Mapping[str, str]) -> dict[str, str]:
    """Return PATH and PYTHONPATH: the job's interpreter comes first, modules that the job lends for import last."""
    found = [told.get("DLAMI_PATH", ""), told.get("PATH", os.defpath)]
    modules = [told.get("PYTHONPATH", ""), os.path.join(told["DLAMI_JOB_DIR"], "lib")]
    return {"PATH": ":".join(filter(None, found)), "PYTHONPATH": ":".join(filter(None, modules))}


def start(folder: str, words: list[str], environment: Mapping[str, str]) -> NoReturn:
    """Replace this process by the program. If that fails, print why and exit with a shell's exit code."""
    folder = os.path.expanduser(folder)
    try:
        os.chdir(folder)
        if environment["DLAMI_JOB"] in os.getcwd().split("/"):  # the job's own copy, not the operator's folder
            link_hosts(environment["DLAMI_HOSTFILE"])
    except OSError as e:
        _leave(f"{folder} on {socket.gethostname()}: {e.strerror}: the program runs in that folder on every host", 126)
    try:
        os.execvpe(words[0], words, environment)
    except OSError as e:
        _leave(why_not(words[0], e), 127 if e.errno == errno.ENOENT else 126)


def link_hosts(hostfile: str) -> None:
    """Link the hostfile as `hosts` beside the program, where tutorials' scripts look for it. An existing file stays."""
    with contextlib.suppress(OSError):
        os.symlink(hostfile, "hosts")


def why_not(program: str, error: OSError) -> str:
    """Return why the program did not start, and what to do."""
    what = f"{program} cannot be started on {socket.gethostname()}"
    if program.endswith(".py") and os.path.exists(program):
        return f"{what}: give its interpreter, as in: python {program}"
    if error.errno == errno.ENOENT:
        return f"{what}: there is none" + ("" if "/" in program else f" in {os.environ['PATH']}")
    if error.errno == errno.ENOEXEC:
        return f"{what}: it is no program of this machine, and does not begin with a line like #!/bin/bash"
    return f"{what}: {error.strerror}"


def _leave(sentence: str, code: int) -> NoReturn:
    with contextlib.suppress(OSError):
        os.write(2, f"dlami: {sentence}\n".encode())
    os._exit(code)


class Output:
    """Pipe for one of the program's two output streams; a thread forwards its lines."""

    def __init__(self, stream: int) -> None:
        self._stream = stream
        self._mine, self._its = os.pipe()

    def become(self) -> None:
        """Redirect the stream to the pipe; call in the program's process."""
        os.dup2(self._its, self._stream)

    def start(self) -> threading.Thread:
        """Start the thread that forwards output until every writer has closed the pipe; call in the wrapper."""
        os.close(self._its)
        thread = threading.Thread(target=self._pass_on, daemon=True)
        thread.start()
        return thread

    def _pass_on(self) -> None:
        held = b""
        while True:
            if held and not select.select([self._mine], [], [], _PIECE_S)[0]:
                held = self._write(held)
            data = os.read(self._mine, 65536)
            if not data:
                break
            held += data
            whole = whole_lines(held)
            held = self._write(held[:whole]) + held[whole:]
        self._write(held)

    def _write(self, data: bytes) -> bytes:
        """Write the data to the stream and return b"", the rest.

        An OSError is ignored: the program will get one, too.
        """
        with contextlib.suppress(OSError):  # no reader: the program will get SIGPIPE or EPIPE, too
            while data:
                data = data[os.write(self._stream, data) :]
        return b""


def whole_lines(held: bytes) -> int:
    """Return how many of these bytes to forward now: those of whole lines, or all if they exceed _MOST_HELD."""
    return len(held) if len(held) > _MOST_HELD else 1 + max(held.rfind(b"\n"), held.rfind(b"\r"))


def run_to_end(child: int, forward: Callable[[int], None], outputs: Sequence[threading.Thread] = ()) -> NoReturn:
    """Wait for the child's end, forward signals meanwhile, and end with the same status."""
    while True:
        number = signal.sigwait(_SIGNALS)
        if number != signal.SIGCHLD:
            forward(number)
        elif os.waitid(os.P_PID, child, os.WEXITED | os.WNOHANG | os.WNOWAIT):
            _tell(-child, signal.SIGKILL)  # the rest of its group; before wait, so that the PID is not reused
            status = os.waitpid(child, 0)[1]
            end_left()
            for output in outputs:
                output.join(_FAREWELL_S)
            _end_as(status)
        else:
            _bury(child)


def to_program(child: int, keeper: int, number: int) -> None:
    """Forward a signal to the program. If the keeper is gone, kill the program and all that it has started."""
    if os.getppid() != keeper:
        end_left()
        os._exit(128 + signal.SIGKILL)
    if number == signal.SIGUSR1:
        ask_to_leave(child)
    else:
        _tell(-child, number)


def end_left() -> None:
    """Kill what is left of the program, daemons included: they are this process's children now."""
    for _ in range(_ROUNDS):  # a process may fork while others are killed
        left = descendants(os.getpid())[1:]
        for pid in left:
            _tell(pid, signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        if not left:
            return
        time.sleep(_ROUND_S)


def _bury(child: int) -> None:
    """Reap daemons that have ended, so that none stays a zombie. The program's own status is left for `run_to_end`."""
    with contextlib.suppress(ChildProcessError):
        while (found := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)) and found.si_pid != child:
            os.waitpid(found.si_pid, os.WNOHANG)


def ask_to_leave(child: int) -> None:
    """Send SIGUSR1 to those processes of the program that handle it. If none does, send SIGTERM to all."""
    family = descendants(child)
    listening = [pid for pid in family if _handles(pid, signal.SIGUSR1)]
    for pid in listening or family:
        _tell(pid, signal.SIGUSR1 if listening else signal.SIGTERM)


def descendants(pid: int) -> list[int]:
    """Return the process and all its descendants."""
    children: dict[int, list[int]] = {}
    for other in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError, ValueError, IndexError):
            children.setdefault(int(_stat(other)[1]), []).append(int(other))
    found, more = [], [pid]
    while more:
        one = more.pop()
        found.append(one)
        more += children.get(one, [])
    return found


def _stat(pid: str) -> list[bytes]:
    """Return the fields of /proc/PID/stat, from the process's state on."""
    with open(f"/proc/{pid}/stat", "rb") as file:
        return file.read().rpartition(b")")[2].split()


def _handles(pid: int, number: int) -> bool:
    with contextlib.suppress(OSError, ValueError), open(f"/proc/{pid}/status") as file:
        for line in file:
            if line.startswith("SigCgt:"):
                return bool(int(line.split()[1], 16) >> (number - 1) & 1)
    return False


def _tell(pid: int, number: int) -> None:
    with contextlib.suppress(OSError):
        os.kill(pid, number)


def _end_as(status: int) -> NoReturn:
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # no second core dump besides the program's
        with contextlib.suppress(OSError, ValueError):
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [number])
        os.kill(os.getpid(), number)
        os._exit(128 + number)
    os._exit(os.WEXITSTATUS(status))


def _prctl(option: int, value: int | bytes) -> None:
    with contextlib.suppress(ImportError, OSError, AttributeError):
        import ctypes

        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


def _fork_below(
    death_signal: int,
    forward: Callable[[int], Callable[[int], None]] = lambda child: partial(_tell, child),
    outputs: Sequence[Output] = (),
) -> int:
    """Fork. Return the parent's PID in the child, which has its own session. The parent runs until the child ends.

    The child gets `death_signal` once this process is gone. Orphans of the child become children of this process.
    """
    parent = os.getpid()
    _prctl(_SUBREAPER, 1)
    child = os.fork()
    if child:
        run_to_end(child, forward(child), [output.start() for output in outputs])
    os.setsid()
    _prctl(_DEATH_SIGNAL, death_signal)
    if os.getppid() != parent:
        os._exit(128 + signal.SIGKILL)
    return parent


def main(folder: str, *words: str) -> NoReturn:
    """Set the rank's environment, start the program, and wait for its end."""
    signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
    _prctl(_SET_NAME, NAME)
    keeper = _fork_below(signal.SIGTERM)
    os.environ.update(world(os.environ))
    node = os.environ["DSTACK_NODES_IPS"].split("\n")[int(os.environ["NODE_RANK"])]
    os.environ.update(defaults(os.environ, card_with(node)))
    os.environ.update(folders(os.environ))
    outputs = [Output(1), Output(2)]
    _fork_below(signal.SIGKILL, lambda child: partial(to_program, child, keeper), outputs)
    for output in outputs:
        output.become()
    for number in _SIGNALS:
        signal.signal(number, signal.SIG_DFL)
    for ignored_by_python in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(ignored_by_python, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)
    start(folder, list(words), os.environ)


if __name__ == "__main__":
    main(*sys.argv[1:])
