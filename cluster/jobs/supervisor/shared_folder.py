"""Check that a job's folder can be used: that it is writable here and visible on the job's hosts."""

import contextlib
import os
import shlex
import tempfile
from pathlib import Path

from cluster.folder_thread import FolderThread, Unanswered
from cluster.jobs.cleanup import cluster_of_job
from cluster.jobs.record import Job, JobPaths
from cluster.ssh.fanout import Executor
from cluster.ssh.limits import Limits
from cluster.ssh.noise_filter import marked, output_between_marks

_ANSWER_S = 10.0
_ENOUGH = 1 << 16  # bytes, enough for a record and a log for a while


def trouble_here(folder: FolderThread, paths: JobPaths) -> str:
    """Return why the job's folder cannot be written on this machine; "" if it can."""
    try:
        return folder.do(lambda: _trouble(paths), "probe")
    except Unanswered as e:
        return str(e.strerror)


def _trouble(paths: JobPaths) -> str:
    try:
        handle, name = tempfile.mkstemp(dir=paths.folder, prefix=".probe-")
        try:
            os.write(handle, b"\0" * _ENOUGH)
            os.fsync(handle)
        finally:
            os.close(handle)
            with contextlib.suppress(OSError):
                Path(name).unlink()
    except OSError as e:
        return e.strerror or str(e)
    return ""


def hosts_without(job: Job, paths: JobPaths) -> tuple[str, ...]:
    """Return the addresses of the hosts that answer but do not see the job's record, so lack the shared folder."""
    hosts = [h for h in job.hosts if not h.is_local]
    if not hosts:
        return ()
    command = marked(f"test -e {shlex.quote(str(paths.public))} && echo seen || echo not seen")
    with Executor(cluster_of_job(hosts, job.id)) as reach:
        results = reach.run(hosts, command, limits=Limits(connect_s=5, total_s=_ANSWER_S))
    return tuple(h.address for h, r in results.items() if (output_between_marks(r) or "").strip() == "not seen")
