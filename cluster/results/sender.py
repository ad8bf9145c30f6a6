"""Results sent while a job goes on, and after its end: by a process of its own, for which no supervisor waits."""

import contextlib
import os
import subprocess
import sys

from cluster.inventory import ROOT
from cluster.jobs.record import ATTEMPT_TAG, FOLDER_TAG, JOB_TAG, Job, JobPaths


def send_beside(job: Job, paths: JobPaths) -> None:
    """Have a job's results sent as they are now, if they are to be; returns at once.

    What became of them is in the job's folder afterwards. Processes of one job take turns.
    """
    if not job.results:
        return
    own = {k: v for k, v in os.environ.items() if k not in (JOB_TAG, FOLDER_TAG, ATTEMPT_TAG)}
    with contextlib.suppress(OSError):  # this machine has no room for one more process
        subprocess.Popen(
            [sys.executable, "-m", "cluster.results.send", str(paths.folder)],
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env=own,
            start_new_session=True,  # it goes on when the supervisor has ended
        )
