"""Runs a trainer as attempt N of a job with a host for each rank: `two_hosts.py N MODULE FLAGS…`, or a script for MODULE.

Rank r's host is called `host r`, and its own disk is the folder `disk-r` beside the job's; the tests need no lab for that.
"""

import os
import runpy
import socket
import sys
from pathlib import Path

rank = os.environ["OMPI_COMM_WORLD_RANK"]
attempt, sys.argv = sys.argv[1], sys.argv[2:]
job = Path(sys.argv[sys.argv.index("--job-dir") + 1])
disk = job.with_name(f"disk-{rank}")
disk.mkdir(exist_ok=True)
os.environ |= {
    "DLAMI_JOB": job.name,
    "DLAMI_JOB_FOLDER": str(job),
    "DLAMI_ATTEMPT": attempt,
    "DLAMI_LOCAL_DISK": str(disk),
}
socket.gethostname = lambda: f"host{rank}"
if sys.argv[0].endswith(".py"):
    runpy.run_path(sys.argv[0], run_name="__main__")
else:
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
