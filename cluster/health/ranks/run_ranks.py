"""Short MPI run on free hosts, started as a training would be. It leaves nothing behind."""

import json
import secrets
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from cluster.errors import ClusterError
from cluster.hosts import Host, hostfile
from cluster.inventory import Cluster
from cluster.jobs.record import JOB_TAG
from cluster.launch.facts import HostFacts, survey
from cluster.launch.mpirun import JobTags, Launch, command_line, plan_launch, ranks_on, session_folders
from cluster.recovery.cause import Cause, read_cause
from cluster.recovery.failure_kinds import FailureKind
from cluster.ssh import tagged_processes
from cluster.ssh.fanout import Executor
from cluster.ssh.limits import Limits


@dataclass(frozen=True, kw_only=True)
class RanksRun:
    """Result of an MPI run: the ranks' output, and the cause if it failed."""

    rows: tuple[dict[str, Any], ...]  # JSON objects in the output
    text: str  # the whole output
    cause: Cause | None  # cause of the failure, None if it succeeded
    launch: Launch | None
    facts: HostFacts | None  # of the first host


def run_ranks(
    reach: Executor, cluster: Cluster, hosts: Sequence[Host], words: Sequence[str], limit_s: float
) -> RanksRun:
    """Run a command with one rank per slot of these hosts, started from the master."""
    results, facts = survey(reach, cluster, tuple(dict.fromkeys((cluster.master, *hosts))))
    try:
        results.check()
        launch = plan_launch(hosts, facts, master=cluster.master)
    except ClusterError as e:
        refused = Cause(kind=FailureKind.LAUNCH, text=str(e).splitlines()[0])
        return RanksRun(rows=(), text="", cause=refused, launch=None, facts=None)
    tag = f"health-{secrets.token_hex(4)}"
    path = f"/tmp/dlami-{tag}.hosts"
    mpirun = command_line(launch, words, hostfile=path, workdir=cluster.project, job=JobTags(id=tag))
    command = f"cat > {path}; {shlex.join(mpirun)} 2>&1 </dev/null"
    result = reach.run(
        [cluster.master],
        command,
        stdin=hostfile(launch.hosts).encode(),
        limits=Limits(total_s=limit_s),
        environment={JOB_TAG: tag},
    )[cluster.master]
    cause, clean = None, f"rm -rf {path} {session_folders(tag)}.*"
    ending = clean if result.ok else f"{tagged_processes.end_script(JOB_TAG, tag, 1)}; {clean}"
    reach.run(tuple(dict.fromkeys((cluster.master, *hosts))), ending, limits=Limits(connect_s=5, total_s=15))
    if not result.ok:
        rank_hosts = [h.address for h, n in ranks_on(launch.hosts, launch.np).items() for _ in range(n)]
        cause = (
            Cause(kind=FailureKind.HANG, text=f"mpirun {result.error}")
            if result.exit_code is None
            else read_cause(result.text, result.exit_code, dict(enumerate(rank_hosts)))
        )
    return RanksRun(
        rows=tuple(_rows(result.text)), text=result.text, cause=cause, launch=launch, facts=facts[launch.hosts[0]]
    )


def _rows(text: str) -> list[dict[str, Any]]:
    """Return the JSON objects in the lines that mpirun tags with the rank."""
    rows = []
    for line in text.splitlines():
        said = line.partition(">:")[2]
        if said.startswith("{"):
            try:
                rows.append(json.loads(said))
            except ValueError:
                continue
    return rows
