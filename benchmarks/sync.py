"""The operator's code to 16 lab hosts whose links carry 200 Mbit/s each way, beside the broadcast of as many bytes.

2,000 files of 20 kB of text, tracked by git, from this machine to the master's shared folder and to each worker's own
disk, where a job gets a copy of its own, as `train.run` does it; against `inv copy` of one file of as many bytes from
this machine, and of the same folder, whole processes in alternating runs. Then the same code, of which nothing has to
be sent: to the same job, as before its next attempt, and to a new one after that has ended. What is the least that can
be had is measured, too: a plain tar on all hosts at once, of an archive that they have, all on one machine's disk here.
As root: it makes a lab of its own.
"""

import base64
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks import rounds  # noqa: E402
from cluster.inventory import Cluster, load_cluster  # noqa: E402
from cluster.lab import lab as labs  # noqa: E402
from cluster.ssh import connections  # noqa: E402
from cluster.ssh.fanout import Reach  # noqa: E402
from cluster.sync.own_disk import keep  # noqa: E402
from cluster.sync.snapshot import take  # noqa: E402

LAB = "bsync"
HOSTS, FILES, BYTES, MBIT = 16, 2000, 20_000, 200
OWN_DISK = "/root/.cache/dlami-cluster/code"
DELIVER = """\
import sys
from pathlib import Path
from cluster.inventory import load_cluster
from cluster.ssh.fanout import Reach
from cluster.sync.deliver import deliver
from cluster.sync.own_disk import bring
from cluster.sync.snapshot import take
cluster = load_cluster()
with Reach(cluster) as reach:
    code = deliver(reach, cluster, take(Path.cwd()))
    bring(reach, cluster, cluster.hosts[1:], code.archive, code.content, sys.argv[1])
"""


def main(times: int = 5) -> None:
    """Measure, alternating, and write results/sync.json."""
    lab = labs.up(LAB, HOSTS + 1, 1)
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        write_code(folder / "code")
        (folder / "file").write_bytes(os.urandom(FILES * BYTES))
        try:
            cluster = load_cluster(f"lab:{LAB}")
            with Reach(cluster) as reach:
                reach.run(cluster.hosts, "true").check()
                for host in lab.hosts:
                    labs.slow(lab, host, mbit=MBIT, delay_ms=None)
                candidates = {
                    "inv copy": lambda: broadcast(reach, cluster, folder / "file"),
                    "code": lambda: code(reach, cluster, folder / "code", "first", is_new=True),
                    "again": lambda: code(reach, cluster, folder / "code", "first", is_new=False),
                    "job": lambda: code_of_next_job(reach, cluster, folder / "code"),
                    "tar": lambda: tar(reach, cluster, lab.shared, folder / "code"),
                    "folder": lambda: broadcast(reach, cluster, folder / "code"),
                }
                runs = rounds.rounds(candidates, times) | {"1 s": [1.0]}
        finally:
            connections.disconnect()
            labs.down(LAB)
    what = f"{HOSTS} hosts: code of {FILES:,} files of {BYTES // 1000} kB"
    rounds.write(
        "sync",
        [
            rounds.row(runs, "inv copy", label=f"{HOSTS} hosts: inv copy, one file of {FILES * BYTES // 10**6} MB"),
            rounds.row(runs, "code", "inv copy", 1.3, label=what),
            rounds.row(runs, "again", "1 s", 1.0, label=f"{what}, nothing changed, a job that has it"),
            rounds.row(runs, "job", "1 s", 1.0, label=f"{what}, nothing changed, a new job"),
            rounds.row(runs, "tar", "inv copy", label=f"{what}: tar -x of an archive that is there"),
            rounds.row(runs, "folder", "inv copy", label=f"{what}: inv copy of the folder"),
        ],
    )


def write_code(folder: Path) -> None:
    """A repository of text that does not compress well."""
    folder.mkdir()
    for n in range(FILES):
        (folder / f"part{n // 100}").mkdir(exist_ok=True)
        text = base64.encodebytes(os.urandom(BYTES))[:BYTES]
        (folder / f"part{n // 100}/module{n}.py").write_bytes(text)
    git = ["git", "-c", "user.name=x", "-c", "user.email=x@example.org"]
    for words in (["init", "-q"], ["add", "."], ["commit", "-qm", "all"]):
        subprocess.run([*git, *words], cwd=folder, check=True)


def broadcast(reach: Reach, cluster: Cluster, file: Path) -> float:
    """Seconds of `inv copy` of a file or folder that no host has."""
    words = [sys.executable, "-m", "dlami.program", "copy", str(file), "/root/copy", "--hosts", "@workers"]
    seconds = rounds.seconds_of(words, cwd="/", env=environment())
    reach.run(cluster.hosts, "rm -r /root/copy").check()  # before it is written to the disk that all of them share
    return seconds


def code(reach: Reach, cluster: Cluster, folder: Path, job: str, *, is_new: bool) -> float:
    """Seconds of the code's delivery to a job."""
    if is_new:
        reach.run(cluster.hosts, f"rm -rf {OWN_DISK} {cluster.shared}/code").check()
    return rounds.seconds_of([sys.executable, "-c", DELIVER, job], cwd=folder, env=environment())


def code_of_next_job(reach: Reach, cluster: Cluster, folder: Path) -> float:
    """Seconds of its delivery to another job once the first one has ended."""
    keep(reach, cluster.hosts[1:], take(folder).content, "first")
    return code(reach, cluster, folder, "second", is_new=False)


def tar(reach: Reach, cluster: Cluster, shared: Path, folder: Path) -> float:
    """Seconds of unpacking an archive of it on all workers at once."""
    subprocess.run(["tar", "-c", "--exclude=.git", "-f", shared / "code.tar", "."], cwd=folder, check=True)
    reach.run(cluster.hosts[1:], f"mkdir -p /root/tar && cp {cluster.shared}/code.tar /root/tar").check()
    began = time.perf_counter()
    reach.run(cluster.hosts[1:], "cd /root/tar && tar -xf code.tar").check()
    seconds = time.perf_counter() - began
    reach.run(cluster.hosts[1:], "rm -r /root/tar").check()
    return seconds


def environment() -> dict[str, str]:
    """An operator's, in whatever folder."""
    return {**os.environ, "CLUSTER": f"lab:{LAB}", "PYTHONPATH": str(ROOT)}


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
