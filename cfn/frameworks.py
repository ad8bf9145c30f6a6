"""Support of an instance type's GPUs by AWS's images and by the frameworks, checked before money is spent."""

import re

from cluster.clusterfile.checks import FieldError
from cluster.clusterfile.instance_types import PYTORCH, TENSORFLOW, generation_of, generations

HEADING = "## What can train where\n"
_TABLE = re.compile(r"(?:^\|.*\n)+", re.M)
OPEN_DRIVER = "oss-nvidia-driver"  # in the names of AWS's images
_IMAGES = {
    "yes": "yes",
    "arm64": "for arm64 alone: refused by the image's architecture",
    "none": "none: refused unless `nodes.ami` is an image of your own with a driver",
}


def check_image(instance_type: str, ami: str) -> None:
    """Raise FieldError if the image is one of AWS's and has no driver for the type's GPUs.

    Other images are trusted to bring their own driver.
    """
    found = generation_of(instance_type)
    if found and found.image == "none" and OPEN_DRIVER in ami:
        raise FieldError(
            "nodes.instance_type",
            f"{instance_type}: its GPU, {found.gpu}, {found.why} ({found.source})",
            "choose g4dn or later, or set nodes.ami to an image of your own with a driver for it",
        )


def trains_with(instance_type: str) -> tuple[str, ...]:
    """Return the frameworks that can train on this instance type; all of them if it is unknown."""
    found = generation_of(instance_type)
    return found.frameworks if found else (TENSORFLOW, PYTORCH)


def warnings_for(instance_type: str, ami: str) -> list[str]:
    """Return warnings about missing drivers or frameworks on this instance type, before money is spent."""
    found = generation_of(instance_type)
    if found is None or not found.why:
        return []
    said = f"warning: {instance_type}: its GPU, {found.gpu}, {found.why}"
    if found.image == "none":
        return [f"{said}: {ami} has to bring one ({found.source})"]
    instead = "; train with PyTorch there: train.resnet50-torch, train.run" if found.frameworks == (PYTORCH,) else ""
    return [f"{said} ({found.source}){instead}"]


def in_page(text: str) -> str:
    """Return docs/stack.md with the table of its section "What can train where" written anew."""
    before, heading, rest = text.partition(HEADING)
    return before + heading + _TABLE.sub(lambda _: _rows(), rest, count=1)


def _rows() -> str:
    head = f"| instances | GPU | AWS's image | {TENSORFLOW} | {PYTORCH} | why |\n|---|---|---|---|---|---|\n"
    return head + "".join(
        f"| {', '.join(g.families)} | {g.gpu} | {_IMAGES[g.image]} | "
        + "".join(f"{'yes' if name in g.frameworks else 'no'} | " for name in (TENSORFLOW, PYTORCH))
        + f"{g.why or '-'} |\n"
        for g in generations()
    )
