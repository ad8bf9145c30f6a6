"""What the lab's driver makes of an MPIJob is what mpi-operator 0.8.2 makes of it, object by object, state by state."""

from typing import Any

from lab.kube import mpijob


def template(**spec: Any) -> dict[str, Any]:
    return {"spec": {"containers": [{"name": "main", "image": "dlami:1", **spec}]}}


def job(**spec: Any) -> dict[str, Any]:
    """An MPIJob of two workers with two slots, as somebody writes it."""
    replicas = {"Launcher": {"template": template(command=["true"])}, "Worker": {"replicas": 2, "template": template()}}
    meta = {"name": "net", "namespace": "dlami", "uid": "u1"}
    return {"metadata": meta, "spec": {"slotsPerWorker": 2, "mpiReplicaSpecs": replicas, **spec}}


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
