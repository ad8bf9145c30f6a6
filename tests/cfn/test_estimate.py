"""What a training takes elsewhere: networks by their known sizes, a step by what others measured, goodput by chance."""

import json
import random
import subprocess
import sys
from typing import Any

import pytest

from cfn.estimate import published
from cfn.estimate.choice import better
from cfn.estimate.goodput import DAY_S, Healing, goodput
from cfn.estimate.layers import Layer, network, parameters
from cfn.estimate.machines import machine
from cfn.estimate.reduction import FUSED_BYTES, Gradient, all_reduce_s, in_turn, summing
from cfn.estimate.slower_links import GRADIENT_BYTES, Parts, step_s
from cfn.estimate.step import Training, step
from cfn.estimate.whole import Work, bend, estimate
from cfn.plan import speed_of
from cluster.errors import ConfigError
from cluster.inventory import ROOT
from dlami.estimating import Estimating, estimates, table
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


def test_more_hosts_are_never_slower_together_nor_faster_each() -> None:
    """Images/s grow, the share of the GPUs' own speed does not, whatever the machine."""
    for name in ("g4dn.xlarge", "g5.48xlarge", "p4d.24xlarge", "p5.48xlarge"):
        rows = [estimate(_training(), Work(images=1e8), machine(name), n, None) for n in (1, 2, 4, 8, 64, 512)]

        speeds = [r.step.images_per_s for r in rows]
        shares = [r.efficiency for r in rows]
        assert speeds == sorted(speeds), name
        assert shares == sorted(shares, reverse=True), name
        assert max(shares) <= 1.0, name


def test_what_bounds_a_step() -> None:
    """A slow network, decoding on few processors, or the GPU; and what half the bytes or smaller photographs bring."""
    slow = machine("g4dn.xlarge")
    large = network("vgg16", 224)

    assert "network" == step(_training(layers=large, batch=16), slow, 8).bound
    assert "GPU" == step(_training(photographs=None), slow, 1).bound
    fast = machine("p5.48xlarge")
    small = _training(layers=network("resnet18", 128), photographs="original")
    assert "input" == step(small, fast, 1).bound
    shrunk = step(_training(layers=network("resnet18", 128), photographs="shrunk"), fast, 1)
    assert shrunk.images_per_s > 1.5 * step(small, fast, 1).images_per_s
    sent = [step(_training(layers=large, batch=16, compressed=c), slow, 8).waited_s for c in (False, True)]
    assert sent[1] < 0.6 * sent[0]


def test_gradients_are_summed_beside_the_backward_pass() -> None:
    """What is ready early costs no waiting; what comes last is waited for; one GPU sums nothing."""
    host = machine("p4d.24xlarge")
    alone = all_reduce_s(FUSED_BYTES, host, 2)

    early = summing([Gradient(FUSED_BYTES, 0.0)], 10.0, host, 2)
    late = summing([Gradient(FUSED_BYTES, 10.0)], 10.0, host, 2)
    assert 0.0 == early.waited_s
    assert alone == pytest.approx(early.busy_s)
    assert alone == pytest.approx(late.waited_s, abs=2e-3)
    one = machine("g5.xlarge")
    assert 0.0 == summing([Gradient(FUSED_BYTES, 0.0)], 0.0, one, 1).busy_s


def test_an_all_reduce_takes_no_more_than_the_buffer_holds() -> None:
    """What is ready goes together as far as it fits; a gradient larger than the buffer goes alone."""
    sent: list[float] = []

    def all_reduce(size: float) -> float:
        sent.append(size)
        return 1.0

    half = FUSED_BYTES / 2
    gradients = [Gradient(size, 0.0) for size in (half, half, half, 3 * FUSED_BYTES, half)]
    found = in_turn(gradients, 2.0, all_reduce, cycle_s=0.25)

    assert [2 * half, half, 3 * FUSED_BYTES, half] == sent
    assert (4.0, 3.0) == (found.busy_s, found.waited_s)


def test_a_ring_takes_twice_the_bytes_over_the_slowest_link() -> None:
    """Large sums approach 2 (n - 1) / n x bytes / rate; small ones cost their messages."""
    host = machine("p4d.24xlarge")  # 4 x 100 Gbit/s by EFA, 80 % of it
    size = 10e9

    assert 2 * 15 / 16 * size / (0.8 * 400e9 / 8) == pytest.approx(all_reduce_s(size, host, 2), rel=0.01)
    assert 2 * 7 * 5e-6 + 2 * 6 * 15e-6 == pytest.approx(all_reduce_s(1.0, host, 64), rel=0.01), "8 GPUs, 2^6 hosts"


