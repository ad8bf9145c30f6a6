"""Start-up environment of a pod's container: its variables, command and security context."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from eks import image as layout
from lab.kube.kinds import Document, kind
from lab.kube.store import Store
from lab.kube.volumes import NotYet, contents

_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
CAPABILITIES = frozenset(
    [
        "chown",
        "dac_override",
        "fowner",
        "fsetid",
        "kill",
        "setgid",
        "setuid",
        "setpcap",
        "net_bind_service",
        "net_raw",
        "sys_chroot",
        "mknod",
        "audit_write",
        "setfcap",
    ]
)
"""What a container's root has by default, as containerd gives it."""
GIVEN = CAPABILITIES | {"ipc_lock", "net_admin", "sys_nice", "sys_ptrace"}  # others would reach this machine
_REFERENCE = re.compile(r"\$\$|\$\(([^)]+)\)")


@dataclass(frozen=True, kw_only=True)
class ImageConfig:
    """An image's configuration of how its containers are started."""

    uid: int = layout.UID
    home: str = layout.HOME
    working_dir: str = layout.PROJECT
    variables: Mapping[str, str] = field(default_factory=lambda: {"PATH": f"{layout.PROJECT}/.venv/bin:{_PATH}"})
    command: tuple[str, ...] = ("/bin/bash",)


def variables(store: Store, pod: Document, container: Document, image: ImageConfig) -> dict[str, str]:
    """Return the container's environment. Raises NotYet if an object that it refers to does not exist."""
    space = pod["metadata"]["namespace"]
    found = {"PATH": _PATH, **image.variables, "HOSTNAME": hostname(pod), "HOME": image.home}
    for source in container.get("envFrom") or []:
        what = "Secret" if "secretRef" in source else "ConfigMap"
        reference = source.get("secretRef") or source["configMapRef"]
        whole = _contents(store, what, space, reference)
        found |= {source.get("prefix", "") + k: v.decode() for k, v in (whole or {}).items()}
    for entry in container.get("env") or []:
        value = _value(store, pod, entry)
        if value is not None:
            found[entry["name"]] = expanded(value, found)
    return found


def command(container: Document, image: ImageConfig, given: Mapping[str, str]) -> list[str]:
    """Return the command line of its first process."""
    words = container.get("command") or ([] if container.get("args") else list(image.command))
    return [expanded(w, given) for w in [*words, *(container.get("args") or [])]]


def expanded(text: str, given: Mapping[str, str]) -> str:
    """Replace `$(NAME)` by the value of each given name. `$$` becomes a dollar sign."""

    def one(found: "re.Match[str]") -> str:
        return "$" if found[0] == "$$" else given.get(found[1], found[0])

    return _REFERENCE.sub(one, str(text))


def security(pod: Document, container: Document, image: ImageConfig) -> Document:
    """Return `uid`, `gid`, `groups` and other settings from the pod's and the container's security contexts.

    Raises ValueError, in kubelet's words, if the container would run as root despite runAsNonRoot.
    """
    whole = pod["spec"].get("securityContext") or {}
    own = container.get("securityContext") or {}
    said: dict[str, Any] = {**whole, **own}
    uid = int(said.get("runAsUser", image.uid))
    if said.get("runAsNonRoot") and uid == 0:
        raise ValueError("container has runAsNonRoot and image will run as root")
    gid = int(said.get("runAsGroup", 0 if uid == 0 else image.uid))
    groups = [*whole.get("supplementalGroups", []), *([whole["fsGroup"]] if "fsGroup" in whole else [])]
    capabilities = own.get("capabilities") or {}
    drop, add = ({str(c).lower() for c in capabilities.get(which) or []} for which in ("drop", "add"))
    usual = set() if "all" in drop else CAPABILITIES - drop
    return {
        "uid": uid,
        "gid": gid,
        "groups": [int(g) for g in groups],
        "capabilities": sorted(usual | add & GIVEN),
        "no_new_privileges": own.get("allowPrivilegeEscalation") is False,
        "read_only_root": bool(own.get("readOnlyRootFilesystem")),
    }


def hostname(pod: Document) -> str:
    """Return the pod's host name."""
    return str(pod["spec"].get("hostname") or pod["metadata"]["name"])[:63]


def _value(store: Store, pod: Document, entry: Document) -> str | None:
    source = entry.get("valueFrom")
    if not source:
        return str(entry.get("value", ""))
    if "fieldRef" in source:
        return _field(pod, source["fieldRef"]["fieldPath"])
    if "resourceFieldRef" in source:
        return "0"
    what, reference = (
        ("Secret", source["secretKeyRef"]) if "secretKeyRef" in source else ("ConfigMap", source["configMapKeyRef"])
    )
    whole = _contents(store, what, pod["metadata"]["namespace"], reference)
    if whole is None or reference["key"] not in whole:
        if reference.get("optional"):
            return None
        raise NotYet(f"couldn't find key {reference['key']} in {what} {reference['name']}")
    return whole[reference["key"]].decode()


def _contents(store: Store, what: str, space: str, reference: Document) -> dict[str, bytes] | None:
    found = store.find(kind(what), space, reference["name"])
    if found is None and not reference.get("optional"):
        raise NotYet(f'{what.lower()} "{reference["name"]}" not found')
    return contents(found) if found else None


def _field(pod: Document, path: str) -> str:
    if found := re.fullmatch(r"metadata\.(labels|annotations)\['([^']+)'\]", path):
        return str((pod["metadata"].get(found[1]) or {}).get(found[2], ""))
    value: Any = pod
    for part in path.split("."):
        value = value.get(part, "") if isinstance(value, dict) else ""
    return str(value)
