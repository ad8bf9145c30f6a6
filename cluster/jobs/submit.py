"""A job taken on: its slots checked, its folder made, its supervisor started. Runs on the master."""

import contextlib
import dataclasses
import fcntl
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from cluster.errors import ClusterError, ConfigError
from cluster.files import write_atomically, write_json
from cluster.hosts import Host, hostfile
from cluster.hostset import fold
from cluster.inventory import ROOT
from cluster.jobs.record import JOB_TAG, Job, JobPaths, State, check_name, find, read_job, read_state, write_state
from cluster.ssh.fanout import RUN_TAG


def submit(folder: Path, job: Job) -> JobPaths:
    """Start a job, or the next attempt of one that has ended. Its supervisor outlives the caller.

    Raises ConfigError if another active job holds one of its hosts, or it is active itself.
    """
    check_name(job.name)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as e:
        raise ClusterError(
            f"jobs are kept in {folder}, which cannot be made: {e.strerror}; is the shared folder "
            "mounted on the master?"
        ) from e
    with _locked(folder):
        _refuse_taken(folder, job.hosts)
        paths = JobPaths(folder / job.id)
        attempt = read_state(paths).attempt + 1 if paths.job.exists() else 1
        _write_folder(paths, job, attempt)
        write_state(paths, State(state="starting", attempt=attempt))
        try:
            _start_supervisor(paths, attempt)
        except OSError as e:
            write_state(paths, State(state="failed", attempt=attempt, cause=f"its supervisor did not start: {e}"))
            raise ClusterError(f"{job.id}: its supervisor did not start: {e}") from e
    return paths


def active(folder: Path) -> list[tuple[Job, State]]:
    """The jobs that hold hosts now, oldest first."""
    return [(job, state) for job, state in all_jobs(folder) if state.holds_hosts]


def all_jobs(folder: Path) -> list[tuple[Job, State]]:
    """Every job on record, oldest first."""
    found = sorted(p.parent for p in folder.glob("*/job.json")) if folder.exists() else []
    return [(read_job(JobPaths(p)), read_state(JobPaths(p))) for p in found if (p / "state.json").exists()]


def remove(folder: Path, which: str) -> JobPaths:
    """Remove a job's folder: record, logs and checkpoints. Raises ConfigError while it is active."""
    paths = find(folder, which)
    with _locked(folder):
        if read_state(paths).holds_hosts:
            raise ConfigError(f"{paths.folder.name} is active: 'inv jobs.stop {paths.folder.name}' first")
        shutil.rmtree(paths.folder)
    return paths


def _refuse_taken(folder: Path, hosts: tuple[Host, ...]) -> None:
    wanted = {h.address for h in hosts}
    for job, state in active(folder):
        shared = [h.address for h in job.hosts if h.address in wanted]
        if shared:
            raise ConfigError(
                f"hosts taken by {job.id} ({state.state}): {fold(shared)}; wait for it, "
                f"'inv jobs.stop {job.id}', or take others with --hosts"
            )


def _write_folder(paths: JobPaths, job: Job, attempt: int) -> None:
    """The job's folder, up to the state: the hostfile, the code of this moment, what was asked for."""
    paths.rank_logs(attempt).mkdir(parents=True)
    write_atomically(paths.hostfile, hostfile(job.hosts))
    if not paths.code.exists():
        fresh = paths.folder / ".code"
        shutil.rmtree(fresh, ignore_errors=True)
        shutil.copytree(ROOT / "trainer", fresh / "trainer", ignore=shutil.ignore_patterns("__pycache__", "*.pyc"))
        fresh.rename(paths.code)
    write_json(paths.job, dataclasses.asdict(dataclasses.replace(job, revision=job.revision or revision())))


def revision() -> str:
    """The project's git revision, with `+changes` if files differ from it; "unknown" without git."""
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        git = ["git", "-c", f"safe.directory={ROOT}", "-C", str(ROOT)]
        head = subprocess.run([*git, "rev-parse", "--short=12", "HEAD"], capture_output=True, text=True, timeout=10)
        changes = subprocess.run([*git, "status", "--porcelain"], capture_output=True, text=True, timeout=10)
        if head.returncode == 0:
            return head.stdout.strip() + ("+changes" if changes.stdout.strip() else "")
    return "unknown"


def _start_supervisor(paths: JobPaths, attempt: int) -> None:
    """A process of its own session that nothing of the operator's holds on to."""
    environment = {k: v for k, v in os.environ.items() if k not in (RUN_TAG, JOB_TAG)}
    log = paths.logs(attempt) / "supervisor.log"
    with log.open("ab") as out, Path(os.devnull).open("rb") as nothing:
        subprocess.Popen(
            [sys.executable, "-m", "cluster.jobs.supervise", str(paths.folder)],
            cwd=ROOT,
            stdin=nothing,
            stdout=out,
            stderr=out,
            start_new_session=True,
            close_fds=True,
            env=environment,
        )


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """One submission at a time, from whatever host: two at once would take the same slots."""
    with (folder / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
