"""Objects that mpi-operator 0.8 creates for an MPIJob, and the defaults it sets.

Facts are from kubeflow/mpi-operator v0.8.2: pkg/controller/mpi_job_controller.go, pkg/apis/kubeflow/v2beta1/default.go
and pkg/apis/kubeflow/validation/validation.go.
"""

import base64
import copy
import re
from collections.abc import Sequence
from typing import Any

from lab.kube.kinds import Document

OPERATOR = "mpi-operator"
_LABELS = "training.kubeflow.org"
INDEX_LABEL = f"{_LABELS}/replica-index"
CONFIG_PATH = "/etc/mpi"
_CLEAN = ("None", "Running", "All")
_KEY_FILES = {"id_rsa": "ssh-privatekey", "id_rsa.pub": "ssh-publickey", "authorized_keys": "ssh-publickey"}
_ENVIRONMENT = {
    "OpenMPI": {
        "OMPI_MCA_orte_keep_fqdn_hostnames": "true",
        "OMPI_MCA_orte_default_hostfile": f"{CONFIG_PATH}/hostfile",
        "OMPI_MCA_plm_rsh_args": "-o ConnectionAttempts=10",
    },
    "Intel": {
        "I_MPI_HYDRA_HOST_FILE": f"{CONFIG_PATH}/hostfile",
        "I_MPI_HYDRA_BOOTSTRAP_EXEC_EXTRA_ARGS": "-o ConnectionAttempts=10",
    },
    "MPICH": {"HYDRA_HOST_FILE": f"{CONFIG_PATH}/hostfile", "HYDRA_LAUNCH_EXTRA_ARGS": "-o ConnectionAttempts=10"},
}
_SLOTS = {"OpenMPI": "OMPI_MCA_orte_set_default_slots", "Intel": "I_MPI_PERHOST"}


def with_defaults(job: Document) -> Document:
    """Return the MPIJob with the operator's defaults."""
    read = copy.deepcopy(job)
    spec = read["spec"]
    spec.setdefault("runPolicy", {}).setdefault("cleanPodPolicy", "None")
    for field, value in {
        "slotsPerWorker": 1,
        "sshAuthMountPath": "/root/.ssh",
        "mpiImplementation": "OpenMPI",
        "launcherCreationPolicy": "AtStartup",
        "runLauncherAsWorker": False,
    }.items():
        spec.setdefault(field, value)
    replicas = spec.get("mpiReplicaSpecs") or {}
    for role, policy, count in (("Launcher", "OnFailure", 1), ("Worker", "Never", 0)):
        if role in replicas:
            replicas[role].setdefault("restartPolicy", policy)
            replicas[role].setdefault("replicas", count)
    return read


def problems(job: Document) -> list[str]:
    """Return the operator's validation errors for an MPIJob with defaults. It only reports an invalid MPIJob."""
    spec, found = job["spec"], []
    replicas = spec.get("mpiReplicaSpecs") or {}
    name = f"{job['metadata']['name']}-worker-{max(num_workers(job), 1) - 1}"
    if not re.fullmatch(r"[a-z]([-a-z0-9]{0,61}[a-z0-9])?", name):
        found.append(f"metadata.name: {name!r} is no DNS label: at most 63 small letters, digits and '-'")
    if "Launcher" not in replicas:
        found.append("spec.mpiReplicaSpecs[Launcher]: Required value")
    for role, replica in replicas.items():
        at = f"spec.mpiReplicaSpecs[{role}]"
        if replica["restartPolicy"] not in ("Never", "OnFailure"):
            found.append(f"{at}.restartPolicy: Unsupported value: {replica['restartPolicy']!r}")
        if not replica["template"]["spec"].get("containers"):
            found.append(f"{at}.template.spec.containers: Required value")
        if role == "Launcher" and replica["replicas"] != 1:
            found.append(f"{at}.replicas: must be 1")
        if role == "Worker" and replica["replicas"] < 1:
            found.append(f"{at}.replicas: must be greater than or equal to 1")
    if spec["mpiImplementation"] not in _ENVIRONMENT:
        found.append(f"spec.mpiImplementation: Unsupported value: {spec['mpiImplementation']!r}")
    policy = spec["runPolicy"]
    if policy["cleanPodPolicy"] not in _CLEAN:
        found.append(f"spec.runPolicy.cleanPodPolicy: Unsupported value: {policy['cleanPodPolicy']!r}")
    for field in ("ttlSecondsAfterFinished", "activeDeadlineSeconds", "backoffLimit"):
        if (policy.get(field) or 0) < 0:
            found.append(f"spec.runPolicy.{field}: must be greater than or equal to 0")
    return found


