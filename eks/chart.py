"""Helm chart with the rendered manifests. Values that differ between clusters become fields of values.yaml.

The manifests are rendered for a cluster whose values are placeholders. Each placeholder is then replaced by a template
expression. Parts that exist only if a field is set are put between `if` and `end`.
"""

import difflib
import re
from collections.abc import Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any

from cluster.clusterfile.instance_types import Hardware
from cluster.clusterfile.model import ClusterFile, EksSettings, Storage
from eks.cluster import EksCluster
from eks.document import Document, text
from eks.plugins import efa_image
from eks.render import NOUNS, rendered

_CIDR = "192.0.2.1/32"
_LUSTRE = '{{ (split ":" .Values.eks.fsx)._0 }}'
_REGION = "zzregion-1"
_DOMAIN = 'amazonaws.com{{ if hasPrefix "cn-" .Values.region }}.cn{{ end }}'
# Placeholders in a manifest and the expressions that replace them. Longer placeholders come first.
_MARKS = {
    efa_image(_REGION): "{{ .Values.plugins.efa_image }}",
    f"fs-000000000000000f5.fsx.{_REGION}.amazonaws.com": f"{_LUSTRE}.fsx.{{{{ .Values.region }}}}.{_DOMAIN}",
    "fs-000000000000000f5": _LUSTRE,
    "fs-000000000000000ef": "{{ .Values.eks.efs }}",
    "zzlustremount": '{{ (split ":" .Values.eks.fsx)._1 }}',
    "zzregistry/zz:1": "{{ .Values.eks.image }}",
    "/mnt/zzlocal": "{{ .Values.eks.local }}",
    "/zzlustre": "{{ .Values.storage.fsx_mount }}",
    "/zzshared": "{{ .Values.shared }}",
    "zzspace": "{{ .Values.eks.namespace }}",
    "zztype": "{{ .Values.nodes.instance_type }}",
    "zzname": "{{ .Values.name | lower }}",
    "Zzname": "{{ .Values.name }}",
    _CIDR: '{{ join "," .Values.eks.allow_cidrs }}',
}
_CONDITIONS = {
    "allow_cidrs": ".Values.eks.allow_cidrs",
    "fsx": ".Values.eks.fsx",
    "local": ".Values.eks.local",
    "gpu": ".Values.plugins.nvidia",
    "efa": ".Values.plugins.efa_image",
}
_MARKED = re.compile("|".join(map(re.escape, _MARKS)))
_SCALAR = re.compile(r"( *(?:- )*(?:[\w./-]+: )?)(.*)")
_EACH_NETWORK = re.compile(rf"( *- (?:ipBlock:\n +cidr: )?){re.escape(_CIDR)}\n")


def chart(cluster: EksCluster) -> dict[str, str]:
    """Return the chart's files, keyed by their paths in the chart's folder.

    Raises ConfigError if the cluster file lacks something.
    """
    rendered(cluster)  # so that errors name the file's values, not our placeholders
    templates = {f"templates/{noun.rpartition('/')[2]}.yaml": _template(noun) for noun in nouns()}
    about = {
        "apiVersion": "v2",
        "name": "dlami-cluster",
        "description": "What trainings by dlami-cluster stand on in a Kubernetes: volumes, plugins, access, pages",
        "type": "application",
        "version": "0.2.0",
        "appVersion": "0.2.0",
        "kubeVersion": ">=1.30.0-0",
    }
    return {"Chart.yaml": _plain(about), "values.yaml": _plain(values(cluster)), **templates}


def nouns() -> list[str]:
    """Return the chart's nouns: all that are rendered except trainings, which the chart's installation would start."""
    return [noun for noun in NOUNS if not noun.startswith("jobs/")]


def values(cluster: EksCluster) -> dict[str, Any]:
    """Return the cluster file's fields that manifests depend on, and what follows from the instance type."""
    own = cluster.settings
    return {
        "name": cluster.name,
        "region": cluster.region,
        "shared": cluster.shared,
        "nodes": {"instance_type": cluster.instance_type},
        "storage": {"fsx_mount": cluster.fsx_mount},
        "eks": {
            "namespace": own.namespace,
            "image": own.pinned_image,
            "efs": own.efs,
            "fsx": own.fsx,
            "local": own.local,
            "allow_cidrs": [*own.allow_cidrs],
        },
        "plugins": {"nvidia": bool(cluster.gpus), "efa_image": efa_image(cluster.region) if cluster.efa else ""},
    }


