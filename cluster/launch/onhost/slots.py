"""Start of a rank on a host that several jobs share: the rank sees only its job's GPUs, and a like share of cores.

Arguments: the rank's command. `DLAMI_SLOTS` is `2,5/8`: its job has slots 2 and 5 of the host's 8. The command replaces
this process.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Mapping
from typing import NoReturn

_CPUS = "/sys/devices/system/cpu"
_GPUS = "/proc/driver/nvidia/gpus"


def gpus_of(slots: list[int], gpus: int) -> str:
    """Return the value of CUDA_VISIBLE_DEVICES for these slots of a host. Slots beyond its GPUs share them."""
    return ",".join(map(str, dict.fromkeys(slot % gpus if gpus else slot for slot in slots)))


def cores_of(slots: list[int], of: int, cores: list[int]) -> set[int]:
    """Return the cores for these slots: each slot gets an equal run of the list, at least one core."""
    mine: set[int] = set()
    for slot in slots:
        first = slot * len(cores) // of
        mine.update(cores[first : max(first + 1, (slot + 1) * len(cores) // of)])
    return mine


def neighbours(cores: set[int]) -> list[int]:
    """Return the cores, those of one processor and the two threads of a core next to each other."""

    def place(core: int) -> tuple[int, int, int]:
        return (
            _number(f"{_CPUS}/cpu{core}/topology/physical_package_id"),
            _number(f"{_CPUS}/cpu{core}/topology/core_id"),
            core,
        )

    return sorted(cores, key=place)


def restricted(told: Mapping[str, str]) -> dict[str, str]:
    """Restrict this process to the cores of its slots. Return the variables that restrict it to their GPUs.

    A CUDA_VISIBLE_DEVICES that the operator has set stays.
    """
    numbers, _, of = told["DLAMI_SLOTS"].partition("/")
    slots = [int(number) for number in numbers.split(",")]
    with contextlib.suppress(OSError):
        os.sched_setaffinity(0, cores_of(slots, int(of), neighbours(os.sched_getaffinity(0))))
    if "CUDA_VISIBLE_DEVICES" in told:
        return {}
    return {"CUDA_VISIBLE_DEVICES": gpus_of(slots, len(os.listdir(_GPUS)) if os.path.isdir(_GPUS) else 0)}


def _number(path: str) -> int:
    try:
        with open(path) as file:
            return int(file.read())
    except (OSError, ValueError):
        return 0


def main(command: str, *words: str) -> NoReturn:
    """Restrict this process and become the rank's command."""
    if os.environ.get("DLAMI_SLOTS"):
        os.environ.update(restricted(os.environ))
    try:
        os.execvp(command, (command, *words))
    except OSError as e:
        os.write(2, f"dlami: {command} cannot be started: {e.strerror}\n".encode())
        os._exit(127)


if __name__ == "__main__":
    main(*sys.argv[1:])
