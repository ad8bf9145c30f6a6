"""What the model says, stored: a change of it is seen in review. `PYTHONPATH=. python tests/cfn/test_estimates_stored.py`
writes the file anew."""

from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path

import pytest

from cfn.estimate.choice import better
from cfn.estimate.goodput import Healing, goodput
from cfn.estimate.layers import NETWORKS, Layer, network
from cfn.estimate.machines import GPUS, PRECISIONS, Gpu, machine
from cfn.estimate.published import FIGURES, Figure, median_error, median_error_elsewhere
from cfn.estimate.reduction import CYCLE_S, Gradient, all_reduce_s, in_turn
from cfn.estimate.step import Step, Training, step
from cfn.estimate.whole import Work, bend, estimate
from cluster.clusterfile.instance_types import known_types

STORED = Path(__file__).parent / "golden/estimates.txt"


def lines() -> Iterator[str]:
    """All that the model knows and says, a line for each thing: six digits of each number."""
    for figure in FIGURES:
        yield " | ".join(_of_figure(figure))
    yield f"medians | {median_error():.6f} | {median_error_elsewhere():.6f}"
    for name, gpu in GPUS.items():
        yield " | ".join([name, *(f"{getattr(gpu, f.name):g}" for f in fields(Gpu))])
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


def test_an_error_is_a_share_of_what_was_measured() -> None:
    """Positive where the model promises more."""
    one = FIGURES[0]
    assert one.predicted() == pytest.approx(one.images_per_s * (1.0 + one.error))


@pytest.mark.parametrize(
    ("precision", "peak"), [("float32", 19.5e12), ("tf32", 156e12), ("float16", 312e12), ("bfloat16", 312e12)]
)
def test_a_peak_is_that_of_the_precision(precision: str, peak: float) -> None:
    """Of an A100, in FLOP/s; every precision that may be asked for has one."""
    assert precision in PRECISIONS
    assert peak == GPUS["A100"].peak(precision)


def test_a_step_is_bound_by_what_takes_longest() -> None:
    """Waiting for a tenth of the computing is none of the network's; reading as long as the rest is none of the input's."""

    def taking(waited_s: float, read_s: float) -> Step:
        return Step(images=300, compute_s=2.0, waited_s=waited_s, uneven_s=0.5, read_s=read_s)

    assert ("GPU", "network") == (taking(0.2, 0.0).bound, taking(0.21, 0.0).bound)
    assert ("GPU", "input") == (taking(0.0, 2.5).bound, taking(0.0, 2.6).bound)
    assert (3.0, 100.0) == (taking(0.5, 1.0).seconds, taking(0.5, 1.0).images_per_s)
    assert (6.0, 50.0) == (taking(0.5, 6.0).seconds, taking(0.5, 6.0).images_per_s)


def test_parts_of_a_step_follow_from_its_machine() -> None:
    """Twice the batch is read and computed in twice the time; a rank alone waits for nobody."""
    kind = machine("p4d.24xlarge")
    layers = network("resnet50", 224)
    small, large = (step(Training(layers=layers, batch=n), kind, 1) for n in (64, 128))
    alone = step(Training(layers=layers, batch=64, photographs=None), machine("g5.xlarge"), 1)

    assert large.read_s == pytest.approx(2 * small.read_s)
    assert 64 * 8 / (96 * 833.0) == pytest.approx(small.read_s)
    halves = (step(Training(layers=layers, batch=64, precision=p), kind, 2) for p in ("float16", "bfloat16"))
    assert 1 == len({one.seconds for one in halves}), "both compute as fast"
    assert (64, 0.0, 0.0, 0.0) == (alone.images, alone.waited_s, alone.uneven_s, alone.read_s)


