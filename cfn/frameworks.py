"""GPU support by instance type: drivers of AWS's images and GPU architectures of TensorFlow's kernels."""

import re
from dataclasses import dataclass

from cluster.clusterfile.checks import FieldError

IMAGES = "supported_ec2_instances in the release notes of AWS's images, docs.aws.amazon.com/dlami/latest/devguide"

NO_BLACKWELL = "github.com/tensorflow/tensorflow/issues/111958 and 97387"
TENSORFLOW, PYTORCH = "TensorFlow 2.18 with Horovod", "PyTorch"


@dataclass(frozen=True, kw_only=True)
class Generation:
    """GPU architecture and the software that supports it."""

    gpu: str
    families: str  # regular expression for the part of an instance type before the dot
    has_image: bool = True  # AWS's images have a driver for them
    tensorflow: bool = True  # TensorFlow 2.18 supports them
    why: str = ""  # where one of these is not so
    source: str = ""


OPEN_DRIVER = "oss-nvidia-driver"  # in the names of those images
_NO_DRIVER = "has no driver in today's images, whose open kernel modules begin with Turing (G4dn)"
_AHEAD = "is newer than the CUDA 12.5 that TensorFlow 2.18 is built with: it fails there, or compiles for half an hour"

GENERATIONS = (
    Generation(gpu="K80 (Kepler)", families="p2", has_image=False, why=_NO_DRIVER, source=IMAGES),
    Generation(gpu="M60 (Maxwell)", families="g3s?", has_image=False, why=_NO_DRIVER, source=IMAGES),
    Generation(gpu="V100 (Volta)", families="p3(dn)?", has_image=False, why=_NO_DRIVER, source=IMAGES),
    Generation(gpu="Radeon Pro V520", families="g4ad", has_image=False, why="is no NVIDIA GPU", source=IMAGES),
    Generation(gpu="T4 (Turing)", families="g4dn|g5g"),
    Generation(gpu="A10G, A100 (Ampere)", families="g5|p4de?"),
    Generation(gpu="L4, L40S (Ada)", families="g6[ef]?|gr6f?"),
    Generation(gpu="H100, H200 (Hopper)", families="p5(e|en)?"),
    Generation(
        gpu="B200, B300, RTX PRO 6000 (Blackwell)",
        families=r"p6(e)?-\w+|g7e?",
        tensorflow=False,
        why=_AHEAD,
        source=NO_BLACKWELL,
    ),
)  # fmt: skip


def generation_of(instance_type: str) -> Generation | None:
    """Return the GPU generation of an instance type, or None if it has no GPUs or is unknown."""
    family = instance_type.partition(".")[0]
    return next((g for g in GENERATIONS if re.fullmatch(g.families, family)), None)


def check_image(instance_type: str, ami: str) -> None:
    """Raise FieldError if the image is one of AWS's and has no driver for the type's GPUs.

    Other images are trusted to bring their own driver.
    """
    found = generation_of(instance_type)
    if found and not found.has_image and OPEN_DRIVER in ami:
        raise FieldError(
            "nodes.instance_type",
            f"{instance_type}: its GPU, {found.gpu}, {found.why} ({found.source})",
            "choose g4dn or later, or set nodes.ami to an image of your own with a driver for it",
        )


def trains_with(instance_type: str) -> tuple[str, ...]:
    """Return the frameworks that can train on this instance type; all of them if it is unknown."""
    found = generation_of(instance_type)
    return (TENSORFLOW, PYTORCH) if found is None or found.tensorflow else (PYTORCH,)


def warnings_for(instance_type: str, ami: str) -> list[str]:
    """Return warnings about missing drivers or frameworks on this instance type, before money is spent."""
    found = generation_of(instance_type)
    if found is None:
        return []
    if not found.has_image:
        return [f"warning: {instance_type}: its GPU, {found.gpu}, {found.why}: {ami} has to bring one ({found.source})"]
    if not found.tensorflow:
        return [
            f"warning: {instance_type}: its GPU, {found.gpu}, {found.why} ({found.source}); train with PyTorch there: "
            "train.resnet50-torch, train.run"
        ]
    return []
