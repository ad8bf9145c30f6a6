"""What pods refer to is looked for before anything is made; what is missing is named with what makes it."""

from pathlib import Path
from typing import Any

import pytest

from cluster.errors import ConfigError
from cluster.stage.stage import request_of
from eks.cluster import EksCluster
from eks.document import document
from eks.jobs import EksJobs
from eks.mpijob import mpijob
from eks.prerequisites import references
from eks.services import JUPYTER, page_documents, page_secret
from eks.staging import staging_job
from lab.kube.kinds import kind
from lab.kube.store import Store
from tests.eks.clusters import LUSTRE, cluster
from tests.eks.orders import flat_order

OF = cluster("a", LUSTRE, {"priority_class": "first", "namespace": "default"})
ORDER = flat_order(job="job-1")
CLAIMS = [("persistentvolumeclaim", "a-shared"), ("persistentvolumeclaim", "a-data")]


def test_what_documents_refer_to() -> None:
    """Accounts, claims, a priority class, a secret for pulling; not what comes with them."""
    job = mpijob(OF, ORDER, 2, "job-1-code")
    expected = [("serviceaccount", "dlami"), ("priorityclass", "first"), *CLAIMS]
    assert sorted([*expected, ("secret", "job-1-code")]) == sorted(references([job]))
    code = document("v1", "Secret", "job-1-code", OF.name)
    assert sorted(expected) == sorted(references([job, code]))

    page = [*page_documents(OF, JUPYTER), page_secret(OF, JUPYTER, token="t", password="", certificate=("", ""))]
    assert {("serviceaccount", "dlami-page"), *CLAIMS} == set(references(page))

    staging = staging_job(OF, request_of("s3://bucket/in", "/efs/in", environment={"A": "1"}))
    assert staging.environment
    assert {("serviceaccount", "dlami"), *CLAIMS} == set(references([staging.environment, *staging.documents]))
    pull: dict[str, Any] = {
        "serviceAccountName": "s",
        "containers": [],
        "volumes": [],
        "imagePullSecrets": [{"name": "p"}],
    }
    assert [("serviceaccount", "s"), ("secret", "p")] == references([document("v1", "Pod", "x", OF.name, spec=pull)])


def test_a_training_is_not_begun_where_something_is_missing(
    store: Store, operators_kubectl: None, tmp_path: Path
) -> None:
    """All of it is said at once, by the real kubectl; with all of it there the MPIJob is made."""
    jobs, job = EksJobs(OF), mpijob(OF, ORDER, 2)
    with pytest.raises(ConfigError) as error:
        jobs.start(job)
    said = str(error.value)
    assert "namespace default lacks serviceaccount dlami, priorityclass first, persistentvolumeclaim a-shared" in said
    assert "'kubectl apply -f DIR' makes it" in said and "choose one of 'kubectl get priorityclass'" in said
    assert [] == store.listed(kind("MPIJob"))

    _make(store, OF)
    jobs.start(job)
    assert ["job-1"] == [d["metadata"]["name"] for d in store.listed(kind("MPIJob"))]


def _make(store: Store, of: EksCluster) -> None:
    store.create(kind("ServiceAccount"), "default", {"metadata": {"name": "dlami"}})
    store.create(kind("PriorityClass"), "", {"metadata": {"name": of.settings.priority_class}, "value": 1})
    for _, name in CLAIMS:
        store.create(kind("PersistentVolumeClaim"), "default", {"metadata": {"name": name}, "spec": {}})
