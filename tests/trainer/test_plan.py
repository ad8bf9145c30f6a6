"""What a command line becomes before a framework is loaded: flags, their limits and defaults, the plan in numbers and words."""

import json
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest

from trainer import records
from trainer.checkpoint import Folder
from trainer.commandline import Parser
from trainer.errors import ConfigError
from trainer.resnet50 import start
from trainer.resnet50.__main__ import main, parse
from trainer.resnet50.config import Config
from trainer.resnet50.plan import Data, Plan, look_up, make_plan, summary, text
from trainer.resnet50.recipes import RECIPES
from trainer.resnet50.resume import Position, continued

DRAWN = ("--synthetic", "--num-batches", "5", "--batch-size", "8")
DATA = Data(classes=10, train_examples=100, validation_examples=4)


@pytest.fixture
def shards(tmp_path: Path) -> Path:
    """Ten records to train on in two shards, one to evaluate on."""
    folder = tmp_path / "data"
    folder.mkdir()
    for name, count in (("train-00000-of-00002", 6), ("train-00001-of-00002", 4), ("validation-00000-of-00001", 1)):
        with (folder / name).open("wb") as file:
            records.write(file, [b"x"] * count)
    return folder


@pytest.fixture
def no_beat(monkeypatch: pytest.MonkeyPatch) -> None:
    """Outside a job nobody is told of a phase."""
    for name in ("DLAMI_JOB", "DLAMI_ATTEMPT", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "RANK"):
        monkeypatch.delenv(name, raising=False)


def plan(ranks: int = 1, data: Data = DATA, **flags: Any) -> Plan:
    """Of 8 images per rank, by default for one epoch."""
    flags = {"batch_size": 8, "num_batches": None if "num_epochs" in flags else 12} | flags
    return make_plan(Config(data_dir=Path("data"), job_dir=Path("job"), **flags), ranks, data)


def test_a_plan_says_its_numbers() -> None:
    """Steps, epochs and rates of 30 steps of 16 of 100 images, one epoch of warm-up."""
    found = summary(plan(2, num_batches=30, warmup_epochs=1.0, lr=0.4, eval_every=2.0, lr_decay_mode="constant"))
    flags = found.pop("flags")

    assert {
        "model": "resnet50",
        "parameters": 25_557_032 - 990 * 2049,
        "classes": 10,
        "ranks": 2,
        "batch_size": 8,
        "global_batch": 16,
        "train_examples": 100,
        "validation_examples": 4,
        "steps": 30,
        "epochs": 4.8,
        "steps_per_epoch": 6,
        "lr_peak": 0.4,
        "lr_first": 0.001,
        "lr_last": 0.4,
        "first_step": 0,
        "warmup_steps": 6,
        "eval_every_steps": 12,
    } == found
    assert isinstance(flags, dict)
    assert (8, "data", "job", None) == tuple(flags[n] for n in ("batch_size", "data_dir", "job_dir", "load"))
    assert {f.name for f in fields(Config)} == set(flags)


def test_a_plan_of_a_changed_batch_says_its_numbers_in_steps_of_now() -> None:
    """Of half the ranks with their batch as it was: twice the steps, half the rate."""
    whole = plan(2, num_batches=30, warmup_epochs=1.0, lr=0.4, eval_every=2.0, lr_decay_mode="constant")
    now = replace(whole, ranks=1, config=replace(whole.config, when_ranks_change="rescale-lr"))
    found = summary(continued(now, Position.after(whole, 10)))

    names = ("steps", "first_step", "warmup_steps", "eval_every_steps", "lr_peak", "lr_first", "lr_last")
    assert (10 + 40, 10, 12, 24, 0.2, 0.2, 0.2) == tuple(found[name] for name in names)
    assert None is summary(plan())["eval_every_steps"]


def test_a_plan_in_words() -> None:
    """What is not so is left out; a number of one has its word in the singular."""
    whole = plan(2, lr=0.4, lr_decay_mode="constant", accumulate=2, precision="bfloat16", image_size=64)
    words = (
        "resnet50, 23528522 parameters, 10 classes, 64 pixels, bfloat16\n"
        "100 images of data; 4 to evaluate on\n"
        "2 ranks x 8 = 16 images per step, each rank's in 2 micro-steps\n"
        "12 steps = 1.92 epochs of 6 whole steps\n"
        "learning rate 0.40000, warm-up 0 steps to 0.40000, constant to 0.40000\n"
        "writes to job"
    )
    assert words == text(whole)
    drawn = text(
        replace(
            whole,
            change="other ranks",
            first_step=3,
            config=Config(synthetic=True, batch_size=8, num_batches=1, model="resnet18"),
        )
    )
    assert "other ranks\nresnet18, 11181642 parameters, 10 classes, 224 pixels, float32\nsynthetic images; 4 " in drawn
    assert "= 16 images per step\n12 steps = 1.44 epochs of 6 whole steps, the first 3 are done\n" in drawn
    assert drawn.endswith("poly to 0.40000\nwrites nothing")


