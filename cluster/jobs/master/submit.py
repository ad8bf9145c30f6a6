"""Submission of a job on the master: check its hosts, make its folder, start its supervisor."""

import contextlib
import dataclasses
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

from cluster.code.job_code import put_code
from cluster.errors import ClusterError, ConfigError
from cluster.files import write_json
from cluster.hosts import Host
from cluster.inventory import ROOT
from cluster.jobs.claim import claim_hosts, give_back
from cluster.jobs.cleanup import sweep
from cluster.jobs.lock import locked, make_folder
from cluster.jobs.occupancy import holders, hosts_free_for, hosts_of, queue, waiting_for
from cluster.jobs.plan import write_hostfiles
from cluster.jobs.process import process_id, this_process
from cluster.jobs.record import (
    JOB_TAG,
    DamagedRecord,
    Job,
    JobPaths,
    JobRecords,
    JobStatus,
    as_written,
    check_id,
    check_name,
    now,
    owner_id,
    read_job,
    require_own,
    write_job,
)
from cluster.jobs.record_lease import read_lease, take_lease
from cluster.jobs.records import next_sequence, next_ticket, read_attempts, read_going, remember_last
from cluster.jobs.state import JobState
from cluster.jobs.status import read_status, write_status, written_status
from cluster.jobs.supervisor.launcher import whole_checkpoints
from cluster.jobs.supervisor.local_cleanup import remove_copies
from cluster.ssh.fanout import RUN_TAG


def submit(folder: Path, job: Job) -> JobPaths:
    """Start a job, or the next attempt of one that has ended, or queue it. Its supervisor outlives the caller.

    Raises ConfigError in three cases: another job holds one of its hosts, in whatever shared folder that job's record
    is. Another job waits for one of them in the queue. An earlier attempt of this job may still run.

    Raises ClusterError if the job cannot be recorded or started.
    """
    check_name(job.spec.name)
    check_id(job.id)
    make_folder(folder)
    paths = JobPaths(folder / job.id)
    given = _given_checkpoints(folder, job)
    try:
        with locked(folder):
            before = _refuse_second_attempt(paths, job) if os.path.lexists(paths.folder) else None
            records = read_going(folder)
            job = dataclasses.replace(
                job,
                sequence=before.sequence if before else next_sequence(records),
                ticket=next_ticket(records) if job.waits_for_hosts else 0,
            ).planned(revision=job.plan.revision or revision())
            if not job.waits_for_hosts:
                _refuse_taken(records, job)
                job = claim_hosts(job, paths.folder)
            try:
                _record(paths, job, is_new=before is None, checkpoints=given)
                _start(paths, job)
                remember_last(folder, job.id)
            except BaseException:
                give_back(job)
                raise
    except OSError as e:
        raise ClusterError(f"{job.id} could not be started in {folder}: {e.strerror or e}") from e
    finally:
        if given:
            shutil.rmtree(given, ignore_errors=True)
    return paths


def _given_checkpoints(folder: Path, job: Job) -> Path | None:
    """Copy the checkpoints that a new job begins with into a temporary folder beside its own. Raises ConfigError."""
    if not job.spec.begins_from or os.path.lexists(folder / job.id):
        return None
    of = JobPaths(folder / check_id(job.spec.begins_from))
    require_own(of, "begin from")
    try:
        names = {p.name for p in whole_checkpoints(of)}
    except FileNotFoundError:
        names = set()
    if not names:
        raise ConfigError(
            f"{job.spec.begins_from} has no checkpoint in {of.checkpoints}: there is nothing to begin from"
        )
    made = _own_new(folder / f".from-{job.id}")
    try:  # copied, not linked: a program may rewrite a file in place
        for name in sorted(names):
            source = of.checkpoints / name
            shutil.copytree(source, made / name) if source.is_dir() else shutil.copy2(source, made / name)
    except OSError as e:
        shutil.rmtree(made, ignore_errors=True)
        raise ClusterError(f"the checkpoints of {job.spec.begins_from} could not be copied: {e.strerror or e}") from e
    return made


def remove(folder: Path, paths: JobPaths) -> tuple[str, ...]:
    """Remove a job's folder with its record, logs and checkpoints, and their copies on its hosts' disks.

    Returns a line for each host on which copies may be left. Raises ConfigError while the job may be active.
    """
    require_own(paths, "remove")
    with locked(folder):
        lease = read_lease(paths)
        try:
            is_active = read_status(paths).state.holds_hosts
        except ClusterError:  # the record is damaged, which may be why it is removed
            is_active = lease is not None and lease.may_live(paths)
        if is_active:
            raise ConfigError(f"{paths.folder.name} is active: 'inv jobs.stop {paths.folder.name}' first")
        try:
            job, hosts = read_job(paths), _hosts_of_all_attempts(paths)
        except DamagedRecord:
            job, hosts = None, hosts_of(paths)
        shutil.rmtree(paths.folder)
    theirs = str(paths.folder) if job and not job.plan.is_shared else ""
    return remove_copies(hosts, paths.folder.name, job.spec.environment if job else {}, theirs)


