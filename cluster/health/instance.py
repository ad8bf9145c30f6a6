"""Hardware of each EC2 instance type: GPUs, EFA cards, network, local disks."""

import functools
import json
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, kw_only=True)
class Instance:
    """EC2 instance type, as `aws ec2 describe-instance-types` described it in November 2026."""

    gpu: str  # EC2's name of its GPUs
    gpus: int
    efa: int  # EFA interfaces at most
    card_gbit: float  # Gbit/s of the first network card, which carries TCP
    nvme: bool  # local disks, that the DLAMI joins under /opt/dlami/nvme
    nvswitch: bool  # its GPUs reach each other only once the fabric manager runs


@functools.cache
def known_types() -> dict[str, Instance]:
    """Return all known instance types by name."""
    table = json.loads(Path(__file__).with_name("instances.json").read_text())
    return {name: Instance(**fields) for name, fields in table.items()}


def instance_of(name: str | None) -> Instance | None:
    """Return the type's hardware, None if it is not in the table or the host is not on EC2."""
    return known_types().get(name or "")