@pytest.mark.parametrize(
    ("ranks", "flags", "says"),
    [
        (0, {}, "--ranks is 0, but a run has at least 1"),
        (13, {}, "13 ranks x --batch-size 8 = 104 images per step, but the data has only 100 examples: use fewer"),
        (5, {"eval": True}, "5 ranks but only 4 validation examples: use fewer ranks"),
        (1, {"num_epochs": 0.07}, "--num-epochs 0.07 is less than one step of 8 images: train longer"),
        (1, {"warmup_epochs": 1.0}, "--warmup-epochs 1 is 12 steps, but the run has only 12"),
        (1, {"eval_every": 1.01}, "--eval-every 1.01 epochs is 13 steps, but the run ends after 12: use --eval"),
    ],
)
def test_a_plan_that_cannot_be_is_refused(ranks: int, flags: dict[str, Any], says: str) -> None:
    """In a sentence of numbers."""
    with pytest.raises(ConfigError) as error:
        plan(ranks, **flags)

    assert str(error.value).startswith(says)


@pytest.mark.parametrize(
    ("ranks", "flags"),
    [
        (12, {}),
        (4, {"eval": True}),
        (5, {}),  # nothing is evaluated
        (1, {"num_epochs": 0.08}),
        (1, {"warmup_epochs": 11 / 12}),
        (1, {"eval_every": 1.0}),
        (1, {"eval_every": 0.0001}),
    ],
)
def test_a_plan_at_the_edge_is_made(ranks: int, flags: dict[str, Any]) -> None:
    """The largest batch, the shortest run, the longest warm-up, the rarest evaluation; the most frequent is each step's."""
    made = plan(ranks, **flags)

    assert (1 if "num_epochs" in flags else 12, 8 * ranks) == (made.steps, made.global_batch)
    if flags == {"eval_every": 0.0001}:
        assert 1 == made.eval_every_steps


def test_epochs_win_over_a_number_of_steps_and_larc_has_a_rate_of_its_own() -> None:
    """A rate that was given wins over both rules."""
    assert 25 == plan(num_epochs=2.0, num_batches=7).steps
    assert [0.1, 3.7, 0.3] == [
        make_plan(Config(synthetic=True, batch_size=256, num_batches=1, **flags), 1, Data(classes=2, train_examples=999))
        .schedule.peak
        for flags in ({}, {"larc": True}, {"larc": True, "lr": 0.3})
    ]  # fmt: skip


def test_an_evaluation_comes_when_its_images_are_reached() -> None:
    """Not before, not again, and never where none was asked for."""
    often = plan(eval_every=0.24)
    assert 3 == often.eval_every_steps
    assert [3, 6, 9, 12] == [s for s in range(1, 13) if often.evaluates_after(s)]
    assert not any(plan().evaluates_after(s) for s in range(1, 13))
    assert [0.0, 0.16, 0.96] == [often.epoch(s) for s in (0, 2, 12)]


def test_data_is_looked_up_as_far_as_the_run_needs_it(shards: Path) -> None:
    """Classes as given, else ImageNet's where no manifest says; validation images only where there is an evaluation."""
    run = Config(data_dir=shards, job_dir=Path("job"), num_batches=1)
    data = look_up(run)
    assert (1000, 10, 0, None) == (data.classes, data.train_examples, data.validation_examples, data.validation)
    data = look_up(replace(run, eval=True, classes=3))
    assert (3, 1, 1) == (data.classes, data.validation_examples, len(data.validation or ()))
    drawn = [look_up(Config(synthetic=True, num_batches=1, **more)) for more in ({}, {"classes": 7})]
    assert [(1000, 1_281_167), (7, 1_281_167)] == [(d.classes, d.train_examples) for d in drawn]


def test_a_damaged_shard_is_left_out_only_where_that_was_asked_for(shards: Path) -> None:
    """Of those to train on and of those to evaluate on."""
    (shards / "train-00001-of-00002").write_bytes(b"damaged, but long enough")
    run = Config(data_dir=shards, job_dir=Path("job"), num_batches=1, eval=True)
    with pytest.raises(Exception, match="train-00001-of-00002: no TFRecord header at byte 0"):
        look_up(run)
    assert 6 == look_up(replace(run, bad_data="skip")).train_examples
    (shards / "validation-00000-of-00001").write_bytes(b"damaged, but long enough")
    assert 0 == look_up(replace(run, bad_data="skip")).validation_examples


