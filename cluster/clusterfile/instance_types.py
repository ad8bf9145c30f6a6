"""Table of EC2 instance types: GPUs, vCPUs, EFA cards, network, local disks, and the frameworks that train there."""

import fnmatch
import functools
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

TENSORFLOW, PYTORCH = "TensorFlow 2.18 with Horovod", "PyTorch"
_FRAMEWORKS = {"tensorflow": TENSORFLOW, "pytorch": PYTORCH}  # as the table names them


@dataclass(frozen=True, kw_only=True)
class Hardware:
    """Hardware of an instance type, as EC2 describes it."""

    gpu: str  # EC2's name of its GPUs
    gpus: int
    vcpus: int
    efa: int  # EFA interfaces at most
    card_gbit: float  # Gbit/s of the first network card, which carries TCP
    nvme: bool  # local disks, that the DLAMI joins under /opt/dlami/nvme
    nvswitch: bool  # its GPUs reach each other only once the fabric manager runs

    @property
    def gbit(self) -> float:
        """Gbit/s of its network, all cards together."""
        return self.card_gbit * max(1, self.efa)


@dataclass(frozen=True, kw_only=True)
class Generation:
    """GPU architecture and the software that supports it."""

    gpu: str
    families: tuple[str, ...]  # the part of an instance type before the dot, or a pattern of it such as p6-*
    image: str  # "yes": AWS's images have a driver; "arm64": those for arm64 alone; "none"
    frameworks: tuple[str, ...]  # that train there; with an image of one's own, if AWS's has no driver
    why: str  # if not all of these are so
    source: str


@functools.cache
def known_types() -> dict[str, Hardware]:
    """Return all known instance types by name."""
    return {name: Hardware(**fields) for name, fields in _table()["types"].items()}


def hardware_of(name: str | None) -> Hardware | None:
    """Return the type's hardware, None if it is not in the table or the host is not on EC2."""
    return known_types().get(name or "")


@functools.cache
def generations() -> tuple[Generation, ...]:
    """Return all GPU generations, oldest first."""
    return tuple(
        Generation(
            **{
                **row,
                "families": tuple(row["families"]),
                "frameworks": tuple(_FRAMEWORKS[name] for name in row["frameworks"]),
            }
        )
        for row in _table()["generations"]
    )


def generation_of(name: str) -> Generation | None:
    """Return the GPU generation of an instance type, or None if it has no GPUs or is unknown."""
    family = name.partition(".")[0]
    return next((g for g in generations() if any(fnmatch.fnmatchcase(family, f) for f in g.families)), None)


@functools.cache
def _table() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(Path(__file__).with_suffix(".json").read_text())
    return found
