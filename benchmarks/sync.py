"""Code of 2,000 files to jobs on 17 lab hosts, beside an earlier revision, whole `train.run`s in alternating rounds.

`BEFORE=/path/of/the/other/checkout python benchmarks/sync.py [TIMES [FILES]]`, as root; the other one installed as this
one is. Results for other numbers of files stay: 0a3bf84 ran 2,001 files on the hosts' own disks. The files have 20 kB
of text each, and every link carries 200 Mbit/s each way. A run starts a job of one rank per host that does nothing, and
waits for its end. It is measured with new code and with code that is there, on a cluster with a shared folder and on
one without. The folder that lab hosts share is one of this machine, so a file server's time for each file is not in it.
All hosts' disks and processors are this machine's, too: unpacking on 17 hosts at once takes what 17 times one takes.
"""

import base64
import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks import rounds  # noqa: E402
from cluster.inventory import Cluster, load_cluster  # noqa: E402
from lab import lab as labs  # noqa: E402
from cluster.ssh import connections  # noqa: E402
from cluster.ssh.fanout import Executor  # noqa: E402

LAB = "bsync"
HOSTS, BYTES, MBIT = 17, 20_000, 200
NOISE = 1.15
UNSHARED = "/root/unshared"
CLEAN = f"rm -rf /root/.cache/dlami-cluster/code/* {{shared}}/code {{shared}}/jobs {UNSHARED}; mkdir -p {UNSHARED}"


def main(times: int = 3, files: int = 2000) -> None:
    """Measure both revisions, alternating, and write results/sync.json."""
    before = Path(os.environ.get("BEFORE", ""))
    if not (before / ".venv/bin/python").exists():
        raise SystemExit("set BEFORE to the folder of another checkout that is installed")
    folders = {"now": ROOT, f"before ({revision(before)})": before}
    rows: list[dict[str, Any]] = []
    lab = labs.up(LAB, HOSTS, 1)
    with tempfile.TemporaryDirectory() as made:
        write_code(Path(made) / "code", files)
        try:
            cluster = load_cluster(f"lab:{LAB}")
            with Executor(cluster) as reach:
                for host in lab.hosts:
                    labs.slow(lab, host, mbit=MBIT, delay_ms=None)
                for where in ("a shared folder", "no shared folder"):
                    label = f"{HOSTS} hosts, {where}, {files:,} files of {BYTES // 1000} kB"
                    rows += compared(reach, cluster, Path(made), folders, label, times)
        finally:
            connections.disconnect()
            labs.down(LAB)
    others = [r for r in json.loads((rounds.RESULTS / "sync.json").read_text()) if f" {files:,} files" not in r["what"]]
    rounds.write("sync", rows + others)


def compared(
    reach: Executor, cluster: Cluster, made: Path, folders: dict[str, Path], label: str, times: int
) -> list[dict[str, Any]]:
    """Rows of a cluster with or without a shared folder: a first job with new code, and a second one with the same."""
    seconds: dict[str, rounds.Runs] = {"new code": {}, "the same code again": {}}
    sent: dict[str, list[float]] = {what: [] for what in seconds}
    for _ in range(times):
        for name, folder in folders.items():
            reach.run(cluster.hosts, CLEAN.format(shared=cluster.shared)).check()
            settings = cluster_of(cluster, folder, made / folder.name, is_shared="no shared folder" not in label)
            for what, runs in seconds.items():
                took, said = job(folder, settings, made / "code")
                runs.setdefault(name, []).append(took)
                if name == "now":
                    sent[what].append(megabytes(said))
    now, other = folders
    return [
        *(rounds.row(runs, now, other, NOISE, label=f"{label}: a job of {what}") for what, runs in seconds.items()),
        *(rounds.row({now: sent[what]}, now, label=f"{label}: sent for {what}", unit="MB") for what in seconds),
    ]


def cluster_of(cluster: Cluster, checkout: Path, folder: Path, *, is_shared: bool) -> Path:
    """The lab's cluster with this checkout as its project, in a folder of its own."""
    folder.mkdir(exist_ok=True)
    for path in cluster.folder.iterdir():
        if path.is_file():
            (folder / path.name).write_bytes(path.read_bytes())
    text = re.sub(r"(?m)^project = .*$", f'project = "{checkout}"', (folder / "cluster.toml").read_text())
    if not is_shared:
        text = 'shared_by = "master"\n' + re.sub(r"(?m)^shared = .*$", f'shared = "{UNSHARED}"', text)
    (folder / "cluster.toml").write_text(text)
    return folder


def job(checkout: Path, settings: Path, code: Path) -> tuple[float, str]:
    """Seconds of a job that does nothing, from the command to its end, and what the command said."""
    words = [str(checkout / ".venv/bin/python"), "-m", "dlami.program", "train.run", "--per", "node", "--no-heal"]
    environment = {**os.environ, "CLUSTER": str(settings), "PYTHONPATH": str(checkout)}
    with tempfile.TemporaryFile("w+") as said:
        script = 'said=$1; shift; exec "$@" >&"$said" 2>&1'
        shell = ["bash", "-c", script, "bash", str(said.fileno()), *words, "--unchecked", "--", "true"]
        took = rounds.seconds_of(shell, cwd=code, env=environment, pass_fds=(said.fileno(),))
        said.seek(0)
        return took, said.read()


def megabytes(said: str) -> float:
    """How much of the code was sent to the master, by the command's own words."""
    found = re.search(r"^code: ([\d,]+) bytes sent$", said, re.MULTILINE)
    return int(found[1].replace(",", "")) / 1e6 if found else 0.0


def write_code(folder: Path, files: int) -> None:
    """A repository of text that does not compress well."""
    folder.mkdir()
    for n in range(files):
        (folder / f"part{n // 100}").mkdir(exist_ok=True)
        text = base64.encodebytes(os.urandom(BYTES))[:BYTES]
        (folder / f"part{n // 100}/module{n}.py").write_bytes(text)
    git = ["git", "-c", "user.name=x", "-c", "user.email=x@example.org"]
    for words in (["init", "-q"], ["add", "."], ["commit", "-qm", "all"]):
        subprocess.run([*git, *words], cwd=folder, check=True)


def revision(folder: Path) -> str:
    """The short name of a checkout's commit."""
    words = ["git", "-C", str(folder), "rev-parse", "--short", "HEAD"]
    return subprocess.run(words, capture_output=True, text=True, check=True).stdout.strip()


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
