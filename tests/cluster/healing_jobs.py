"""Jobs on this machine that heal."""

import shutil
from typing import Any

from tests.cluster.jobs_here import HERE, a_job


def healing(script: str, job_id: str, **changes: Any) -> Any:
    """A job whose one rank is a shell script, and which may begin again by itself."""
    command = ("sh", "-c", script)
    mpirun = (str(shutil.which("mpirun")), "-np", "1", "--allow-run-as-root", "--tag-output", *command)
    terms = {"heal": True, "whole_np": 1, "whole_hosts": (HERE,)}
    return a_job("", job_id, **{"command": command, "mpirun": mpirun, **terms, **changes})


# Not before mpirun has seen it: a machine on which that takes long is as slow to start five programs.
LINGERS = "for n in 1 2 3 4 5; do sleep 0.1; done"


DIES = f"{LINGERS}; kill -9 $$"
