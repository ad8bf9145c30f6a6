"""Garbage collection by owner, deletion of a namespace's objects, and binding of volume claims."""

from lab.kube.api_errors import Refusal
from lab.kube.kinds import KINDS, Document, kind
from lab.kube.store import Store

_NAMESPACE, _VOLUME, _CLAIM = kind("Namespace"), kind("PersistentVolume"), kind("PersistentVolumeClaim")


def sync(store: Store) -> None:
    """Run one pass over all objects."""
    _orphans(store)
    _namespaces(store)
    _claims(store)


def _orphans(store: Store) -> None:
    """Delete objects that have owners of which none exists."""
    uids = store.uids()
    for what, document in store.everything():
        meta = document["metadata"]
        owners = [o["uid"] for o in meta.get("ownerReferences") or []]
        if owners and not any(o in uids for o in owners) and "deletionTimestamp" not in meta:
            try:
                store.delete(what, meta.get("namespace", ""), meta["name"])
            except Refusal:
                continue  # deleted meanwhile


def _namespaces(store: Store) -> None:
    for space in store.listed(_NAMESPACE):
        if "deletionTimestamp" not in space["metadata"]:
            continue
        name = space["metadata"]["name"]
        inside = [(k, d) for k in KINDS if k.namespaced for d in store.listed(k, name)]
        for what, document in inside:
            if "deletionTimestamp" not in document["metadata"]:
                store.delete(what, name, document["metadata"]["name"])
        if not inside:
            store.remove(_NAMESPACE, "", name)


def _claims(store: Store) -> None:
    """Bind each claim to the volume it names or a free one of its class. A class with a driver creates one."""
    for claim in store.listed(_CLAIM):
        if claim.get("status", {}).get("phase") == "Bound":
            continue
        volume = _volume_for(store, claim)
        if volume is None:
            continue
        meta = claim["metadata"]
        holder = {"kind": "PersistentVolumeClaim", "name": meta["name"], "namespace": meta["namespace"]}
        name = volume["metadata"]["name"]
        bound = {"phase": "Bound"}

        def take(d: Document, holder: Document = holder, bound: Document = bound) -> Document:
            return {**d, "spec": {**d["spec"], "claimRef": holder}, "status": bound}

        def give(d: Document, name: str = name, volume: Document = volume) -> Document:
            capacity = volume["spec"].get("capacity", {})
            modes = volume["spec"].get("accessModes", [])
            status = {"phase": "Bound", "capacity": capacity, "accessModes": modes}
            return {**d, "spec": {**d["spec"], "volumeName": name}, "status": status}

        store.change(_VOLUME, "", name, take)
        store.change(_CLAIM, meta["namespace"], meta["name"], give)


def _volume_for(store: Store, claim: Document) -> Document | None:
    spec, meta = claim["spec"], claim["metadata"]
    if named := spec.get("volumeName"):
        return store.find(_VOLUME, "", named)
    wanted = spec.get("storageClassName", "")
    for volume in store.listed(_VOLUME):
        free = (volume.get("status") or {}).get("phase") != "Bound"
        modes = set(spec.get("accessModes") or []) <= set(volume["spec"].get("accessModes") or [])
        if free and modes and volume["spec"].get("storageClassName", "") == wanted:
            return volume
    made_by = store.find(kind("StorageClass"), "", wanted) if wanted else None
    if made_by is None or made_by.get("provisioner") == "kubernetes.io/no-provisioner":
        return None
    options = made_by.get("parameters") or {}
    name = f"pvc-{meta['uid']}"
    source = {"driver": made_by["provisioner"], "volumeHandle": f"{options.get('fileSystemId', 'fs')}::{name}"}
    source["volumeAttributes"] = options
    volume_spec = {
        "capacity": spec["resources"]["requests"],
        "accessModes": spec["accessModes"],
        "storageClassName": wanted,
        "csi": source,
    }
    return store.create(_VOLUME, "", {"metadata": {"name": name}, "spec": volume_spec})