def test_a_step_over_slower_links_begins_with_the_one_that_was_measured() -> None:
    """Endless links change nothing; others cost the ring's bytes over them as well; one rank waits for none."""
    layers = network("resnet18", 32)
    sent = 2 * 7 / 8 * GRADIENT_BYTES * parameters(layers)
    parts = Parts(ranks=8, step_s=1.5, small_s=0.02, large_s=0.6)

    assert 1.5 == pytest.approx(step_s(parts, layers, 1e6 * sent))
    assert 1.5 + 100 == pytest.approx(step_s(parts, layers, sent / 100), rel=0.01)
    steps = [step_s(parts, layers, sent / seconds) for seconds in (0.5, 0.7, 1.0, 2.0, 4.0)]
    assert steps == sorted(steps)
    assert steps[0] > 1.6
    alone = Parts(ranks=1, step_s=1.5, small_s=0.0, large_s=0.0)
    assert 1.5 == pytest.approx(step_s(alone, layers, 1.0))


def test_slower_links_are_hidden_behind_long_computing() -> None:
    """What is sent beside the backward pass is not waited for; the first layer's gradients come last, at its end."""
    small, large = Layer(flop=1.0, moved=0.0, weights=1), Layer(flop=1.0, moved=0.0, weights=1_000_000)
    parts = Parts(ranks=2, step_s=300.0, small_s=0.02, large_s=0.52)
    link = 4e6 / 50  # both ranks send what all gradients are

    assert 300.0 == pytest.approx(step_s(parts, [small, large], link), abs=0.1)
    assert 300.0 + 50.0 == pytest.approx(step_s(parts, [large, small], link), abs=0.1)


@pytest.mark.parametrize(("hosts", "spares"), [(8, 0), (64, 0), (64, 1), (512, 2)])
def test_goodput_is_what_chance_gives(hosts: Any, spares: Any) -> None:
    """The closed form against 20,000 days of failures drawn at random, healing and spares followed one by one."""
    healing = Healing(with_spare_s=40.0, replaced_s=3000.0, save_every_s=120.0)
    rate = 0.02

    drawn = _drawn(hosts, spares, healing, rate, random.Random(7))
    assert drawn == pytest.approx(goodput(hosts, spares, healing, rate), abs=0.01)


def _drawn(hosts: int, spares: int, healing: Healing, rate: float, chance: random.Random) -> float:
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


def test_where_a_curve_bends_is_said() -> None:
    """The first number of hosts with less than four fifths of the GPUs' own speed."""
    slow = machine("g4dn.12xlarge")
    rows = [
        estimate(_training(layers=network("vgg16", 224), batch=8), Work(images=1), slow, n, None) for n in (1, 2, 8)
    ]

    assert 2 == bend(rows[1:])
    assert any("under 80 % of its GPUs' own speed from" in line for line in table(rows))
    assert bend(rows[:0]) is None


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


def _training(**other: Any) -> Training:
    return Training(**({"layers": network("resnet50", 224), "batch": 256, "photographs": None} | other))


def test_a_plan_says_what_its_gpus_would_reach() -> None:
    """For all hosts together, with what holds it up; nothing about a machine of which nothing is known."""
    said = speed_of("p4d.24xlarge", 2)

    reached = step(_training(photographs="shrunk"), machine("p4d.24xlarge"), 2).images_per_s
    assert f"some {reached:,.0f} images/s" in said
    assert "bound by its GPUs (" in said
    assert "" == speed_of("m5.large", 2)


def test_a_plan_names_hosts_that_would_wait_less() -> None:
    """Where the network bounds it: the same GPUs on fewer hosts, as few further ones as can be; never where GPUs do."""
    waiting = step(_training(photographs="shrunk"), machine("g5.xlarge"), 8)
    together = step(_training(photographs="shrunk"), machine("g5.48xlarge"), 1)

    assert "network" == waiting.bound
    assert f"bound by its network; 1 x g5.48xlarge, 8 GPUs: some {together.images_per_s:,.0f} (" in speed_of(
        "g5.xlarge", 8
    )
    assert together.images_per_s > 1.1 * waiting.images_per_s
    assert better(_training(), machine("g5.48xlarge"), 1) is None
    assert better(_training(layers=network("vgg16", 224), batch=1), machine("p5.48xlarge"), 64) is None


def test_float32_is_tensorflow_s_tf32_where_that_is_quicker() -> None:
    """An A100 computes float32 on its tensor cores, as TensorFlow has it do by itself; V100 and A10G on the others."""
    speeds = {
        name: [step(_training(precision=p), machine(name), 1).images_per_s for p in ("float32", "tf32")]
        for name in ("p4d.24xlarge", "p3dn.24xlarge", "g5.12xlarge")
    }

    assert speeds["p4d.24xlarge"][1] == speeds["p4d.24xlarge"][0]
    assert speeds["p3dn.24xlarge"][1] < speeds["p3dn.24xlarge"][0]
    assert speeds["g5.12xlarge"][1] < speeds["g5.12xlarge"][0]
