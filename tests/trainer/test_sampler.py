"""Every example once per epoch, whatever the ranks."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainer.common.data import sampler
from trainer.common.data.sampler import epoch_order, examples_at, positions


@given(examples=st.integers(1, 60), ranks=st.integers(1, 5), batch=st.integers(1, 7), seed=st.integers(0, 9))
def test_each_example_comes_once_per_epoch_over_all_ranks(examples: Any, ranks: Any, batch: Any, seed: Any) -> None:
    """Over two epochs, also when batches straddle the border and when the data is smaller than a batch."""
    steps = -(-2 * examples // (ranks * batch))
    seen = np.concatenate(
        [
            examples_at(positions(step, rank, batch, ranks), examples, seed)
            for step in range(steps)
            for rank in range(ranks)
        ]
    )

    for epoch in range(2):
        assert list(range(examples)) == sorted(seen[epoch * examples : (epoch + 1) * examples])


@pytest.mark.parametrize("ranks", [2, 4])
def test_the_global_batch_does_not_depend_on_the_ranks(ranks: Any) -> None:
    """So a resumed run may have another number of them."""
    alone = positions(3, 0, 8, 1)

    assert list(alone) == [p for rank in range(ranks) for p in positions(3, rank, 8 // ranks, ranks)]


def test_a_rank_sees_other_examples_in_the_next_epoch() -> None:
    """The reference's fixed map of shards to ranks never mixed them."""
    first, second = (set(examples_at(positions(epoch, 0, 50, 2), 100, 1)) for epoch in range(2))

    assert first != second


def test_the_order_depends_on_the_seed() -> None:
    """Another seed is another order; the same one the same."""
    one, same, other = (list(examples_at(positions(0, 0, 100, 1), 100, seed)) for seed in (1, 1, 2))

    assert one == same != other
    wide = np.arange(30) % 2 == 0
    first, again, another = (epoch_order(wide, batch=2, ranks=1, seed=s, epoch=0).tolist() for s in (1, 1, 2))
    assert first == again != another


@pytest.mark.parametrize("width", [1, 2, 3, 7, 9])
def test_a_place_is_where_steps_one_by_one_lead(width: int) -> None:
    """Of seven groups an epoch: no step holds groups of two epochs, and steps to a place are as many as lead there."""
    groups, at, seen = 7, sampler.BEGINNING, [sampler.BEGINNING]
    for _ in range(12):
        ends = at.group + width >= groups
        at = sampler.DataPosition(at.epoch + ends, 0 if ends else at.group + width)
        seen.append(at)

    for begin, place in enumerate(seen):
        assert begin == place.steps(groups=groups, width=width)
        for steps, end in enumerate(seen[begin:]):
            assert end == place.after(steps, groups=groups, width=width)
            assert steps == place.steps_to(end, groups=groups, width=width)
    assert 0 == seen[3].steps_to(seen[1], groups=groups, width=width)


def test_an_epoch_of_groups_has_each_image_once() -> None:
    """Of one orientation but for what is left over; the last step is filled up; every epoch has another order."""
    is_wide = np.arange(23) % 3 > 0
    found = sampler.epoch_order(is_wide, batch=4, ranks=4, seed=1, epoch=2)

    assert (2, 4, 4) == found.shape
    assert [sampler.FILLER] * 9 + list(range(23)) == sorted(found.ravel())
    mixed = [len(set(is_wide[group[group >= 0]])) > 1 for group in found.reshape(-1, 4) if (group >= 0).any()]
    assert sum(mixed) <= 2
    alone = sampler.epoch_order(is_wide, batch=1, ranks=23, seed=1, epoch=2)
    assert (1, 23, 1) == alone.shape and list(range(23)) == sorted(alone.ravel())
    assert list(alone.ravel()) != list(sampler.epoch_order(is_wide, batch=1, ranks=23, seed=1, epoch=3).ravel())
    assert [[1, 4], [0, 3], [2]] == [list(sampler.own_images(5, rank, 3)) for rank in (1, 0, 2)]
