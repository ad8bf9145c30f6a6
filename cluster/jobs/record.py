"""Folder of a job: its specification (`job.json`), its state (`state.json`), its code, logs and results."""

import contextlib
import dataclasses
import datetime
import json
import os
import re
import secrets
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from cluster.code.job_code import OwnCode
from cluster.errors import ClusterError, ConfigError
from cluster.files import write_atomically, write_json
from cluster.jobs.flat_record import as_flat, from_flat
from cluster.jobs.host_queue import QueuePosition
from cluster.jobs.job import Job
from cluster.jobs.process import ProcessId
from cluster.jobs.results import Results
from cluster.jobs.state import JobState
from cluster.recovery.failure_kinds import FailureKind
from cluster.recovery.goodput import Account
from cluster.recovery.history import AttemptRecord
from cluster.ssh.onhost import trusted_files
from cluster.ssh.onhost.trusted_files import user_name
from cluster.ssh.secret_variables import masked_record
from cluster.typed import from_json

T = TypeVar("T")

JOB_TAG = "DLAMI_JOB"  # job id, in the environment of each process of a job, on every host
FOLDER_TAG = "DLAMI_JOB_FOLDER"  # likewise: the job's folder, where its record and lease are
HOLDS_TAG = "DLAMI_HOLDS"  # in the environment of the process that claims a host for a job
HOLDS_HOST = "host"
ATTEMPT_TAG = "DLAMI_ATTEMPT"  # likewise: the attempt; one older than the lease's must not write


class DamagedRecord(ClusterError):
    """Error: a job's record cannot be read. The text names the file and the remedy."""

    def __init__(self, path: Path, why: str) -> None:
        job = path.parent.name
        remedy = f"'inv jobs.stop {job}' ends what runs of it, then 'inv jobs.remove {job} --yes' removes it"
        with contextlib.suppress(OSError):
            if (owner := path.parent.lstat().st_uid) != os.getuid():
                remedy = f"passed over; {user_name(owner)} can remove it with 'inv jobs.remove {job} --yes'"
        super().__init__(f"{path} is damaged ({why}): {remedy}")
        self.path, self.why = path, why


@dataclass(frozen=True, kw_only=True)
class JobStatus:
    """State of a job, or how it ended."""

    state: JobState
    attempt: int = 1
    supervisor: ProcessId | None = None
    started: str = ""  # of this attempt, UTC; if queued: when the wait began
    ended: str = ""
    exit_code: int | None = None  # mpirun's; negative: ended by that signal
    cause: str = ""  # one line: why the job ended, or the last attempt while it recovers
    ended_by: FailureKind | None = None  # kind of the cause
    rank: int | None = None  # rank that failed first, if one did
    host: str = ""  # host of the failure
    log: str = ""  # path of the log to read
    left: tuple[str, ...] = ()  # processes that could not be ended, with their hosts
    warnings: tuple[str, ...] = ()  # problems that have not ended the attempt


@dataclass(frozen=True, kw_only=True)
class Turn:
    """Place of a waiting job in the queue, as a supervisor computed it last. Hosts in it are the job's from then on."""

    ticket: int
    place: QueuePosition
    is_taken: bool = False  # the job's own supervisor has begun to claim the hosts


@dataclass(frozen=True, kw_only=True)
class TrainingProgress:
    """Progress of a training, by the last line of its metrics."""

    step: int
    time: float  # of that line, seconds since 1970
    images_per_s: float | None = None
    left_s: float | None = None  # seconds until its last step, at the current speed
    epoch: float | None = None  # number of passes over the data
    score: float | None = None  # of its last evaluation: `top1` in percent, or an AP in 0 .. 1
    score_name: str = ""  # top1 or box_ap
    quiet_s: float = field(default=0.0, compare=False)  # since the last step of an active training, by the master


@dataclass(frozen=True, kw_only=True)
class JobView:
    """View of a job that the master returns: its specification, state, owner and folder."""

    job: Job
    status: JobStatus
    folder: str
    owner: str  # Unix user
    is_own: bool = True  # the job belongs to the user who sent the request
    age_s: float  # from its first attempt or submission to now or its end
    progress: TrainingProgress | None = None
    attempts: tuple[AttemptRecord, ...] = ()  # all attempts; () for a job in a list
    account: Account | None = None  # how its time was spent
    queue: QueuePosition | None = None  # its place in the queue, if it waits
    results: Results | None = None  # state of its results, if they go to S3
    own_code: OwnCode | None = None  # the code delivered for a program; None for a job in a list
    began: float | None = None  # when its first attempt began, seconds since 1970 by the master's clock; None before it
    usd: float | None = None  # cost of its cluster's instances since then; None if unknown

    @property
    def id(self) -> str:
        """Return the job's id."""
        return self.job.id

    @property
    def state(self) -> JobState:
        """Return the job's state."""
        return self.status.state

    def to_json(self) -> dict[str, Any]:
        """Return the view as one flat JSON object, for `--json`."""
        return {
            **as_flat(self.job),
            **dataclasses.asdict(self.status),
            "folder": self.folder,
            "owner": self.owner,
            "is_own": self.is_own,
            "age_s": round(self.age_s, 1),
            "progress": self.progress and dataclasses.asdict(self.progress),
            "attempts": [dataclasses.asdict(a) for a in self.attempts],
            "account": self.account and self.account.to_json(),
            "queue": self.queue and dataclasses.asdict(self.queue),
            "sent": self.results and dataclasses.asdict(self.results),
            "own_code": self.own_code and dataclasses.asdict(self.own_code),
            "began": self.began,
            "usd": self.usd,
        }


