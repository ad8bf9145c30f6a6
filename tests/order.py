"""In which order tests run: the files that take longest first, then as a seed draws them, where one is given."""

import os
import random
from collections.abc import Iterator
from typing import Any

import pytest

from cluster.inventory import ROOT
from tests.examples import SEED

SLOW_MARKS = {"lab", "slow", "long", "fuzz"}
STORY = "story"
# What takes each is in docs/testing.md; the longest of each kind comes first, so that no process ends with a long one while
# the others have nothing left.
TRAININGS = (  # they keep the processors busy; the others mostly wait for hosts
    "trainer_maskrcnn/test_ranks.py",
    "trainer/test_ranks.py",
    "end_to_end/test_training.py",
    "trainer/test_learning.py",
    "trainer_maskrcnn/test_use.py",
    "trainer_maskrcnn/test_resume.py",
    "end_to_end/test_measuring.py",
    "trainer/test_torch.py",
    "trainer/test_resume.py",
    "trainer/test_numerics.py",
    "trainer_maskrcnn/test_model.py",
    "trainer/test_model.py",
)
LONGEST = (
    "cfn/test_end_to_end.py",
    "cluster/test_recovery_on_hosts.py",
    "cluster/test_hangs.py",
    "cluster/test_jobs.py",
    "cluster/test_demo.py",
    "cluster/test_plain_hosts.py",
    "cluster/test_many_hosts.py",
    "cfn/test_first_boot.py",
    "cfn/test_guard_on_hosts.py",
    "cluster/test_top_on_hosts.py",
    "cluster/test_copy.py",
)
AS_WRITTEN = (  # nobody has tried the tests on hosts of these in another order
    "end_to_end/test_training.py",
)
BETWEEN = 3  # files that wait, between one that trains and the next


def pytest_report_header() -> str | None:
    """How to have the same order and examples again."""
    return f"in the order and on the examples that {SEED}={seed} draws" if (seed := os.environ.get(SEED)) else None


@pytest.hookimpl(wrapper=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> Iterator[None]:
    """Orders what is left once marks have chosen."""
    yield
    items[:] = in_order(items, os.environ.get(SEED, ""))


def in_order(items: list[pytest.Item], seed: str) -> list[pytest.Item]:
    """Files with tests on hosts, the long ones first, and between them those that train; then those of pure tests alone.

    As the seed draws them: files that have no place of their own, and in each file, which is still worked on in one piece,
    the pure tests and those on hosts. Stories stay as they are written, and so does what nobody has tried otherwise: what
    trains on this machine or asks the stand-in of AWS, and AS_WRITTEN. Without a seed nothing is drawn.
    """
    files: dict[str, list[pytest.Item]] = {}
    for item in items:
        files.setdefault(_name(item), []).append(item)
    drawn = random.Random(seed)
    trainings: dict[str, list[pytest.Item]] = {name: files[name] for name in TRAININGS if name in files}
    others: list[tuple[tuple[int, float], list[pytest.Item]]] = []
    for name, found in files.items():
        is_pure = not any(SLOW_MARKS & {m.name for m in item.iter_markers()} for item in found)
        mixed = within(found, drawn) if seed else found
        if name in trainings:
            trainings[name] = mixed
            continue
        place = LONGEST.index(name) if name in LONGEST else len(LONGEST) + is_pure
        others.append(((place, drawn.random() if seed else 0.0), mixed))
    waiting = [group for _, group in sorted(others, key=lambda one: one[0])]
    for n, group in enumerate(trainings.values()):
        waiting.insert(n * (BETWEEN + 1), group)
    return [item for group in waiting for item in group]


def within(found: list[pytest.Item], drawn: random.Random) -> list[pytest.Item]:
    """The tests of a file, and next to each other those that share what is set up once for a parameter."""
    lots: dict[Any, list[pytest.Item]] = {}
    for item in found:
        if not _is_kept(item):
            lots.setdefault(_shared(item) or item, []).append(item)
    mixed = (item for lot in drawn.sample([*lots.values()], len(lots)) for item in drawn.sample(lot, len(lot)))
    return [item if _is_kept(item) else next(mixed) for item in found]


def _is_kept(item: pytest.Item) -> bool:
    """Whether it stays where it is written."""
    marks = {m.name for m in item.iter_markers()}
    if "lab" in marks:
        return STORY in marks or _name(item) in AS_WRITTEN
    return bool((SLOW_MARKS | {STORY}) & marks)


def _name(item: pytest.Item) -> str:
    return item.path.relative_to(ROOT / "tests").as_posix()


def _shared(item: pytest.Item) -> tuple[tuple[str, int], ...]:
    """The parameters that are set up once for several tests, which pytest keeps together."""
    call = getattr(item, "callspec", None)
    scopes = getattr(call, "_arg2scope", {})
    return tuple((name, n) for name, n in call.indices.items() if scopes[name].value != "function") if call else ()
