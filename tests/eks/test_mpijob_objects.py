"""What the lab's driver makes of an MPIJob is what mpi-operator 0.8.2 makes of it, object by object, state by state."""

import base64
import copy
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import load_pem_private_key

from cluster.lab.kube import mpijob, operator
from cluster.lab.kube.kinds import kind
from cluster.lab.kube.mpijob_status import condition, status_of
from cluster.lab.kube.store import Store
from cluster.lab.kube.workloads import Workloads

NOW = "2026-01-02T03:04:05Z"


def template(**spec: Any) -> dict[str, Any]:
    return {"spec": {"containers": [{"name": "main", "image": "dlami:1", **spec}]}}


def job(**spec: Any) -> dict[str, Any]:
    """An MPIJob of two workers with two slots, as somebody writes it."""
    replicas = {"Launcher": {"template": template(command=["true"])}, "Worker": {"replicas": 2, "template": template()}}
    meta = {"name": "net", "namespace": "dlami", "uid": "u1"}
    return {"metadata": meta, "spec": {"slotsPerWorker": 2, "mpiReplicaSpecs": replicas, **spec}}


def with_namespace() -> Store:
    store = Store()
    store.create(kind("Namespace"), "", {"metadata": {"name": "dlami"}})
    return store


def told(store: Store, name: str, **status: Any) -> None:
    """What the node says of a pod."""
    store.change(kind("Pod"), "dlami", name, lambda d: {**d, "status": status})


def ready(store: Store, name: str) -> None:
    told(store, name, phase="Running", conditions=[{"type": "Ready", "status": "True"}])


def launcher_pod(store: Store) -> str:
    """The name of the one launcher pod that has not ended."""
    pods = store.listed(kind("Pod"), "dlami", labels="training.kubeflow.org/job-role=launcher")
    (live,) = [p for p in pods if (p.get("status") or {}).get("phase", "Pending") in ("Pending", "Running")]
    return str(live["metadata"]["name"])


def test_an_mpijob_without_them_gets_the_operators_defaults() -> None:
    """Workers are not restarted and the launcher starts at once, unless one says otherwise."""
    read = mpijob.with_defaults(job())

    assert "AtStartup" == read["spec"]["launcherCreationPolicy"]
    assert "/root/.ssh" == read["spec"]["sshAuthMountPath"]
    assert "None" == read["spec"]["runPolicy"]["cleanPodPolicy"]
    assert "OnFailure" == read["spec"]["mpiReplicaSpecs"]["Launcher"]["restartPolicy"]
    assert "Never" == read["spec"]["mpiReplicaSpecs"]["Worker"]["restartPolicy"]
    assert [] == mpijob.problems(read)


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda s: s["mpiReplicaSpecs"].pop("Launcher"), "spec.mpiReplicaSpecs[Launcher]: Required value"),
        (lambda s: s["mpiReplicaSpecs"]["Worker"].update(restartPolicy="Always"), "Unsupported value: 'Always'"),
        (lambda s: s["mpiReplicaSpecs"]["Launcher"].update(replicas=2), "must be 1"),
        (lambda s: s["mpiReplicaSpecs"]["Worker"].update(replicas=0), "greater than or equal to 1"),
        (lambda s: s.update(runPolicy={"cleanPodPolicy": "Some"}), "Unsupported value: 'Some'"),
        (lambda s: s.update(runPolicy={"backoffLimit": -1}), "spec.runPolicy.backoffLimit"),
        (lambda s: s.update(mpiImplementation="LAM"), "Unsupported value: 'LAM'"),
    ],
)
def test_what_the_operator_refuses_is_not_run(damage: Any, said: str) -> None:
    """It makes nothing of such a job, and an event says why."""
    store, bad = with_namespace(), job()
    damage(bad["spec"])
    store.create(kind("MPIJob"), "dlami", bad)
    operator.sync(store)

    (event,) = store.listed(kind("Event"), "dlami")
    assert "ValidationError" == event["reason"] and said in event["message"]
    assert [] == store.listed(kind("Pod")) == store.listed(kind("Secret"))


def test_hostfile_and_script_name_the_pods_by_the_headless_service() -> None:
    """All workers are in the hostfile; the script has those that run."""
    made = mpijob.config_map(mpijob.with_defaults(job()), ["net-worker-1"])
    service = mpijob.service(mpijob.with_defaults(job()))

    assert "net-worker-0.net.dlami.svc slots=2\nnet-worker-1.net.dlami.svc slots=2\n" == made["data"]["hostfile"]
    assert "#!/bin/sh\necho net-worker-1.net.dlami.svc\n" == made["data"]["discover_hosts.sh"]
    assert "net-config" == made["metadata"]["name"]
    assert {"clusterIP": "None", "publishNotReadyAddresses": False} == {
        k: v for k, v in service["spec"].items() if k != "selector"
    }
    assert {"training.kubeflow.org/operator-name": "mpi-operator", "training.kubeflow.org/job-name": "net"} == service[
        "spec"
    ]["selector"]