@dataclass(frozen=True, kw_only=True)
class JobRecords:
    """Records of all jobs, oldest first, and those that cannot be read."""

    jobs: tuple[tuple[Job, JobStatus], ...]
    damaged: tuple[DamagedRecord, ...]
    others: frozenset[str] = frozenset()  # ids of other users' jobs
    over: Mapping[str, int] = field(default_factory=dict)  # sequence numbers of ended jobs whose records were left out
    unread: Mapping[str, int] = field(default_factory=dict)  # jobs that were left out as too many, by user


@dataclass(frozen=True)
class JobPaths:
    """Paths of a job's files."""

    folder: Path

    @property
    def job(self) -> Path:
        """Path of the job's specification, which only its user can read because it holds an environment."""
        return self.folder / "job.json"

    @property
    def public(self) -> Path:
        """Path of the specification without the environment, which every user of the cluster can read."""
        return self.folder / "public.json"

    @property
    def status(self) -> Path:
        """Path of the job's state."""
        return self.folder / "state.json"

    @property
    def lease(self) -> Path:
        """Path of the lease: which attempt may write, and which process holds it."""
        return self.folder / "lease.json"

    @property
    def attempts(self) -> Path:
        """Path of the records of all attempts."""
        return self.folder / "attempts.json"

    @property
    def turn(self) -> Path:
        """Path of the job's place in the queue while it waits."""
        return self.folder / "turn.json"

    @property
    def hostfile(self) -> Path:
        """Path of mpirun's hostfile."""
        return self.folder / "hosts"

    @property
    def nodes(self) -> Path:
        """Path of a hostfile with all slots of the hosts, for a program that starts more processes by itself."""
        return self.folder / "nodes"

    @property
    def workers(self) -> Path:
        """Path of a list of the hosts' addresses, one per line."""
        return self.folder / "workers"

    @property
    def code(self) -> Path:
        """Path of the code as of submission, the trainers' or the operator's. Ranks run in it."""
        return self.folder / "code"

    @property
    def code_archive(self) -> Path:
        """Path of the operator's code as it was delivered."""
        return self.folder / "code.tar"

    @property
    def rank_program(self) -> Path:
        """Path of the wrapper that starts each rank of a program."""
        return self.folder / "rank.py"

    @property
    def slots_program(self) -> Path:
        """Path of the program that restricts a rank to its job's slots of a host."""
        return self.folder / "slots.py"

    @property
    def lib(self) -> Path:
        """Path of the library for a program's ranks: `from dlami import job`."""
        return self.folder / "lib"

    @property
    def checkpoints(self) -> Path:
        """Path of the checkpoints, from which the next attempt resumes."""
        return self.folder / "checkpoints"

    @property
    def metrics(self) -> Path:
        """Path of the trainer's metrics, one JSON record per line."""
        return self.folder / "metrics.jsonl"

    def logs(self, attempt: int) -> Path:
        """Return the path of an attempt's logs: `console.log`, and `ranks/` with a file per rank."""
        return self.folder / "logs" / f"attempt-{attempt}"

    def console(self, attempt: int) -> Path:
        """Return the path of the output of all ranks. Each line is tagged with its rank."""
        return self.logs(attempt) / "console.log"

    def console_times(self, attempt: int) -> Path:
        """Return the path of the log of the console's size over time, used to find recent output."""
        return self.logs(attempt) / "console.times"

    def rank_logs(self, attempt: int) -> Path:
        """Return the path of mpirun's folder with a file per rank and stream."""
        return self.logs(attempt) / "ranks"


def jobs_folder(shared: str) -> Path:
    """Return the folder of a cluster's jobs."""
    return Path(shared) / "jobs"


def new_id(name: str) -> str:
    """Return a new id that sorts by time and contains the job's name: 20261120-231500-resnet50-a7f1."""
    return f"{datetime.datetime.now(datetime.UTC):%Y%m%d-%H%M%S}-{name}-{secrets.token_hex(2)}"


def now() -> str:
    """Return the current time in UTC, to the second, as records have it."""
    return as_written(time.time())