def num_workers(job: Document) -> int:
    """Return the number of worker pods that the MPIJob requests."""
    return int((job["spec"]["mpiReplicaSpecs"].get("Worker") or {}).get("replicas", 0))


def worker_name(job: Document, index: int) -> str:
    """Return the name of a worker pod, which is also its host name."""
    return f"{job['metadata']['name']}-worker-{index}"


def launcher_name(job: Document) -> str:
    """Return the name of the launcher's batch Job, which is also the host name of its pods."""
    return f"{job['metadata']['name']}-launcher"


def labels(job: Document, role: str) -> dict[str, str]:
    """Return the labels by which the pods of a role are found."""
    return {
        f"{_LABELS}/operator-name": OPERATOR,
        f"{_LABELS}/job-name": job["metadata"]["name"],
        f"{_LABELS}/job-role": role,
    }


def service(job: Document) -> Document:
    """Return the headless Service that publishes the pods in DNS. Pods that are not ready are left out.

    With runLauncherAsWorker pods are published before they are ready.
    """
    selector = {k: v for k, v in labels(job, "").items() if not k.endswith("job-role")}
    as_worker = job["spec"]["runLauncherAsWorker"]
    spec = {"clusterIP": "None", "selector": selector, "publishNotReadyAddresses": as_worker}
    return {"metadata": _owned(job, job["metadata"]["name"]), "spec": spec}


def config_map(job: Document, running: Sequence[str]) -> Document:
    """Return the ConfigMap with the `hostfile` of all workers, and `discover_hosts.sh`, which prints running pods."""
    meta, spec = job["metadata"], job["spec"]
    slots = "{} slots={}" if spec["mpiImplementation"] == "OpenMPI" else "{}:{}"
    names = [launcher_name(job)] if spec["runLauncherAsWorker"] else []
    workers = [worker_name(job, i) for i in range(num_workers(job))]

    def host(pod: str) -> str:
        return f"{pod}.{meta['name']}.{meta['namespace']}.svc"

    hostfile = "".join(slots.format(host(n), spec["slotsPerWorker"]) + "\n" for n in [*names, *workers])
    script = "#!/bin/sh\n" + "".join(f"echo {host(n)}\n" for n in [*names, *sorted(running)])
    return {
        "metadata": _owned(job, f"{meta['name']}-config"),
        "data": {"hostfile": hostfile, "discover_hosts.sh": script},
    }


def secret(job: Document) -> Document:
    """Return a Secret with a new ECDSA P-521 key pair, which every pod of the job gets."""
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP521R1())
    private = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.TraditionalOpenSSL,
        serialization.NoEncryption(),
    )
    public = key.public_key().public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
    data = {"ssh-privatekey": private, "ssh-publickey": public + b"\n"}
    return {
        "metadata": _owned(job, f"{job['metadata']['name']}-ssh"),
        "type": "kubernetes.io/ssh-auth",
        "data": {name: base64.b64encode(value).decode() for name, value in data.items()},
    }


def worker(job: Document, index: int) -> Document:
    """Return a worker pod."""
    template = copy.deepcopy(job["spec"]["mpiReplicaSpecs"]["Worker"]["template"])
    name = worker_name(job, index)
    spec = _pod_spec(job, template["spec"], "Worker", name)
    search = f"{job['metadata']['name']}.{job['metadata']['namespace']}.svc.cluster.local"
    spec.setdefault("dnsConfig", {}).setdefault("searches", []).append(search)
    container = spec["containers"][0]
    if not container.get("command") and not container.get("args"):
        container["command"] = ["/usr/sbin/sshd", "-De"]
    _add_environment(container, {"K_MPI_JOB_ROLE": "worker"})
    given = template.get("metadata") or {}
    meta = _owned(job, name)
    number = index + 1 if job["spec"]["runLauncherAsWorker"] else index
    meta["labels"] = {**(given.get("labels") or {}), **labels(job, "worker"), INDEX_LABEL: str(number)}
    if given.get("annotations"):
        meta["annotations"] = given["annotations"]
    return {"metadata": meta, "spec": spec}


