"""Object store of the simulated API. Each creation, change and deletion gets a version that watchers follow."""

import copy
import secrets
import threading
import uuid
from collections import deque
from collections.abc import Callable, Iterable
from datetime import UTC, datetime

from lab.kube.admission import admitted
from lab.kube.api_errors import Refusal
from lab.kube.kinds import Document, Kind, kind
from lab.kube.selectors import chosen

_EVENTS = 20_000  # changes that are kept for late watchers
_LETTERS = "bcdfghjklmnpqrstvwxz2456789"  # of generated names, as Kubernetes chooses them


def now() -> str:
    """Return the current time in the API's format."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def seconds_since(time: str) -> float:
    """Return the seconds from a time of the API until now."""
    return (datetime.now(UTC) - datetime.fromisoformat(time)).total_seconds()


class Store:
    """All objects by kind, namespace and name. Returned objects are copies."""

    def __init__(self) -> None:
        self._objects: dict[tuple[Kind, str, str], Document] = {}
        self._events: deque[tuple[int, Kind, str, Document]] = deque(maxlen=_EVENTS)
        self._version = 0
        self._changed = threading.Condition(threading.RLock())
        for name in ("default", "kube-system"):
            self.create(kind("Namespace"), "", {"metadata": {"name": name}})
        for name, value in {"system-cluster-critical": 2_000_000_000, "system-node-critical": 2_000_001_000}.items():
            self.create(kind("PriorityClass"), "", {"metadata": {"name": name}, "value": value})

    @property
    def version(self) -> int:
        """The number of the last change."""
        return self._version

    def create(self, what: Kind, namespace: str, document: Document) -> Document:
        """Create an object and return it as stored. Raises Refusal if the API would refuse it."""
        with self._changed:
            made = copy.deepcopy(document)
            made |= {"apiVersion": what.api_version, "kind": what.name}
            meta = made.setdefault("metadata", {})
            if what.namespaced:
                meta["namespace"] = namespace
                self.get(kind("Namespace"), "", namespace)
            if "name" not in meta and meta.get("generateName"):
                meta["name"] = meta["generateName"] + "".join(secrets.choice(_LETTERS) for _ in range(5))
            admitted(what, made, self.names(kind("PriorityClass")) if what.name != "Namespace" else ())
            if self._key(what, meta) in self._objects:
                raise Refusal.exists(what, meta["name"])
            meta |= {"uid": str(uuid.uuid4()), "creationTimestamp": now(), "generation": 1}
            if what.name == "Job":
                _select_own_pods(made)
            return self._keep("ADDED", what, made)

    def get(self, what: Kind, namespace: str, name: str) -> Document:
        """Return the object. Raises Refusal if it does not exist."""
        found = self.find(what, namespace, name)
        if found is None:
            raise Refusal.missing(what, name)
        return found

    def find(self, what: Kind, namespace: str, name: str) -> Document | None:
        """Return the object, or None."""
        with self._changed:
            return copy.deepcopy(self._objects.get((what, namespace if what.namespaced else "", name)))

    def listed(self, what: Kind, namespace: str = "", *, labels: str = "", fields: str = "") -> list[Document]:
        """Return the objects of a namespace, or of all, sorted by name."""
        with self._changed:
            found = [
                d
                for (k, space, _), d in self._objects.items()
                if k == what and namespace in ("", space) and chosen(d, labels, fields)
            ]
            found.sort(key=lambda d: (d["metadata"].get("namespace", ""), d["metadata"]["name"]))
            return copy.deepcopy(found)

    def names(self, what: Kind) -> set[str]:
        """Return the names of all objects of a kind that is not namespaced."""
        with self._changed:
            return {name for k, _, name in self._objects if k == what}

    def change(self, what: Kind, namespace: str, name: str, changed: Callable[[Document], Document | None]) -> Document:
        """Replace the object by what `changed` makes of a copy, or changes in place.

        Nothing is stored if they are equal. Raises Refusal if there is none, or if `changed` returns an outdated
        resourceVersion.
        """
        with self._changed:
            old = self.get(what, namespace, name)
            given = copy.deepcopy(old)
            new = changed(given) or given
            said = new.get("metadata", {}).get("resourceVersion")
            if said not in (None, old["metadata"]["resourceVersion"]):
                raise Refusal.conflict(what, name)
            fixed = ("uid", "name", "namespace", "creationTimestamp", "deletionTimestamp", "deletionGracePeriodSeconds")
            new["metadata"] |= {k: old["metadata"][k] for k in (*fixed, "resourceVersion") if k in old["metadata"]}
            new |= {"apiVersion": what.api_version, "kind": what.name}
            admitted(what, new, ())
            if new == old:
                return old
            if {k: v for k, v in new.items() if k not in ("status", "metadata")} != {
                k: v for k, v in old.items() if k not in ("status", "metadata")
            }:
                new["metadata"]["generation"] = old["metadata"]["generation"] + 1
            return self._keep("MODIFIED", what, new)

    def delete(self, what: Kind, namespace: str, name: str, grace_s: int | None = None) -> Document:
        """Mark a pod or a namespace for deletion. Remove any other object at once."""
        with self._changed:
            found = self.get(what, namespace, name)
            if what.name == "Pod":
                usual = found["spec"].get("terminationGracePeriodSeconds", 30)
                grace = usual if grace_s is None else grace_s
                if grace == 0 and not found["spec"].get("nodeName"):
                    return self.remove(what, namespace, name)
            elif what.name == "Namespace":
                grace = 0
                found.setdefault("status", {})["phase"] = "Terminating"
            else:
                return self.remove(what, namespace, name)
            if "deletionTimestamp" in found["metadata"]:
                return found
            found["metadata"] |= {"deletionTimestamp": now(), "deletionGracePeriodSeconds": grace}
            return self._keep("MODIFIED", what, found)

    def remove(self, what: Kind, namespace: str, name: str) -> Document:
        """Remove the object."""
        with self._changed:
            found = self.get(what, namespace, name)
            del self._objects[self._key(what, found["metadata"])]
            return self._keep("DELETED", what, found)

    def wait(self, after: int, timeout_s: float) -> int:
        """Wait until the last change's number differs from `after`, or for the timeout. Return that number."""
        with self._changed:
            self._changed.wait_for(lambda: self._version != after, timeout_s)
            return self._version

    def events(self, after: int, what: Kind, namespace: str = "") -> list[tuple[int, str, Document]]:
        """Return the changes after that version: each with its version, its type and the object at that time.

        Raises Refusal if the store has forgotten some of them.
        """
        with self._changed:
            if self._events and after < self._events[0][0] - 1:
                raise Refusal.gone(after)
            return [
                (version, verb, copy.deepcopy(d))
                for version, k, verb, d in self._events
                if version > after and k == what and namespace in ("", d["metadata"].get("namespace", ""))
            ]

    def uids(self) -> set[str]:
        """Return the uids of all objects."""
        with self._changed:
            return {d["metadata"]["uid"] for d in self._objects.values()}

    def everything(self) -> Iterable[tuple[Kind, Document]]:
        """Return every object with its kind."""
        with self._changed:
            return [(k, copy.deepcopy(d)) for (k, _, _), d in self._objects.items()]

    @staticmethod
    def _key(what: Kind, meta: Document) -> tuple[Kind, str, str]:
        return (what, meta["namespace"] if what.namespaced else "", meta["name"])

    def _keep(self, verb: str, what: Kind, document: Document) -> Document:
        self._version += 1
        document["metadata"]["resourceVersion"] = str(self._version)
        if verb != "DELETED":
            self._objects[self._key(what, document["metadata"])] = document
        self._events.append((self._version, what, verb, copy.deepcopy(document)))
        self._changed.notify_all()
        return copy.deepcopy(document)


def _select_own_pods(job: Document) -> None:
    """Add the Job's uid to its pod template and selector, as the API does."""
    meta, template = job["metadata"], job["spec"]["template"]
    own = {"batch.kubernetes.io/controller-uid": meta["uid"], "batch.kubernetes.io/job-name": meta["name"]}
    labels = template.setdefault("metadata", {}).setdefault("labels", {})
    labels |= own | {"controller-uid": meta["uid"], "job-name": meta["name"]}
    job["spec"]["selector"] = {"matchLabels": {"batch.kubernetes.io/controller-uid": meta["uid"]}}