def as_written(at: float) -> str:
    """Format a time in seconds since 1970 as records have it."""
    return datetime.datetime.fromtimestamp(at, datetime.UTC).isoformat(timespec="seconds")


def check_name(name: str) -> str:
    """Return the job's name if it can be part of a folder's name. Raises ConfigError otherwise."""
    if not re.fullmatch(r"[a-z0-9][a-z0-9-]{0,30}", name):
        raise ConfigError(f"job name {name!r}: expected small letters, digits and dashes")
    return name


def check_id(job_id: str) -> str:
    """Return the job's id if it can be a folder's name and a tag. Raises ConfigError otherwise."""
    if not is_id(job_id):
        raise ConfigError(f"job id {job_id!r}: expected letters, digits, dots and dashes")
    return job_id


def is_id(name: str) -> bool:
    """Return True if this can be a job's id, and so the name of its folder."""
    return bool(re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,100}", name))


def read_job(paths: JobPaths) -> Job:
    """Read the job's record; another user's without its environment. Raises DamagedRecord.

    A job whose turn in the queue has come has the hosts that its turn gives it.
    """
    path = paths.job if os.access(paths.job, os.R_OK) or not os.path.lexists(paths.public) else paths.public
    job = load(path, Job, from_flat)
    if job.id != paths.folder.name:
        raise DamagedRecord(path, f"it is of {job.id[:80]!r}")
    turn = read_turn(paths, job.ticket) if job.waits_for_hosts else None
    return job.planned(hosts=turn.place.hosts, whole_hosts=turn.place.hosts) if turn else job


def read_turn(paths: JobPaths, ticket: int) -> Turn | None:
    """Return the turn of a waiting job with this ticket, as it was computed last, or None."""
    with contextlib.suppress(DamagedRecord):
        turn = load(paths.turn, Turn)
        return turn if turn.ticket == ticket else None
    return None


def write_turn(paths: JobPaths, turn: Turn) -> None:
    """Write the turn atomically. It need not survive a crash of this machine, because it can be computed again."""
    write_atomically(paths.turn, json.dumps(dataclasses.asdict(turn)), durable=False)


def write_job(paths: JobPaths, job: Job) -> None:
    """Write the job's record: complete for its user only, and for all users without the environment.

    Secrets in the public one's words are masked.
    """
    write_atomically(paths.job, json.dumps(dataclasses.asdict(job), indent=2) + "\n", mode=0o600)
    shown = dataclasses.replace(job.planned(mpirun=(), notify=""), spec=dataclasses.replace(job.spec, environment={}))
    write_json(paths.public, masked_record(dataclasses.asdict(shown)))


def load(path: Path, kind: type[T], upgraded: Callable[[Any], Any] = lambda raw: raw) -> T:
    """Read a record's file, which must be owned by its folder's owner. Raises DamagedRecord with the reason.

    upgraded: makes what this version reads from what an earlier one wrote.
    """
    try:
        return from_json(kind, upgraded(json.loads(trusted_files.read_file(path))))
    except FileNotFoundError:
        raise DamagedRecord(path, "it is not there") from None
    except OSError as e:
        raise DamagedRecord(path, e.strerror or str(e)) from None
    except (ValueError, RecursionError) as e:
        raise DamagedRecord(path, _one_line(e)) from None


def open_log(paths: JobPaths, path: Path) -> int:
    """Open a log in a job's folder, which must be owned by the job's owner. Raises OSError."""
    return trusted_files.open_file(path, owner=trusted_files.folder_owner(paths.folder))


def owner_id(paths: JobPaths) -> int:
    """Return the user id of the job's owner, who made its folder.

    Raises DamagedRecord if that is a link or no folder.
    """
    try:
        return trusted_files.folder_owner(paths.folder)
    except trusted_files.Untrusted as e:
        raise DamagedRecord(paths.status, f"{paths.folder.name} {e.strerror}") from None


def require_own(paths: JobPaths, what: str) -> None:
    """Raise ConfigError if the job is another user's, whose record and processes must not be changed."""
    owner = owner_id(paths)
    if owner != os.getuid():
        also = ", or root with --yes" if os.getuid() == 0 else ""
        raise ConfigError(
            f"{paths.folder.name} is {user_name(owner)}'s job: only {user_name(owner)} can {what} it{also}"
        )
    require_place(paths.folder.parent)


def require_place(folder: Path) -> None:
    """Raise ConfigError if another user could replace what is in the jobs' folder, or in one beside it."""
    remedy = f": as root (on its file server, if that squashes root), 'chown root {folder} && chmod 1777 {folder}'"
    try:
        trusted_files.require_place(folder, remedy)
    except trusted_files.Untrusted as e:
        raise ConfigError(f"{folder} {e.strerror}") from None


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split())[:120] or type(error).__name__
