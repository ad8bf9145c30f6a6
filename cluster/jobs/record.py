"""A job's folder: what was asked for (`job.json`), how it goes (`state.json`), its code, logs and results."""

import dataclasses
import datetime
import json
import os
import pwd
import re
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from cluster.errors import ClusterError, ConfigError
from cluster.files import write_atomically, write_json
from cluster.hosts import Host
from cluster.jobs.process import ProcessId
from cluster.jobs.state import JobState
from cluster.jobs.typed import from_json

T = TypeVar("T")

JOB_TAG = "DLAMI_JOB"  # in the environment of every process of a job, on every host: its id
FOLDER_TAG = "DLAMI_JOB_FOLDER"  # beside it: the job's folder, where its record and its lease are
ATTEMPT_TAG = "DLAMI_ATTEMPT"  # beside it: which attempt; one that is older than the lease's must not write


class DamagedRecord(ClusterError):
    """A job's record cannot be read; the text names the file and what to do."""

    def __init__(self, path: Path, why: str) -> None:
        super().__init__(
            f"{path} is damaged ({why}): mend it by hand, or remove the job with "
            f"'inv jobs.remove {path.parent.name} --yes' once nothing of it runs"
        )
        self.path, self.why = path, why


@dataclass(frozen=True, kw_only=True)
class Job:
    """What was asked for. Nothing here changes while it runs."""

    id: str
    name: str  # the trainer
    command: tuple[str, ...]  # the trainer's words, after mpirun's own
    mpirun: tuple[str, ...]  # the whole command line; () for other users, who may not see the environment in it
    np: int
    hosts: tuple[Host, ...]  # those that hold ranks
    profile: str  # launch profile
    environment: Mapping[str, str]  # variables the operator added; {} for other users
    versions: Mapping[str, str]  # of the master: Python, Open MPI, TensorFlow, Horovod …
    revision: str  # of the project's code, with "+changes" if it had any
    created: str  # UTC, ISO 8601, by the operator's clock
    attempt: int = 1  # the attempt that this command line starts
    sequence: int = 0  # its place among this cluster's jobs, counted by the master
    steps: int | None = None  # that the training takes in all, where its trainer says so


@dataclass(frozen=True, kw_only=True)
class Status:
    """How a job goes, or how it ended."""

    state: JobState
    attempt: int = 1
    supervisor: ProcessId | None = None
    started: str = ""  # of this attempt, UTC
    ended: str = ""
    exit_code: int | None = None  # mpirun's; negative: ended by that signal
    cause: str = ""  # one line: why it ended as it did
    rank: int | None = None  # that failed first, if one did
    host: str = ""  # where
    log: str = ""  # what to read about it
    left: tuple[str, ...] = ()  # processes that could not be ended, with their host


@dataclass(frozen=True, kw_only=True)
class Progress:
    """How far a training is, by the last line of its metrics."""

    step: int
    time: float  # of that line, seconds since 1970
    images_per_s: float | None = None
    left_s: float | None = None  # until its last step, at the pace of its last lines


@dataclass(frozen=True, kw_only=True)
class JobView:
    """A job as the master tells it: what was asked for, how it goes, whose it is and where."""

    job: Job
    status: Status
    folder: str
    owner: str  # Unix user
    age_s: float  # since this attempt's start, by the master's clock; of one that has ended, until then
    progress: Progress | None = None

    @property
    def id(self) -> str:
        """The job's id."""
        return self.job.id

    @property
    def state(self) -> JobState:
        """Where it is in its life."""
        return self.status.state

    def to_json(self) -> dict[str, Any]:
        """As one flat JSON object."""
        more = {"folder": self.folder, "owner": self.owner, "age_s": round(self.age_s, 1)}
        progress = self.progress and dataclasses.asdict(self.progress)
        return {**dataclasses.asdict(self.job), **dataclasses.asdict(self.status), **more, "progress": progress}

    @classmethod
    def from_json(cls, raw: Mapping[str, Any]) -> "JobView":
        """Back from that object. Raises ValueError that names the field."""
        return cls(
            job=from_json(Job, raw),
            status=from_json(Status, raw),
            folder=str(raw["folder"]),
            owner=str(raw["owner"]),
            age_s=float(raw["age_s"]),
            progress=from_json(Progress, raw["progress"]) if raw["progress"] else None,
        )


@dataclass(frozen=True)
class JobPaths:
    """All paths of a job."""

    folder: Path

    @property
    def job(self) -> Path:
        """What was asked for, for the job's own user alone: it holds an environment."""
        return self.folder / "job.json"

    @property
    def public(self) -> Path:
        """The same without the environment, for every user of the cluster."""
        return self.folder / "public.json"

    @property
    def status(self) -> Path:
        """How it goes."""
        return self.folder / "state.json"

    @property
    def lease(self) -> Path:
        """Which attempt may write, and the process that holds it."""
        return self.folder / "lease.json"

    @property
    def hostfile(self) -> Path:
        """The hostfile mpirun reads."""
        return self.folder / "hosts"

    @property
    def code(self) -> Path:
        """The trainers' code as it was at submission; ranks run in it."""
        return self.folder / "code"

    @property
    def metrics(self) -> Path:
        """The trainer's numbers, a JSON record per line."""
        return self.folder / "metrics.jsonl"

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


def check_name(name: str) -> str:
    """A job's name, fit for a folder's. Raises ConfigError."""
    if not re.fullmatch(r"[a-z0-9][a-z0-9-]{0,30}", name):
        raise ConfigError(f"job name {name!r}: expected small letters, digits and dashes")
    return name


def check_id(job_id: str) -> str:
    """A job's id, fit for a folder's name and for a tag. Raises ConfigError."""
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,100}", job_id):
        raise ConfigError(f"job id {job_id!r}: expected letters, digits, dots and dashes")
    return job_id


def read_job(paths: JobPaths) -> Job:
    """What was asked for; another user's without its environment. Raises DamagedRecord."""
    path = paths.job if os.access(paths.job, os.R_OK) or not paths.public.exists() else paths.public
    job = load(path, Job)
    if job.id != paths.folder.name:
        raise DamagedRecord(path, f"it is of {job.id!r}")
    return job


def write_job(paths: JobPaths, job: Job) -> None:
    """Keep it on disk: whole for its user alone, without the environment for all."""
    fields = dataclasses.asdict(job)
    write_atomically(paths.job, json.dumps(fields, indent=2) + "\n", mode=0o600)
    write_json(paths.public, {**fields, "mpirun": [], "environment": {}})


def load(path: Path, kind: type[T]) -> T:
    """A record's file as a value. Raises DamagedRecord that says what is wrong with it."""
    try:
        return from_json(kind, json.loads(path.read_bytes()))
    except FileNotFoundError:
        raise DamagedRecord(path, "it is not there") from None
    except OSError as e:
        raise DamagedRecord(path, e.strerror or str(e)) from None
    except (ValueError, RecursionError) as e:
        raise DamagedRecord(path, _one_line(e)) from None


def owner_id(paths: JobPaths) -> int:
    """The Unix user whose job it is: who made its folder."""
    return paths.folder.stat().st_uid


def user_name(uid: int) -> str:
    """A user's name, or its number where it has none here."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def require_own(paths: JobPaths, what: str) -> None:
    """Raises ConfigError if the job is another user's: neither its record nor its processes are ours to touch."""
    owner = owner_id(paths)
    if owner != os.getuid():
        raise ConfigError(f"{paths.folder.name} is {user_name(owner)}'s job: only {user_name(owner)} can {what} it")


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split())[:120] or type(error).__name__
