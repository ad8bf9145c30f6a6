"""Patches of objects: JSON merge patch (RFC 7386), strategic merge and server-side apply, JSON patch."""

import copy
from typing import Any

# Merge keys of lists, from the API's types. Other lists are replaced as a whole.
_KEYS = {
    "containers": "name",
    "initContainers": "name",
    "volumes": "name",
    "volumeMounts": "mountPath",
    "env": "name",
    "imagePullSecrets": "name",
    "conditions": "type",
    "ownerReferences": "uid",
    "taints": "key",
}


def patched(document: Any, patch: Any, content_type: str) -> Any:
    """Return the object after the patch. Raises ValueError for an unknown kind of patch."""
    if content_type == "application/merge-patch+json":
        return _merged(document, patch, lists=False)
    if content_type in ("application/strategic-merge-patch+json", "application/apply-patch+yaml"):
        return _merged(document, patch, lists=True)
    if content_type == "application/json-patch+json":
        return _stepped(document, patch)
    raise ValueError(f"no patch of type {content_type}")


def _merged(old: Any, new: Any, *, lists: bool) -> Any:
    if not isinstance(new, dict):
        return copy.deepcopy(new)
    result = dict(old) if isinstance(old, dict) else {}
    for key, value in new.items():
        if lists and key.startswith("$"):  # orders and directives for whole maps: nothing that we render needs them
            continue
        if value is None:
            result.pop(key, None)
        elif lists and key in _KEYS and isinstance(value, list):
            result[key] = _merged_list(result.get(key) or [], value, _KEYS[key])
        else:
            result[key] = _merged(result.get(key), value, lists=lists)
    return result


def _merged_list(old: list[Any], new: list[Any], key: str) -> list[Any]:
    result = {entry[key]: entry for entry in old}
    for entry in new:
        if entry.get("$patch") == "delete":
            result.pop(entry[key], None)
        else:
            result[entry[key]] = _merged(result.get(entry[key]), entry, lists=True)
    return list(result.values())


def _stepped(document: Any, steps: list[dict[str, Any]]) -> Any:
    result = copy.deepcopy(document)
    for step in steps:
        *path, last = [p.replace("~1", "/").replace("~0", "~") for p in step["path"].split("/")[1:]]
        place = result
        for part in path:
            place = place[int(part)] if isinstance(place, list) else place.setdefault(part, {})
        if isinstance(place, list):
            _change_list(place, last, step)
        elif step["op"] == "remove":
            place.pop(last, None)
        else:
            place[last] = step["value"]
    return result


def _change_list(place: list[Any], last: str, step: dict[str, Any]) -> None:
    if step["op"] == "remove":
        del place[int(last)]
    elif step["op"] == "replace":
        place[int(last)] = step["value"]
    else:
        place.insert(len(place) if last == "-" else int(last), step["value"])
