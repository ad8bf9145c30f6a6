"""Python's search for dead cycles leaves a training's start alone, and afterwards works as everywhere."""

import gc
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.trainer.conftest import Program, run_program
from trainer.common.ranks import gc_freeze

TRAINING = (
    "import gc, json; usual = gc.get_threshold(); from trainer.{module}.__main__ import main; "
    "assert 0 == main(['--synthetic', '--model', 'resnet18', '--image-size', '32', '--batch-size', '2', "
    "'--num-batches', '2', '--threads', '1', '--display-every', '1', '--job-dir', {job!r}]); "
    "print(json.dumps([gc.get_threshold() == usual, gc.get_freeze_count(), gc.get_stats()[2]['collections']]))"
)


@pytest.fixture
def searched() -> Iterator[None]:
    """Nothing is set aside before the test; once it is over Python searches as before it."""
    threshold = gc.get_threshold()
    gc.unfreeze()
    gc.set_threshold(*gc_freeze.USUAL)
    yield
    gc.freeze()
    gc.set_threshold(*threshold)


def test_what_a_start_has_made_is_not_looked_at_again(searched: None) -> None:
    """Objects that live on are set aside once, and never again; a cycle that a later step drops is found."""
    gc_freeze.spare_start()
    assert gc_freeze.STARTING == gc.get_threshold()[0]
    made = [[n] for n in range(1000)]
    gc_freeze.settle()
    aside = gc.get_freeze_count()
    later = [[n] for n in range(1000)]
    gc_freeze.settle()

    assert gc_freeze.USUAL == gc.get_threshold()
    assert len(made) <= aside
    assert gc.get_freeze_count() < aside + len(later), "some of those set aside may have died, none came to them"
    a, b = SimpleNamespace(), SimpleNamespace()
    a.other, b.other = b, a
    del a, b
    assert gc.collect() > 0


@pytest.mark.parametrize("module", ["resnet50", "resnet50_torch"])
def test_a_training_begins_without_a_whole_search(python: Program, request: Any, tmp_path: Path, module: str) -> None:
    """An import and a graph make 300,000 objects; without this there are five whole searches among them."""
    interpreter = request.getfixturevalue("torch_python") if module.endswith("torch") else sys.executable
    done = run_program(interpreter, "-c", TRAINING.format(module=module, job=str(tmp_path / "job")))
    as_usual, aside, whole_searches = json.loads(done.stdout.splitlines()[-1])

    assert as_usual
    assert aside > 50_000
    assert whole_searches <= 1
