"""An MPIJob on the lab's stand-in of Kubernetes, with the real kubectl: pods with names and keys, deaths, the end."""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cluster.inventory import ROOT
from lab import lab as labs
from lab.kube.kinds import kind
from tests.conftest import PATIENCE_S, wait_for
from tests.eks.pods import DEADLINE_S, Pods, mpijob, pods_of_lab

# Says who it is and where, goes to every worker by name, as mpirun's ssh would, and waits to be told the end.
LAUNCHER = """\
echo started as $(id -un) with $OMPI_MCA_orte_set_default_slots
echo "[*]:2222 $(cut -d' ' -f1,2 ~/.ssh/id_rsa.pub)" >/tmp/known
until [ -e /tmp/end ]; do
    while read -r host slots; do
        ssh -n -p 2222 -o UserKnownHostsFile=/tmp/known -o StrictHostKeyChecking=yes $OMPI_MCA_plm_rsh_args "$host" \\
            'echo "$(id -un) on $(hostname)"'
    done </etc/mpi/hostfile
    sleep 0.5
done
"""


@pytest.fixture(scope="module")
def pods(lab_allowed: None, kube: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pods]:
    name = f"k{os.getpid() % 10_000_000}"
    with pods_of_lab(kube.kubectl, tmp_path_factory.mktemp("kubectl"), name) as made:
        yield made
    assert not labs.is_anything_left(name)


def said(pods: Pods, job: str) -> list[str]:
    """The launcher's lines since its last start."""
    (pod,) = pods.pods_of(job, "launcher")
    return pods("logs", pod["metadata"]["name"], check=False).splitlines()


def uid_of(pods: Pods, pod: str) -> str:
    return str(pods.get("pod", pod)["metadata"]["uid"])


def test_a_job_runs_and_its_pods_are_replaced_as_the_operator_does(pods: Pods) -> None:
    """Names, keys and strict host keys lead to workers on 2222; a killed container comes back in its pod, a deleted
    worker as a new pod of the same name; the launcher starts again in place and at its end the workers are gone."""
    pods.create(mpijob("net", ["bash", "-c", LAUNCHER], backoffLimit=3))
    pods.wait_for_condition("net", "Running")
    wait_for(lambda: {"dlami on net-worker-0", "dlami on net-worker-1"} <= set(said(pods, "net")), DEADLINE_S, "ssh")
    assert "started as dlami with 1" == said(pods, "net")[0]
    first, second = uid_of(pods, "net-worker-0"), uid_of(pods, "net-worker-1")

    pods.kube.nodes.crash("dlami", "net-worker-0")
    wait_for(lambda: restarts(pods, "net-worker-0") == 1, DEADLINE_S, "the container's second start")
    pods("delete", "pod", "net-worker-1", "--grace-period=1")
    wait_for(lambda: uid_of_or_none(pods, "net-worker-1") not in ("", second), DEADLINE_S, "a second worker 1")
    assert first == uid_of(pods, "net-worker-0")

    (launcher,) = pods.pods_of("net", "launcher")
    name = launcher["metadata"]["name"]
    pods.kube.nodes.crash("dlami", name)
    wait_for(lambda: restarts(pods, name) == 1, DEADLINE_S, "the launcher's second start")
    wait_for(lambda: {"dlami on net-worker-0", "dlami on net-worker-1"} <= set(said(pods, "net")), DEADLINE_S, "ssh")
    assert "started as dlami" in pods("logs", name, "--previous")

    pid = pods.kube.nodes.container("dlami", name).pid()
    subprocess.run(["nsenter", "--target", str(pid), "--all", "touch", "/tmp/end"], check=True, timeout=PATIENCE_S)
    pods.wait_for_condition("net", "Succeeded")
    wait_for(lambda: pods.pods_of("net", "worker") == [], DEADLINE_S, "workers gone")
    assert {"Created": "True", "Running": "False", "Succeeded": "True"} == {
        c["type"]: c["status"] for c in pods.get("mpijob", "net")["status"]["conditions"]
    }
    pods("delete", "mpijob", "net")
    wait_for(lambda: left_of(pods, "net") == [], DEADLINE_S, "what it owned is gone with it")


def test_lab_kube_serves_until_ctrl_c_and_leaves_nothing(lab_allowed: None, kube: Any, tmp_path: Path) -> None:
    """`inv lab.kube` says how to use it; kubectl finds its nodes there; after Ctrl-C nothing is left."""
    name = f"n{os.getpid() % 10_000_000}"
    words = [sys.executable, "-m", "invoke", "lab.kube", "--name", name, "--nodes", "2"]
    with subprocess.Popen(words, cwd=ROOT, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout
            config = re.findall(r"^export KUBECONFIG=(\S+) ", server.stdout.readline())[0]
            asked = [str(kube.kubectl), "--kubeconfig", config, "get", "nodes", "--output", "name"]
            clean = {**os.environ, "KUBECACHEDIR": str(tmp_path)}
            found = subprocess.run(asked, env=clean, capture_output=True, text=True, timeout=DEADLINE_S)
            assert 2 == len(found.stdout.split()), found.stderr
        finally:
            server.send_signal(signal.SIGINT)
        assert 0 == server.wait(DEADLINE_S)
    assert not labs.is_anything_left(name)


def restarts(pods: Pods, pod: str) -> int:
    (status,) = pods.get("pod", pod)["status"]["containerStatuses"]
    return int(status["restartCount"]) if "running" in status["state"] else 0


def uid_of_or_none(pods: Pods, pod: str) -> str:
    return str(pods.get("pod", pod).get("metadata", {}).get("uid", ""))


def left_of(pods: Pods, job: str) -> list[str]:
    kinds = [kind(k) for k in ("Pod", "Job", "Service", "ConfigMap", "Secret")]
    return [d["metadata"]["name"] for k in kinds for d in pods.kube.store.listed(k) if job in d["metadata"]["name"]]
