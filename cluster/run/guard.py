"""Watcher that ends a run on the hosts if its `inv run` was killed: a shell that waits beside it.

The shell reads from a pipe that only `inv run` holds. A line means that the run is over. If the pipe closes without
one, `inv run` has died, and the shell ends the run's processes on the hosts.
"""

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence

from cluster.hosts import Host
from cluster.inventory import ROOT, Cluster, load_cluster
from cluster.ssh.fanout import Executor
from cluster.ssh.terminate import end_processes

_WAIT = 'read -r over || exec "$@"'


@contextlib.contextmanager
def guarded(cluster: Cluster, hosts: Sequence[Host], run_id: str, *, sudo: bool) -> Iterator[None]:
    """Guard a run: until the context ends, the death of this process ends the run's processes on the hosts."""
    words = [sys.executable, "-m", "cluster.run.guard", run_id, str(int(sudo)), *(str(h.rank) for h in hosts)]
    waiting = subprocess.Popen(
        ["/bin/sh", "-c", _WAIT, "dlami-guard", *words],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        cwd="/",
        env={**os.environ, "PYTHONPATH": str(ROOT), "CLUSTER": str(cluster.folder)},
        start_new_session=True,  # Ctrl-C must not end it
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
    """End the remaining processes of a run on the hosts of these ranks."""
    cluster = load_cluster()
    with Executor(cluster) as reach:
        end_processes(reach, [h for h in cluster.hosts if str(h.rank) in ranks], run_id, sudo=sudo == "1")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3:])
