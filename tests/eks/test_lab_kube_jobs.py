"""Jobs of the lab's Kubernetes whose pods have numbers, and where pods go: as its controllers and scheduler decide."""

from typing import Any

import pytest

from cluster.lab.kube.indexed import Indexes, numbered, spans
from cluster.lab.kube.kinds import kind
from cluster.lab.kube.refusals import Refusal
from cluster.lab.kube.scheduler import node_for
from cluster.lab.kube.store import Store
from cluster.lab.kube.workloads import Workloads

JOB, POD = kind("Job"), kind("Pod")


def job(**spec: Any) -> dict[str, Any]:
    container = {"name": "c", "image": "i"}
    template = {"spec": {"restartPolicy": "Never", "containers": [container]}}
    return {"metadata": {"name": "many"}, "spec": {"completionMode": "Indexed", "template": template, **spec}}


def end(store: Store, index: int, code: int) -> None:
    """The pod of a number ends."""
    (pod,) = (
        p
        for p in store.listed(POD)
        if p["metadata"]["name"].startswith(f"many-{index}-") and not (p.get("status") or {}).get("phase")
    )
    state = {"name": "c", "state": {"terminated": {"exitCode": code}}}
    status = {"phase": "Failed" if code else "Succeeded", "containerStatuses": [state]}
    store.change(POD, "default", pod["metadata"]["name"], lambda d: {**d, "status": status})


def test_a_job_has_a_pod_for_each_number(monkeypatch: pytest.MonkeyPatch) -> None:
    """What fails by itself has another try, what says so none; the Job has failed when all numbers have ended."""
    monkeypatch.setattr("cluster.lab.kube.indexed._BACK_OFF_S", 0.0)
    store, controllers = Store(), Workloads()
    rules = [{"action": "FailIndex", "onExitCodes": {"operator": "In", "values": [3]}}]
    limits = {"backoffLimitPerIndex": 1, "maxFailedIndexes": 3, "podFailurePolicy": {"rules": rules}}
    store.create(JOB, "default", job(completions=3, parallelism=3, **limits))
    controllers.sync(store)
    pods = store.listed(POD)
    assert ["many-0", "many-1", "many-2"] == [p["spec"]["hostname"] for p in pods]
    assert ["0", "1", "2"] == [p["metadata"]["labels"]["batch.kubernetes.io/job-completion-index"] for p in pods]

    for index, code in ((0, 0), (1, 1), (2, 3)):
        end(store, index, code)
    controllers.sync(store)
    assert 4 == len(store.listed(POD)), "the second has one more, the third none"
    assert ("0", "2") == tuple(
        store.get(JOB, "default", "many")["status"][k] for k in ("completedIndexes", "failedIndexes")
    )

    end(store, 1, 1)
    controllers.sync(store)
    status = store.get(JOB, "default", "many")["status"]
    assert ("0", "1-2") == (status["completedIndexes"], status["failedIndexes"])
    assert ("Failed", "FailedIndexes") == (status["conditions"][-1]["type"], status["conditions"][-1]["reason"])
    assert 4 == len(store.listed(POD))


def test_the_pods_of_a_job_that_is_gone_are_let_go() -> None:
    """Nobody counts how they end any more: what would wait for that would be there for good."""
    store, controllers = Store(), Workloads()
    store.create(JOB, "default", job(completions=1, parallelism=1))
    controllers.sync(store)
    assert ["batch.kubernetes.io/job-tracking"] == store.listed(POD)[0]["metadata"]["finalizers"]
    store.delete(JOB, "default", "many")
    controllers.sync(store)
    assert [] == store.listed(POD)[0]["metadata"]["finalizers"]


def test_more_failed_numbers_than_it_may_have_end_a_job() -> None:
    indexes = Indexes({"completions": 9, "parallelism": 2, "backoffLimitPerIndex": 0, "maxFailedIndexes": 1})
    assert [0, 1] == indexes.to_start([])
    for index in range(2):
        pod = {**numbered({"metadata": {"name": "j"}, **job()}, index), "status": {"phase": "Failed"}}
        indexes.count(pod)
    assert "MaxFailedIndexesExceeded" == (indexes.failure() or ("",))[0]


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ({"completionMode": "NonIndexed", "backoffLimitPerIndex": 1}, "requires indexed completion mode"),
        ({"maxFailedIndexes": 1}, "maxFailedIndexes: requires per index"),
        ({"podFailurePolicy": {"rules": [{"action": "FailJob"}]}}, "the lab knows the actions"),
    ],
)
def test_a_job_that_cannot_be_is_refused(spec: dict[str, Any], said: str) -> None:
    with pytest.raises(Refusal, match=said):
        Store().create(JOB, "default", job(**spec))


@pytest.mark.parametrize(
    ("indexes", "written"), [((), ""), ((0,), "0"), ((0, 2, 3, 4), "0,2-4"), ((5, 4, 1), "1,4-5"), (range(9), "0-8")]
)
def test_numbers_are_written_as_a_jobs_status_has_them(indexes: Any, written: str) -> None:
    assert written == spans(indexes)


def pod(node: str = "", **labels: str) -> dict[str, Any]:
    """One that wants no node on which another of its labels is."""
    term = {"topologyKey": "kubernetes.io/hostname", "labelSelector": {"matchLabels": {"app": "alone"}}}
    affinity = {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}
    spec = {"nodeName": node, **({"affinity": affinity} if labels else {})}
    return {"metadata": {"namespace": "n", "labels": labels}, "spec": spec}


def test_pods_that_want_a_node_for_themselves_get_one() -> None:
    """Also against the wish of one that came before; without a wish the emptiest takes it."""
    nodes = ("a", "b")
    assert "a" == node_for(pod(app="alone"), nodes, [])
    assert "b" == node_for(pod(app="alone"), nodes, [pod("a", app="alone")])
    assert "" == node_for(pod(app="alone"), nodes, [pod(n, app="alone") for n in nodes])
    assert "b" == node_for(pod(), nodes, [pod("a"), pod("a", app="alone")])
