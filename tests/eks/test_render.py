"""`inv eks.render`: files that can be applied and read, written whole, keeping what a person changed in them."""

import dataclasses
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from cluster.errors import ConfigError, NothingToDo
from cluster.inventory import ROOT
from cluster.jobs.program import Program
from dlami.tasks.starting import PYTORCH
from eks import image
from eks.document import read
from eks.job_spec import ORDER_VARIABLE, Order
from eks.render import NOUNS, example, rendered, targets, write_files
from tests.conftest import PATIENCE_S
from tests.eks.clusters import VARIANTS, cluster
from trainer import sample
from trainer.coco.sample import write_sample

FILE = 'name = "training"\n[eks]\nimage = "registry.example/dlami:1"\nefs = "fs-0123456789abcdef0"\n'


def inv(*words: object, folder: Path) -> "subprocess.CompletedProcess[str]":
    """The task as it is typed, in a folder with a cluster file."""
    command = [sys.executable, "-m", "invoke", "-r", ROOT, *words]
    return subprocess.run([*map(str, command)], cwd=folder, capture_output=True, text=True, timeout=PATIENCE_S)


def test_the_files_are_the_documents(tmp_path: Path) -> None:
    """One file per noun, the same the second time; what there is none of is a file that says so."""
    write_files(targets(VARIANTS["cpu"], tmp_path), force=False)
    files = {str(path.relative_to(tmp_path).with_suffix("")): path for path in tmp_path.rglob("*.yaml")}
    assert NOUNS.keys() == files.keys()
    assert rendered(VARIANTS["cpu"]) == {noun: read(path.read_text()) for noun, path in files.items()}
    assert files["6-plugins"].read_text().startswith("# nothing")
    with pytest.raises(NothingToDo):
        write_files(targets(VARIANTS["cpu"], tmp_path), force=False)


def order_of(name: str, shared: Path) -> Order:
    """What the example of this name carries, in a cluster with this shared folder."""
    (job,) = example(cluster(shared=str(shared)), name)
    (told,) = job["spec"]["mpiReplicaSpecs"]["Launcher"]["template"]["spec"]["containers"][0]["env"]
    assert (ORDER_VARIABLE, name, name) == (told["name"], job["metadata"]["name"], Order.from_json(told["value"]).job)
    return Order.from_json(told["value"])


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A shared folder whose data lie where examples look for them: a batch of images, shapes in COCO's form, weights."""
    folder = tmp_path_factory.mktemp("shared")
    sample.write_set(folder / "raw", train=256, validation=10, seed=1)
    packed = ("--raw", folder / "raw", "--out", folder / "data/imagenet", "--train-shards", 1, "--validation-shards", 1)
    subprocess.run(
        [sys.executable, "-m", "trainer.imagenet", *map(str, packed)], cwd=ROOT, check=True, timeout=PATIENCE_S
    )
    write_sample(folder / "data/coco", train=2, val=1, size=64, seed=1)
    (folder / "data/coco/pretrained-models").mkdir()
    np.savez(folder / "data/coco/pretrained-models/ImageNet-R50-AlignPadding.npz", a=np.zeros(1))
    return folder


def may_begin(order: Order, python: Path) -> None:
    """The check before each training has nothing against it."""
    words = dataclasses.replace(order.spec.program, python=str(python)).command("", "job")
    done = subprocess.run(
        [*words, "--check", "--ranks", "1"], cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE_S
    )
    assert 0 == done.returncode, done.stderr


@pytest.mark.parametrize("name", ["resnet50", "maskrcnn", "benchmark"])
def test_an_example_is_what_its_trainer_takes(shared: Path, name: str) -> None:
    """As it lies there, with data in the folders that it names, by the project's own interpreter."""
    order = order_of(name, shared)
    assert not order.spec.program.python
    may_begin(order, Path(sys.executable))


def test_the_example_for_pytorch_is_what_its_trainer_takes(shared: Path, torch_python: Path) -> None:
    """By the interpreter that an image with PyTorch has, and that its task takes unless it is told another."""
    order = order_of("resnet50-torch", shared)
    assert f"{image.TORCH}/bin/python" == PYTORCH == order.spec.program.python
    may_begin(order, torch_python)


def test_the_example_of_ones_own_program_has_its_folder(shared: Path) -> None:
    """Of the shared one, where `eks.stage` may write."""
    order = order_of("run", shared)
    assert Program(words=("python", "train.py")) == order.spec.program
    assert f"{shared}/data/code" == order.spec.workdir


def test_what_a_person_changed_is_kept(tmp_path: Path) -> None:
    """Refused as a whole, with what would be lost; another cluster's values alone are no reason to."""
    write_files(targets(VARIANTS["least"], tmp_path), force=False)
    edited, other = tmp_path / "5-volumes.yaml", tmp_path / "1-namespace.yaml"
    edited.write_text(edited.read_text().replace("1Ti", "2Ti"))
    before = other.read_text()
    with pytest.raises(ConfigError, match=r"(?s)would be lost.*5-volumes\.yaml.*2Ti.*--force"):
        write_files(targets(cluster("second"), tmp_path), force=False)
    assert before == other.read_text() and "2Ti" in edited.read_text()

    said = write_files(targets(cluster("second"), tmp_path), force=True)
    assert "2Ti" in said and "2Ti" not in edited.read_text() and "second" in other.read_text()
    write_files(targets(VARIANTS["least"], tmp_path), force=False)


def test_a_folder_that_cannot_be_is_refused(tmp_path: Path) -> None:
    """By its name."""
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match=r"file: .*choose another folder"):
        write_files(targets(VARIANTS["least"], tmp_path / "file"), force=False)


def test_the_task_writes_says_and_refuses(tmp_path: Path) -> None:
    """As files and as a chart; --dry-run writes nothing; --json names the files; what the file lacks is a sentence."""
    (tmp_path / "cluster.toml").write_text(FILE)
    dry = inv("eks.render", "k8s", "--dry-run", folder=tmp_path)
    assert (0, False) == (
        dry.returncode,
        (tmp_path / "k8s").exists(),
    ) and "would write k8s/5-volumes.yaml" in dry.stdout
    done = inv("eks.render", "k8s", "--json", folder=tmp_path)
    assert {f"k8s/{noun}.yaml" for noun in NOUNS} == set(json.loads(done.stdout)["written"])
    assert 0 == inv("eks.render", "chart", "--chart", folder=tmp_path).returncode
    assert (tmp_path / "chart/Chart.yaml").exists() and (tmp_path / "chart/templates/jupyter.yaml").exists()

    (tmp_path / "cluster.toml").write_text(FILE.replace("image", "#image"))
    lacking = inv("eks.render", "k8s", folder=tmp_path)
    assert 2 == lacking.returncode and "eks.image is empty" in lacking.stderr and "Traceback" not in lacking.stderr
