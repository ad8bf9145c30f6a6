"""`inv hosts.forgive`: forgets hosts' failures. Works from any machine: the master reads and writes the records."""

import dataclasses
import json
import shlex
import time
from collections.abc import Sequence

from cluster.errors import ClusterError, NothingToDo
from cluster.health.failed_before import memory_of
from cluster.health.questions import failures_question, put_questions
from cluster.hosts import Host
from cluster.hostset import fold
from cluster.inventory import Cluster
from cluster.recovery.host_failures import FOLDER, FailureRecord, HostFailures, failures, file_name, pardon
from cluster.ssh.fanout import Executor
from cluster.ssh.limits import Limits

_LIMITS = Limits(connect_s=5, total_s=15)


def remembered(reach: Executor, cluster: Cluster) -> HostFailures:
    """Return the recorded failures of the cluster's hosts. Raises ClusterError if the master does not answer."""
    master, asked = cluster.master, [[failures_question(cluster.shared, cluster.project)]]
    answers, silent = put_questions(reach, [master], lambda _: asked, limits=_LIMITS)
    if silent:
        raise ClusterError(f"the master {master} does not say which hosts failed: {silent[master].what}")
    return memory_of(answers[master])


def forgive(reach: Executor, cluster: Cluster, hosts: Sequence[Host], *, dry_run: bool) -> dict[str, list[str]]:
    """Forgive these hosts' failures. Return the failures by address. dry_run: only return what would be forgiven.

    Raises NothingToDo if no failure of these hosts is on record.
    """
    memory, now = remembered(reach, cluster), time.time()
    found = {h.address: f for h in hosts if (f := failures(memory.entries, now).get(h.address))}
    if not found:
        raise NothingToDo(f"nothing is on record of {fold(h.address for h in hosts)} in the last 7 days")
    if not dry_run:
        _write(reach, cluster, [pardon(memory.entries, address, now) for address in found])
    return {address: [str(f) for f in each] for address, each in found.items()}


def _write(reach: Executor, cluster: Cluster, entries: Sequence[FailureRecord]) -> None:
    """Write entries to the shared folder, each atomically."""
    words = [f"cd {shlex.quote(cluster.shared)}", f"{{ [ -d {FOLDER} ] || mkdir -m 1777 {FOLDER}; }}", f"cd {FOLDER}"]
    for entry in entries:
        name, text = shlex.quote(file_name(entry)), shlex.quote(json.dumps(dataclasses.asdict(entry)))
        words += [f"printf %s {text} > .{name}", f"mv .{name} {name}"]
    result = reach.run([cluster.master], " && ".join(words), limits=_LIMITS)[cluster.master]
    if not result.ok:
        raise ClusterError(f"the master {cluster.master} could not write it into {cluster.shared}: {result.problem}")
