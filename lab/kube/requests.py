"""Requests to the simulated API: the object or kind that each means, and its answer as a document."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from lab.kube.api_errors import Refusal
from lab.kube.kinds import BY_PATH, Document, Kind
from lab.kube.patches import patched
from lab.kube.store import Store

APPLY = "application/apply-patch+yaml"


@dataclass(frozen=True, kw_only=True)
class Request:
    """A request's path and query, parsed."""

    kind: Kind
    namespace: str
    name: str = ""  # empty: all of the kind
    part: str = ""  # a subresource
    query: Mapping[str, str]

    @property
    def is_watch(self) -> bool:
        """True if the client wants changes as they happen."""
        return self.query.get("watch") in ("true", "1")

    @property
    def selectors(self) -> dict[str, str]:
        """The label and field selectors of the wanted objects."""
        return {"labels": self.query.get("labelSelector", ""), "fields": self.query.get("fieldSelector", "")}


def parsed(url: str) -> Request:
    """Parse a request's URL. Raises Refusal if nothing is served at its path."""
    split = urlsplit(url)
    words = split.path.strip("/").split("/")
    base = 2 if words[0] == "api" else 3
    path, rest = "/".join(words[:base]), words[base:]
    namespace = ""
    if rest[:1] == ["namespaces"] and len(rest) > 2 and (path, rest[2]) in BY_PATH:
        namespace, rest = rest[1], rest[2:]
    found = BY_PATH.get((path, rest[0])) if rest else None
    if found is None or len(rest) > 3:
        raise Refusal(404, "NotFound", "the server could not find the requested resource")
    name, part = (*rest[1:], "", "")[:2]
    return Request(kind=found, namespace=namespace, name=name, part=part, query=dict(parse_qsl(split.query)))


def read(store: Store, request: Request) -> Document:
    """Return an object, or the list of the selected ones."""
    if request.name:
        return store.get(request.kind, request.namespace, request.name)
    version = store.version
    return {
        "kind": f"{request.kind.name}List",
        "apiVersion": request.kind.api_version,
        "metadata": {"resourceVersion": str(version)},
        "items": store.listed(request.kind, request.namespace, **request.selectors),
    }


def create(store: Store, request: Request, body: bytes) -> Document:
    """Create an object from the body and return it. Raises Refusal."""
    document = _document(body)
    if document.get("kind") != request.kind.name:
        raise Refusal(400, "BadRequest", f"a {document.get('kind')} is no {request.kind.name}")
    given = (document.get("metadata") or {}).get("namespace", request.namespace)
    if request.kind.namespaced and given != request.namespace:
        raise Refusal(400, "BadRequest", "the namespace of the object does not match the namespace of the request")
    if "dryRun" in request.query:
        return document
    return store.create(request.kind, request.namespace, document)


def replace(store: Store, request: Request, body: bytes) -> Document:
    """Replace an object by the body, or only its status for the subresource `status`. Return it."""
    document = _document(body)

    def changed(old: Document) -> Document:
        if request.part == "status":
            return {**old, "status": document.get("status")}
        return {**document, **({"status": old["status"]} if "status" in old else {})}

    return store.change(request.kind, request.namespace, request.name, changed)


def patch(store: Store, request: Request, body: bytes, content_type: str) -> Document:
    """Apply a patch to an object and return it. Server-side apply creates a missing object."""
    said = json.loads(body) if content_type != APPLY else _yaml(body)
    if content_type == APPLY and store.find(request.kind, request.namespace, request.name) is None:
        return store.create(request.kind, request.namespace, said)

    def changed(old: Document) -> Document:
        try:
            new: Document = patched(old, said, content_type)
        except (ValueError, KeyError, IndexError) as e:
            raise Refusal(415, "UnsupportedMediaType", f"this patch cannot be applied: {e}") from None
        if request.part != "status" and "status" in old:
            new["status"] = old["status"]
        return new

    if "dryRun" in request.query:
        return changed(store.get(request.kind, request.namespace, request.name))
    return store.change(request.kind, request.namespace, request.name, changed)


def delete(store: Store, request: Request, body: bytes) -> Document:
    """Delete an object, or the selected ones. Objects they own follow, and pods get their grace period."""
    options = _document(body) if body.strip() else {}
    grace = options.get("gracePeriodSeconds", request.query.get("gracePeriodSeconds"))
    grace_s = None if grace is None else int(grace)
    if request.name:
        return store.delete(request.kind, request.namespace, request.name, grace_s)
    found = store.listed(request.kind, request.namespace, **request.selectors)
    for one in found:
        meta = one["metadata"]
        store.delete(request.kind, meta.get("namespace", ""), meta["name"], grace_s)
    return {"kind": f"{request.kind.name}List", "apiVersion": request.kind.api_version, "metadata": {}, "items": found}


def _document(body: bytes) -> Document:
    try:
        document: Any = json.loads(body)
    except ValueError:
        said = "the lab's API reads JSON: write the object to a file, and 'kubectl apply -f' it"
        raise Refusal(415, "UnsupportedMediaType", said) from None
    if not isinstance(document, dict):
        raise Refusal(400, "BadRequest", "the body is no object")
    return document


def _yaml(body: bytes) -> Document:
    import yaml

    return dict(yaml.safe_load(body))
