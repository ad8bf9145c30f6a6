"""Somebody with a cluster file, `inv` and the real kubectl, whose Kubernetes is the lab's."""

import contextlib
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

from cluster.inventory import ROOT
from eks.base import access
from eks.cluster import load_eks
from eks.volumes import folders, storage
from tests.conftest import wait_for
from tests.eks.pods import DEADLINE_S, NAMESPACE, Pods, pods_of_lab

LIMIT_S = 850.0
CLUSTER_FILE = f"""\
name = "lab"
shared = "/shared"

[nodes]
instance_type = "g5.xlarge"
workers = 1

[eks]
namespace = "{NAMESPACE}"
image = "registry.example/dlami-cluster:test"
efs = "fs-0123456789abcdef0"
shm_gib = 1
local = "/mnt/disks"
"""


class Operator:
    """Somebody with a cluster file, `inv` and kubectl."""

    def __init__(self, pods: Pods, folder: Path) -> None:
        self.pods, self.folder = pods, folder

    @property
    def shared(self) -> Path:
        return self.pods.kube.lab.shared

    def __call__(self, *words: object, folder: Path = ROOT) -> "subprocess.CompletedProcess[str]":
        return dlami(words, folder, {**self.pods.environment, "CLUSTER": str(self.folder)})

    def started(self, *words: object, folder: Path = ROOT) -> str:
        """The id of a job that is started and left to itself."""
        done = self(*words[:1], "--detach", *words[1:], folder=folder)
        assert 0 == done.returncode, done.stderr
        return re.findall(r"^job ([\w-]+):", done.stderr, re.MULTILINE)[0]

    def job(self, said: str) -> Path:
        """The folder of the job that a task said it has started."""
        return self.shared / "jobs" / re.findall(r"^job ([\w-]+):", said, re.MULTILINE)[0]


def dlami(words: Iterable[object], folder: Path, environment: dict[str, str]) -> "subprocess.CompletedProcess[str]":
    """Our command line as somebody types it in a folder of his own."""
    return subprocess.run(
        [sys.executable, "-m", "dlami.program", *map(str, words)],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        env={**environment, "PYTHONPATH": str(ROOT)},
    )


@contextlib.contextmanager
def operator_of_pods(kubectl: Path, folder: Path, name: str) -> Iterator[Operator]:
    """One for a `with`, with accounts and volumes that are as `inv eks.render` has them."""
    (folder / "cluster.toml").write_text(CLUSTER_FILE)
    with pods_of_lab(kubectl, folder, name) as pods:
        cluster = load_eks(str(folder))
        made = folders(cluster)
        pods.create(*access(cluster), *storage(cluster), made)
        name = made["metadata"]["name"]
        wait_for(lambda: pods.get("job", name)["status"].get("succeeded") == 1, DEADLINE_S, "the folders' Job")
        yield Operator(pods, folder)
