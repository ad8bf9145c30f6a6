"""One attempt of a job, watched to its end: mpirun started, its end explained, nothing of it left on any host.

Runs on the master, detached: `python -m cluster.jobs.supervise JOBFOLDER`.
"""

import dataclasses
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterable
from pathlib import Path
from types import FrameType

from cluster.hosts import Host
from cluster.inventory import Cluster
from cluster.jobs.cause import Cause, read_cause
from cluster.jobs.record import JOB_TAG, Job, JobPaths, State, now, read_job, read_state, this_process, write_state
from cluster.launch.mpirun import ranks_on
from cluster.ssh import tagged
from cluster.ssh.fanout import Reach
from cluster.ssh.limits import Limits
from cluster.ssh.options import agent_command, way_to

STOP_GRACE_S = 30  # for the trainer to save and leave
_CONSOLE_TAIL = 1 << 20


def supervise(paths: JobPaths) -> State:
    """Run the attempt that `state.json` announces, and say in it how it ended."""
    job, asked = read_job(paths), threading.Event()

    def on_term(_signal: int, _frame: FrameType | None) -> None:
        asked.set()

    signal.signal(signal.SIGTERM, on_term)
    state = dataclasses.replace(read_state(paths), state="running", supervisor=this_process(), started=now())
    write_state(paths, state)
    try:
        exit_code = _run(paths, job, state, asked)
        cause = _cause(paths, job, state, exit_code)
    except Exception as e:
        _finish(paths, job, state, "failed", None, Cause(text=f"the supervisor failed: {type(e).__name__}: {e}"))
        raise
    ended = "stopped" if asked.is_set() else "succeeded" if exit_code == 0 else "failed"
    return _finish(paths, job, state, ended, exit_code, cause)


def sweep(hosts: Iterable[Host], job_id: str, grace_s: int = 2) -> tuple[str, ...]:
    """End what a job left on these hosts and on this one; says what it could not end or look at, with its host."""
    here = Host(rank=-1, address="localhost", slots=1)
    everywhere = (here, *(h for h in hosts if not h.is_local))
    with Reach(Cluster(name=job_id, hosts=everywhere, folder=Path(), shared="", project="")) as reach:
        script = tagged.end_script(JOB_TAG, job_id, grace_s)
        results = reach.run(everywhere, script, limits=Limits(connect_s=10, total_s=grace_s + 20))
    return tuple(
        f"{host}: {line}"
        for host, r in results.items()
        for line in ([r.problem] if not r.ok else r.text.strip().splitlines())
    )


def _run(paths: JobPaths, job: Job, state: State, asked: threading.Event) -> int:
    """mpirun from start to end; a stop that is asked for lets the trainer save first."""
    environment = {**_open_connections(job), **os.environ, JOB_TAG: job.id}
    with paths.console(state.attempt).open("ab") as console:
        mpirun = subprocess.Popen(
            job.mpirun,
            cwd=paths.folder,
            stdin=subprocess.DEVNULL,
            stdout=console,
            stderr=subprocess.STDOUT,
            env=environment,
            start_new_session=True,
        )
        while True:
            try:
                return mpirun.wait(0.2)
            except subprocess.TimeoutExpired:
                if asked.is_set():
                    write_state(paths, dataclasses.replace(state, state="stopping"))
                    return _stop(mpirun)


def _open_connections(job: Job) -> dict[str, str]:
    """Connect to the job's hosts, all at once, and say to mpirun how to start its daemons over these connections.

    It is told by its environment: the sockets are this machine's. What cannot be connected mpirun tries, and reports.
    """
    remote = [h for h in job.hosts if not h.is_local]
    if not remote:
        return {}
    cluster = Cluster(name=job.id, hosts=job.hosts, folder=Path(), shared="", project="")
    with Reach(cluster) as reach:
        reach.connect(remote)
    return {"OMPI_MCA_plm_rsh_agent": " ".join(agent_command(way_to(remote[-1], cluster.access)))}


def _stop(mpirun: "subprocess.Popen[bytes]") -> int:
    """USR1, which mpirun passes on to every rank: save and leave. TERM and KILL for those that do not."""
    for step, patience_s in ((signal.SIGUSR1, STOP_GRACE_S), (signal.SIGTERM, 10), (signal.SIGKILL, 10)):
        mpirun.send_signal(step)
        try:
            return mpirun.wait(patience_s)
        except subprocess.TimeoutExpired:
            continue
    return -signal.SIGKILL


def _cause(paths: JobPaths, job: Job, state: State, exit_code: int) -> Cause:
    with paths.console(state.attempt).open("rb") as console:
        console.seek(max(0, console.seek(0, os.SEEK_END) - _CONSOLE_TAIL))
        text = console.read().decode(errors="replace")
    hosts = [h.address for h, n in ranks_on(job.hosts, job.np).items() for _ in range(n)]
    return read_cause(text, exit_code, dict(enumerate(hosts)))


def _finish(paths: JobPaths, job: Job, state: State, ended: str, exit_code: int | None, cause: Cause) -> State:
    left = sweep(job.hosts, job.id)
    rank_log = ""
    if cause.rank is not None:
        found = sorted(paths.rank_logs(state.attempt).glob(f"*/rank.*{cause.rank}"))
        rank_log = next((str(p) for p in found if int(p.name.removeprefix("rank.")) == cause.rank), "")
    return write_state(
        paths,
        dataclasses.replace(
            state,
            state=ended,
            ended=now(),
            exit_code=exit_code,
            cause="" if ended == "stopped" else cause.text,
            rank=None if ended == "stopped" else cause.rank,
            host=cause.host,
            log=rank_log or str(paths.console(state.attempt)),
            left=left,
        ),
    )


if __name__ == "__main__":
    supervise(JobPaths(Path(sys.argv[1])))
