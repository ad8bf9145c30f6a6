"""Prerequisites of our manifests in Kubernetes, checked first because pods would otherwise wait for them forever."""

from collections.abc import Iterator, Sequence
from typing import Any

from cluster.errors import ConfigError
from eks.cluster import EksCluster
from eks.document import Document
from eks.kubectl import Kubectl, KubectlError

_WRITTEN = ("serviceaccount", "persistentvolumeclaim")  # by `inv eks.render`


def require(kubectl: Kubectl, cluster: EksCluster, documents: Sequence[Document]) -> None:
    """Raise ConfigError if an object that the pods refer to is missing. It names the object and the remedy."""
    missing = [one for one in references(documents) if not _is_there(kubectl, *one)]
    if not missing:
        return
    space = cluster.settings.namespace
    said = [f"namespace {space} lacks {', '.join(f'{kind} {name}' for kind, name in missing)}"]
    if any(kind in _WRITTEN for kind, _ in missing):
        said.append("'inv eks.render DIR' writes what is ours, and 'kubectl apply -f DIR' makes it")
    said += [
        f"eks.priority_class of the cluster file names {name}: choose one of 'kubectl get priorityclass'"
        for kind, name in missing
        if kind == "priorityclass"
    ]
    raise ConfigError("; ".join(said))


def references(documents: Sequence[Document]) -> list[tuple[str, str]]:
    """Return kind and name of what the manifests' pods refer to, without what the manifests create themselves."""
    made = {(one["kind"].lower(), one["metadata"]["name"]) for one in documents}
    found = [one for document in documents for spec in _pods(document) for one in _of_pod(spec)]
    return [one for one in dict.fromkeys(found) if one not in made]


def _pods(inside: Any) -> Iterator[dict[str, Any]]:
    """Yield every pod's spec in a manifest. An MPIJob has two."""
    if isinstance(inside, dict):
        if "containers" in inside:
            yield inside
        else:
            for value in inside.values():
                yield from _pods(value)


def _of_pod(spec: dict[str, Any]) -> Iterator[tuple[str, str]]:
    yield "serviceaccount", spec["serviceAccountName"]
    if spec.get("priorityClassName"):
        yield "priorityclass", spec["priorityClassName"]
    for secret in spec.get("imagePullSecrets", ()):
        yield "secret", secret["name"]
    for volume in spec["volumes"]:
        if claim := volume.get("persistentVolumeClaim"):
            yield "persistentvolumeclaim", claim["claimName"]
        if secret := volume.get("secret"):
            yield "secret", secret["secretName"]


def _is_there(kubectl: Kubectl, kind: str, name: str) -> bool:
    """Return True if the object exists.

    Priority classes are not namespaced. One that this user may not read counts as existing.
    """
    try:
        return bool(kubectl.get(kind, name))
    except KubectlError as e:
        if kind == "priorityclass" and "orbidden" in e.said:
            return True
        raise
