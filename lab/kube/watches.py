"""Watches: the changes of the selected objects as lines of JSON."""

import json
import threading
import time
from collections.abc import Generator, Iterator

from lab.kube.kinds import Document
from lab.kube.requests import Request
from lab.kube.selectors import chosen
from lab.kube.store import Store

_MOST_S = 3600.0  # the longest that one lasts


def watched(store: Store, request: Request, ended: threading.Event) -> Generator[bytes, None, None]:
    """Yield changes as lines of JSON. If the client knows no version yet, the existing objects come first."""
    yield b""
    query = request.query
    fields = request.selectors
    if request.name:
        fields = {**fields, "fields": f"metadata.name={request.name}"}
    version = int(query.get("resourceVersion") or 0)
    known: set[str] = set()
    if version == 0 or query.get("sendInitialEvents") == "true":
        version = store.version
        for document in store.listed(request.kind, request.namespace, **fields):
            known.add(document["metadata"]["uid"])
            yield _line("ADDED", document)
        if query.get("sendInitialEvents") == "true":
            yield _line("BOOKMARK", _bookmark(request, version))
    else:
        known = {d["metadata"]["uid"] for d in store.listed(request.kind, request.namespace, **fields)}
    deadline = time.monotonic() + min(float(query.get("timeoutSeconds") or _MOST_S), _MOST_S)
    while time.monotonic() < deadline and not ended.is_set():
        latest = store.wait(version, 1.0)
        for at, verb, document in store.events(version, request.kind, request.namespace):
            if at <= latest:
                yield from _told(verb, document, fields, known)
        version = latest


def _line(verb: str, document: Document) -> bytes:
    return json.dumps({"type": verb, "object": document}).encode() + b"\n"


def _told(verb: str, document: Document, fields: dict[str, str], known: set[str]) -> Iterator[bytes]:
    """Yield a change as a watcher of selected objects sees it.

    An object that starts to match the selectors is ADDED. One that stops matching is DELETED.
    """
    uid = document["metadata"]["uid"]
    if chosen(document, **fields):
        yield _line("ADDED" if uid not in known and verb == "MODIFIED" else verb, document)
        known.add(uid)
    elif uid in known:
        yield _line("DELETED", document)
        known.discard(uid)
    if verb == "DELETED":
        known.discard(uid)


def _bookmark(request: Request, version: int) -> Document:
    notes = {"k8s.io/initial-events-end": "true"}
    meta = {"resourceVersion": str(version), "annotations": notes}
    return {"kind": request.kind.name, "apiVersion": request.kind.api_version, "metadata": meta}
