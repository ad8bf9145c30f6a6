"""Volumes of a pod as folders of this machine, and their mounts in its containers."""

import base64
import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from lab.kube.kinds import Document, kind
from lab.kube.store import Store
from lab.record import Lab

_EFS = "efs.csi.aws.com"
_UNITS = {"Ki": 1 << 10, "Mi": 1 << 20, "Gi": 1 << 30, "Ti": 1 << 40, "k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}


class NotYet(Exception):
    """Error: a volume or object that a pod waits for does not exist yet."""


@dataclass(frozen=True)
class Mount:
    """Bind mount of a folder or file into a container."""

    source: Path
    target: str
    is_read_only: bool = False

    def __str__(self) -> str:
        """Return the mount as scripts/lab-pod.sh reads it."""
        return f"{'ro' if self.is_read_only else 'rw'}\t{self.source}\t{self.target}"


class Volumes:
    """Volumes of one pod. Those that belong to the pod alone are below `folder`."""

    def __init__(self, store: Store, lab: Lab, pod: Document, folder: Path) -> None:
        self._store, self._lab, self._pod, self._folder = store, lab, pod, folder
        self._space = pod["metadata"]["namespace"]
        self._listed: list[Document] = pod["spec"].get("volumes") or []

    def memory(self) -> dict[Path, int]:
        """Return the folders to mount in memory, and their size in bytes; 0 sets no limit."""
        inside = {v["name"]: v["emptyDir"] or {} for v in self._listed if "emptyDir" in v}
        return {
            self._folder / name: number(v.get("sizeLimit", "0"))
            for name, v in inside.items()
            if v.get("medium") == "Memory"
        }

    def prepare(self) -> None:
        """Create the folders and files. Call it again to update changed ConfigMaps and Secrets. Raises NotYet."""
        self._folder.mkdir(parents=True, exist_ok=True)
        for volume in self._listed:
            self._prepare(volume, self._folder / volume["name"])

    def mounts(self, container: Document) -> list[Mount]:
        """Return the container's mounts, outer folders first. Raises NotYet."""
        named = {v["name"]: v for v in self._listed}
        found = []
        for mount in container.get("volumeMounts") or []:
            volume = named[mount["name"]]
            source = self._source(volume)
            if inner := mount.get("subPath"):
                source = source / inner
                if not source.exists():
                    source.mkdir(parents=True)
            kept = any(k in volume for k in ("configMap", "secret", "projected"))
            read_only = bool(mount.get("readOnly") or kept or volume.get("persistentVolumeClaim", {}).get("readOnly"))
            found.append(Mount(source, mount["mountPath"].rstrip("/"), read_only))
        return sorted(found, key=lambda m: m.target)

    def _prepare(self, volume: Document, folder: Path) -> None:
        if "configMap" in volume or "secret" in volume:
            self._write(folder, self._files([volume]))
        elif "projected" in volume:
            self._write(folder, self._files(volume["projected"].get("sources") or []))
        elif "emptyDir" in volume:
            folder.mkdir(exist_ok=True)
            folder.chmod(0o777)
        else:
            self._source(volume).mkdir(parents=True, exist_ok=True)

    def _source(self, volume: Document) -> Path:
        if "persistentVolumeClaim" in volume:
            return self._claimed(volume["persistentVolumeClaim"]["claimName"])
        if "hostPath" in volume:
            return self._lab.folder / "node" / self._pod["spec"]["nodeName"] / volume["hostPath"]["path"].lstrip("/")
        if "nfs" in volume:
            return self._lab.shared / volume["nfs"]["path"].lstrip("/")
        return self._folder / volume["name"]

    def _claimed(self, name: str) -> Path:
        """Return the folder of a claim's volume.

        EFS is the lab's shared folder, any other file system a folder beside it.
        """
        claim = self._store.find(kind("PersistentVolumeClaim"), self._space, name)
        if claim is None or claim["status"].get("phase") != "Bound":
            raise NotYet(f'persistentvolumeclaim "{name}" {"is not bound" if claim else "not found"}')
        volume = self._store.get(kind("PersistentVolume"), "", claim["spec"]["volumeName"])["spec"]
        if "csi" not in volume:
            return self._lab.shared / (volume.get("nfs") or volume.get("hostPath"))["path"].lstrip("/")
        handle, driver = volume["csi"]["volumeHandle"], volume["csi"]["driver"]
        system, _, inner = handle.partition(":")
        if driver != _EFS:
            return self._lab.folder / "volumes" / system.replace("/", "-")
        path, _, access_point = inner.partition(":")
        folder = self._lab.shared / path.lstrip("/") / access_point
        if access_point and not folder.exists():  # one that the driver makes belongs to whom its class says
            folder.mkdir(parents=True)
            options = volume["csi"].get("volumeAttributes") or {}
            os.chown(folder, int(options.get("uid", 0)), int(options.get("gid", 0)))
        return folder

    def _files(self, sources: Iterable[Document]) -> dict[str, tuple[bytes, int]]:
        """Return content and mode of each file of ConfigMaps and Secrets, by relative path. Raises NotYet."""
        files: dict[str, tuple[bytes, int]] = {}
        for source in sources:
            what = "Secret" if "secret" in source else "ConfigMap"
            said = source.get("secret") or source.get("configMap") or {}
            name = said.get("secretName") or said["name"]
            found = self._store.find(kind(what), self._space, name)
            if found is None:
                if said.get("optional"):
                    continue
                raise NotYet(f'{what.lower()} "{name}" not found')
            data = contents(found)
            usual = said.get("defaultMode", 0o644)
            items = said.get("items") or [{"key": key, "path": key} for key in data]
            for item in items:
                if item["key"] not in data:
                    raise NotYet(f"references non-existent {what.lower()} key: {item['key']}")
                files[item["path"]] = (data[item["key"]], item.get("mode", usual))
        return files

    def _write(self, folder: Path, files: dict[str, tuple[bytes, int]]) -> None:
        folder.mkdir(exist_ok=True)
        group = (self._pod["spec"].get("securityContext") or {}).get("fsGroup")
        for name, (data, mode) in files.items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            if path.exists() and path.read_bytes() == data:
                continue
            new = path.with_name(f".{path.name}.new")
            new.write_bytes(data)
            if group is not None:  # it may read what root may
                os.chown(new, 0, int(group))
                mode |= (mode & 0o400) >> 3
            new.chmod(mode)
            new.replace(path)


def contents(found: Document) -> dict[str, bytes]:
    """Return the values of a ConfigMap or Secret by key."""
    data = found.get("data") or {}
    if found["kind"] == "Secret":
        return {k: base64.b64decode(v) for k, v in data.items()}
    binary = {k: base64.b64decode(v) for k, v in (found.get("binaryData") or {}).items()}
    return {**{k: str(v).encode() for k, v in data.items()}, **binary}


def number(quantity: str) -> int:
    """Return the number of a Kubernetes quantity, such as `8Gi`, `500M` or `2`."""
    text = str(quantity)
    for unit, factor in _UNITS.items():
        if text.endswith(unit):
            return int(float(text.removesuffix(unit)) * factor)
    return int(float(text))
