"""Every manifest of a cluster as files, one per noun, for kubectl and for people to read."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

from cluster.errors import ConfigError
from cluster.jobs.program import Program
from cluster.written import TargetFile, whole_file, write
from eks.base import access, namespace, network, priority
from eks.cluster import EksCluster
from eks.document import Document, text
from eks.image import TORCH
from eks.plugins import plugins
from eks.services import JUPYTER, TENSORBOARD, page_documents
from eks.volumes import folders, storage

TASK = "eks.render"
# Each training's example: data and code are where the documentation's `eks.stage` commands bring them.
_DATA = ("--recipe", "poly90", "--data-dir", "{shared}/data/imagenet")
_WEIGHTS = "{shared}/data/coco/pretrained-models/ImageNet-R50-AlignPadding.npz"
_EXAMPLES = {
    "resnet50": Program(trainer="trainer.resnet50", words=_DATA),
    "resnet50-torch": Program(trainer="trainer.resnet50_torch", python=f"{TORCH}/bin/python", words=_DATA),
    "maskrcnn": Program(
        trainer="trainer.maskrcnn", words=("DATA.BASEDIR={shared}/data/coco", f"BACKBONE.WEIGHTS={_WEIGHTS}")
    ),
    "benchmark": Program(trainer="trainer.benchmark", words=("--model", "resnet50", "--num-batches", "100")),
    "run": Program(words=("python", "train.py")),
}


def example(cluster: EksCluster, name: str) -> list[Document]:
    """Return a training that can be edited and created without our tasks. Its job's folder has its name."""
    from cluster.jobs.spec import JobSpec
    from eks.job_spec import Order
    from eks.mpijob import mpijob

    asked = _EXAMPLES[name]
    program = dataclasses.replace(asked, words=tuple(word.format(shared=cluster.shared) for word in asked.words))
    workdir = "" if program.is_built_in else f"{cluster.shared}/data/code"
    order = Order(
        job=name,
        submission="rendered",
        spec=JobSpec(name=name, program=program, workdir=workdir),
        shared=cluster.shared,
        notify=cluster.file.notify,
        results=cluster.file.results,
    )
    return [mpijob(cluster, order, cluster.nodes)]


# In the order in which they are applied: kubectl takes the files of a folder by name, and none of the folders in it.
NOUNS: Mapping[str, Callable[[EksCluster], list[Document]]] = {
    "1-namespace": namespace,
    "2-access": access,
    "3-priority": priority,
    "4-network": network,
    "5-volumes": lambda cluster: [*storage(cluster), folders(cluster)],
    "6-plugins": plugins,
    "services/tensorboard": lambda cluster: page_documents(cluster, TENSORBOARD),
    "services/jupyter": lambda cluster: page_documents(cluster, JUPYTER),
    **{f"jobs/{name}": partial(example, name=name) for name in _EXAMPLES},
}


def rendered(cluster: EksCluster) -> dict[str, list[Document]]:
    """Return every noun's manifests. Raises ConfigError if the cluster file lacks what they need."""
    return {noun: documents(cluster) for noun, documents in NOUNS.items()}


def targets(cluster: EksCluster, folder: Path) -> list[TargetFile]:
    """Return the files of all nouns.

    A noun without manifests gets a file with a comment, so that no stale file stays.
    """
    return files(folder, {f"{noun}.yaml": text(found) for noun, found in rendered(cluster).items()})


def files(folder: Path, texts: Mapping[str, str]) -> list[TargetFile]:
    """Return files below a folder as they would be written, each with our marker."""
    nothing = "# nothing: this cluster file wants none\n"
    return [whole_file(folder / name, words or nothing, by=TASK) for name, words in texts.items()]


def write_files(found: Sequence[TargetFile], *, force: bool) -> str:
    """Write the files that differ. Return what replaced lines people had written, as text.

    Raises NothingToDo if all files are up to date. Raises ConfigError rather than overwrite a person's lines, or if the
    folder cannot be created.
    """
    try:
        for one in found:
            one.path.parent.mkdir(parents=True, exist_ok=True)
        return write(found, force=force)
    except OSError as e:
        raise ConfigError(f"{e.filename}: {e.strerror}: choose another folder") from e
