"""Labs that the tests of health may break."""

import os
from collections.abc import Callable, Iterator

import pytest

from cluster.lab import lab as labs
from cluster.lab.record import Lab


@pytest.fixture(scope="module")
def new_lab(lab_allowed: None) -> Iterator[Callable[[int], Lab]]:
    """Makes a lab of so many hosts of one slot, for this module only; nothing of it is left afterwards."""
    name = f"h{os.getpid() % 10_000_000}"

    yield lambda num_hosts: labs.up(name, num_hosts=num_hosts, slots=1)
    if labs.is_anything_left(name):
        labs.down(name)
