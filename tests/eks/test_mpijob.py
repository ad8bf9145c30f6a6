"""MPIJobs: what is rendered for which cluster and training, strict by the CRD and by Kubernetes' own schema of a pod."""

import copy
import json
from pathlib import Path
from typing import Any

import pytest

from cluster.errors import ConfigError
from cluster.hosts import Host
from cluster.jobs.program import Program
from eks.cluster import EksCluster, of_values
from eks.code import secret_name
from eks.document import read, text
from eks.job_spec import Order
from eks.mpijob import mpijob
from tests.eks import crd
from tests.eks.orders import flat_order
from tests.eks.strict import KubeTools

IMAGE = "123456789012.dkr.ecr.us-east-1.amazonaws.com/dlami-cluster:1.0"


def cluster(instance_type: str = "p4d.24xlarge", workers: int = 3, **eks: Any) -> EksCluster:
    values = {
        "name": "imagenet",
        "nodes": {"instance_type": instance_type, "workers": workers},
        "eks": {"image": IMAGE, "efs": "fs-0123456789abcdef0", **eks},
    }
    return of_values(values, Path("/nowhere"))


def order(**more: Any) -> Order:
    given: dict[str, Any] = {
        "job": "resnet50-20261123-080000-1a2b",
        "submission": "00c0ffee",
        "name": "resnet50",
        "module": "trainer.resnet50",
        "words": ("--data-dir", "/efs/data", "--epochs", "90"),
    }
    return flat_order(**{**given, **more})


ORDERS = {
    "resnet50": order(),
    "torch": order(module="trainer.resnet50_torch", python="/opt/pytorch/bin/python"),
    "maskrcnn": order(name="maskrcnn", module="trainer.maskrcnn", words=("DATA.BASEDIR=/efs/coco", "TRAIN.EPOCHS=1")),
    "benchmark": order(name="benchmark", module="trainer.benchmark", words=("--model", "vgg16", "--fp16")),
    "per-gpu": order(module="", words=("python", "train.py", "it's", 'a "quote"', "ü\n"), code={"digest": "abc"}),
    "per-node": order(module="", per="node", words=("torchrun", "train.py"), code={"digest": "abc", "below": "src"}),
    "once": order(module="", per="once", words=("bash", "-c", "hostname | tr a b"), workdir="/efs/me"),
    "terms": order(
        np=8, environment={"A": "1"}, heal=False, min_np=4, hang_after=60.0, notify="mail x", unchecked=True
    ),
}
CLUSTERS = {
    "p4d": cluster(),
    "p5": cluster("p5.48xlarge", 63, priority_class="imagenet-training", shm_gib=64),
    "g5": cluster("g5.12xlarge", 1, context="blue", namespace="ml"),
    "cpu": cluster("c5.xlarge", 0, ttl_seconds=60),
    "lustre": cluster(fsx="fs-0123456789abcdef0:mount"),
}
ALL = [(c, o) for c in CLUSTERS for o in ORDERS]


def rendered(which: str, what: str) -> dict[str, Any]:
    one, job = CLUSTERS[which], ORDERS[what]
    return mpijob(one, job, one.nodes, secret_name(job.job) if job.spec.code else "")


def test_every_document_is_strict_by_the_crd() -> None:
    """Every cluster with every training, as the text that is written, has nothing that the CRD does not know."""
    for which, what in ALL:
        document = rendered(which, what)
        assert [document] == read(text([document])), (which, what)
        assert [] == crd.errors(document), (which, what)


def test_every_pod_is_strict_by_kubernetes(kube: KubeTools) -> None:
    """The pods in it pass the strict schema of a Pod of 1.37."""
    for which, what in ALL:
        for role, replicas in rendered(which, what)["spec"]["mpiReplicaSpecs"].items():
            pod = {"apiVersion": "v1", "kind": "Pod", **copy.deepcopy(replicas["template"])}
            assert [] == kube.errors(pod), (which, what, role)


@pytest.mark.parametrize(
    ("which", "limits"),
    [
        ("p4d", {"nvidia.com/gpu": "8", "vpc.amazonaws.com/efa": "4", "hugepages-2Mi": "5120Mi"}),
        ("p5", {"nvidia.com/gpu": "8", "vpc.amazonaws.com/efa": "32", "hugepages-2Mi": "5120Mi"}),
        ("g5", {"nvidia.com/gpu": "4", "vpc.amazonaws.com/efa": "1", "hugepages-2Mi": "5120Mi"}),
        ("cpu", {}),
    ],
)
def test_a_worker_has_the_devices_of_its_node(which: str, limits: dict[str, str]) -> None:
    """All GPUs and EFA cards of the instance type, requested as they are limited; the slots are its GPUs."""
    spec = rendered(which, "resnet50")["spec"]
    worker = spec["mpiReplicaSpecs"]["Worker"]["template"]["spec"]["containers"][0]["resources"]
    assert limits == worker.get("limits", {})
    assert limits.items() <= worker["requests"].items()
    assert int(limits.get("nvidia.com/gpu", "1")) == spec["slotsPerWorker"]


def test_no_pod_is_root_or_may_become_it() -> None:
    """Neither launcher nor workers, whatever is trained; nor do they get a token of the Kubernetes API."""
    for which, what in ALL:
        for replicas in rendered(which, what)["spec"]["mpiReplicaSpecs"].values():
            spec = replicas["template"]["spec"]
            assert spec["securityContext"]["runAsNonRoot"] and spec["securityContext"]["runAsUser"] > 0
            assert spec["automountServiceAccountToken"] is False
            assert spec["serviceAccountName"] == "dlami"
            for container in spec["containers"]:
                assert container["securityContext"]["allowPrivilegeEscalation"] is False
                assert ["ALL"] == container["securityContext"]["capabilities"]["drop"]


@pytest.mark.parametrize("what", sorted(ORDERS))
def test_an_order_arrives_as_it_was_given(what: str) -> None:
    """What a launcher reads out of its environment is what the task has put there, quotes and newlines too."""
    (launcher,) = rendered("g5", what)["spec"]["mpiReplicaSpecs"]["Launcher"]["template"]["spec"]["containers"]
    told = {one["name"]: one["value"] for one in launcher["env"]}
    assert ORDERS[what] == Order.from_json(told["DLAMI_ORDER"])


def test_an_order_is_the_training_of_the_bare_cluster() -> None:
    """The very value that `inv train.*` plans: seats, terms, trainer's words or program."""
    hosts = tuple(Host(rank=n, address=f"w{n}", slots=4) for n in (1, 2))
    trained = ORDERS["terms"].spec.on(hosts)
    words = ("--data-dir", "/efs/data", "--epochs", "90")
    assert Program(trainer="trainer.resnet50", words=words) == trained.program
    assert (hosts, 8, False, 4, 60.0) == (trained.hosts, trained.np, trained.heal, trained.min_np, trained.hang_after)
    per_node = ORDERS["per-node"].spec.on(hosts)
    assert Program(words=("torchrun", "train.py"), per="node") == per_node.program
    assert ("abc", "src") == (per_node.code, per_node.below)
    assert [1, 1] == [h.slots for h in per_node.hosts]
    assert ["w1"] == [h.address for h in ORDERS["once"].spec.on(hosts).hosts]


def test_an_order_that_is_none_is_named() -> None:
    with pytest.raises(ConfigError, match="DLAMI_ORDER of this pod is no order: submission is missing"):
        Order.from_json(json.dumps({"job": "a", "name": "b", "words": []}))
