"""A job's folder: what was asked for (`job.json`), how it goes (`state.json`), its code, logs and results."""

import dataclasses
import datetime
import json
import os
import re
import secrets
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cluster.errors import ClusterError, ConfigError
from cluster.files import write_json
from cluster.hosts import Host

GOING = frozenset({"starting", "running", "stopping"})
JOB_TAG = "DLAMI_JOB"  # in the environment of every process of a job, on every host


@dataclass(frozen=True, kw_only=True)
class Job:
    """What was asked for. Nothing here changes while it runs."""

    id: str
    name: str  # the trainer
    command: tuple[str, ...]  # the trainer's words, after mpirun's own
    mpirun: tuple[str, ...]  # the whole command line
    np: int
    hosts: tuple[Host, ...]  # those that hold ranks
    profile: str  # launch profile
    environment: Mapping[str, str]  # variables the operator added
    versions: Mapping[str, str]  # of the master: Python, Open MPI, TensorFlow, Horovod …
    revision: str  # of the project's code, with "+changes" if it had any
    created: str  # UTC, ISO 8601


@dataclass(frozen=True, kw_only=True)
class Supervisor:
    """The process on the master that runs a job, told apart from a later one with the same number."""

    host: str
    pid: int
    started: int  # kernel's clock ticks since boot


@dataclass(frozen=True, kw_only=True)
class State:
    """How it goes, or how it ended."""

    state: str  # starting, running, stopping, succeeded, failed, stopped, lost
    attempt: int = 1
    supervisor: Supervisor | None = None
    started: str = ""  # of this attempt, UTC
    ended: str = ""
    exit_code: int | None = None  # mpirun's; negative: ended by that signal
    cause: str = ""  # one line: why it ended as it did
    rank: int | None = None  # that failed first, if one did
    host: str = ""  # where
    log: str = ""  # what to read about it
    left: tuple[str, ...] = ()  # processes that could not be ended, with their host

    @property
    def is_going(self) -> bool:
        """It has not come to an end."""
        return self.state in GOING

    @property
    def holds_hosts(self) -> bool:
        """Processes of it may be on its hosts: a lost job's ranks can outlive its supervisor."""
        return self.is_going or self.state == "lost"


@dataclass(frozen=True)
class JobPaths:
    """All paths of a job."""

    folder: Path

    @property
    def job(self) -> Path:
        """What was asked for."""
        return self.folder / "job.json"

    @property
    def state(self) -> Path:
        """How it goes."""
        return self.folder / "state.json"

    @property
    def hostfile(self) -> Path:
        """The hostfile mpirun reads."""
        return self.folder / "hosts"

    @property
    def code(self) -> Path:
        """The trainers' code as it was at submission; ranks run in it."""
        return self.folder / "code"

    def logs(self, attempt: int) -> Path:
        """An attempt's logs: `console.log`, and `ranks/` with a file per rank."""
        return self.folder / "logs" / f"attempt-{attempt}"

    def console(self, attempt: int) -> Path:
        """Everything all ranks printed, each line tagged with its rank."""
        return self.logs(attempt) / "console.log"

    def rank_logs(self, attempt: int) -> Path:
        """mpirun's folder of a file per rank and stream."""
        return self.logs(attempt) / "ranks"


def jobs_folder(shared: str) -> Path:
    """Where a cluster's jobs are."""
    return Path(shared) / "jobs"


def new_id(name: str) -> str:
    """An id that sorts by time and says what it is: 20261120-231500-resnet50-x7."""
    return f"{datetime.datetime.now(datetime.UTC):%Y%m%d-%H%M%S}-{name}-{secrets.token_hex(2)}"


def now() -> str:
    """The time, UTC, to the second."""
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")


def find(folder: Path, which: str) -> JobPaths:
    """The job with this id or an unambiguous part of it; `last` is the newest. Raises ConfigError."""
    ids = [p.name for p in sorted(folder.iterdir()) if (p / "job.json").exists()] if folder.exists() else []
    found = ids[-1:] if which == "last" else [i for i in ids if i == which] or [i for i in ids if which in i]
    if len(found) != 1:
        raise ConfigError(
            f"no job {which!r} in {folder}"
            if not found
            else f"{which!r} could be any of {', '.join(found)}: give more of it"
        )
    return JobPaths(folder / found[0])


def read_job(paths: JobPaths) -> Job:
    """What was asked for."""
    return job_from(json.loads(paths.job.read_text()))


def job_from(fields: Mapping[str, Any]) -> Job:
    """A job from its JSON fields."""
    return Job(
        **{
            **fields,
            "command": tuple(fields["command"]),
            "mpirun": tuple(fields["mpirun"]),
            "hosts": tuple(Host(**h) for h in fields["hosts"]),
        }
    )


def read_state(paths: JobPaths) -> State:
    """How it goes; `lost` if its supervisor is gone without having said how it ended. Read on the master."""
    fields = json.loads(paths.state.read_text())
    supervisor = fields["supervisor"] and Supervisor(**fields["supervisor"])
    state = State(**{**fields, "supervisor": supervisor, "left": tuple(fields["left"])})
    if state.is_going and supervisor and supervisor.host == socket.gethostname() and not is_alive(supervisor):
        return dataclasses.replace(
            state,
            state="lost",
            cause="its supervisor is gone (was the master restarted?): "
            "'inv jobs.stop' ends what is left, 'inv jobs.resume' goes on",
        )
    return state


def write_state(paths: JobPaths, state: State) -> State:
    """Keep it on disk, whole."""
    write_json(paths.state, dataclasses.asdict(state))
    return state


def this_process() -> Supervisor:
    """The calling process, as a supervisor."""
    return Supervisor(host=socket.gethostname(), pid=os.getpid(), started=_start_ticks(os.getpid()))


def is_alive(supervisor: Supervisor) -> bool:
    """Whether that very process runs on this host."""
    try:
        return _start_ticks(supervisor.pid) == supervisor.started
    except OSError:
        return False


def check_name(name: str) -> str:
    """A job's name, fit for a folder's."""
    if not re.fullmatch(r"[a-z0-9][a-z0-9-]{0,30}", name):
        raise ClusterError(f"job name {name!r}: expected small letters, digits and dashes")
    return name


def as_json(job: Job, state: State, folder: Path) -> dict[str, Any]:
    """A job and its state as one JSON object."""
    return {**dataclasses.asdict(job), **dataclasses.asdict(state), "folder": str(folder)}


def _start_ticks(pid: int) -> int:
    stat = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    if stat[0] == "Z":
        raise ProcessLookupError(pid)
    return int(stat[19])
