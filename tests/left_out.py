"""Which tests need a lab, what a run leaves out, and the lines at its end that say so.

Under pytest-xdist the workers collect and the first process reports, so each worker hands over what it left out.
"""

import os
from collections.abc import Iterator
from typing import Any

import pytest

from cluster.inventory import ROOT
from lab import machine
from tests.drawn import photographs

LAB_FIXTURE = "lab_allowed"  # every fixture that makes a lab asks for it
AWS_FIXTURE = "aws"  # the stand-in of AWS
SLOW_FIXTURES = {
    "python",
    "ranks",
    "torch_ranks",
    "mini_shards",
    AWS_FIXTURE,
}  # the others are programs with a TensorFlow each
NETWORKS = {
    "trainer/test_model.py",
    "trainer/test_numerics.py",
    "trainer_maskrcnn/test_model.py",
}  # built by the tests themselves
NETWORK_FILES = {  # pure, but each builds networks with TensorFlow or PyTorch for seconds
    "trainer/test_pretrained.py",
    "trainer/test_tf_cnn_networks.py",
    "trainer/test_torch_pieces.py",
    "trainer_maskrcnn/test_bucket.py",
    "trainer_maskrcnn/test_detectron2.py",
    "trainer_maskrcnn/test_exports.py",
    "trainer_maskrcnn/test_layers.py",
    "trainer_maskrcnn/test_network_parts.py",
    "trainer_maskrcnn/test_roi.py",
    "trainer_maskrcnn/test_sampling.py",
    "trainer_maskrcnn/test_tensorpack.py",
}
SLOW_FILES = NETWORKS | {"trainer_maskrcnn/test_ranks.py", "trainer_maskrcnn/test_resume.py"}  # which start trainers
LINES = pytest.StashKey[set[str]]()


def pytest_configure(config: pytest.Config) -> None:
    """Refuses to pass on less: CI as root, on a machine whose rights allow a lab, must be able to make one."""
    config.stash[LINES] = set()
    is_worker = hasattr(config, "workerinput")
    if is_worker or os.environ.get("CI") != "true" or os.geteuid() != 0 or "not lab" in config.option.markexpr:
        return
    lack = machine.missing()
    if lack and not lack.is_permission:
        raise pytest.UsageError(f"CI=true, and a lab cannot be made here: it {lack}")


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> Iterator[None]:
    """Marks by fixtures, lets -m choose, then leaves out what cannot run here."""
    for item in items:
        fixtures, name = fixtures_of(item), item.path.relative_to(ROOT / "tests").as_posix()
        if LAB_FIXTURE in fixtures:
            item.add_marker("lab")
        elif fixtures & SLOW_FIXTURES or name in SLOW_FILES:
            item.add_marker("slow")
            if AWS_FIXTURE in fixtures or name in NETWORKS:
                item.add_marker("inside")
        elif name in NETWORK_FILES:
            item.add_marker("network")
    yield
    _leave_out_labs(config, items)
    drawn = sum("data" in getattr(item, "fixturenames", ()) for item in items)
    if drawn and not photographs():
        config.stash[LINES].add(
            f"{drawn} tests ran on drawn pictures, not photographs: name a folder with imagenet-mini/ and coco-mini/ "
            "in DLAMI_TEST_DATA to cover real images"
        )


def fixtures_of(item: Any) -> set[str]:
    """The names of its fixtures; what a parameter is called makes no test slow."""
    return set(getattr(item, "fixturenames", ())) - set(getattr(getattr(item, "callspec", None), "params", ()))


def _leave_out_labs(config: pytest.Config, items: list[pytest.Item]) -> None:
    needing = [item for item in items if item.get_closest_marker("lab")]
    lack = machine.missing() if needing else None
    if lack:
        config.hook.pytest_deselected(items=needing)
        items[:] = [item for item in items if item not in set(needing)]
        config.stash[LINES].add(f"{len(needing)} tests were left out, for a lab {lack}")


def pytest_sessionfinish(session: pytest.Session) -> None:
    """A worker's lines go to the process that reports."""
    if hasattr(session.config, "workeroutput"):
        session.config.workeroutput["left_out"] = sorted(session.config.stash[LINES])


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """A worker's lines arrive; all workers say the same."""
    node.config.stash[LINES].update(getattr(node, "workeroutput", {}).get("left_out", ()))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """One line for each thing that this run did not cover."""
    for line in sorted(config.stash[LINES]):
        terminalreporter.write_line(line, yellow=True)
