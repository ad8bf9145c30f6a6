"""The grid of faults: every combination of what breaks, on which host, at which moment, under which command.

A drawn trial is one `Cell`. Nothing here knows what the right message is; `judge` holds each command to promises that
are the same for all of them. What cannot happen is not in the grid, and what was tried before it was made is not drawn.
"""

import itertools
import random
from collections.abc import Iterator
from dataclasses import dataclass

from tests.faults.breaking import FAULTS

COMMANDS = ("run", "copy", "health", "kill", "train", "resume", "stop", "logs")
OF_JOBS = ("train", "resume", "stop", "logs")
PLACES = ("master", "worker", "last")
MOMENTS = ("before", "at once", "launching", "midway")
OPERATOR = ("Ctrl-C", "Ctrl-C twice", "killed", "terminal gone", "output closed")

# Of the lists of faults that version 0.1.0 was broken with: which command met which.
LISTED = {
    "train": {
        *("power cut", "power cut and back", "network cut", "network gone for 3 s", "our processes killed"),
        *("our processes frozen", "our processes get TERM", "supervisor killed", "/shared full", "/tmp full", "Ctrl-C"),
        "a talkative .bashrc",
    },
    "resume": {"supervisor killed"},
    "logs": {"power cut"},
    "stop": {"our processes frozen", "/shared full"},
    "run": {"Ctrl-C twice", "killed", "output closed"},
    "copy": {"power cut", "network cut", "slow line", "Ctrl-C", "killed", "a talkative .bashrc"},
    "kill": {"a talkative .bashrc"},
    "health": {"a talkative .bashrc"},
}


@dataclass(frozen=True, order=True)
class Cell:
    """One trial."""

    command: str
    fault: str
    place: str
    moment: str

    def __str__(self) -> str:
        return f"{self.command}: {self.fault} on {self.place}, {self.moment}"


def cells() -> Iterator[Cell]:
    """All of the grid: faults of hosts in every place, and what can happen to the operator's own command."""
    for command, fault, place, moment in itertools.product(COMMANDS, FAULTS, PLACES, MOMENTS):
        if _can_happen(command, fault, place, moment):
            yield Cell(command, fault, place, moment)
    for command, fault, moment in itertools.product(COMMANDS, OPERATOR, MOMENTS[1:]):
        if moment != "launching" or command in ("train", "resume"):
            yield Cell(command, fault, "operator", moment)


def _can_happen(command: str, fault: str, place: str, moment: str) -> bool:
    """Whether there is such a moment, and anything there that the fault can meet."""
    if moment == "launching" and command not in ("train", "resume"):
        return False
    breaks = FAULTS[fault]
    if breaks.only_on_master and place != "master":
        return False
    if breaks.of_jobs:
        begun = command in ("stop", "logs") or moment in ("launching", "midway")
        return command in OF_JOBS and begun
    if breaks.of_processes:
        return command in ("stop", "logs") or moment != "before"
    if breaks.of_launch:
        return command in ("train", "resume") and moment in ("before", "at once")
    return True


def drawn(seed: int, count: int) -> list[Cell]:
    """So many different cells: as many of each fault as can be, in a random order that the seed decides."""
    chance = random.Random(seed)
    by_fault: dict[str, list[Cell]] = {}
    for cell in cells():
        if cell.fault not in LISTED.get(cell.command, ()):
            by_fault.setdefault(cell.fault, []).append(cell)
    piles = [chance.sample(pile, len(pile)) for pile in by_fault.values()]
    chance.shuffle(piles)
    return list(itertools.islice((c for layer in itertools.zip_longest(*piles) for c in layer if c), count))
