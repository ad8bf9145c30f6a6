"""The tools and schemas with which documents are checked are the ones that were meant."""

import json
import subprocess

import pytest

from tests.conftest import PATIENCE_S
from tests.eks.strict import KubeTools

POD = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {"name": "p"},
    "spec": {"containers": [{"name": "c", "image": "i:1", "resources": {"limits": {"cpu": "1"}}}]},
}


def test_kubectl_and_helm_are_those_that_the_lock_names(kube: KubeTools) -> None:
    """1.37 and 4.3: another would be another proof."""

    def said(*words: object) -> str:
        return subprocess.run(words, capture_output=True, text=True, timeout=PATIENCE_S, check=True).stdout

    assert json.loads(said(kube.kubectl, "version", "--client", "-o", "json"))["clientVersion"]["minor"] == "37"
    assert said(kube.helm, "version", "--template", "{{.Version}}").startswith("v4.3.")


@pytest.mark.parametrize(
    ("path", "value", "said"),
    [
        ("spec.containers.0.resources.limit", {}, "'limit' was unexpected"),
        ("spec.containers.0.image", 1, "is not of type 'string'"),
        ("specs", {}, "'specs' was unexpected"),
        ("kind", "Pods", None),
    ],
)
def test_a_schema_that_is_strict_finds_what_is_wrong(kube: KubeTools, path: str, value: object, said: str) -> None:
    """A field that is not known, one of another type; a kind that there is not has no schema at all."""
    assert [] == kube.errors(POD)
    wrong = json.loads(json.dumps(POD))
    *parents, last = path.split(".")
    place = wrong
    for one in parents:
        place = place[int(one)] if one.isdigit() else place[one]
    place[last] = value
    if said is None:
        with pytest.raises(FileNotFoundError):
            kube.errors(wrong)
        return
    assert any(said in error for error in kube.errors(wrong)), kube.errors(wrong)
