"""Background upload of results, during a job and after its end, in a process that no supervisor waits for."""

import contextlib
import os
import subprocess
import sys

from cluster.inventory import ROOT
from cluster.jobs.record import ATTEMPT_TAG, FOLDER_TAG, JOB_TAG, Job, JobPaths


def send_beside(job: Job, paths: JobPaths) -> None:
    """Start a background upload of the job's current results, if the job has a results URL. Returns at once.

    The process records the outcome in the job's folder. Uploads of one job take turns.
    """
    if not job.plan.results:
        return
    own = {k: v for k, v in os.environ.items() if k not in (JOB_TAG, FOLDER_TAG, ATTEMPT_TAG)}
    with contextlib.suppress(OSError):  # this machine cannot start one more process
        subprocess.Popen(
            [sys.executable, "-m", "cluster.results.send", str(paths.folder)],
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env=own,
            start_new_session=True,  # the upload continues after the supervisor's end
        )