def test_the_secret_is_a_key_pair_on_p_521() -> None:
    """In SEC 1 form, as ssh and sshd read it; the public half fits."""
    data = {k: base64.b64decode(v) for k, v in mpijob.secret(job())["data"].items()}
    private = load_pem_private_key(data["ssh-privatekey"], None)

    assert isinstance(private, ec.EllipticCurvePrivateKey) and isinstance(private.curve, ec.SECP521R1)
    assert data["ssh-privatekey"].startswith(b"-----BEGIN EC PRIVATE KEY-----")
    assert data["ssh-publickey"].startswith(b"ecdsa-sha2-nistp521 ") and data["ssh-publickey"].endswith(b"\n")


def test_a_worker_pod_is_the_template_with_name_key_and_role() -> None:
    """Without a command it is sshd; the mounted keys are 0600 below /root/.ssh and as usual elsewhere."""
    pod = mpijob.worker(mpijob.with_defaults(job()), 1)
    elsewhere = mpijob.worker(mpijob.with_defaults(job(sshAuthMountPath="/home/dlami/.ssh")), 1)

    assert ("net-worker-1", "net", "Never") == tuple(pod["spec"][k] for k in ("hostname", "subdomain", "restartPolicy"))
    assert ["/usr/sbin/sshd", "-De"] == pod["spec"]["containers"][0]["command"]
    assert [{"name": "K_MPI_JOB_ROLE", "value": "worker"}] == pod["spec"]["containers"][0]["env"]
    assert ["net.dlami.svc.cluster.local"] == pod["spec"]["dnsConfig"]["searches"]
    (keys,) = pod["spec"]["volumes"]
    assert ("net-ssh", 0o600) == (keys["secret"]["secretName"], keys["secret"]["defaultMode"])
    assert ["id_rsa", "id_rsa.pub", "authorized_keys"] == [i["path"] for i in keys["secret"]["items"]]
    assert "defaultMode" not in elsewhere["spec"]["volumes"][0]["secret"]
    assert "1" == pod["metadata"]["labels"]["training.kubeflow.org/replica-index"]


def test_the_launcher_is_told_where_the_hosts_are_and_has_no_gpu() -> None:
    """By Open MPI's own variables and /etc/mpi; run policy's limits go to the batch Job."""
    policy = {"backoffLimit": 3, "ttlSecondsAfterFinished": 60, "activeDeadlineSeconds": 900}
    made = mpijob.launcher(mpijob.with_defaults(job(runPolicy=policy)))
    container = made["spec"]["template"]["spec"]["containers"][0]

    assert {
        "K_MPI_JOB_ROLE": "launcher",
        "OMPI_MCA_orte_keep_fqdn_hostnames": "true",
        "OMPI_MCA_orte_default_hostfile": "/etc/mpi/hostfile",
        "OMPI_MCA_plm_rsh_args": "-o ConnectionAttempts=10",
        "OMPI_MCA_orte_set_default_slots": "2",
        "NVIDIA_VISIBLE_DEVICES": "",
        "NVIDIA_DRIVER_CAPABILITIES": "",
    } == {e["name"]: e["value"] for e in container["env"]}
    assert ["/root/.ssh", "/etc/mpi"] == [m["mountPath"] for m in container["volumeMounts"]]
    assert policy == {k: made["spec"][k] for k in policy}
    assert "net-launcher" == made["metadata"]["name"] == made["spec"]["template"]["spec"]["hostname"]


def test_the_launcher_waits_for_ready_workers_only_where_that_is_wanted() -> None:
    """AtStartup it is made at once; with WaitForWorkersReady after the last worker is ready, not when it runs."""
    for policy, at_once in (("AtStartup", True), ("WaitForWorkersReady", False)):
        store = with_namespace()
        store.create(kind("MPIJob"), "dlami", job(launcherCreationPolicy=policy))
        operator.sync(store)
        assert at_once is (store.find(kind("Job"), "dlami", "net-launcher") is not None)
        ready(store, "net-worker-0")
        told(store, "net-worker-1", phase="Running")
        operator.sync(store)
        assert at_once is (store.find(kind("Job"), "dlami", "net-launcher") is not None)
        ready(store, "net-worker-1")
        operator.sync(store)
        assert store.find(kind("Job"), "dlami", "net-launcher")


def test_a_worker_that_is_deleted_is_made_again_and_one_that_failed_is_left() -> None:
    """The operator looks whether a pod is there, not how it is; restarts are kubelet's, by the restart policy."""
    store = with_namespace()
    store.create(kind("MPIJob"), "dlami", job())
    operator.sync(store)
    first = store.get(kind("Pod"), "dlami", "net-worker-0")["metadata"]["uid"]
    store.remove(kind("Pod"), "dlami", "net-worker-0")
    told(store, "net-worker-1", phase="Failed")
    failed = store.get(kind("Pod"), "dlami", "net-worker-1")["metadata"]["uid"]
    operator.sync(store)
    operator.sync(store)

    assert first != store.get(kind("Pod"), "dlami", "net-worker-0")["metadata"]["uid"]
    assert failed == store.get(kind("Pod"), "dlami", "net-worker-1")["metadata"]["uid"]
    counted = store.get(kind("MPIJob"), "dlami", "net")["status"]["replicaStatuses"]["Worker"]
    assert {"failed": 1} == counted


