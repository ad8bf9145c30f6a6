"""Judges of PCIe links. Lanes are compared with other GPUs', because a slot may have fewer than its GPU supports."""

from collections import Counter
from collections.abc import Mapping

from cluster.health.check import About
from cluster.health.smi import Gpu, gpus, must, number, part, problem
from cluster.health.verdict import Problem, Severity
from cluster.hosts import Host
from cluster.terminal import counted

MEANS = "its input comes slower"


def pcie_problems(log: str, about: About) -> list[Problem]:
    """Report GPUs with fewer lanes than others of their kind on this host, and links that are slow under load.

    The speed counts only while the GPU works, because it drops at rest.
    """
    most, problems = most_lanes(log), []
    for i, gpu in gpus(log):
        width, usual = _lanes(gpu), most[must(gpu, "product_name")]
        speed, fastest = (number(must(_link(gpu), f"pcie_gen/{which}_link_gen")) for which in ("current", "max"))
        if width < usual:
            problems.append(problem("gpu-pcie", f"GPU {i}: {width} of {usual} PCIe lanes", MEANS, Severity.REBOOT))
        elif speed < fastest and must(gpu, "performance_state") == "P0":
            what = f"GPU {i}: PCIe generation {speed} of {fastest} under load"
            problems.append(problem("gpu-pcie", what, MEANS, Severity.REBOOT, unfit=False))
    return problems


def most_lanes(log: str) -> dict[str, int]:
    """Return the most lanes that a GPU of each kind has on a host, read from `nvidia-smi -q -x`."""
    most: dict[str, int] = {}
    for _, gpu in gpus(log):
        kind = must(gpu, "product_name")
        most[kind] = max(most.get(kind, 0), _lanes(gpu))
    return most


def lane_problems(lanes: Mapping[Host, Mapping[str, int]]) -> dict[Host, list[Problem]]:
    """Report hosts whose GPUs of a kind all have fewer lanes than most hosts'. Of two hosts the one with fewer.

    Args:
        lanes: each host's most lanes by kind, which includes the instance type.
    """
    usual = {}
    for kind in {kind for mine in lanes.values() for kind in mine}:
        counts = Counter(mine[kind] for mine in lanes.values() if kind in mine)
        usual[kind] = max(counts, key=lambda width: (counts[width], width)), counts
    found: dict[Host, list[Problem]] = {}
    for host, mine in lanes.items():
        for kind, width in mine.items():
            most, counts = usual[kind]
            if width < most:
                who = f"{counts[most]} of {counted(counts.total(), 'host')}"
                what = f"{width} PCIe lanes for its GPUs ({kind}); {who} have {most}"
                found.setdefault(host, []).append(problem("gpu-pcie", what, MEANS, Severity.REBOOT))
    return found


def _lanes(gpu: Gpu) -> int:
    """Return the number of lanes in use. Raises Unreadable if the report lacks the GPU's own maximum."""
    widths = [number(must(_link(gpu), f"link_widths/{which}_link_width"), "x") for which in ("current", "max")]
    return widths[0]


def _link(gpu: Gpu) -> Gpu:
    return part(gpu, "pci/pci_gpu_link_info")
