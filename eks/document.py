"""A Kubernetes manifest as a plain value, the fields that all of ours share, and its text as YAML."""

import re
from collections.abc import Iterable
from typing import Any

from cluster.errors import ConfigError

Document = dict[str, Any]

PART_OF = "app.kubernetes.io/part-of"
PROJECT = "dlami-cluster"
CLUSTER = "dlami/cluster"  # the label that has the cluster's name
JOB = "dlami/job"  # the label that has a training's id
_FIRST = ("apiVersion", "kind", "metadata", "name", "namespace", "labels", "annotations")
_NAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")
_WORDS_OF_OTHER_READERS = frozenset("yYnN")  # Booleans to Go's readers of YAML, texts to ours


def object_name(*parts: str) -> str:
    """Return a name that is valid for every kind of object, from the cluster's name and the object's purpose.

    Raises ConfigError if Kubernetes would refuse it: over 63 characters, or others than letters, digits and hyphens.
    """
    name = "-".join(parts).lower()
    if not _NAME.fullmatch(name):
        raise ConfigError(
            f"{name!r} cannot name an object of Kubernetes: it takes up to 63 letters, digits and hyphens; "
            "set a shorter or plainer name in cluster.toml"
        )
    return name


def labels(cluster: str, **more: str) -> dict[str, str]:
    """Return the labels of every object of a cluster, by which they are found and deleted.

    Args:
        more: further labels; `app="tensorboard"` becomes `app.kubernetes.io/name`, `job=ID` becomes `dlami/job`.
    """
    known = {"app": "app.kubernetes.io/name", "job": JOB}
    return {PART_OF: PROJECT, CLUSTER: object_name(cluster), **{known[key]: value for key, value in more.items()}}


def document(api: str, kind: str, name: str, cluster: str, *, namespace: str = "", **fields: Any) -> Document:
    """Return a manifest with the cluster's labels.

    Args:
        namespace: "" for a kind that is not namespaced.
        fields: `spec`, `data` and other fields of the kind; `metadata` is merged into ours.
    """
    own = {"namespace": namespace} if namespace else {}
    more = dict(fields.pop("metadata", {}))
    all_labels = {**labels(cluster), **more.pop("labels", {})}
    return {
        "apiVersion": api,
        "kind": kind,
        "metadata": {"name": name, **own, "labels": all_labels, **more},
        **fields,
    }


def text(documents: Iterable[Document]) -> str:
    """Return the manifests as one YAML stream, with keys in the customary order. Equal values give equal text.

    Strings that a YAML 1.1 or 1.2 reader could take for a number or a Boolean are quoted.
    """
    import yaml

    class Writer(yaml.SafeDumper):
        """YAML dumper: block style, indented lists, no anchors."""

        def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:
            super().increase_indent(flow, False)

        def ignore_aliases(self, data: Any) -> bool:
            return True

    def text_of(writer: Any, value: str) -> Any:
        style = "|" if "\n" in value else '"' if _could_be_another(value) else None
        return writer.represent_scalar("tag:yaml.org,2002:str", value, style=style)

    Writer.add_representer(str, text_of)
    Writer.add_representer(tuple, lambda writer, value: writer.represent_list(value))
    return yaml.dump_all(
        (_in_order(one) for one in documents),
        Dumper=Writer,
        explicit_start=True,
        sort_keys=False,
        default_flow_style=False,
        allow_unicode=True,
        width=10**6,
    )


def read(stream: str) -> list[Document]:
    """Parse a YAML stream of manifests. Raises ConfigError with the line if it is not YAML, or not a manifest."""
    import yaml

    try:
        found = [one for one in yaml.safe_load_all(stream) if one is not None]
    except yaml.YAMLError as e:
        raise ConfigError(f"this is no YAML: {' '.join(str(e).split())}") from e
    if odd := [one for one in found if not isinstance(one, dict) or not {"apiVersion", "kind"} <= one.keys()]:
        raise ConfigError(f"this is no Kubernetes document, it has no apiVersion and kind: {str(odd[0])[:80]}")
    return found


def _in_order(value: Any) -> Any:
    """Return the value with the keys that identify an object before all other keys."""
    if isinstance(value, dict):
        keys = [*(k for k in _FIRST if k in value), *(k for k in value if k not in _FIRST)]
        return {key: _in_order(value[key]) for key in keys}
    return [_in_order(one) for one in value] if isinstance(value, list | tuple) else value


def _could_be_another(value: str) -> bool:
    """Return True if some YAML reader would parse this string as another type.

    `1e3` and `0o17` are numbers to Go, not to PyYAML.
    """
    if value in _WORDS_OF_OTHER_READERS:
        return True
    for number in (float, lambda word: int(word, 0)):
        try:
            number(value)
            return True
        except ValueError:
            continue
    return False
