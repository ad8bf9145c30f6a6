"""Learning rates against the reference's printed tables, and steps against its counts."""

from dataclasses import replace
from typing import Any

import pytest

from trainer.common.ranks.schedule import MODES, Schedule, Shape
from trainer.resnet50.__main__ import parse
from trainer.resnet50.config import ResNetConfig
from trainer.resnet50.plan import look_up, make_plan

SYNTHETIC = {0: "6.40000", 1: "6.38721", 100: "5.18400", 200: "4.09600", 300: "3.13600", 400: "2.30401"}
GPUS_32 = {
    0: "0.00100",
    1: "0.00305",
    50: "0.10353",
    100: "0.20606",
    150: "0.30860",
    200: "0.41113",
    250: "0.51366",
    300: "0.61619",
    350: "0.71872",
    400: "0.82126",
    13750: "0.00217",
    13800: "0.00156",
    13850: "0.00104",
    13900: "0.00064",
    13950: "0.00033",
    14000: "0.00012",
    14050: "0.00002",
}
GPUS_256 = {
    1400: "0.14850",
    1450: "0.10283",
    1500: "0.06719",
    1550: "0.04059",
    1600: "0.02190",
    1650: "0.00987",
    1700: "0.00313",
    1750: "0.00026",
}


def reference_plan(ranks: Any, **flags: Any) -> Any:
    """The reference's recipe: 256 images per GPU, 90 epochs of ImageNet."""
    config = ResNetConfig(synthetic=True, batch_size=256, num_epochs=90.0, warmup_epochs=10.0, **flags)
    return make_plan(config, ranks, look_up(config))


@pytest.mark.parametrize(("step", "printed"), GPUS_32.items())
def test_the_rates_printed_for_32_gpus(step: Any, printed: Any) -> None:
    """Polynomial decay from 0.1 x 8192 / 256 after ten epochs of warm-up."""
    assert printed == f"{reference_plan(32).schedule(step):7.5f}"


@pytest.mark.parametrize(("step", "printed"), GPUS_256.items())
def test_the_rates_printed_for_256_gpus(step: Any, printed: Any) -> None:
    """Linear-cosine decay from 3.7."""
    assert printed == f"{reference_plan(256, lr=3.7, lr_decay_mode='linear_cosine').schedule(step):7.5f}"


@pytest.mark.parametrize(("step", "printed"), SYNTHETIC.items())
def test_the_rates_printed_for_synthetic_data(step: Any, printed: Any) -> None:
    """Polynomial decay from 6.4 over 1000 steps, no warm-up."""
    assert printed == f"{Schedule(mode='poly', peak=6.4, steps=1000)(step):7.5f}"


@pytest.mark.parametrize(("ranks", "steps", "per_epoch"), [(32, 14075, 156), (256, 1759, 19)])
def test_steps_are_the_references(ranks: Any, steps: Any, per_epoch: Any) -> None:
    """Whole steps of the run from the examples of all epochs, whole steps of an epoch for the warm-up."""
    planned = reference_plan(ranks)

    assert steps == planned.steps
    assert 10 * per_epoch == planned.schedule.warmup_steps


@pytest.mark.parametrize("mode", [m for m in MODES if m not in ("steps", "cosine_decay_restarts")])
def test_every_decay_begins_at_the_peak_and_never_rises(mode: Any) -> None:
    """The warm-up's last rate is just below the peak, the decay's first is it."""
    schedule = Schedule(mode=mode, peak=2.0, steps=200, warmup_steps=20)
    rates = [schedule(step) for step in range(200)]

    assert rates[20] == pytest.approx(2.0, rel=1e-4)
    assert rates[:20] == sorted(rates[:20])
    assert rates[20:] == sorted(rates[20:], reverse=True)