def _plain(value: Mapping[str, Any]) -> str:
    """Return a mapping as YAML for helm, without a document separator."""
    return text([dict(value)]).removeprefix("---\n")


def _template(noun: str) -> str:
    """Return a noun's manifests as a template, with expressions instead of values."""
    variants = {
        on: NOUNS[noun](_marked_cluster(**dict(zip(_CONDITIONS, on, strict=True))))
        for on in product((False, True), repeat=len(_CONDITIONS))
    }
    return _with_values(_merged(tuple(_CONDITIONS.values()), variants))


def _merged(conditions: Sequence[str], variants: Mapping[tuple[bool, ...], list[Document]]) -> str:
    """Return one text of all variants. Each variant's own lines are under the conditions in its key."""
    if not conditions:
        return text(variants[()])
    off, on = ({key[1:]: found for key, found in variants.items() if key[0] is way} for way in (False, True))
    first, *others = conditions
    if on == off:
        return _merged(others, on)
    with_it, without = (_merged(others, half).splitlines(keepends=True) for half in (on, off))
    return _either(f"if {first}", with_it, without)


def _either(condition: str, on: list[str], off: list[str]) -> str:
    """Merge two variants: common lines stay as they are, the others are put under the condition.

    If a differing part would split another `if` block, all lines of both variants are put under the condition.
    """
    made = ""
    for kind, a, b, c, d in difflib.SequenceMatcher(None, on, off, autojunk=False).get_opcodes():
        if kind == "equal":
            made += "".join(on[a:b])
        elif _is_whole(on[a:b]) and _is_whole(off[c:d]):
            made += _under(condition, on[a:b], off[c:d])
        else:
            return _under(condition, on, off)
    return made


def _under(condition: str, on: list[str], off: list[str]) -> str:
    if not on:
        return f"{{{{- {condition.replace('if ', 'if not ')} }}}}\n{''.join(off)}{{{{- end }}}}\n"
    otherwise = f"{{{{- else }}}}\n{''.join(off)}" if off else ""
    return f"{{{{- {condition} }}}}\n{''.join(on)}{otherwise}{{{{- end }}}}\n"


def _is_whole(lines: list[str]) -> bool:
    """Return True if these lines contain every `if` together with its `end`, and no `else` or `end` of another `if`."""
    depth = 0
    for line in lines:
        depth += line.startswith("{{- if") - line.startswith("{{- end")
        if depth < 0 or (depth == 0 and line.startswith("{{- else")):
            return False
    return depth == 0


def _with_values(marked: str) -> str:
    """Replace placeholders by expressions: a list of networks by a loop, any other scalar by a quoted string."""
    looped = _EACH_NETWORK.sub(r"{{- range .Values.eks.allow_cidrs }}\n\1{{ . | quote }}\n{{- end }}\n", marked)
    return "".join(_line(line) for line in looped.splitlines(keepends=True))


def _line(line: str) -> str:
    if line.startswith("{{") or not _MARKED.search(line):
        return line
    before, scalar = _SCALAR.fullmatch(line.rstrip("\n")).groups()  # type: ignore[union-attr]
    return f'{before}"{_MARKED.sub(lambda found: _MARKS[found[0]], scalar.strip(chr(34)))}"\n'


def _marked_cluster(*, allow_cidrs: bool, fsx: bool, local: bool, gpu: bool, efa: bool) -> EksCluster:
    """Return a cluster whose values are all placeholders, with the chosen optional parts."""
    cards = Hardware(gpu="", gpus=int(gpu), vcpus=1, efa=int(efa), card_gbit=1, nvme=False, nvswitch=False)
    settings = EksSettings(
        namespace="zzspace",
        image="zzregistry/zz:1",
        efs="fs-000000000000000ef",
        fsx="fs-000000000000000f5:zzlustremount" if fsx else "",
        local="/mnt/zzlocal" if local else "",
        allow_cidrs=(_CIDR,) if allow_cidrs else (),
    )
    return EksCluster(
        file=ClusterFile(
            name="Zzname", region=_REGION, shared="/zzshared", storage=Storage(fsx_mount="/zzlustre"), eks=settings
        ),
        folder=Path(),
        instance_type="zztype",
        instance=cards,
    )
