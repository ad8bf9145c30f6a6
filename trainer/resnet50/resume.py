"""Resume from a checkpoint, also with another number of ranks."""

from collections.abc import Mapping
from dataclasses import asdict, astuple, dataclass, replace
from typing import Any

from trainer.common.checkpoints.facts import Facts, whole_number
from trainer.common.files.errors import ConfigError, TrainerError
from trainer.common.files.plural import counted
from trainer.common.ranks.batch_split import Origin, change_text, share
from trainer.resnet50.plan import RunPlan, make_plan


@dataclass(frozen=True)
class RunPosition:
    """Progress of a run and its origin, as whole numbers that fit one broadcast."""

    step: int = 0
    images: int = 0  # trained on so far; 0: nothing to resume
    global_batch: int = 0
    origin_batch: int = 0  # of the first attempt
    origin_ranks: int = 0
    ranks: int = 0
    seed: int = 0

    @property
    def origin(self) -> Origin:
        """Return the global batch and ranks of the job's first attempt."""
        return Origin(self.origin_batch, self.origin_ranks)

    @classmethod
    def of(cls, facts: Facts) -> "RunPosition":
        """Return the position that a checkpoint's facts contain.

        Raises:
            TrainerError: a number is missing or impossible. The message names it.
        """
        try:
            batch = whole_number(facts.more, "global_batch", 1)
            defaults = {"images": facts.step * batch, "origin_batch": batch, "ranks": 0, "seed": None}
            more = {**defaults, **facts.more}
            if "origin_ranks" not in more:  # of version 0.1
                more["origin_ranks"] = more["ranks"] if more["origin_batch"] == batch else 0
            return cls(
                facts.step,
                whole_number(more, "images"),
                batch,
                whole_number(more, "origin_batch", 1),
                whole_number(more, "origin_ranks"),
                whole_number(more, "ranks"),
                whole_number(more, "seed"),
            )
        except ValueError as e:
            raise TrainerError(
                f"the checkpoint of step {facts.step} does not tell where to go on ({e}): it is of another trainer, "
                "so give another --job-dir"
            ) from e

    @classmethod
    def after(cls, plan: RunPlan, step: int) -> "RunPosition":
        """Return the plan's position after this many steps."""
        origin = plan.origin
        return cls(step, plan.images(step), plan.global_batch, origin.batch, origin.ranks, plan.ranks, plan.config.seed)

    def record(self) -> Mapping[str, Any]:
        """Return the position's entries for the facts of a checkpoint."""
        return {name: value for name, value in asdict(self).items() if name != "step"}

    def numbers(self) -> tuple[int, ...]:
        """Return the fields in order."""
        return astuple(self)


def continued(planned: RunPlan, position: RunPosition) -> RunPlan:
    """Return the plan from this position on.

    With another number of ranks than in the job's first attempt, the global batch stays if the ranks can share it
    equally. Each rank then computes its share in parts that are no larger than before, to fit its memory, with one
    update. So steps and rates stay. Otherwise, or if the configuration requests it, each rank's batch stays, and the
    rate follows the global batch. Either way the data order continues at the same image, and the schedule at the same
    epoch.

    Raises:
        ConfigError: the seed is another, or the batch is and may not be. An evaluation alone needs neither.
    """
    config, origin = planned.config, position.origin
    if not position.images:
        return make_plan(config, planned.ranks, planned.data)
    if position.seed != config.seed and not config.eval_only:
        raise ConfigError(
            f"the checkpoint was made with --seed {position.seed}, not {config.seed}: its data order "
            "would not go on; give the same --seed or another --job-dir"
        )
    if planned.global_batch != origin.batch and not config.eval_only:
        _refuse(planned, origin)
        largest = config.batch_size // config.accumulate
        shared = share(origin.batch, planned.ranks, largest) if config.when_ranks_change == "keep-batch" else None
        if shared:
            config = replace(config, batch_size=shared.batch, accumulate=shared.parts)
    plan = make_plan(config, planned.ranks, planned.data, origin)
    left = plan.schedule.steps * origin.batch - position.images
    return replace(
        plan,
        first_step=position.step,
        first_image=position.images,
        steps=position.step + max(0, -(-left // plan.global_batch)),
        change=change_text(
            origin, before=position.ranks, ranks=plan.ranks, batch=plan.global_batch, parts=config.accumulate
        ),
    )


def _refuse(planned: RunPlan, origin: Origin) -> None:
    how = planned.config.when_ranks_change
    change = (
        f"the job began with {counted(origin.ranks, 'rank') if origin.ranks else 'other ranks'} and a global "
        f"batch of {origin.batch}, this run of "
        f"{counted(planned.ranks, 'rank')} has {planned.global_batch}"
    )
    if how == "refuse":
        raise ConfigError(f"{change}: give --when-ranks-change keep-batch or rescale-lr")
    if how == "keep-batch" and planned.ranks == origin.ranks:
        raise ConfigError(f"{change}: give the --batch-size it began with, or --when-ranks-change rescale-lr")
