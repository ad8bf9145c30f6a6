"""What a training takes elsewhere: networks by their known sizes, a step by what others measured, goodput by chance."""

import json
import random
import subprocess
import sys
from typing import Any

import pytest

from cfn.estimate import published
from cfn.estimate.goodput import DAY_S, FailureCost, goodput
from cfn.estimate.layers import network, parameters
from cfn.estimate.machines import machine
from cfn.estimate.step import TrainingSettings, step
from cfn.estimate.whole import Work, estimate
from cfn.plan import speed_of
from cluster.errors import ConfigError
from cluster.inventory import ROOT
from dlami.tasks.estimate import Estimating, estimates
from tests.conftest import PATIENCE_S


@pytest.mark.parametrize(
    ("name", "learnt", "gmac"),
    [
        ("resnet18", 11_689_512, 1.81),
        ("resnet34", 21_797_672, 3.66),
        ("resnet50", 25_557_032, 4.09),
        ("resnet101", 44_549_160, 7.80),
        ("resnet152", 60_192_808, 11.51),
        ("vgg16", 138_357_544, 15.47),
    ],
)
def test_networks_have_the_sizes_that_torchvision_says(name: Any, learnt: Any, gmac: Any) -> None:
    """Parameters exactly, multiply-adds of one image to a hundredth."""
    layers = network(name, 224)

    assert learnt == parameters(layers)
    assert gmac == pytest.approx(sum(layer.flop for layer in layers) / 2e9, rel=0.01)


def test_the_model_is_within_a_fifth_of_what_others_measured() -> None:
    """Median of the figures that fix none of its constants; those are at least thirteen, of at least four sources."""
    assert len(published.judged()) >= 13
    assert len({f.source for f in published.judged()}) >= 4
    assert published.median_error() < 0.20
    assert published.median_error_elsewhere() < 0.20
    assert all(abs(f.error) < 0.05 for f in published.FIGURES if f.fixes)


@pytest.mark.parametrize(("hosts", "spares"), [(8, 0), (64, 0), (64, 1), (512, 2)])
def test_goodput_is_what_chance_gives(hosts: Any, spares: Any) -> None:
    """The closed form against 20,000 days of failures drawn at random, healing and spares followed one by one."""
    healing = FailureCost(with_spare_s=40.0, replaced_s=3000.0, save_every_s=120.0)
    rate = 0.02

    drawn = _drawn(hosts, spares, healing, rate, random.Random(7))
    assert drawn == pytest.approx(goodput(hosts, spares, healing, rate), abs=0.01)


def _drawn(hosts: int, spares: int, healing: FailureCost, rate: float, chance: random.Random) -> float:
    """Useful over all seconds; a failure comes only while it trains."""
    now = useful = 0.0
    away: list[float] = []  # when each spare's replacement is there
    for _ in range(20_000):
        ran = chance.expovariate(hosts * rate / DAY_S)
        now += ran
        away = [at for at in away if at > now]
        wait = healing.with_spare_s
        if len(away) >= spares:
            wait += healing.replaced_s
        else:
            away.append(now + healing.replaced_s)
        useful += max(0.0, ran - chance.uniform(0.0, healing.save_every_s))
        now += wait
    return useful / now * healing.save_every_s / (healing.save_every_s + healing.save_s)


def test_a_whole_training_is_its_images_and_its_price() -> None:
    """Hours by images/s and goodput, evaluation at a third of the cost; dollars by hosts and hours, unknown where not asked."""
    kind = machine("p4d.24xlarge")
    one = estimate(_training(), Work(images=1e8), kind, 4, 20.0)
    evaluated = estimate(_training(), Work(images=1e8, evaluations=30), kind, 4, None)

    training_h = 1e8 / one.step.images_per_s / one.goodput / 3600
    assert training_h + 60 / 3600 == pytest.approx(one.hours)
    assert one.usd == pytest.approx(20.0 * 4 * one.hours)
    assert evaluated.usd is None
    assert 30 * 50_000 / 3 / one.step.images_per_s / one.goodput / 3600 == pytest.approx(evaluated.hours - one.hours)
    assert 0.9 < one.goodput < 1.0


def test_flags_are_the_trainer_s() -> None:
    """A recipe sets batch, precision and epochs; a mistyped flag, type or number is one sentence."""
    given = Estimating(types="p4d.24xlarge", hosts="1,8")
    modern = estimates(given, ["--recipe", "modern"])
    short = estimates(given, ["--recipe", "modern", "--num-epochs", "12"])

    fused = estimates(given, ["--recipe", "modern", "--xla"])
    assert fused[0].step.images_per_s > 1.2 * modern[0].step.images_per_s
    assert [128 * 8, 128 * 64] == [e.step.images for e in modern]
    assert 10 == pytest.approx((modern[0].hours - 1 / 60) / (short[0].hours - 1 / 60))
    for wrong in (Estimating(types="m5.large"), Estimating(hosts="0"), Estimating(hosts="two")):
        with pytest.raises(ConfigError):
            estimates(wrong, [])
    with pytest.raises(ConfigError, match="--bach-size"):
        estimates(given, ["--bach-size", "4"])


def test_it_is_asked_as_a_person_types_it() -> None:
    """A table with what it is not, 90 epochs where nobody says; JSON with every part of the step."""
    shown = _typed("--types", "p5.48xlarge", "--hosts", "1,2", "--", "--precision", "float16")
    assert 0 == shown.returncode, shown.stderr
    assert "p5.48xlarge" in shown.stdout
    assert "not a measurement" in shown.stdout
    found = json.loads(_typed("--hosts", "2", "--json").stdout)
    assert {"compute_s", "waited_s", "uneven_s", "read_s", "images", "seconds"} == set(found[0]["step"])
    refused = _typed("--types", "z9.large")
    assert (2, "") == (refused.returncode, refused.stdout)
    assert "nothing is known of the GPUs of 'z9.large'" in refused.stderr


def _typed(*words: str) -> "subprocess.CompletedProcess[str]":
    line = [sys.executable, "-m", "invoke", "train.estimate", *words]
    return subprocess.run(line, cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE_S, check=False)


def _training(**other: Any) -> TrainingSettings:
    return TrainingSettings(**({"layers": network("resnet50", 224), "batch": 256, "photographs": None} | other))


def test_a_plan_says_what_its_gpus_would_reach() -> None:
    """For all hosts together, with what holds it up; nothing about a machine of which nothing is known."""
    said = speed_of("p4d.24xlarge", 2)

    reached = step(_training(photographs="shrunk"), machine("p4d.24xlarge"), 2).images_per_s
    assert f"some {reached:,.0f} images/s" in said
    assert "bound by its GPUs (" in said
    assert "" == speed_of("m5.large", 2)