def restart_lost(paths: JobPaths) -> None:
    """Start a supervisor for a lost job. It cleans up the last attempt and continues with the next.

    Raises ConfigError if the job is not lost (any more), ClusterError if the supervisor cannot be started.
    """
    require_own(paths, "take up")
    with locked(paths.folder.parent):
        status = read_status(paths)
        if status.state is not JobState.LOST:
            raise ConfigError(f"{paths.folder.name} is {status.state}: it is not lost")
        lease = read_lease(paths)
        seen = as_written(lease.renewed if lease else time.time())
        if written_status(paths).state is JobState.QUEUED:
            left = JobStatus(state=JobState.QUEUED, attempt=status.attempt, started=status.started)
        else:
            left = JobStatus(state=JobState.HEALING, attempt=status.attempt, ended=seen)
        _start_supervisor(paths, left)


def say_lost(paths: JobPaths, why: str) -> bool:
    """Record why a lost job stays lost. Return True if that is new."""
    with locked(paths.folder.parent):
        status = read_status(paths)
        if status.state is not JobState.LOST or why in status.cause:
            return False
        write_status(paths, dataclasses.replace(written_status(paths), cause=why))
        return True


def revision() -> str:
    """Return the project's git revision, with `+changes` if files differ from it; "unknown" without git."""
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        git = ["git", "-c", f"safe.directory={ROOT}", "-C", str(ROOT)]
        head = subprocess.run([*git, "rev-parse", "--short=12", "HEAD"], capture_output=True, text=True, timeout=10)
        changes = subprocess.run([*git, "status", "--porcelain"], capture_output=True, text=True, timeout=10)
        if head.returncode == 0:
            return head.stdout.strip() + ("+changes" if changes.stdout.strip() else "")
    return "unknown"


def _refuse_second_attempt(paths: JobPaths, job: Job) -> Job:
    """Return the record of the job's last attempt. Raises ConfigError if that attempt may still run."""
    require_own(paths, "resume")
    before, status = read_job(paths), read_status(paths)
    if not status.state.may_resume:
        raise ConfigError(
            f"{job.id} is {status.state}: there is nothing to resume; 'inv jobs.logs {job.id} --follow' follows it"
        )
    if job.attempt != status.attempt + 1:
        raise ConfigError(f"{job.id} has had attempt {status.attempt} meanwhile ({status.state}): look at it again")
    if status.state is JobState.LOST:
        swept = sweep(before.all_hosts, job.id)
        if swept.left:
            raise ConfigError(
                f"attempt {status.attempt} of {job.id} may still run: {'; '.join(swept.left)}; once that is ended, "
                f"or gone for good: 'inv jobs.stop {job.id}', then resume"
            )
        write_status(paths, dataclasses.replace(status, ended=now(), left=()))
    return before


def _refuse_taken(records: JobRecords, job: Job) -> None:
    """Raise ConfigError if another job holds what this one wants of its hosts, or waits for it. It names that job."""
    hosts = [dataclasses.replace(h, slots=job.slots_of(h)) if not job.takes_whole(h) else h for h in job.hosts]
    hosts_free_for(waiting_for(job, hosts), queue(records.jobs), holders(records))


def _hosts_of_all_attempts(paths: JobPaths) -> tuple[Host, ...]:
    known = {h.address: h for h in read_job(paths).all_hosts}
    used = [address for attempt in read_attempts(paths) for address in attempt.hosts]
    return tuple(known.get(a, Host(rank=-1, address=a, slots=1)) for a in dict.fromkeys((*known, *used)))


def _record(paths: JobPaths, job: Job, *, is_new: bool, checkpoints: Path | None = None) -> None:
    """Write the job's folder: the hostfile, the current code, the specification, and this attempt as announced.

    A new folder is built beside its final path and renamed, so no reader sees it half-written.
    """
    made = JobPaths(_own_new(paths.folder.with_name(f".new-{job.id}"))) if is_new else paths
    try:
        made.rank_logs(job.attempt).mkdir(parents=True, exist_ok=True)
        made.turn.unlink(missing_ok=True)
        _copy_code(made, job)
        if checkpoints and is_new:
            checkpoints.rename(made.checkpoints)
        write_hostfiles(job, made)
        write_job(made, job)
        take_lease(made, job.attempt, this_process())
        write_json(made.status, dataclasses.asdict(dataclasses.replace(_announced(job), supervisor=this_process())))
        if is_new:
            made.folder.rename(paths.folder)
    except BaseException:
        if is_new:
            shutil.rmtree(made.folder, ignore_errors=True)
        raise