@pytest.mark.parametrize(("rank", "check", "keeps"), [("0", False, True), ("1", False, False), ("0", True, False)])
def test_the_first_rank_keeps_where_records_lie(
    shards: Path, no_beat: None, monkeypatch: pytest.MonkeyPatch, rank: str, check: bool, keeps: bool
) -> None:
    """Not the others, which would write the same, and not who is only asked."""
    monkeypatch.setenv("OMPI_COMM_WORLD_RANK", rank)
    words = ["--data-dir", str(shards), "--job-dir", str(shards / "job"), "--num-batches", "2", "--batch-size", "4"]
    config, arguments = parse([*words, *(["--check"] if check else [])])
    start.planned(config, arguments, 2)

    assert keeps == (shards / ".index-train.npz").exists()


def test_a_check_tells_the_plan_of_as_many_ranks_as_it_names(no_beat: None, capsys: pytest.CaptureFixture[str]) -> None:
    """One where it names none, whatever this process is; as JSON where asked; and 0 is how it ends."""
    assert 0 == main([*DRAWN, "--check", "--ranks", "3"])
    assert "\n3 ranks x 8 = 24 images per step\n" in capsys.readouterr().out
    assert 0 == main([*DRAWN, "--check", "--json"])
    assert 8 == json.loads(capsys.readouterr().out)["global_batch"]

    config, arguments = parse(DRAWN)
    found = start.planned(config, arguments, 4)
    assert found and (4, 32, 5, "") == (found.ranks, found.global_batch, found.steps, capsys.readouterr().out)


def test_a_plan_goes_on_with_what_its_job_began_with(
    tmp_path: Path, no_beat: None, capsys: pytest.CaptureFixture[str]
) -> None:
    """The newest checkpoint tells; a check says what changes, and what cannot go on is refused by both."""
    whole = make_plan(parse(DRAWN)[0], 4, look_up(parse(DRAWN)[0]))
    Folder(tmp_path / "checkpoints").save(2, {}, Position.after(whole, 2).record())
    words = [*DRAWN, "--job-dir", str(tmp_path)]
    assert 0 == main([*words, "--check", "--ranks", "2"])
    assert capsys.readouterr().out.startswith("2 ranks instead of 4: 2 micro-steps each keep the global batch of 32\n")

    config, arguments = parse(words)
    found = start.planned(config, arguments, 2)
    assert found and (32, 16) == (found.origin.batch, found.global_batch)
    assert 2 == main([*words, "--check", "--ranks", "2", "--seed", "2"])
    assert "made with --seed 1, not 2" in capsys.readouterr().err


def test_weights_to_begin_with_are_looked_at_unless_there_is_a_checkpoint(
    tmp_path: Path, no_beat: None, capsys: pytest.CaptureFixture[str]
) -> None:
    """A check reads the file; where the job goes on from its own, nobody needs it."""
    words = [*DRAWN, "--check", "--job-dir", str(tmp_path), "--load", str(tmp_path / "none.npz")]
    assert 2 == main(words)
    assert "none.npz" in capsys.readouterr().err
    one = make_plan(parse(DRAWN)[0], 1, look_up(parse(DRAWN)[0]))
    Folder(tmp_path / "checkpoints").save(2, {}, Position.after(one, 2).record())
    assert 0 == main(words)


def test_what_nobody_gave_is_as_documented() -> None:
    """A default that changes trains another network for whoever typed the same words."""
    run = parse(["--synthetic", "--num-batches", "1"])[0]
    told = {f.name: getattr(run, f.name) for f in fields(run)}

    assert {
        "batch_size": 256, "accumulate": 1, "num_epochs": None, "lr": None, "momentum": 0.9, "weight_decay": 1e-4,
        "warmup_epochs": 0.0, "warmup_lr": 0.001, "lr_decay_mode": "poly", "lr_decay_steps": (30.0, 60.0, 80.0),
        "lr_decay_lrs": (), "cdr_first_decay_ratio": 0.33, "cdr_t_mul": 2.0, "cdr_m_mul": 0.1, "cdr_alpha": 0.0,
        "lc_periods": 0.47, "lc_alpha": 0.0, "lc_beta": 1e-5, "larc": False, "larc_eta": 0.013, "label_smoothing": 0.0,
        "mixup_alpha": 0.0, "ema_decay": 0.0, "adv_bn_init": True, "adv_conv_init": True, "precision": "float32",
        "loss_scale": "dynamic", "fp16_compression": False,
    }.items() <= told.items()  # fmt: skip
    assert {
        "data_dir": None, "classes": None, "image_size": 224, "crop_area": 0.08, "increased_aug": False,
        "brightness": 0.3, "hue": 0.13, "saturation": 0.6, "contrast": 0.6, "eval_crop": "centre", "cache": None,
        "bad_data": "fatal", "job_dir": None, "eval": False, "eval_every": None, "eval_only": False,
        "eval_best": False, "eval_batch_size": 128, "display_every": 50, "checkpoint_every": 1000,
        "checkpoint_seconds": None, "keep": 3, "when_ranks_change": "keep-batch", "threads": None,
        "deterministic": False, "seed": 1, "xla": False, "variant": "own", "load": None, "model": "resnet50",
    }.items() <= told.items()  # fmt: skip


