"""Checks of the quick level: the question that each reads, when it applies, and the problem without an answer."""

import functools
from collections.abc import Sequence
from typing import Any

from cluster.health import fabric, gpu, pcie, places, smi, stray_processes, system, xid
from cluster.health.check import About, Answer, Check, Judge
from cluster.health.questions import SCRATCH
from cluster.health.verdict import Problem, Severity

_DRIVER = "nvidia-smi comes with the NVIDIA driver: the Deep Learning AMI has it"


def _has_gpus(about: About) -> bool:
    return about.gpus_on_bus > 0 or about.instance is not None


def _may_have_gpus(about: About) -> bool:
    """Return False for a host without GPUs, whose driver came with its image and has nothing to drive."""
    return not about.has_no_gpus


def _has_nvswitch(about: About) -> bool:
    return about.instance is not None and about.instance.nvswitch


def _may_have_efa(about: About) -> bool:
    return about.instance is not None and about.instance.efa > 0


def _has_efa(about: About) -> bool:
    """Return False for a host that was launched without an EFA interface, though its type can have one."""
    return _may_have_efa(about) and about.efas_on_bus != 0


def _check(name: str, about: str, question: str, judge: Judge, **more: Any) -> Check:
    return Check(name=name, about=about, question=question, judge=judge, **more)


_GPU_DRIVER = _check(
    "gpu-driver",
    "nvidia-smi answers in time, and every GPU answers it",
    "smi",
    gpu.answer_problems,
    missing=_DRIVER,
    applies=_may_have_gpus,
    on_timeout=gpu.driver_hangs,
    is_answer=smi.is_report,
    on_failure=gpu.driver_fails,
    on_slow=gpu.slow_driver,
)


def _of_driver(name: str, about: str, question: str, judge: Judge, **more: Any) -> Check:
    """Return a check that reads nvidia-smi. gpu-driver reports the tool's own failures."""
    return _check(name, about, question, judge, missing=_DRIVER, applies=_may_have_gpus, told_by=_GPU_DRIVER, **more)


def _smi(name: str, about: str, judge: Judge) -> Check:
    return _of_driver(name, about, "smi", judge, is_answer=smi.is_report)


GPU: tuple[Check, ...] = (
    _GPU_DRIVER,
    _smi("gpu-count", "GPUs against the instance type and the hostfile", gpu.count_problems),
    _smi("gpu-ecc", "memory errors that could not be corrected", gpu.ecc_problems),
    _smi("gpu-repair", "page retirement and row remaps that wait or failed", gpu.repair_problems),
    _smi("gpu-recovery", "what the driver itself asks for", gpu.recovery_problems),
    _smi("gpu-throttle", "clocks held down by heat or power", gpu.throttle_problems),
    _smi("gpu-temperature", "against the GPU's own limits", gpu.temperature_problems),
    _smi("gpu-power", "a power limit below the default", gpu.power_problems),
    _smi("gpu-persistence", "persistence mode", gpu.persistence_problems),
    _smi("gpu-pcie", "PCIe lanes and generation", pcie.pcie_problems),
    _smi("gpu-fabric", "GPUs joined to the NVSwitch fabric", gpu.fabric_problems),
    _of_driver("nvlink", "NVLinks up and equally fast", "nvlink", fabric.nvlink_problems),
    _of_driver(
        "nvlink-errors", "NVLink replays, recoveries, CRC errors", "nvlink-errors", fabric.nvlink_error_problems
    ),
    _check(
        "fabric-manager",
        "the fabric manager runs, where GPUs are behind an NVSwitch",
        "fabric-manager",
        fabric.manager_problems,
        applies=_has_nvswitch,
        missing=_DRIVER,
    ),
    _of_driver(
        "gpu-strays",
        "processes of no running job that hold GPU memory",
        "gpu-processes",
        stray_processes.gpu_stray_problems,
    ),
)

NETWORK: tuple[Check, ...] = (
    _check(
        "efa",
        "libfabric's EFA provider, a card each",
        "efa",
        fabric.efa_problems,
        applies=_may_have_efa,
        reads_failure=True,
        missing="fi_info comes with the EFA installer: the Deep Learning AMI has it",
    ),
    _check("efa-ports", "EFA ports are active", "efa-ports", fabric.efa_port_problems, applies=_has_efa),
    _check("memlock", "memory that EFA may lock", "basics", fabric.memlock_problems, applies=_has_efa),
)

SYSTEM: tuple[Check, ...] = (
    _check(
        "xid",
        "Xid and SXid events, disk and memory faults in the kernel log",
        "kernel-log",
        xid.kernel_problems,
        missing="dmesg is in util-linux",
    ),
    _check("memory", "memory available, and pressure", "basics", system.memory_problems),
    _check("fstab", "what /etc/fstab mounts is mounted", "basics", system.fstab_problems),
    _check(
        "strays",
        "processes of no running job that keep a core busy or hang",
        "processes",
        stray_processes.stray_problems,
    ),
    _check("project", "this project and its environment are there", "project", places.project_problems),
    _check("devices", "GPUs on the PCI bus against the instance type", "devices", system.device_problems),
    _check(
        "time-service",
        "chrony or ntpd keeps the clock",
        "time",
        system.time_problems,
        missing="apt-get install chrony",
    ),
)


def place_checks(shared: str) -> tuple[Check, ...]:
    """Return a check per folder that a training writes to: a bounded write, read and delete, and its free space."""
    return tuple(
        Check(
            name=f"place:{path}",
            about=f"{path} takes a file, and has room",
            question=f"place:{path}",
            judge=places.scratch_problems if path == SCRATCH else places.place_problems,
            on_timeout=functools.partial(_hangs, path=path),
        )
        for path in (shared, "/", "/tmp", "/dev/shm", SCRATCH)
    )


def quick_checks(shared: str) -> Sequence[Check]:
    """Return all checks that need the answers of only one host."""
    return (*SYSTEM, *place_checks(shared), *GPU, *NETWORK)


def driver_missing(answers: dict[str, Answer], about: About) -> list[Problem]:
    """Return a problem if a host has GPUs on the bus, and nvidia-smi is missing or was not run."""
    smi = answers.get("smi")
    if not _has_gpus(about) or smi is None:
        return []
    if smi.status == "missing":
        return [_NO_DRIVER]
    return [_NOT_ASKED] if smi.status == "skipped" else []


_NO_DRIVER = Problem(
    check="gpu-driver",
    what="it has GPUs, but no nvidia-smi",
    means="no program finds its GPUs",
    verdict=Severity.REPLACE,
    do="start it from the Deep Learning AMI",
    command="inv run --hosts {ranks} -- 'cat /etc/os-release; lsmod | grep nvidia'",
)
_NOT_ASKED = Problem(
    check="gpu-driver",
    what="nvidia-smi was not asked: the kernel log says that it would hang",
    means="the GPU's system processor is dead (Xid 119 or 120)",
    verdict=Severity.REBOOT,
    do="reboot it; replace it if that comes back",
    command="inv run --hosts {ranks} --sudo -- reboot",
)


def _hangs(answer: Answer, about: About, *, path: str) -> Problem:
    return places.place_hangs(answer, about, path)
