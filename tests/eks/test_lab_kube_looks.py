"""What is seen of a training on the lab's Kubernetes: its pods before it begins, and how far it is while it goes on."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cluster.errors import ClusterError
from cluster.jobs.record import TrainingProgress
from eks.document import read
from eks.kubectl import Kubectl
from eks.progress import ask
from lab import lab as labs
from tests.conftest import wait_for
from tests.eks.operators import LIMIT_S, Operator, operator_of_pods
from tests.eks.pods import NAMESPACE

ANYWHERE = Path("/")  # pods have it, too; not the folder of this checkout, wherever that is
# Says that it is at step 7, and goes on until it is told that it may end.
PROGRAM = """
import json, os, time
folder = os.environ["DLAMI_JOB_DIR"]
if os.environ["RANK"] == "0":
    with open(folder + "/metrics.jsonl", "w") as file:
        for step in (5, 7):
            print(json.dumps({"kind": "train", "step": step, "time": time.time(), "images_per_s": 12.5}), file=file)
while not os.path.exists(folder + "/may-end"):
    time.sleep(0.1)
"""


@pytest.fixture(scope="module")
def operator(lab_allowed: None, kube: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Operator]:
    name = f"l{os.getpid() % 10_000_000}"
    with operator_of_pods(kube.kubectl, tmp_path_factory.mktemp("eks"), name) as made:
        yield made
    assert not labs.is_anything_left(name)


def test_pods_that_are_well_are_nothing_to_watch(operator: Operator) -> None:
    """They are looked at before the training, which then begins without a word about them."""
    done = operator(
        "eks.train.run", "--np", "2", "--no-code", "--", "python", "-c", "print('here', 6 * 7)", folder=ANYWHERE
    )
    assert 0 == done.returncode, done.stdout + done.stderr
    assert "here 42" in done.stdout
    assert "to watch" not in done.stdout + done.stderr, done.stdout + done.stderr


def test_ranks_have_the_rights_of_their_pod(operator: Operator) -> None:
    """What Pod Identity says to the containers of the account that has rights, by which boto3 finds them in a rank."""
    shown = "import os; print('told', os.environ.get('AWS_CONTAINER_CREDENTIALS_FULL_URI'), os.environ['RANK'])"
    printed = operator(
        *("eks.train.run", "--np", "2", "--no-code", "--unchecked", "--dry-run", "--", "python", "-c", shown),
        folder=ANYWHERE,
    )
    assert 0 == printed.returncode, printed.stderr
    (job,) = read(printed.stdout)
    for replicas in job["spec"]["mpiReplicaSpecs"].values():
        (container,) = replicas["template"]["spec"]["containers"]
        container["env"].append({"name": "AWS_CONTAINER_CREDENTIALS_FULL_URI", "value": "http://169.254.170.23/v1/c"})
    operator.pods.create(job)
    name = job["metadata"]["name"]
    operator.pods.wait_for_condition(name, "Succeeded", LIMIT_S)
    (launcher,) = operator.pods.pods_of(name, "launcher")
    said = operator.pods("logs", launcher["metadata"]["name"])
    assert "told http://169.254.170.23/v1/c 0" in said and "told http://169.254.170.23/v1/c 1" in said, said


def test_a_launcher_says_how_far_its_training_is(operator: Operator, monkeypatch: pytest.MonkeyPatch) -> None:
    """Through a port-forward to its own loopback; before the first step there is nothing to say."""
    for name, value in operator.pods.environment.items():
        monkeypatch.setenv(name, value)
    job = operator.started(
        "eks.train.run", "--np", "2", "--no-code", "--unchecked", "--", "python", "-c", PROGRAM, folder=ANYWHERE
    )
    kubectl = Kubectl(namespace=NAMESPACE)

    def said() -> TrainingProgress | None:
        pods = operator.pods.pods_of(job, "launcher")
        try:
            return ask(kubectl, pods[0]["metadata"]["name"]) if pods else None
        except ClusterError:
            return None  # its container begins

    wait_for(lambda: said() is not None, 300, f"{job} says how far it is")
    found = said()
    assert found and (8, 12.5) == (found.step, found.images_per_s)
    (operator.shared / "jobs" / job / "may-end").touch()
    operator.pods.wait_for_condition(job, "Succeeded", LIMIT_S)
