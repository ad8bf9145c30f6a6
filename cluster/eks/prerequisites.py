"""What documents of ours stand on in a Kubernetes, looked for before one is made that would wait for it in vain."""

from collections.abc import Iterator, Sequence
from typing import Any

from cluster.eks.cluster import EksCluster
from cluster.eks.document import Document
from cluster.eks.kubectl import Kubectl, KubectlError
from cluster.errors import ConfigError

_WRITTEN = ("serviceaccount", "persistentvolumeclaim")  # by `inv eks.render`


def require(kubectl: Kubectl, cluster: EksCluster, documents: Sequence[Document]) -> None:
    """Raises ConfigError that names what their pods refer to and nobody has made, and what makes it."""
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
    """Kind and name of what the pods of these documents refer to, without what the documents make themselves."""
    made = {(one["kind"].lower(), one["metadata"]["name"]) for one in documents}
    found = [one for document in documents for spec in _pods(document) for one in _of_pod(spec)]
    return [one for one in dict.fromkeys(found) if one not in made]


def _pods(inside: Any) -> Iterator[dict[str, Any]]:
    """Every pod's spec in a document: an MPIJob has two."""
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
    """Priority classes are in no namespace: whoever may not look at them is not told that one is missing."""
    try:
        return bool(kubectl.get(kind, name))
    except KubectlError as e:
        if kind == "priorityclass" and "orbidden" in e.said:
            return True
        raise