def started(store: Store, **policy: Any) -> Workloads:
    """A job whose workers and launcher run."""
    jobs = Workloads()
    store.create(kind("MPIJob"), "dlami", job(runPolicy=policy))
    operator.sync(store)
    jobs.sync(store)
    for name in ("net-worker-0", "net-worker-1", launcher_pod(store)):
        ready(store, name)
    operator.sync(store)
    return jobs


def state_of(store: Store) -> dict[str, str]:
    found = store.get(kind("MPIJob"), "dlami", "net")["status"]["conditions"]
    return {c["type"]: c["status"] for c in found}


@pytest.mark.parametrize(("clean", "left"), [("None", 2), ("Running", 0), ("All", 0)])
def test_a_job_whose_launcher_succeeds_is_done_and_its_workers_go_as_it_says(clean: str, left: int) -> None:
    """Created and Running before, Succeeded after; the workers are deleted unless the policy is None."""
    store = with_namespace()
    jobs = started(store, cleanPodPolicy=clean)
    assert {"Created": "True", "Running": "True"} == state_of(store)

    told(store, launcher_pod(store), phase="Succeeded")
    for _ in range(3):
        jobs.sync(store)
        operator.sync(store)

    assert {"Created": "True", "Running": "False", "Succeeded": "True"} == state_of(store)
    workers = store.listed(kind("Pod"), "dlami", labels="training.kubeflow.org/job-role=worker")
    assert left == sum("deletionTimestamp" not in p["metadata"] for p in workers)
    assert store.get(kind("MPIJob"), "dlami", "net")["status"]["completionTime"]


def test_a_launcher_out_of_tries_fails_the_job_with_its_reason() -> None:
    """Restarts of its container in one pod count as the Job's controller counts them, up to backoffLimit."""
    store = with_namespace()
    jobs = started(store, backoffLimit=2)
    for restarts in (1, 2):
        assert "Failed" not in state_of(store)
        counted = [{"name": "main", "restartCount": restarts}]
        told(store, launcher_pod(store), phase="Running", containerStatuses=counted)
        jobs.sync(store)
        operator.sync(store)

    found = condition(store.get(kind("MPIJob"), "dlami", "net")["status"], "Failed")
    assert found and ("True", "BackoffLimitExceeded") == (found["status"], found["reason"])
    assert {"Created": "True", "Running": "False", "Failed": "True"} == state_of(store)


def test_a_job_past_its_time_takes_its_launcher_away_and_keeps_the_rest() -> None:
    """`ttlSecondsAfterFinished` is the batch Job's: the MPIJob, its Secret and its ConfigMap stay until it is deleted."""
    store = with_namespace()
    jobs = started(store, ttlSecondsAfterFinished=0)
    told(store, launcher_pod(store), phase="Succeeded")
    for _ in range(4):
        jobs.sync(store)
        operator.sync(store)

    assert store.find(kind("Job"), "dlami", "net-launcher") is None
    assert "True" == state_of(store)["Succeeded"]
    assert store.find(kind("Secret"), "dlami", "net-ssh") and store.find(kind("ConfigMap"), "dlami", "net-config")


def test_an_evicted_worker_fails_the_job() -> None:
    """The operator gives the whole job up; only the launcher's end would stop its pods."""
    read = mpijob.with_defaults(job())
    evicted = {"status": {"phase": "Failed", "reason": "Evicted"}}
    status = status_of(read, None, [], [evicted, {"status": {"phase": "Running"}}], NOW)

    assert "MPIJobEvicted" == condition(status, "Failed")["reason"]
    assert "1/2 workers are evicted" == condition(status, "Failed")["message"]


def test_a_suspended_job_has_no_pods_and_goes_on_when_it_is_resumed() -> None:
    """Workers are deleted and the launcher's Job is suspended with it."""
    store = with_namespace()
    jobs = started(store)

    def suspend(value: bool) -> None:
        def changed(d: dict[str, Any]) -> dict[str, Any]:
            d = copy.deepcopy(d)
            d["spec"]["runPolicy"]["suspend"] = value
            return d

        store.change(kind("MPIJob"), "dlami", "net", changed)
        operator.sync(store)
        jobs.sync(store)

    suspend(True)
    assert {"Created": "True", "Running": "False", "Suspended": "True"} == state_of(store)
    assert all("deletionTimestamp" in p["metadata"] for p in store.listed(kind("Pod"), "dlami"))
    suspend(False)
    assert "False" == state_of(store)["Suspended"]


def test_every_object_that_is_made_passes_the_strict_schemas(kube: Any) -> None:
    """No field of them is unknown to Kubernetes 1.37."""
    store = with_namespace()
    started(store, backoffLimit=2, ttlSecondsAfterFinished=60)
    own = [d for k, d in store.everything() if k.name in ("Service", "ConfigMap", "Secret", "Pod", "Job")]

    assert 7 == len(own)
    assert {d["metadata"]["name"]: [] for d in own} == {d["metadata"]["name"]: kube.errors(d) for d in own}
