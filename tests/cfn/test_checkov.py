"""checkov itself over the templates of both stacks and every document for Kubernetes.

All that it has against them is waived by name in checkov.toml, each with its reason; nothing else is waived there.
"""

import json
import os
import subprocess
import tomllib
from collections.abc import Iterator
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import designs
import pytest

from cfn.template import template
from cluster.inventory import ROOT
from eks.document import Document, text
from eks.stack import template as of_eks
from tests.cfn.eks_cases import CASES
from tests.eks.clusters import VARIANTS
from tests.eks.rendered import documents

pytestmark = pytest.mark.long
CHECKOV = ROOT / ".checkov/bin/checkov"
WAIVERS: dict[str, dict[str, Any]] = tomllib.loads((Path(__file__).parent / "checkov.toml").read_text())
FRAMEWORKS = ("cloudformation", "kubernetes", "secrets")


def as_pods(one: Document) -> Iterator[Document]:
    """A document; of an MPIJob, which checkov does not know, its pods."""
    if one["kind"] != "MPIJob":
        yield one
        return
    for role, replicas in one["spec"]["mpiReplicaSpecs"].items():
        meta, template = one["metadata"], replicas["template"]
        named = {**template["metadata"], "name": f"{meta['name']}-{role.lower()}", "namespace": meta["namespace"]}
        yield {"apiVersion": "v1", "kind": "Pod", "metadata": named, "spec": template["spec"]}


def written(folder: Path) -> int:
    """All that is rendered in tests, as files; how many."""
    files = {f"bare-{name}.json": template.body(design) for name, design in designs.VARIANTS.items()}
    files |= {f"eks-{name}.json": of_eks.body(design) for name, design in CASES.items()}
    for name, of in VARIANTS.items():
        files[f"{name}.yaml"] = text([pod for one in documents(of) for pod in as_pods(one)])
    for name, body in files.items():
        (folder / name).write_text(body)
    return len(files)


def test_what_checkov_finds_is_waived_by_name_and_nothing_else_is(tmp_path: Path) -> None:
    """Every rule of its for CloudFormation and Kubernetes, and secrets; on all variants of both clusters."""
    if not CHECKOV.exists():
        pytest.skip("checkov is not here: 'make checkov' gets it")
    folder = tmp_path / "rendered"
    folder.mkdir()
    assert written(folder) > 50
    done = subprocess.run(
        [CHECKOV, "--directory", ".", "--framework", *FRAMEWORKS, "--skip-download", "--output", "json", "--quiet"],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=900,
        env={**os.environ, "HOME": str(tmp_path)},
    )
    reports = json.loads(done.stdout)
    assert {"cloudformation", "kubernetes"} <= {r["check_type"] for r in reports}
    assert 0 == sum(r["summary"]["parsing_errors"] for r in reports)
    assert sum(r["summary"]["passed"] for r in reports) > 5000

    found = {(one["check_id"], one["resource"]) for r in reports for one in r["results"]["failed_checks"]}
    waived = {pair: waivers_of(*pair) for pair in found}
    assert [] == sorted(pair for pair, by in waived.items() if not by)
    assert {(rule, one) for rule, waiver in WAIVERS.items() for one in waiver["of"]} == set().union(*waived.values())
    assert all(waiver["why"] for waiver in WAIVERS.values())


def waivers_of(rule: str, resource: str) -> set[tuple[str, str]]:
    """The lines of checkov.toml that waive this: rule and pattern."""
    return {(rule, one) for one in WAIVERS.get(rule, {}).get("of", ()) if fnmatchcase(resource, one)}
