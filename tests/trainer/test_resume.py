"""Going on from a checkpoint: with the same ranks, with others, or not at all."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainer.common.checkpoints.checkpoint import CheckpointFolder
from trainer.common.data.sampler import examples_at, positions
from trainer.common.files.errors import ConfigError, TrainerError
from trainer.resnet50.config import ResNetConfig
from trainer.resnet50.plan import Data, make_plan
from trainer.resnet50.resume import RunPosition, continued

DATA = Data(classes=10, train_examples=1000)


def planned(ranks: Any, **flags: Any) -> Any:
    """A run of 8 images per rank over 20 epochs."""
    flags = {"batch_size": 8, "num_epochs": 20.0, "warmup_epochs": 2.0, "lr_decay_mode": "cosine"} | flags
    return make_plan(ResNetConfig(synthetic=True, **flags), ranks, DATA)


@pytest.mark.parametrize(("ranks", "batch", "parts"), [(2, 16, 2), (8, 4, 1), (1, 32, 4)])
def test_the_global_batch_is_kept_and_shared_anew(ranks: Any, batch: Any, parts: Any) -> None:
    """In parts no larger than before; steps and rates stay."""
    whole = planned(4)
    rest = continued(planned(ranks), RunPosition.after(whole, 123))

    assert (batch, parts, 32) == (rest.config.batch_size, rest.config.accumulate, rest.global_batch)
    assert (whole.steps, whole.rate(300)) == (rest.steps, rest.rate(300))


@pytest.mark.parametrize("lr", [None, 0.4])
def test_the_rate_is_scaled_and_the_epochs_go_on(lr: Any) -> None:
    """Half the ranks: half the rate at the same epoch, twice the steps for the rest, the next image comes next."""
    whole = planned(4, lr=lr)
    rest = continued(planned(2, when_ranks_change="rescale-lr", lr=lr), RunPosition.after(whole, 225))

    assert (8, 225, 225 + 2 * 400) == (rest.config.batch_size, rest.first_step, rest.steps)
    assert whole.epoch(225) == rest.epoch(225)
    assert rest.rate(225 + 2 * 100) == pytest.approx(whole.rate(225 + 100) / 2, rel=1e-3)
    last = whole.images(225)
    first = rest.first_image + np.concatenate([positions(0, rank, 8, 2) for rank in range(2)])
    assert list(range(last, last + 16)) == list(first)

    back = continued(planned(4, when_ranks_change="rescale-lr", lr=lr), RunPosition.after(rest, 625))
    assert back.rate(625) == pytest.approx(2 * rest.rate(625), rel=1e-3)
    assert back.steps == 625 + 200
    assert back.epoch(back.steps) == pytest.approx(20)


def test_back_to_all_ranks_is_back_to_the_first_batch() -> None:
    """Also after a batch that could not be kept, and a second time on fewer ranks: what counts is how it began."""
    whole = planned(4)
    three = continued(planned(3), RunPosition.after(whole, 100))
    two = continued(planned(2), RunPosition.after(three, 200))
    again = continued(planned(2), RunPosition.after(two, 210))
    back = continued(planned(4), RunPosition.after(again, 300))

    assert [24, 32, 32, 32] == [p.global_batch for p in (three, two, again, back)]
    assert [2, 2, 1] == [p.config.accumulate for p in (two, again, back)]
    assert ["4 ranks again, as at the beginning: 32 images per step", ""] == [
        back.change,
        continued(planned(4), RunPosition.after(back, 310)).change,
    ]
    assert two.change == again.change == "2 ranks instead of 4: 2 micro-steps each keep the global batch of 32"
    assert whole.rate(275) == back.rate(300)  # 100 of 32 images, 100 of 24, then of 32 again
    assert whole.steps + 25 == back.steps


@given(changes=st.lists(st.tuples(st.integers(1, 9), st.integers(1, 40)), max_size=6), batch=st.integers(1, 12))
def test_each_image_comes_once_per_epoch_over_any_changes_of_the_ranks(changes: Any, batch: Any) -> None:
    """None twice, none lost; and rate and evaluation are the whole run's, scaled."""
    data = Data(classes=10, train_examples=200)
    flags = ResNetConfig(synthetic=True, batch_size=batch, num_epochs=3.0, lr_decay_mode="cosine", warmup_epochs=0.5)
    whole = plan = make_plan(flags, 8, data)
    step, seen = 0, []
    for ranks, steps in [*changes, (8, 10_000)]:
        end = min(step + steps, plan.steps)
        for rank in range(plan.ranks):
            seen += [plan.images(s) + place for s in range(step, end) for place in own_places(plan, rank)]
        assert all(
            plan.scale * whole.schedule(plan.images(s) / whole.global_batch) == plan.rate(s) for s in range(step, end)
        )
        step = end
        plan = continued(make_plan(flags, ranks, data, whole.origin), RunPosition.after(plan, step))

    for rank in range(plan.ranks):
        seen += [plan.images(s) + place for s in range(step, plan.steps) for place in own_places(plan, rank)]
    assert list(range(len(seen))) == sorted(seen)
    assert whole.images(whole.steps) <= len(seen) < whole.images(whole.steps) + 9 * batch
    shown = examples_at(np.arange(len(seen)), 200, 1)
    assert list(range(200)) == sorted(shown[:200])


