"""The end of a job, asked for: the trainer saves, every process goes, and hosts are looked at for what is left."""

import contextlib
import dataclasses
import os
import signal
from pathlib import Path

from cluster.errors import ClusterError, NothingToDo
from cluster.jobs.record import State, find, is_alive, now, read_job, read_state, write_state
from cluster.jobs.supervise import STOP_GRACE_S, sweep
from cluster.ssh.fanout import wait_until


def stop(folder: Path, which: str) -> tuple[str, State]:
    """End a job on every host; its id and its last state. Raises NothingToDo if it has ended and nothing of it is left.

    With a supervisor, that one does it: ranks save and leave, then are ended. Without, what carries the job's id in its
    environment is ended from here.
    """
    paths = find(folder, which)
    job, state = read_job(paths), read_state(paths)
    if state.is_going and state.supervisor is None:  # submitted this moment
        wait_until(lambda: read_state(paths).supervisor is not None or not read_state(paths).is_going, 10)
        state = read_state(paths)
    if state.is_going and state.supervisor and is_alive(state.supervisor):
        with contextlib.suppress(ProcessLookupError):
            os.kill(state.supervisor.pid, signal.SIGTERM)
        if not wait_until(lambda: not read_state(paths).is_going, STOP_GRACE_S + 60, pause_s=0.1):
            raise ClusterError(
                f"{job.id} did not stop: its supervisor hangs; end its process {state.supervisor.pid} "
                "on the master, then stop the job again"
            )
        return job.id, read_state(paths)
    left = sweep(job.hosts, job.id)
    if not state.holds_hosts and not left:
        raise NothingToDo(f"{job.id} has ended ({state.state}), and nothing of it is left on any host")
    return job.id, write_state(paths, dataclasses.replace(state, state="stopped", ended=now(), left=left))
