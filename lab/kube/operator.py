"""Controller loop of mpi-operator: create what an MPIJob lacks, and write its status."""

from lab.kube import mpijob
from lab.kube.kinds import Document, kind
from lab.kube.mpijob_status import is_finished, is_true, status_of, with_condition
from lab.kube.selectors import has_labels
from lab.kube.store import Store, now

_JOB, _POD, _BATCH = kind("MPIJob"), kind("Pod"), kind("Job")


def sync(store: Store) -> None:
    """Run one pass over all MPIJobs."""
    for job in store.listed(_JOB):
        _sync(store, mpijob.with_defaults(job))


def _sync(store: Store, job: Document) -> None:
    meta = job["metadata"]
    space, name = meta["namespace"], meta["name"]
    managed_by = job["spec"]["runPolicy"].get("managedBy")
    if managed_by not in (None, "kubeflow.org/mpi-operator"):
        return
    if refused := mpijob.problems(job):
        _tell(store, job, "ValidationError", f"Found validation errors: {'; '.join(refused)}")
        return
    status = job.setdefault("status", {})
    if not status.get("conditions"):
        said = f"MPIJob {space}/{name} is created."
        status |= with_condition(status, "Created", "True", "MPIJobCreated", said, now())
    policy = job["spec"]["runPolicy"]
    if is_finished(status) and status.get("completionTime"):
        if policy["cleanPodPolicy"] in ("All", "Running"):
            _clean_workers(store, job)
            _write(store, job, {**status, "replicaStatuses": {**status.get("replicaStatuses", {}), "Worker": {}}})
        return
    suspended = bool(policy.get("suspend"))
    if not suspended:
        status.setdefault("startTime", now())
    launcher = store.find(_BATCH, space, mpijob.launcher_name(job))
    workers: list[Document] = []
    done = launcher is not None and any(is_true(launcher.get("status") or {}, c) for c in ("Complete", "Failed"))
    if not done:
        _make_files(store, job)
        workers = [] if suspended else _make_workers(store, job)
        at_once = job["spec"]["launcherCreationPolicy"] == "AtStartup"
        if launcher is None and (at_once or all(is_true(p.get("status") or {}, "Ready") for p in workers)):
            launcher = store.create(_BATCH, space, mpijob.launcher(job))
    if launcher is not None and launcher["spec"].get("suspend", False) != suspended:
        launcher = store.change(_BATCH, space, launcher["metadata"]["name"], lambda d: _suspend(d, suspended))
    if suspended:
        _clean_workers(store, job)
    _write(store, job, status_of(job, launcher, _pods_of(store, launcher), workers, now()))


def _make_files(store: Store, job: Document) -> None:
    """Create Service, ConfigMap and Secret. Update the ConfigMap when other workers run."""
    space = job["metadata"]["namespace"]
    running = [
        p["metadata"]["name"]
        for p in store.listed(_POD, space)
        if has_labels(p, mpijob.labels(job, "worker")) and (p.get("status") or {}).get("phase") == "Running"
    ]
    config = mpijob.config_map(job, running)
    for what, wanted in ((kind("Service"), mpijob.service(job)), (kind("ConfigMap"), config)):
        found = store.find(what, space, wanted["metadata"]["name"])
        if found is None:
            store.create(what, space, wanted)
        elif what.name == "ConfigMap" and found["data"] != wanted["data"]:
            store.change(what, space, wanted["metadata"]["name"], lambda d: {**d, "data": config["data"]})
    if store.find(kind("Secret"), space, f"{job['metadata']['name']}-ssh") is None:
        store.create(kind("Secret"), space, mpijob.secret(job))


def _make_workers(store: Store, job: Document) -> list[Document]:
    """Return the worker pods. Create missing ones again; keep failed ones."""
    space = job["metadata"]["namespace"]
    wanted = mpijob.num_workers(job)
    for pod in store.listed(_POD, space):
        if has_labels(pod, mpijob.labels(job, "worker")):
            index = int(pod["metadata"]["labels"].get(mpijob.INDEX_LABEL, 0))
            if index >= wanted + job["spec"]["runLauncherAsWorker"]:
                store.delete(_POD, space, pod["metadata"]["name"])
    return [
        store.find(_POD, space, mpijob.worker_name(job, i)) or store.create(_POD, space, mpijob.worker(job, i))
        for i in range(wanted)
    ]


def _clean_workers(store: Store, job: Document) -> None:
    """Delete the workers. With the policy Running, pods that have ended are kept."""
    space, policy = job["metadata"]["namespace"], job["spec"]["runPolicy"]["cleanPodPolicy"]
    for index in range(mpijob.num_workers(job)):
        pod = store.find(_POD, space, mpijob.worker_name(job, index))
        if pod is None or "deletionTimestamp" in pod["metadata"]:
            continue
        has_ended = (pod.get("status") or {}).get("phase") in ("Failed", "Succeeded")
        if not (policy == "Running" and has_ended):
            store.delete(_POD, space, pod["metadata"]["name"])


def _pods_of(store: Store, launcher: Document | None) -> list[Document]:
    if launcher is None:
        return []
    wanted = launcher["spec"]["selector"]["matchLabels"]
    return [p for p in store.listed(_POD, launcher["metadata"]["namespace"]) if has_labels(p, wanted)]


def _suspend(launcher: Document, suspended: bool) -> Document:
    launcher["spec"]["suspend"] = suspended
    return launcher


def _write(store: Store, job: Document, status: Document) -> None:
    meta = job["metadata"]
    store.change(_JOB, meta["namespace"], meta["name"], lambda d: {**d, "status": status})


def _tell(store: Store, job: Document, reason: str, message: str) -> None:
    """Create a warning event about the MPIJob, once."""
    meta = job["metadata"]
    name = f"{meta['name']}.{reason.lower()}"
    if store.find(kind("Event"), meta["namespace"], name) is None:
        about = {"kind": "MPIJob", "apiVersion": _JOB.api_version, "name": meta["name"], "namespace": meta["namespace"]}
        event = {"metadata": {"name": name}, "type": "Warning", "reason": reason, "message": message[:1024]}
        store.create(kind("Event"), meta["namespace"], {**event, "involvedObject": about, "lastTimestamp": now()})
