"""The end of a run whose `inv run` was killed and could not end it: a shell waits beside it and does that then.

It reads from a pipe that only `inv run` holds. A word there says that all is over; an end without one says that nobody
is left to end the run's processes on the hosts.
"""

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence

from cluster.hosts import Host
from cluster.inventory import ROOT, Cluster, load_cluster
from cluster.ssh.ending import end_processes
from cluster.ssh.fanout import Reach

_WAIT = 'read -r over || exec "$@"'


@contextlib.contextmanager
def guarded(cluster: Cluster, hosts: Sequence[Host], run_id: str, *, sudo: bool) -> Iterator[None]:
    """While it lasts, the death of this process ends the run's processes on the hosts."""
    words = [sys.executable, "-m", "cluster.run.guard", run_id, str(int(sudo)), *(str(h.rank) for h in hosts)]
    waiting = subprocess.Popen(
        ["/bin/sh", "-c", _WAIT, "dlami-guard", *words],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        cwd="/",
        env={**os.environ, "PYTHONPATH": str(ROOT), "CLUSTER": str(cluster.folder)},
        start_new_session=True,  # Ctrl-C is not for it
    )
    assert waiting.stdin
    try:
        yield
    finally:
        with contextlib.suppress(BrokenPipeError):
            waiting.stdin.write(b"over\n")
            waiting.stdin.close()
        waiting.wait()


def main(run_id: str, sudo: str, ranks: Sequence[str]) -> None:
    """End what is left of a run on the hosts of these ranks."""
    cluster = load_cluster()
    with Reach(cluster) as reach:
        end_processes(reach, [h for h in cluster.hosts if str(h.rank) in ranks], run_id, sudo=sudo == "1")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3:])