@pytest.mark.parametrize(
    ("flag", "least", "most"),
    [
        *((name, 1, None) for name in ("batch_size", "accumulate", "num_batches", "eval_batch_size")),
        *((name, 1, None) for name in ("display_every", "checkpoint_every", "keep", "threads")),
        ("classes", 2, None),
        ("image_size", 32, None),
        ("seed", 0, None),
        *((name, 0.0, 1.0) for name in ("brightness", "hue", "saturation", "contrast")),
        ("label_smoothing", 0.0, 0.9),
        ("ema_decay", 0.0, 0.999999),
    ],
)
def test_a_flag_has_its_limits(flag: str, least: Any, most: Any) -> None:
    """What is at one is taken, what is beyond is refused by name."""
    for value in (least, most):
        if value is not None:
            assert value == getattr(Config(**{"synthetic": True, "num_batches": 1, flag: value}), flag)
    beyond = [(least - 1, "at least")] * (type(least) is int) + ([(most + 1e-7, "at most")] if most else [])
    for value, says in beyond:
        with pytest.raises(ConfigError, match=f"--{flag.replace('_', '-')} is .*, but must be {says} "):
            Config(**{"synthetic": True, "num_batches": 1, flag: value})


def test_a_run_evaluates_where_it_is_told_to() -> None:
    """At the end, alone, or every so often; else it needs no validation images. Only float16 scales its loss."""
    run = Config(data_dir=Path("d"), job_dir=Path("j"), num_batches=1)
    asked = [replace(run, eval=True), replace(run, eval_only=True), replace(run, eval_every=1.0)]

    assert [False, True, True, True] == [one.evaluates for one in (run, *asked)]
    assert [True, False, False] == [replace(run, precision=p).scales_loss for p in ("float16", "bfloat16", "float32")]


def test_recipes_are_those_of_their_sources() -> None:
    """Every flag of each."""
    common = {"model": "resnet50", "batch_size": 256, "num_epochs": 90.0, "precision": "float16", "warmup_epochs": 10.0}
    poly = {"loss_scale": "1024", "momentum": 0.9, "weight_decay": 1e-4, "lr_decay_mode": "poly"}
    large = {"loss_scale": "256", "momentum": 0.977, "weight_decay": 5e-4, "lr_decay_mode": "linear_cosine"}
    modern = {
        "model": "resnet50", "batch_size": 128, "num_epochs": 120.0, "precision": "bfloat16", "momentum": 0.9,
        "weight_decay": 1e-4, "warmup_epochs": 5.0, "lr_decay_mode": "cosine", "label_smoothing": 0.1,
        "mixup_alpha": 0.2, "crop_area": 0.05, "ema_decay": 0.999,
    }  # fmt: skip
    wanted = {"poly90": common | poly, "large-batch": common | large | {"larc": True, "increased_aug": True}}

    assert wanted | {"modern": modern} == {name: flags() for name, flags in RECIPES.items()}


def test_a_command_line_may_be_written_with_underscores(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the flags, not their values; without words it is the process's own; what is wrong is one sentence."""
    parser = Parser(prog="p")
    parser.add_argument("--a-b")
    parser.add_argument("c_d", nargs="?")

    assert ("x_y", "u_v") == tuple(vars(parser.parse_args(["--a_b=x_y", "u_v"])).values())
    monkeypatch.setattr("sys.argv", ["p", "--a_b", "k_l"])
    assert "k_l" == parser.parse_args().a_b
    assert None is parser.parse_args([]).a_b
    with pytest.raises(ConfigError, match=r"^unrecognized arguments: --e; see 'p --help'$"):
        parser.parse_args(["--e"])