def launcher(job: Document) -> Document:
    """Return the launcher's batch Job."""
    spec, policy = job["spec"], job["spec"]["runPolicy"]
    template = copy.deepcopy(spec["mpiReplicaSpecs"]["Launcher"]["template"])
    pod = _pod_spec(job, template["spec"], "Launcher", launcher_name(job))
    container = pod["containers"][0]
    environment = {"K_MPI_JOB_ROLE": "launcher", **_ENVIRONMENT[spec["mpiImplementation"]]}
    if slots := _SLOTS.get(spec["mpiImplementation"]):
        environment[slots] = str(spec["slotsPerWorker"])
    if not spec["runLauncherAsWorker"]:  # hide GPUs that the container runtime would give it
        environment |= {"NVIDIA_VISIBLE_DEVICES": "", "NVIDIA_DRIVER_CAPABILITIES": ""}
    _add_environment(container, environment)
    files = [
        {"key": "hostfile", "path": "hostfile", "mode": 0o444},
        {"key": "discover_hosts.sh", "path": "discover_hosts.sh", "mode": 0o555},
    ]
    source = {"name": f"{job['metadata']['name']}-config", "items": files}
    pod.setdefault("volumes", []).append({"name": "mpi-job-config", "configMap": source})
    container.setdefault("volumeMounts", []).append({"name": "mpi-job-config", "mountPath": CONFIG_PATH})
    given = template.get("metadata") or {}
    meta: Document = {"labels": {**(given.get("labels") or {}), **labels(job, "launcher")}}
    if given.get("annotations"):
        meta["annotations"] = given["annotations"]
    fields = ("ttlSecondsAfterFinished", "activeDeadlineSeconds", "backoffLimit")
    wanted = {f: policy[f] for f in fields if policy.get(f) is not None}
    wanted |= {"suspend": bool(policy.get("suspend")), "podReplacementPolicy": "Failed"}
    wanted["template"] = {"metadata": meta, "spec": pod}
    return {"metadata": _owned(job, launcher_name(job)), "spec": wanted}


def _pod_spec(job: Document, spec: Document, role: str, hostname: str) -> Document:
    """Add the parts that both roles share: host name, restart policy and the mounted key pair."""
    meta, path = job["metadata"], job["spec"]["sshAuthMountPath"]
    policy = job["spec"]["mpiReplicaSpecs"][role]["restartPolicy"]
    spec |= {"hostname": hostname, "subdomain": meta["name"], "restartPolicy": policy}
    if spec.get("hostNetwork"):
        spec["dnsPolicy"] = "ClusterFirstWithHostNet"
    source: dict[str, Any] = {"secretName": f"{meta['name']}-ssh"}
    source["items"] = [{"key": key, "path": file} for file, key in _KEY_FILES.items()]
    if path == "/root/.ssh":
        source["defaultMode"] = 0o600
    spec.setdefault("volumes", []).append({"name": "ssh-auth", "secret": source})
    spec["containers"][0].setdefault("volumeMounts", []).append({"name": "ssh-auth", "mountPath": path})
    return spec


def _add_environment(container: Document, values: dict[str, str]) -> None:
    container.setdefault("env", []).extend({"name": name, "value": value} for name, value in values.items())


def _owned(job: Document, name: str) -> Document:
    meta = job["metadata"]
    owner = {
        "apiVersion": "kubeflow.org/v2beta1",
        "kind": "MPIJob",
        "name": meta["name"],
        "uid": meta["uid"],
        "controller": True,
        "blockOwnerDeletion": True,
    }
    return {
        "name": name,
        "namespace": meta["namespace"],
        "labels": {"app": meta["name"]},
        "ownerReferences": [owner],
    }
