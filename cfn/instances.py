"""What EC2 says about an instance type, and the network interfaces that follow from it."""

import re
from dataclasses import dataclass
from typing import Any

from cluster.errors import ConfigError

_NOT_STANDARD = ("inf", "trn", "mac", "hpc", "dl")  # have quotas of their own, whatever letter they begin with


@dataclass(frozen=True, kw_only=True)
class InstanceType:
    """The facts of one instance type that a cluster depends on."""

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
        """Ranks of one host: its GPUs; one on a machine without."""
        return self.gpus or 1

    @property
    def quota(self) -> str:
        """Which vCPU quota its instances count against: 'P', 'G' or 'standard'; '' for none that we know."""
        family = re.match(r"[a-z]+", self.name)
        letters = family[0] if family else ""
        if self.gpus:
            return {"p": "P", "g": "G", "gr": "G"}.get(letters, "")
        return "standard" if re.fullmatch("[acdhimrtz]", letters[:1]) and letters not in _NOT_STANDARD else ""


@dataclass(frozen=True, kw_only=True)
class Interface:
    """One network interface of a node."""

    card: int
    device: int
    kind: str  # interface (ENA), efa (both) or efa-only


def instance_type(described: dict[str, Any]) -> InstanceType:
    """Facts from one entry of DescribeInstanceTypes."""
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


def interfaces(kind: InstanceType) -> tuple[Interface, ...]:
    """The interfaces a node of this type has, its primary one first; one IP address whatever the number of EFAs.

    Source: EC2 User Guide, "Maximize network bandwidth on Amazon EC2 instances with multiple network cards": the
    primary is ENA, an EFA on the same card is device 1, those of other cards are device 0.
    """
    if not kind.efa_cards:
        return (Interface(card=0, device=0, kind="interface"),)
    if len(kind.network_cards) == 1:
        return (Interface(card=0, device=0, kind="efa"),)
    efas = tuple(Interface(card=card, device=1 if card == 0 else 0, kind="efa-only") for card in kind.efa_cards)
    return (Interface(card=0, device=0, kind="interface"), *efas)


def check_capacity(kind: InstanceType, capacity: str, field: str = "nodes.capacity") -> None:
    """Raises ConfigError, which names the field, if instances of this type cannot be bought this way."""
    needed = {"spot": "spot", "capacity-block": "capacity-block"}.get(capacity, "on-demand")
    if kind.usage_classes and needed not in kind.usage_classes:
        raise ConfigError(f"{field}: {kind.name} is not sold as {needed}; use {', '.join(kind.usage_classes)}")
