"""Every manifest of a cluster as files, one per noun, for kubectl and for people to read."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from cluster.errors import ConfigError
from cluster.written import Target, whole_file, write
from eks.base import access, namespace, network, priority
from eks.cluster import EksCluster
from eks.document import Document, text
from eks.image import TORCH
from eks.plugins import plugins
from eks.services import JUPYTER, TENSORBOARD, page_documents
from eks.volumes import folders, storage

TASK = "eks.render"
# Each training's example: data and code are where the documentation's `eks.stage` commands bring them.
_EXAMPLES: Mapping[str, Callable[[str], dict[str, Any]]] = {
    "resnet50": lambda shared: {
        "module": "trainer.resnet50",
        "words": ("--recipe", "poly90", "--data-dir", f"{shared}/data/imagenet"),
    },
    "resnet50-torch": lambda shared: {
        "module": "trainer.resnet50_torch",
        "python": f"{TORCH}/bin/python",
        "words": ("--recipe", "poly90", "--data-dir", f"{shared}/data/imagenet"),
    },
    "maskrcnn": lambda shared: {
        "module": "trainer.maskrcnn",
        "words": (
            f"DATA.BASEDIR={shared}/data/coco",
            f"BACKBONE.WEIGHTS={shared}/data/coco/pretrained-models/ImageNet-R50-AlignPadding.npz",
        ),
    },
    "benchmark": lambda shared: {
        "module": "trainer.benchmark",
        "words": ("--model", "resnet50", "--num-batches", "100"),
    },
    "run": lambda shared: {"words": ("python", "train.py"), "workdir": f"{shared}/data/code"},
}


def example(cluster: EksCluster, name: str) -> list[Document]:
    """Return a training that can be edited and created without our tasks. Its job's folder has its name."""
    from eks.job_spec import Order
    from eks.mpijob import mpijob

    order = Order(
        job=name,
        submission="rendered",
        name=name,
        shared=cluster.shared,
        notify=cluster.file.notify,
        results=cluster.file.results,
        **_EXAMPLES[name](cluster.shared),
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


def targets(cluster: EksCluster, folder: Path) -> list[Target]:
    """Return the files of all nouns.

    A noun without manifests gets a file with a comment, so that no stale file stays.
    """
    return files(folder, {f"{noun}.yaml": text(found) for noun, found in rendered(cluster).items()})


def files(folder: Path, texts: Mapping[str, str]) -> list[Target]:
    """Return files below a folder as they would be written, each with our marker."""
    nothing = "# nothing: this cluster file wants none\n"
    return [whole_file(folder / name, words or nothing, by=TASK) for name, words in texts.items()]


def write_files(found: Sequence[Target], *, force: bool) -> str:
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