def _own_new(folder: Path) -> Path:
    """Make the folder, replacing an unfinished one of this user. Raises ConfigError if it is another user's."""
    if os.path.lexists(folder):
        if owner_id(JobPaths(folder)) != os.getuid():
            raise ConfigError(f"{folder} is another user's: start the job again, which gives it another id")
        shutil.rmtree(folder)
    folder.mkdir()
    return folder


def _copy_code(paths: JobPaths, job: Job) -> None:
    shutil.copyfile(ROOT / "cluster/launch/onhost/slots.py", paths.slots_program)
    if not job.spec.program.is_built_in:
        shutil.copyfile(ROOT / "cluster/launch/onhost/rank.py", paths.rank_program)
        _copy_lent(paths.lib)
        paths.checkpoints.mkdir(exist_ok=True)
        if job.spec.code and not paths.code_archive.exists():
            put_code(paths.folder, job.spec.code)
    elif not paths.code.exists():
        fresh = paths.folder / ".code"
        shutil.rmtree(fresh, ignore_errors=True)
        shutil.copytree(ROOT / "trainer", fresh / "trainer", ignore=shutil.ignore_patterns("__pycache__", "*.pyc"))
        _copy_lent(fresh)
        fresh.rename(paths.code)
        _keep_difference(paths.folder / "code.diff")


def _keep_difference(file: Path) -> None:
    """Write the trainers' uncommitted changes to a file that only this user can read. Without git, write nothing."""
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        words = ["diff", "--no-color", "--no-ext-diff", "--no-textconv", "HEAD", "--", "trainer", "dlami"]
        git = ["git", "-c", f"safe.directory={ROOT}", "-C", str(ROOT)]
        said = subprocess.run([*git, *words], capture_output=True, timeout=10)
        if said.returncode == 0 and said.stdout:
            file.touch(mode=0o600)
            file.write_bytes(said.stdout)


def _copy_lent(folder: Path) -> None:
    """Copy the modules of `dlami` that ranks may import into a folder on their path."""
    (folder / "dlami").mkdir(parents=True, exist_ok=True)
    for name in ("__init__.py", "heartbeat.py", "job.py"):
        shutil.copyfile(ROOT / "dlami" / name, folder / "dlami" / name)


def _announced(job: Job) -> JobStatus:
    """Return the state of a job whose supervisor has not begun yet."""
    if job.waits_for_hosts:
        return JobStatus(state=JobState.QUEUED, attempt=job.attempt, started=now())
    return JobStatus(state=JobState.STARTING, attempt=job.attempt)


def _start(paths: JobPaths, job: Job) -> None:
    """Start the job's supervisor. If that fails, record the job as failed."""
    try:
        _start_supervisor(paths, _announced(job))
    except ClusterError as e:
        write_status(paths, JobStatus(state=JobState.FAILED, attempt=job.attempt, ended=now(), cause=str(e)))
        raise


def _start_supervisor(paths: JobPaths, status: JobStatus) -> None:
    """Start a supervisor in a new session, detached from the operator's connection, and give it the lease.

    status: the state in which it adopts the job. STARTING: with a planned attempt. QUEUED: with a job that waits.
    HEALING: after an attempt that will be followed by another.

    The supervisor waits for the lock that the caller holds, so its first write comes after this one.
    """
    environment = {k: v for k, v in os.environ.items() if k not in (RUN_TAG, JOB_TAG)}
    log = paths.logs(status.attempt) / "supervisor.log"
    try:
        with log.open("ab") as out, Path(os.devnull).open("rb") as nothing:
            child = subprocess.Popen(
                [sys.executable, "-m", "cluster.jobs.supervisor.supervise", str(paths.folder), str(status.attempt)],
                cwd=ROOT,
                stdin=nothing,
                stdout=out,
                stderr=out,
                start_new_session=True,
                close_fds=True,
                env=environment,
            )
        holder = process_id(child.pid)
        take_lease(paths, status.attempt, holder)
        write_status(paths, dataclasses.replace(status, supervisor=holder))
    except OSError as e:
        raise ClusterError(f"{paths.folder.name}: its supervisor did not start: {e.strerror or e}") from e
