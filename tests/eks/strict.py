"""Kubernetes' own schemas, strict: every field that a document has must be known, of its type, and where it belongs."""

import functools
import hashlib
import json
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cluster.inventory import ROOT


@dataclass(frozen=True)
class KubeTools:
    """What scripts/install-kube.sh unpacked on this machine."""

    folder: Path

    @property
    def kubectl(self) -> Path:
        return self.folder / "kubectl"

    @property
    def helm(self) -> Path:
        return self.folder / "helm"

    def errors(self, document: dict[str, Any]) -> list[str]:
        """What the strict schema of its kind (1.37) has against a document: path and sentence each."""
        return [
            f"{one.json_path}: {one.message}" for one in _validator(self.folder, *_kind(document)).iter_errors(document)
        ]


def tools_folder() -> Path:
    """Where scripts/install-kube.sh leaves them, whether it has been run or not."""
    cache = os.environ.get("DLAMI_CLUSTER_CACHE")
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "dlami-cluster"
    lock = (ROOT / "requirements.lock").read_text()
    locked = "".join(f"{line}\n" for line in lock.splitlines() if line.endswith("  # tests"))
    return (Path(cache) if cache else home) / f"kube-{hashlib.sha256(locked.encode()).hexdigest()[:16]}"


TOOLS = tools_folder()  # now, while tests are collected: each of them runs with a cache of its own


def _kind(document: dict[str, Any]) -> tuple[str, str]:
    """Kind and version as the schemas' files are named, after kubernetes_validate.utils.validate."""
    return document["kind"].lower(), re.sub(r"^([^./]*)(?:\.[^/]*)?/", r"\1-", document["apiVersion"])


@functools.cache
def _validator(folder: Path, kind: str, version: str) -> Any:
    import jsonschema

    schema = json.loads((folder / f"schemas/{kind}-{version}.json").read_text())
    return jsonschema.Draft202012Validator(schema, registry=_definitions(folder))


@functools.cache
def _definitions(folder: Path) -> Any:
    from referencing import Registry, Resource

    return Resource.from_contents(json.loads((folder / "schemas/_definitions.json").read_text())) @ Registry()