def test_goodput_by_the_defaults_is_what_was_measured_here() -> None:
    """Where its spare is away, and without one at each failure, an instance's start is waited for as well."""
    spared, bare = (goodput(64, spares, Healing()) for spares in (1, 0))
    per_s = 64 * 419 / 54 / 2048 / 86_400

    taken = per_s * 300 / (1 + per_s * 300)
    assert 30 / 30.3 / (1 + per_s * (330 + 15)) == pytest.approx(bare, rel=1e-9)
    assert 30 / 30.3 / (1 + per_s * (30 + 300 * taken + 15)) == pytest.approx(spared, rel=1e-9)


def test_an_estimate_as_json_has_all_of_the_row() -> None:
    """In SI units, its step with the sum of its parts."""
    kind = machine("g5.12xlarge")
    training = Training(layers=network("resnet50", 224), batch=64)
    one = estimate(training, Work(images=1e6, evaluations=2), kind, 3, 5.0)
    said = one.to_json()

    assert ("g5.12xlarge", 3, 12) == (said["instance_type"], said["hosts"], said["gpus"])
    assert (one.step.images_per_s, one.efficiency) == (said["images_per_s"], said["efficiency"])
    assert (one.step.bound, one.goodput, one.hours) == (said["bound"], said["goodput"], said["hours"])
    assert one.usd == said["usd"] == pytest.approx(15.0 * one.hours)
    assert said["step"]["seconds"] == max(
        said["step"]["compute_s"] + said["step"]["waited_s"] + said["step"]["uneven_s"], said["step"]["read_s"]
    )
    alone = step(training, machine("g5.4xlarge"), 1).images_per_s
    assert one.step.images_per_s / (12 * alone) == pytest.approx(one.efficiency, rel=0.05)


def test_the_first_bend_is_told_whatever_the_order() -> None:
    """Of several the smallest number of hosts; exactly the share that is asked for is not less."""
    kind = machine("g4dn.xlarge")
    training = Training(layers=network("vgg16", 224), batch=16, photographs=None)
    rows = [estimate(training, Work(images=1.0), kind, n, None) for n in (8, 1, 4)]

    assert 4 == bend(rows)
    assert bend(rows, least=0.0) is None
    assert 8 == bend(rows, least=rows[2].efficiency)


def test_an_all_reduce_of_one_host_stays_on_its_bus() -> None:
    """A ring over three quarters of the bus's rate, and two messages from each GPU to the next."""
    kind = machine("g5.48xlarge")
    alone = 2 * 7 * 5e-6

    assert 1e-3 == CYCLE_S
    assert alone + 2 * 7 / 8 * 24e9 / (0.75 * 24e9) == pytest.approx(all_reduce_s(24e9, kind, 1))


def test_what_is_not_ready_yet_is_sent_later() -> None:
    """The backward pass goes on beside the first; after the last nothing is left to wait for but that."""
    sent: list[float] = []

    def all_reduce(size: float) -> float:
        sent.append(size)
        return 1.0

    found = in_turn([Gradient(3.0, 5.0), Gradient(1.0, 0.0), Gradient(2.0, 0.25)], 5.0, all_reduce, cycle_s=0.25)

    assert [3.0, 3.0] == sent, "the two that were ready together, then the last"
    assert (2.0, 1.25) == (found.busy_s, found.waited_s)
    assert 0.0 == in_turn([Gradient(1.0, 0.0)], 5.0, all_reduce, cycle_s=0.25).waited_s


def test_hosts_that_wait_less_are_as_many_as_a_cluster_may_have() -> None:
    """64 of them with more processors to read; for more GPUs a larger type on fewer hosts, though some of its are idle."""
    reading = Training(layers=network("resnet18", 128), batch=256, photographs="original")
    found = {n: better(reading, machine("g6e.12xlarge"), n) for n in (64, 65)}

    assert "input" == step(reading, machine("g6e.12xlarge"), 64).bound
    assert {64: ("g6e.24xlarge", 64), 65: ("g6e.48xlarge", 33)} == {
        n: (one.machine.name, one.hosts) for n, one in found.items() if one
    }


if __name__ == "__main__":
    STORED.write_text("".join(f"{line}\n" for line in lines()))