def own_places(plan: Any, rank: Any) -> Any:
    """The places in the global batch of one step that are this rank's."""
    return positions(0, rank, plan.config.batch_size, plan.ranks).tolist()


@pytest.mark.parametrize(
    ("now", "says"),
    [
        ({"ranks": 3, "when_ranks_change": "refuse"}, "give --when-ranks-change"),
        ({"ranks": 4, "batch_size": 16}, "began with 4 ranks and a global batch of 32.*give the --batch-size it began"),
        ({"ranks": 4, "seed": 2}, "made with --seed 1, not 2"),
    ],
)
def test_what_would_not_go_on_is_refused(now: Any, says: Any) -> None:
    """The sentence says what to give."""
    with pytest.raises(ConfigError, match=says):
        continued(planned(**now), RunPosition.after(planned(4), 10))


@pytest.mark.parametrize(
    ("more", "says"),
    [
        ({}, "global_batch is missing"),
        ({"global_batch": 0, "seed": 1}, "global_batch is 0"),
        ({"global_batch": 32}, "seed is None"),
        ({"global_batch": 32, "seed": 1, "images": -5}, "images is -5"),
        ({"global_batch": 32, "seed": 1, "origin_batch": 1 << 70}, "origin_batch is 1180591620717411303424"),
        ({"global_batch": 32, "seed": 1, "ranks": "4"}, "ranks is 4"),
        ({"images_seen": 40, "config": {}}, "global_batch is missing"),
    ],
)
def test_a_checkpoint_that_does_not_tell_where_to_go_on_is_one_sentence(tmp_path: Path, more: Any, says: Any) -> None:
    """Another trainer's, or one without a number: never a traceback, never a start from nothing beside it."""
    facts = CheckpointFolder(tmp_path).save(3, {"w": np.ones(2)}, more)

    with pytest.raises(TrainerError, match=says):
        RunPosition.of(facts)
    assert (
        96
        == RunPosition.of(CheckpointFolder(tmp_path).save(3, {"w": np.ones(2)}, {"global_batch": 32, "seed": 1})).images
    )


def test_the_best_checkpoint_stays(tmp_path: Path) -> None:
    """Beside the newest ones; a lower score does not replace it."""
    folder = CheckpointFolder(tmp_path)
    for step, score in ((10, 50.0), (20, 70.0), (30, 60.0), (40, 65.0)):
        folder.save(step, {"w": np.ones(2)})
        folder.mark_best(step, score)
        folder.keep_newest(1)

    assert (20, 70.0) == (folder.best().step, folder.best().score)
    assert [40, 20] == folder.steps()
    folder.facts_file(20).unlink()
    assert folder.best() is None


def test_a_checkpoint_that_cannot_go_on_is_refused_before_mpirun(python: Any, tmp_path: Path) -> None:
    """`--check` reads the job's newest checkpoint."""
    whole = planned(4)
    CheckpointFolder(tmp_path / "checkpoints").save(10, {"w": np.ones(2)}, RunPosition.after(whole, 10).record())
    words = (
        "trainer.resnet50",
        "--check",
        "--synthetic",
        "--num-batches",
        50,
        "--batch-size",
        8,
        "--job-dir",
        tmp_path,
    )

    done = python(*words, "--ranks", 3, "--when-ranks-change", "refuse", check=False)
    assert (2, True) == (done.returncode, "began with 4 ranks" in done.stderr)
    said = python(*words, "--ranks", 2).stdout
    assert said.startswith("2 ranks instead of 4: 2 micro-steps each keep the global batch of 32\n")
    assert "2 ranks x 16 = 32 images per step, each rank's in 2 micro-steps" in said
    assert "the first 10 are done" in said
    assert python(*words, "--ranks", 3).stdout.startswith("3 ranks instead of 4: learning rate x 0.75, for 24 images")
