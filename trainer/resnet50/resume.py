"""Going on where a checkpoint ends, also with another number of ranks."""

from collections.abc import Mapping
from dataclasses import asdict, astuple, dataclass, replace
from typing import Any

from trainer.errors import ConfigError, TrainerError
from trainer.facts import Facts, whole_number
from trainer.resnet50.plan import Plan, make_plan
from trainer.schedule import Schedule


@dataclass(frozen=True)
class Position:
    """How far a run is, and how it got there; whole numbers, so that one broadcast carries it."""

    step: int = 0
    images: int = 0  # trained on so far; 0: nothing to resume
    global_batch: int = 0
    origin_batch: int = 0  # of the first attempt
    ranks: int = 0
    seed: int = 0

    @classmethod
    def of(cls, facts: Facts) -> "Position":
        """What a checkpoint says of itself.

        Raises:
            TrainerError: it lacks a number or has an impossible one; says which.
        """
        try:
            batch = whole_number(facts.more, "global_batch", 1)
            defaults = {"images": facts.step * batch, "origin_batch": batch, "ranks": 0, "seed": None}
            more = {**defaults, **facts.more}
            return cls(
                facts.step,
                whole_number(more, "images"),
                batch,
                whole_number(more, "origin_batch", 1),
                whole_number(more, "ranks"),
                whole_number(more, "seed"),
            )
        except ValueError as e:
            raise TrainerError(
                f"the checkpoint of step {facts.step} does not tell where to go on ({e}): it is of another trainer, "
                "so give another --job-dir"
            ) from e

    @classmethod
    def after(cls, plan: Plan, step: int) -> "Position":
        """Where the plan is when this many steps are done."""
        return cls(step, plan.images(step), plan.global_batch, plan.origin_batch, plan.ranks, plan.config.seed)

    def record(self) -> Mapping[str, Any]:
        """For the facts of a checkpoint."""
        return {name: value for name, value in asdict(self).items() if name != "step"}

    def numbers(self) -> tuple[int, ...]:
        """The fields in their order."""
        return astuple(self)


def continued(planned: Plan, position: Position) -> Plan:
    """The plan from this position on.

    With another number of ranks the configuration tells what stays: the global batch, which the ranks share anew
    (in parts no larger than before, to fit their memory), or each rank's batch, and the peak rate follows the global
    batch. The data order goes on at the same image either way, and the learning rate at the same epoch.

    Raises:
        ConfigError: the seed is another, or the batch cannot be kept.
    """
    config = planned.config
    if not position.images:
        return planned
    if position.seed != config.seed:
        raise ConfigError(
            f"the checkpoint was made with --seed {position.seed}, not {config.seed}: its data order "
            "would not go on; give the same --seed or another --job-dir"
        )
    if planned.global_batch != position.global_batch:
        if config.when_ranks_change == "keep-batch":
            planned = _with_batch(planned, position)
        elif config.when_ranks_change == "refuse":
            raise ConfigError(f"{_change(planned, position)}: give --when-ranks-change keep-batch or rescale-lr")
    planned = _meant_for(planned, position.origin_batch)
    done = position.images / planned.global_batch
    return replace(
        planned,
        first_step=position.step,
        first_image=position.images,
        origin_batch=position.origin_batch,
        steps=position.step + max(0, int(planned.steps - done)),
    )


def _change(planned: Plan, position: Position) -> str:
    return (
        f"the checkpoint is of {position.ranks} ranks and a global batch of {position.global_batch}, this run of "
        f"{planned.ranks} ranks has {planned.global_batch}"
    )


def _with_batch(planned: Plan, position: Position) -> Plan:
    if position.ranks == planned.ranks:
        raise ConfigError(
            f"{_change(planned, position)}: give the --batch-size it began with, or --when-ranks-change rescale-lr"
        )
    batch, rest = divmod(position.global_batch, planned.ranks)
    if rest:
        raise ConfigError(
            f"{_change(planned, position)}: {position.global_batch} images cannot be shared equally; "
            "use another number of ranks, or --when-ranks-change rescale-lr"
        )
    largest = planned.config.batch_size // planned.config.accumulate
    parts = next(p for p in range(1, batch + 1) if batch % p == 0 and batch // p <= largest)
    return make_plan(replace(planned.config, batch_size=batch, accumulate=parts), planned.ranks, planned.data)


def _meant_for(planned: Plan, origin_batch: int) -> Plan:
    """The plan with what was given for the first attempt's global batch converted to this one's."""
    config, factor = planned.config, planned.global_batch / origin_batch
    if factor == 1:
        return planned
    if config.num_epochs is None and config.num_batches:
        config = replace(config, num_batches=max(1, int(config.num_batches / factor)))
        planned = make_plan(config, planned.ranks, planned.data)
    schedule: Schedule = planned.schedule
    if config.lr or config.larc:
        shape = replace(schedule.shape, rates=tuple(rate * factor for rate in schedule.shape.rates))
        schedule = replace(schedule, peak=schedule.peak * factor, shape=shape)
    return replace(planned, schedule=schedule)
