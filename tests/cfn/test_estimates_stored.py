"""What the model says, stored: a change of it is seen in review. `PYTHONPATH=. python tests/cfn/test_estimates_stored.py`
writes the file anew."""

from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path

import pytest

from cfn.estimate.alternatives import better
from cfn.estimate.goodput import FailureCost, goodput
from cfn.estimate.layers import NETWORKS, Layer, network
from cfn.estimate.machines import GPUS, GpuRates, machine
from cfn.estimate.published import FIGURES, Figure, median_error, median_error_elsewhere
from cfn.estimate.reduction import all_reduce_s
from cfn.estimate.step import TrainingSettings, step
from cluster.clusterfile.instance_types import known_types

STORED = Path(__file__).parent / "golden/estimates.txt"


def lines() -> Iterator[str]:
    """All that the model knows and says, a line for each thing: six digits of each number."""
    for figure in FIGURES:
        yield " | ".join(_of_figure(figure))
    yield f"medians | {median_error():.6f} | {median_error_elsewhere():.6f}"
    for name, gpu in GPUS.items():
        yield " | ".join([name, *(f"{getattr(gpu, f.name):g}" for f in fields(GpuRates))])
    for name in sorted(known_types()):
        kind = machine(name)
        where = f"{name} | {kind.gpu} | {kind.gpus} | {kind.vcpus} | {kind.gbit:g} | {kind.efa}"
        yield f"{where} | {all_reduce_s(1e9, kind, 1):.6g} | {all_reduce_s(1e9, kind, 4):.6g}"
    for name in NETWORKS:
        layers = network(name, 160)
        sums = [sum(getattr(layer, f.name) for layer in layers) for f in fields(Layer)]
        yield " | ".join([name, str(len(layers)), *(f"{one:.6g}" for one in sums)])


def _of_figure(figure: Figure) -> list[str]:
    known = [getattr(figure, f.name) for f in fields(Figure) if f.name not in ("source", "machine")]
    return [*map(str, known), f"{figure.predicted():.6g}", f"{figure.error:+.6f}"]


def test_what_the_model_says_is_what_is_stored() -> None:
    """Published figures and what is predicted of them, GPUs, machines with an all-reduce of theirs, and networks."""
    assert STORED.read_text().splitlines() == list(lines())


def test_goodput_by_the_defaults_is_what_was_measured_here() -> None:
    """Where its spare is away, and without one at each failure, an instance's start is waited for as well."""
    spared, bare = (goodput(64, spares, FailureCost()) for spares in (1, 0))
    per_s = 64 * 419 / 54 / 2048 / 86_400

    taken = per_s * 300 / (1 + per_s * 300)
    assert 30 / 30.3 / (1 + per_s * (330 + 15)) == pytest.approx(bare, rel=1e-9)
    assert 30 / 30.3 / (1 + per_s * (30 + 300 * taken + 15)) == pytest.approx(spared, rel=1e-9)


def test_hosts_that_wait_less_are_as_many_as_a_cluster_may_have() -> None:
    """64 of them with more processors to read; for more GPUs a larger type on fewer hosts, though some of its are idle."""
    reading = TrainingSettings(layers=network("resnet18", 128), batch=256, photographs="original")
    found = {n: better(reading, machine("g6e.12xlarge"), n) for n in (64, 65)}

    assert "input" == step(reading, machine("g6e.12xlarge"), 64).bound
    assert {64: ("g6e.24xlarge", 64), 65: ("g6e.48xlarge", 33)} == {
        n: (one.machine.name, one.hosts) for n, one in found.items() if one
    }


if __name__ == "__main__":
    STORED.write_text("".join(f"{line}\n" for line in lines()))