@pytest.mark.parametrize("step", [0, 1, 33, 34, 50, 66, 98, 99, 100])
def test_restarts_and_cycles_are_tensorflows(step: Any) -> None:
    """Against TensorFlow's own schedules, which the reference calls."""
    import tensorflow as tf

    shape = Shape(first_decay=0.33, t_mul=2.0, m_mul=0.5, end=0.1)
    restarts = tf.compat.v1.train.cosine_decay_restarts(2.0, step, 33, t_mul=2.0, m_mul=0.5, alpha=0.1)
    linear = tf.compat.v1.train.linear_cosine_decay(2.0, step, 100, num_periods=0.47, alpha=0.0, beta=1e-5)
    found = {mode: Schedule(mode=mode, peak=2.0, steps=100, shape=shape)(step) for mode in MODES if mode != "steps"}

    assert found["cosine_decay_restarts"] == pytest.approx(float(restarts()), rel=1e-4)
    assert found["linear_cosine"] == pytest.approx(float(linear()), rel=1e-4, abs=1e-7)
    for beyond in (step, step + 130):
        cycle = tf.compat.v1.train.polynomial_decay(2.0, beyond, 100, 1e-5, power=2, cycle=True)
        assert Schedule(mode="poly_cycle", peak=2.0, steps=100)(beyond) == pytest.approx(float(cycle()), rel=1e-4)


@pytest.mark.parametrize(
    ("flags", "rates"),
    [
        ({}, (3.2, 0.32, 0.032, 0.0032)),
        ({"lr_decay_lrs": (1.0, 0.5, 0.25)}, (3.2, 1.0, 0.5, 0.25)),
    ],
)
def test_steps_change_the_rate_at_epochs_of_the_raw_step(flags: Any, rates: Any) -> None:
    """Epochs 30, 60, 80 of 156 steps; the boundary itself still has the rate before, as TensorFlow's."""
    schedule = reference_plan(32, lr_decay_mode="steps", **flags).schedule

    for boundary, before, after in zip((30 * 156, 60 * 156, 80 * 156), rates[:-1], rates[1:], strict=True):
        assert (before, after) == (pytest.approx(schedule(boundary)), pytest.approx(schedule(boundary + 1)))


def test_the_recipes_are_the_references_runs() -> None:
    """Rates and steps of the two published runs follow from the names alone; flags beside a recipe win."""
    poly, _ = parse(["--recipe", "poly90", "--synthetic"])
    larc, _ = parse(["--recipe", "large-batch", "--synthetic"])
    poly_plan, larc_plan = make_plan(poly, 32, look_up(poly)), make_plan(larc, 256, look_up(larc))

    assert (14075, GPUS_32[13750]) == (poly_plan.steps, f"{poly_plan.rate(13750):7.5f}")
    assert (1759, GPUS_256[1400]) == (larc_plan.steps, f"{larc_plan.rate(1400):7.5f}")
    assert (True, 0.977, "256") == (larc.larc, larc.momentum, larc.loss_scale)
    assert 0.5 == parse(["--recipe", "modern", "--synthetic", "--momentum", "0.5"])[0].momentum


def test_a_warm_up_never_goes_above_the_rate_of_its_step() -> None:
    """In steps, where a boundary may lie within it; the other modes rise to the peak."""
    shape = Shape(boundaries=(4,), rates=(0.5,))
    stepped = Schedule(mode="steps", peak=2.0, steps=20, warmup_steps=10, warmup_start=0.0, shape=shape)
    rising = Schedule(mode="constant", peak=2.0, steps=20, warmup_steps=10, warmup_start=0.0)

    assert [0.0, 0.4, 0.8, 0.5, 0.5, 0.5] == pytest.approx([stepped(step) for step in (0, 2, 4, 5, 9, 10)])
    assert [0.0, 0.4, 0.8, 1.0, 1.8, 2.0] == pytest.approx([rising(step) for step in (0, 2, 4, 5, 9, 10)])


def test_a_schedule_that_is_all_warm_up_ends_where_its_decay_does() -> None:
    """And beyond its last step nothing falls further."""
    assert 0 == pytest.approx(Schedule(mode="cosine", peak=2.0, steps=5, warmup_steps=5)(5))
    assert [1.0, 0.0, 0.0] == pytest.approx([Schedule(mode="cosine", peak=2.0, steps=10)(s) for s in (5, 10, 15)])


def test_shapes_are_by_default_those_of_the_flags() -> None:
    """A schedule that is told nothing decays as a run that gives no flag."""
    config = ResNetConfig(synthetic=True, num_batches=1, batch_size=1)
    told = make_plan(config, 1, look_up(config)).schedule.shape

    assert replace(told, boundaries=(), rates=()) == Shape()
