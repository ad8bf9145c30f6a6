"""What a cluster on EKS will have cost: its launchers are asked by the real kubectl how far their trainings are."""

import contextlib
import json
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cfn import cost, prices
from cfn.aws import Aws
from cluster.jobs.process import this_process
from cluster.jobs.record import JobPaths, JobStatus, now, write_job
from cluster.jobs.state import JobState
from cluster.jobs.status import write_status
from dlami.tasks import cost_actions
from eks.document import CLUSTER, JOB
from eks.progress import PORT, serve_progress
from eks.stack import life
from eks.stack import plan as eks_plan
from eks.stack import status as eks_status
from lab.kube.kinds import kind
from lab.kube.server import ApiServer
from lab.kube.store import Store
from tests.cfn.conftest import cluster
from tests.cluster.jobs_here import a_job
from tests.eks.few_pods import FewPods
from tests.eks.strict import TOOLS, KubeTools

FILE = """\
name = "demo"
[nodes]
workers = 1
capacity = "{}"
[access]
ssh_from = "{}"
[eks]
image = "registry.example/dlami:1"
"""


class Launchers(FewPods):
    """Each with its own port of this machine's loopback in the place of the one that all have in their pods."""

    def __init__(self, file: Path) -> None:
        super().__init__(file)
        self.ports: dict[str, int] = {}

    def connected(self, namespace: str, pod: str, port: int) -> socket.socket:
        assert PORT == port
        return super().connected(namespace, pod, self.ports[pod])


class Trainings:
    """Trainings on a Kubernetes of which each has a launcher and a folder."""

    def __init__(self, folder: Path) -> None:
        self._folder, self.store, self.launchers = folder, Store(), Launchers(folder / "log")
        self._open = contextlib.ExitStack()
        self._api = ApiServer(self.store, self.launchers, folder, "api")
        self.kubeconfig = self._api.kubeconfig
        self.store.create(kind("Namespace"), "", {"metadata": {"name": "dlami"}})

    def add(self, name: str, left_steps: int) -> None:
        """One that takes 10 s a step, and runs."""
        labels = {CLUSTER: "demo", JOB: name}
        spec = {"mpiReplicaSpecs": {"Worker": {"replicas": 2}}}
        runs = {"conditions": [{"type": "Running", "status": "True"}]}
        self.store.create(
            kind("MPIJob"), "dlami", {"metadata": {"name": name, "labels": labels}, "spec": spec, "status": runs}
        )
        pod = {"name": f"{name}-launcher", "labels": {**labels, "dlami/role": "launcher"}}
        self.store.create(
            kind("Pod"),
            "dlami",
            {"metadata": pod, "spec": {"containers": [{"name": "l", "image": "i"}]}, "status": {"phase": "Running"}},
        )
        self.launchers.ports[pod["name"]] = self._open.enter_context(
            serve_progress(self._job(name, left_steps), port=0)
        )

    def _job(self, name: str, left_steps: int) -> JobPaths:
        paths = JobPaths(self._folder / "jobs" / name)
        paths.folder.mkdir(parents=True)
        write_job(paths, a_job("exit 0", name, steps=11 + left_steps))
        write_status(paths, JobStatus(state=JobState.RUNNING, started=now(), supervisor=this_process()))
        at = time.time()
        rows = ({"kind": "train", "step": step, "time": at + 10 * (step - 10)} for step in range(11))
        paths.metrics.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
        return paths

    def close(self) -> None:
        self._open.close()
        self._api.close()


@pytest.fixture
def trainings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Trainings]:
    if not TOOLS.is_dir():
        pytest.skip("kubectl is not here: scripts/install-kube.sh gets it")
    made = Trainings(tmp_path)
    monkeypatch.setenv("KUBECONFIG", str(made.kubeconfig))
    monkeypatch.setenv("KUBECACHEDIR", str(tmp_path / "cache"))
    monkeypatch.setenv("DLAMI_KUBECTL", str(KubeTools(TOOLS).kubectl))
    yield made
    made.close()


@pytest.mark.parametrize(("capacity", "usd_per_hour"), [("on-demand", 20.1), ("spot", 8.1)])
def test_the_forecast_is_by_the_training_that_goes_on_longest(
    capacity: str, usd_per_hour: float, account: Aws, scene: Any, trainings: Trainings, tmp_path: Path,
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """What was spent, and an hour more of nodes and control plane; where a launcher is silent there is none, and why."""
    scene("prices", {"g5.12xlarge": 10.0})
    scene("spot_prices", {"g5.12xlarge": 4.0})
    file = cluster(workers=1, capacity=capacity)
    life.make(account, eks_plan.make(account, file), lambda _: None)
    path = tmp_path / "cluster.toml"
    path.write_text(FILE.format(capacity, file.access.ssh_from))

    def said(no_jobs: bool = False) -> tuple[dict[str, Any], str]:
        cost_actions.show_cost(str(path), no_jobs, True)
        out, err = capsys.readouterr()
        return json.loads(out), err

    assert (None, "") == (said()[0]["forecast"], said()[1]), "nothing goes on"
    trainings.add("long-1", 360)
    trainings.add("short-1", 180)
    found, _ = said()
    assert pytest.approx(usd_per_hour) == found["usd_per_hour"]
    then = found["usd"] + found["usd_per_hour"]
    assert {"job": "long-1", "left_s": pytest.approx(3600), "usd": pytest.approx(then)} == found["forecast"]
    assert pytest.approx(usd_per_hour) == eks_status.read_status(account, file).usd_per_hour
    cost_actions.show_cost(str(path), False, False)
    assert "forecast  " in (words := capsys.readouterr().out) and "USD when long-1 is done, in 1.0 hours" in words

    with socket.create_server(("127.0.0.1", 0)) as nobody:
        trainings.launchers.ports["long-1-launcher"] = nobody.getsockname()[1]
    found, err = said()
    assert found["forecast"] is None
    assert "no forecast: Kubernetes cannot be asked how far its trainings are: long-1-launcher does not say" in err
    assert (None, "") == (said(no_jobs=True)[0]["forecast"], said(no_jobs=True)[1]), "nobody was asked"
    monkeypatch.setenv("DLAMI_KUBECTL", "/nowhere/kubectl")
    assert "no forecast: Kubernetes cannot be asked" in (err := said()[1]) and "/nowhere/kubectl" in err


def test_a_capacity_block_costs_nothing_by_the_hour(account: Aws, scene: Any) -> None:
    """It was paid in advance: on EKS as for the bare cluster only a price of the file's counts."""
    scene("prices", {"g5.12xlarge": 10.0})
    block = cluster(workers=1, capacity="capacity-block", reservation="cr-0123456789abcdef0")
    price_list = prices.PriceList(account)
    assert (0.0, 10.0) == cost.usd_per_hour(block, price_list, "node", "g5.12xlarge", "us-east-1a")
