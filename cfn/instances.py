"""EC2 instance types: their GPUs, vCPUs and network cards, and the network interfaces of a node of that type."""

import re
from dataclasses import dataclass
from typing import Any

from cluster.errors import ConfigError

_NOT_STANDARD = ("inf", "trn", "mac", "hpc", "dl")  # families with their own quotas, whatever their first letter


@dataclass(frozen=True, kw_only=True)
class InstanceType:
    """Facts about an EC2 instance type that the cluster depends on."""

    name: str
    gpus: int
    vcpus: int
    network_cards: tuple[int, ...]
    """Indices of the network cards; most types have one."""
    efa_cards: tuple[int, ...]
    """Indices of those that can hold an EFA interface, as many as the type may have in all."""
    usage_classes: tuple[str, ...]
    architecture: str

    @property
    def slots(self) -> int:
        """Return the number of ranks of one host: its GPUs, or 1 without any."""
        return self.gpus or 1

    @property
    def quota(self) -> str:
        """Return the vCPU quota that its instances count against: 'P', 'G' or 'standard'; '' if unknown."""
        family = re.match(r"[a-z]+", self.name)
        letters = family[0] if family else ""
        if self.gpus:
            return {"p": "P", "g": "G", "gr": "G"}.get(letters, "")
        return "standard" if re.fullmatch("[acdhimrtz]", letters[:1]) and letters not in _NOT_STANDARD else ""


@dataclass(frozen=True, kw_only=True)
class NetworkInterface:
    """Network interface of a node."""

    card: int
    device: int
    kind: str  # interface (ENA), efa (both) or efa-only


def instance_type(described: dict[str, Any]) -> InstanceType:
    """Return the facts of one entry of DescribeInstanceTypes."""
    network = described["NetworkInfo"]
    cards = network.get("NetworkCards", [{"NetworkCardIndex": 0}])
    able = [c["NetworkCardIndex"] for c in cards if "efa" in c.get("InterfaceTypes", ["efa"])]
    most = network.get("EfaInfo", {}).get("MaximumEfaInterfaces", 0) if network.get("EfaSupported") else 0
    architectures = described.get("ProcessorInfo", {}).get("SupportedArchitectures", ["x86_64"])
    return InstanceType(
        name=described["InstanceType"],
        gpus=sum(g["Count"] for g in described.get("GpuInfo", {}).get("Gpus", [])),
        vcpus=described["VCpuInfo"]["DefaultVCpus"],
        network_cards=tuple(c["NetworkCardIndex"] for c in cards),
        efa_cards=tuple(sorted(able)[:most]),
        usage_classes=tuple(described.get("SupportedUsageClasses", ())),
        architecture="x86_64" if "x86_64" in architectures else architectures[0],
    )


def interfaces(kind: InstanceType) -> tuple[NetworkInterface, ...]:
    """Return a node's network interfaces, the primary one first. Only that one has an IP address.

    Source: EC2 User Guide, "Maximize network bandwidth on Amazon EC2 instances with multiple network cards": the
    primary is ENA, an EFA on the same card is device 1, those of other cards are device 0.
    """
    if not kind.efa_cards:
        return (NetworkInterface(card=0, device=0, kind="interface"),)
    if len(kind.network_cards) == 1:
        return (NetworkInterface(card=0, device=0, kind="efa"),)
    efas = tuple(NetworkInterface(card=card, device=1 if card == 0 else 0, kind="efa-only") for card in kind.efa_cards)
    return (NetworkInterface(card=0, device=0, kind="interface"), *efas)


def check_capacity(kind: InstanceType, capacity: str, field: str = "nodes.capacity") -> None:
    """Raise ConfigError, naming the field, if instances of this type are not sold in this market."""
    needed = {"spot": "spot", "capacity-block": "capacity-block"}.get(capacity, "on-demand")
    if kind.usage_classes and needed not in kind.usage_classes:
        raise ConfigError(f"{field}: {kind.name} is not sold as {needed}; use {', '.join(kind.usage_classes)}")
