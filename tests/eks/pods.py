"""A Kubernetes of the lab's for tests: the real kubectl on it, and what one asks of it again and again."""

import contextlib
import json
import os
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from eks import image
from eks.document import text
from lab.kube.kube import Kube
from tests.conftest import wait_for

NAMESPACE = "dlami"
IMAGE_VARIABLE = "DLAMI_TEST_IMAGE"  # an unpacked image, as `inv eks.image --root` makes one
DEADLINE_S = 240.0  # for what takes a second on a machine that has nothing else to do


class Pods:
    """The lab's Kubernetes, through kubectl."""

    def __init__(self, kube: Kube, kubectl: Path, cache: Path) -> None:
        self.kube, self._kubectl, self._cache = kube, kubectl, cache

    @property
    def environment(self) -> dict[str, str]:
        """With which our own tasks reach it, too."""
        return {
            **os.environ,
            "KUBECONFIG": str(self.kube.kubeconfig),
            "KUBECACHEDIR": str(self._cache),
            "DLAMI_KUBECTL": str(self._kubectl),
        }

    def __call__(self, *words: object, stdin: str = "", check: bool = True) -> str:
        """What kubectl prints; with `check` it must end well."""
        done = subprocess.run(
            [str(self._kubectl), f"--namespace={NAMESPACE}", *map(str, words)],
            input=stdin,
            capture_output=True,
            text=True,
            timeout=DEADLINE_S,
            env=self.environment,
        )
        assert not (check and done.returncode), done.stderr
        return done.stdout if check else done.stdout + done.stderr

    def create(self, *documents: dict[str, Any]) -> None:
        self("create", "--filename", "-", stdin=text(documents))

    def get(self, kind: str, name: str) -> dict[str, Any]:
        """{} where there is none."""
        said = self("get", kind, name, "--ignore-not-found", "--output", "json")
        return dict(json.loads(said)) if said else {}

    def pods_of(self, job: str, role: str) -> list[dict[str, Any]]:
        labels = f"training.kubeflow.org/job-name={job},training.kubeflow.org/job-role={role}"
        return list(json.loads(self("get", "pods", "--selector", labels, "--output", "json"))["items"])

    def condition(self, job: str, kind: str) -> str:
        """`True`, `False`, or nothing where it was never set."""
        found = self.get("mpijob", job).get("status", {}).get("conditions", [])
        return next((c["status"] for c in found if c["type"] == kind), "")

    def wait_for_condition(self, job: str, kind: str, timeout_s: float = DEADLINE_S) -> None:
        wait_for(lambda: self.condition(job, kind) == "True", timeout_s, f"{job} {kind}: {self.get('mpijob', job)}")


@contextlib.contextmanager
def pods_of_lab(kubectl: Path, folder: Path, name: str) -> Iterator[Pods]:
    """One for a `with`, and a namespace in it; pods of the image that DLAMI_TEST_IMAGE names, if it does."""
    image_folder = os.environ.get(IMAGE_VARIABLE)
    with Kube(name, Path(image_folder) if image_folder else None) as kube:
        pods = Pods(kube, kubectl, folder)
        pods.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}})
        yield pods


def mpijob(name: str, command: list[str], *, workers: int = 2, **policy: Any) -> dict[str, Any]:
    """An MPIJob written by hand, of pods as the image has them."""
    probe = {"tcpSocket": {"port": image.SSH_PORT}, "periodSeconds": 1}
    worker = {"name": "worker", "image": "dlami:test", "command": list(image.SSHD), "readinessProbe": probe}
    launcher = {"name": "launcher", "image": "dlami:test", "command": command}
    return {
        "apiVersion": "kubeflow.org/v2beta1",
        "kind": "MPIJob",
        "metadata": {"name": name, "namespace": NAMESPACE},
        "spec": {
            "slotsPerWorker": 1,
            "launcherCreationPolicy": "WaitForWorkersReady",
            "sshAuthMountPath": image.SSH_FOLDER,
            "runPolicy": {"cleanPodPolicy": "Running", **policy},
            "mpiReplicaSpecs": {
                "Launcher": {"replicas": 1, "template": _pod(launcher)},
                "Worker": {"replicas": workers, "restartPolicy": "OnFailure", "template": _pod(worker)},
            },
        },
    }


def _pod(container: Mapping[str, Any]) -> dict[str, Any]:
    safe = {"runAsNonRoot": True, "runAsUser": image.UID, "runAsGroup": image.UID}
    return {"spec": {"securityContext": safe, "containers": [dict(container)]}}
