"""What a command line becomes before a framework is loaded: flags, their limits and defaults, the plan in numbers and words."""

from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest

from trainer.common.checkpoints.checkpoint import CheckpointFolder
from trainer.common.data import records
from trainer.common.files.errors import ConfigError
from trainer.resnet50 import start
from trainer.resnet50.__main__ import main, parse
from trainer.resnet50.config import ResNetConfig
from trainer.resnet50.plan import Data, RunPlan, look_up, make_plan, summary
from trainer.resnet50.recipes import RECIPES
from trainer.resnet50.resume import RunPosition

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


def plan(ranks: int = 1, data: Data = DATA, **flags: Any) -> RunPlan:
    """Of 8 images per rank, by default for one epoch."""
    flags = {"batch_size": 8, "num_batches": None if "num_epochs" in flags else 12} | flags
    return make_plan(ResNetConfig(data_dir=Path("data"), job_dir=Path("job"), **flags), ranks, data)


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
    assert {f.name for f in fields(ResNetConfig)} == set(flags)


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


def test_a_damaged_shard_is_left_out_only_where_that_was_asked_for(shards: Path) -> None:
    """Of those to train on and of those to evaluate on."""
    (shards / "train-00001-of-00002").write_bytes(b"damaged, but long enough")
    run = ResNetConfig(data_dir=shards, job_dir=Path("job"), num_batches=1, eval=True)
    with pytest.raises(Exception, match="train-00001-of-00002: no TFRecord header at byte 0"):
        look_up(run)
    assert 6 == look_up(replace(run, bad_data="skip")).train_examples
    (shards / "validation-00000-of-00001").write_bytes(b"damaged, but long enough")
    assert 0 == look_up(replace(run, bad_data="skip")).validation_examples


def test_a_plan_goes_on_with_what_its_job_began_with(
    tmp_path: Path, no_beat: None, capsys: pytest.CaptureFixture[str]
) -> None:
    """The newest checkpoint tells; a check says what changes, and what cannot go on is refused by both."""
    whole = make_plan(parse(DRAWN)[0], 4, look_up(parse(DRAWN)[0]))
    CheckpointFolder(tmp_path / "checkpoints").save(2, {}, RunPosition.after(whole, 2).record())
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
    CheckpointFolder(tmp_path / "checkpoints").save(2, {}, RunPosition.after(one, 2).record())
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
            assert value == getattr(ResNetConfig(**{"synthetic": True, "num_batches": 1, flag: value}), flag)
    beyond = [(least - 1, "at least")] * (type(least) is int) + ([(most + 1e-7, "at most")] if most else [])
    for value, says in beyond:
        with pytest.raises(ConfigError, match=f"--{flag.replace('_', '-')} is .*, but must be {says} "):
            ResNetConfig(**{"synthetic": True, "num_batches": 1, flag: value})


def test_a_run_evaluates_where_it_is_told_to() -> None:
    """At the end, alone, or every so often; else it needs no validation images. Only float16 scales its loss."""
    run = ResNetConfig(data_dir=Path("d"), job_dir=Path("j"), num_batches=1)
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
