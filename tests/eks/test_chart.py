"""The Helm chart says what the rendered files say, whatever the cluster file has."""

import subprocess
from pathlib import Path

import pytest
import yaml

from eks.chart import chart, nouns, values
from eks.cluster import EksCluster
from eks.document import Document, text
from eks.render import rendered
from tests.conftest import PATIENCE_S
from tests.eks.clusters import VARIANTS
from tests.eks.strict import KubeTools


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One chart, of the least cluster: all others are made of it by their values."""
    folder = tmp_path_factory.mktemp("chart")
    for name, words in chart(VARIANTS["least"]).items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(words)
    return folder


def helm(kube: KubeTools, *words: object) -> str:
    """What it prints; it must succeed."""
    done = subprocess.run([str(kube.helm), *map(str, words)], capture_output=True, text=True, timeout=PATIENCE_S)
    assert 0 == done.returncode, done.stdout + done.stderr
    return done.stdout


def documents(of: EksCluster) -> list[Document]:
    """What is rendered for a cluster, without trainings."""
    return [one for noun, found in rendered(of).items() if noun in nouns() for one in found]


def by_name(found: list[dict[str, object]]) -> dict[tuple[str, str], object]:
    """Documents by kind and name."""
    return {(one["kind"], one["metadata"]["name"]): one for one in found}


def test_it_passes_lint(kube: KubeTools, folder: Path) -> None:
    """Strictly: no warning either."""
    said = helm(kube, "lint", "--strict", folder)
    assert "0 chart(s) failed" in said and "[WARNING]" not in said and "[ERROR]" not in said


@pytest.mark.parametrize("name", VARIANTS)
def test_it_is_what_is_rendered_document_by_document(kube: KubeTools, folder: Path, tmp_path: Path, name: str) -> None:
    """The same chart with each cluster's values gives that cluster's documents, none more and none less."""
    of: EksCluster = VARIANTS[name]
    (tmp_path / "values.yaml").write_text(text([values(of)]))
    made = [
        one
        for one in yaml.safe_load_all(helm(kube, "template", "any", folder, "--values", tmp_path / "values.yaml"))
        if one
    ]
    expected = documents(of)

    assert len(expected) == len(made)
    assert by_name(expected) == by_name(made)
