"""Admission of objects by the API: defaults that other components rely on, and refusals that users meet."""

import base64
import re
from collections.abc import Collection

from lab.kube.api_errors import Refusal
from lab.kube.kinds import Document, Kind

_NAME = re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?")
_LABEL = re.compile(r"[a-z]([-a-z0-9]{0,61}[a-z0-9])?")  # a Service is a name in DNS
_DATA_BYTES = 1 << 20  # of a Secret or ConfigMap, all values together


def admitted(what: Kind, document: Document, priorities: Collection[str]) -> None:
    """Fill in an object's defaults, in place. Raises Refusal if the object is invalid.

    Args:
        priorities: names of the existing PriorityClasses; if empty, pods' classes are not checked.
    """
    name = str(document["metadata"].get("name", ""))
    form = _LABEL if what.name in ("Service", "Namespace") else _NAME
    if not form.fullmatch(name) and not what.group.startswith("rbac"):
        raise Refusal.invalid(what, name, "metadata.name", f"Invalid value: {name!r}: must be a DNS name")
    if what.name in ("Secret", "ConfigMap"):
        _data(what, name, document)
    elif what.name == "Pod":
        _pod_spec(what, name, "spec", document.setdefault("spec", {}), "Always", priorities)
    elif what.name == "Job":
        _job(what, name, document.setdefault("spec", {}), priorities)
    elif what.name == "Deployment":
        spec = document.setdefault("spec", {})
        spec.setdefault("replicas", 1)
        _pod_spec(what, name, "spec.template.spec", spec.get("template", {}).get("spec", {}), "Always", priorities)
        wanted = spec.get("selector", {}).get("matchLabels", {})
        if not wanted.items() <= (spec["template"].get("metadata", {}).get("labels") or {}).items():
            raise Refusal.invalid(what, name, "spec.template.metadata.labels", "`selector` does not match them")
    elif what.name == "Namespace":
        document.setdefault("status", {}).setdefault("phase", "Active")
    elif what.name in ("PersistentVolume", "PersistentVolumeClaim"):
        document.setdefault("status", {}).setdefault(
            "phase", "Available" if what.name == "PersistentVolume" else "Pending"
        )


def _job(what: Kind, name: str, spec: Document, priorities: Collection[str]) -> None:
    usual = {"completions": 1, "parallelism": 1, "suspend": False, "completionMode": "NonIndexed"}
    limit = 6 if spec.get("backoffLimitPerIndex") is None else (1 << 31) - 1
    for field, value in {"backoffLimit": limit, **usual}.items():
        spec.setdefault(field, value)
    _pod_spec(what, name, "spec.template.spec", spec.get("template", {}).get("spec", {}), "", priorities)
    if (policy := spec["template"]["spec"]["restartPolicy"]) not in ("OnFailure", "Never"):
        raise Refusal.invalid(what, name, "spec.template.spec.restartPolicy", f'Unsupported value: "{policy}"')
    is_indexed, actions = spec["completionMode"] == "Indexed", _actions(spec)
    for field, is_wrong, why in (
        ("backoffLimitPerIndex", "backoffLimitPerIndex" in spec and not is_indexed, "requires indexed completion mode"),
        ("maxFailedIndexes", "maxFailedIndexes" in spec and "backoffLimitPerIndex" not in spec, "requires per index"),
        ("podFailurePolicy", bool(actions) and policy != "Never", 'only "Never" is supported when it is specified'),
        ("podFailurePolicy", not actions <= {"FailIndex", "Count"}, "the lab knows the actions FailIndex and Count"),
    ):
        if is_wrong:
            raise Refusal.invalid(what, name, f"spec.{field}", why)


def _actions(spec: Document) -> set[str]:
    return {rule["action"] for rule in (spec.get("podFailurePolicy") or {}).get("rules") or []}


def _data(what: Kind, name: str, document: Document) -> None:
    """Move a Secret's `stringData` to `data`. Raises Refusal for data that is too large or not base64."""
    if what.name == "Secret":
        document.setdefault("type", "Opaque")
        data = document.setdefault("data", {})
        for key, text in (document.pop("stringData", None) or {}).items():
            data[key] = base64.b64encode(str(text).encode()).decode()
        size = 0
        for key, value in data.items():
            try:
                size += len(base64.b64decode(value, validate=True))
            except ValueError:
                raise Refusal.invalid(what, name, f"data.{key}", "illegal base64 data") from None
    else:
        size = sum(len(str(v).encode()) for v in (document.get("data") or {}).values())
        size += sum(len(v) for v in (document.get("binaryData") or {}).values()) * 3 // 4
    if size > _DATA_BYTES:
        raise Refusal.invalid(what, name, "data", f"Too long: may not be more than {_DATA_BYTES} bytes")


def _pod_spec(what: Kind, name: str, at: str, spec: Document, restart: str, priorities: Collection[str]) -> None:
    spec.setdefault("restartPolicy", restart)
    for field, value in {"terminationGracePeriodSeconds": 30, "dnsPolicy": "ClusterFirst"}.items():
        spec.setdefault(field, value)
    containers = spec.get("containers") or []
    if not containers:
        raise Refusal.invalid(what, name, f"{at}.containers", "Required value")
    volumes = {v.get("name") for v in spec.get("volumes") or []}
    for n, container in enumerate([*containers, *(spec.get("initContainers") or [])]):
        for field in ("name", "image"):
            if not container.get(field):
                raise Refusal.invalid(what, name, f"{at}.containers[{n}].{field}", "Required value")
        for m, mount in enumerate(container.get("volumeMounts") or []):
            if mount.get("name") not in volumes:
                where = f"{at}.containers[{n}].volumeMounts[{m}].name"
                raise Refusal.invalid(what, name, where, f'Not found: "{mount.get("name")}"')
    priority = spec.get("priorityClassName")
    if priority and priorities and priority not in priorities and what.name == "Pod":
        raise Refusal(403, "Forbidden", f'pods "{name}" is forbidden: no PriorityClass with name {priority} was found')
