"""A job taken on: its hosts checked, its folder made, its supervisor started. Runs on the master."""

import contextlib
import dataclasses
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

from cluster.errors import ClusterError, ConfigError
from cluster.files import write_atomically, write_json
from cluster.hosts import Host, hostfile, read_hostfile
from cluster.hostset import fold
from cluster.inventory import ROOT
from cluster.jobs.lease import read_lease, take_lease
from cluster.jobs.lock import locked, make_folder
from cluster.jobs.lookup import next_sequence, read_all
from cluster.jobs.process import ProcessId, process_id, this_process
from cluster.jobs.record import (
    JOB_TAG,
    Job,
    JobPaths,
    Status,
    check_id,
    check_name,
    now,
    read_job,
    require_own,
    write_job,
)
from cluster.jobs.state import JobState
from cluster.jobs.status import read_status, write_status
from cluster.jobs.sweep import sweep
from cluster.ssh.fanout import RUN_TAG


def submit(folder: Path, job: Job) -> JobPaths:
    """Start a job, or the next attempt of one that has ended. Its supervisor outlives the caller.

    Raises ConfigError if another job holds one of its hosts, or an attempt of its own may live; ClusterError if it
    cannot be recorded or started.
    """
    check_name(job.name)
    check_id(job.id)
    make_folder(folder)
    paths = JobPaths(folder / job.id)
    try:
        with locked(folder):
            before = _refuse_second_attempt(paths, job) if paths.folder.exists() else None
            _refuse_taken(folder, job)
            job = dataclasses.replace(
                job,
                sequence=before.sequence if before else next_sequence(folder),
                revision=job.revision or revision(),
            )
            _record(paths, job, is_new=before is None)
            _start_supervisor(paths, job.attempt)
    except OSError as e:
        raise ClusterError(f"{job.id} could not be started in {folder}: {e.strerror or e}") from e
    return paths


def remove(folder: Path, paths: JobPaths) -> None:
    """Remove a job's folder: record, logs and checkpoints. Raises ConfigError while it may be active."""
    require_own(paths, "remove")
    with locked(folder):
        lease = read_lease(paths)
        try:
            is_active = read_status(paths).state.holds_hosts
        except ClusterError:  # damaged, which is why it is removed
            is_active = lease is not None and lease.may_live(time.time())
        if is_active:
            raise ConfigError(f"{paths.folder.name} is active: 'inv jobs.stop {paths.folder.name}' first")
        shutil.rmtree(paths.folder)


def revision() -> str:
    """The project's git revision, with `+changes` if files differ from it; "unknown" without git."""
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        git = ["git", "-c", f"safe.directory={ROOT}", "-C", str(ROOT)]
        head = subprocess.run([*git, "rev-parse", "--short=12", "HEAD"], capture_output=True, text=True, timeout=10)
        changes = subprocess.run([*git, "status", "--porcelain"], capture_output=True, text=True, timeout=10)
        if head.returncode == 0:
            return head.stdout.strip() + ("+changes" if changes.stdout.strip() else "")
    return "unknown"


def _refuse_second_attempt(paths: JobPaths, job: Job) -> Job:
    """The job's record of its last attempt. Raises ConfigError while anything of that one may live."""
    require_own(paths, "resume")
    before, status = read_job(paths), read_status(paths)
    if not status.state.may_resume:
        raise ConfigError(f"{job.id} is {status.state}: there is nothing to resume")
    if job.attempt != status.attempt + 1:
        raise ConfigError(f"{job.id} has had attempt {status.attempt} meanwhile ({status.state}): look at it again")
    if status.state is JobState.LOST:
        swept = sweep(before.hosts, job.id)
        if swept.left:
            raise ConfigError(
                f"attempt {status.attempt} of {job.id} may still run: {'; '.join(swept.left)}; once that is ended, "
                f"or gone for good: 'inv jobs.stop {job.id}', then resume"
            )
        write_status(paths, dataclasses.replace(status, ended=now(), left=()))
    return before


def _refuse_taken(folder: Path, job: Job) -> None:
    """Raises ConfigError that names the job which holds one of these hosts."""
    wanted, records = {h.address for h in job.hosts}, read_all(folder)
    holders = [(j.id, str(s.state), j.hosts) for j, s in records.jobs if s.state.holds_hosts]
    for damaged in records.damaged:  # what of it can be read decides
        paths = JobPaths(damaged.path.parent)
        lease = read_lease(paths)
        if lease and lease.may_live(time.time()):
            holders.append((paths.folder.name, "its record is damaged", _hosts_of(paths)))
    for holder, how, hosts in holders:
        shared = [h.address for h in hosts if h.address in wanted]
        if shared and holder != job.id:
            raise ConfigError(
                f"hosts taken by {holder} ({how}): {fold(shared)}; wait for it, "
                f"'inv jobs.stop {holder}', or take others with --hosts"
            )


def _hosts_of(paths: JobPaths) -> tuple[Host, ...]:
    try:
        return read_hostfile(paths.hostfile)
    except ConfigError:
        return ()


def _record(paths: JobPaths, job: Job, *, is_new: bool) -> None:
    """The job's folder: the hostfile, the code of this moment, what was asked for, and this attempt as announced.

    A new folder is made beside its place, so that nobody sees a half.
    """
    made = JobPaths(paths.folder.with_name(f".new-{job.id}")) if is_new else paths
    try:
        made.rank_logs(job.attempt).mkdir(parents=True, exist_ok=True)
        _copy_code(made)
        write_atomically(made.hostfile, hostfile(job.hosts))
        write_job(made, job)
        take_lease(made, job.attempt, this_process())
        write_json(made.status, dataclasses.asdict(_announced(job.attempt, this_process())))
        if is_new:
            made.folder.rename(paths.folder)
    except BaseException:
        if is_new:
            shutil.rmtree(made.folder, ignore_errors=True)
        raise


def _announced(attempt: int, supervisor: ProcessId) -> Status:
    return Status(state=JobState.STARTING, attempt=attempt, supervisor=supervisor)


def _copy_code(paths: JobPaths) -> None:
    if not paths.code.exists():
        fresh = paths.folder / ".code"
        shutil.rmtree(fresh, ignore_errors=True)
        shutil.copytree(ROOT / "trainer", fresh / "trainer", ignore=shutil.ignore_patterns("__pycache__", "*.pyc"))
        fresh.rename(paths.code)


def _start_supervisor(paths: JobPaths, attempt: int) -> None:
    """A process of its own session that nothing of the operator's holds on to, and that holds the lease from now on.

    It waits for the lock that the caller holds, so its own first word comes after this one.
    """
    environment = {k: v for k, v in os.environ.items() if k not in (RUN_TAG, JOB_TAG)}
    log = paths.logs(attempt) / "supervisor.log"
    try:
        with log.open("ab") as out, Path(os.devnull).open("rb") as nothing:
            child = subprocess.Popen(
                [sys.executable, "-m", "cluster.jobs.supervise", str(paths.folder), str(attempt)],
                cwd=ROOT,
                stdin=nothing,
                stdout=out,
                stderr=out,
                start_new_session=True,
                close_fds=True,
                env=environment,
            )
        holder = process_id(child.pid)
        take_lease(paths, attempt, holder)
        write_status(paths, _announced(attempt, holder))
    except OSError as e:
        why = f"its supervisor did not start: {e.strerror or e}"
        write_status(paths, Status(state=JobState.FAILED, attempt=attempt, ended=now(), cause=why))
        raise ClusterError(f"{paths.folder.name}: {why}") from e
