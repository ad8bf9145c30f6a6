"""ResNet trainer on TensorFlow, `python -m trainer.resnet50`, which checks a run or trains as one of the ranks."""

import argparse
import os
import sys
from collections.abc import Sequence

from dlami.heartbeat import Phase, beat
from trainer.common.checkpoints.checkpoint import CheckpointFolder
from trainer.common.files.errors import entry
from trainer.resnet50 import start
from trainer.resnet50.config import ResNetConfig
from trainer.resnet50.plan import RunPlan


def parse(argv: Sequence[str]) -> tuple[ResNetConfig, argparse.Namespace]:
    """Return the run's configuration, and the arguments that are not part of it."""
    return start.parse(argv, ResNetConfig, "python -m trainer.resnet50", "Trains a ResNet over Horovod ranks.")


@entry
def main(argv: Sequence[str]) -> None:
    """Check the run with `--check`, or execute its plan."""
    config, arguments = parse(argv)
    if arguments.check:
        check_weights(config)
    plan = start.planned(config, arguments, int(os.environ.get("OMPI_COMM_WORLD_SIZE", "1")))
    if plan:
        train(plan)


def check_weights(config: ResNetConfig) -> None:
    """Raise ConfigError if the run would start from weights that cannot be read."""
    if config.load is None or (config.job_dir and CheckpointFolder(config.job_dir / "checkpoints").peek()):
        return
    from trainer.resnet50 import pretrained

    pretrained.read(config.load, config.model, config.variant)


def train(plan: RunPlan) -> None:
    """Start Horovod and execute the plan."""
    from trainer.common.ranks.horovod_rank import lost_ranks_named
    from trainer.common.ranks.horovod_rank import start as start_horovod

    ranks = start_horovod(plan.config.threads, deterministic=plan.config.deterministic)
    from trainer.resnet50.horovod import engine
    from trainer.resnet50.train_loop import TrainLoop

    with lost_ranks_named():
        TrainLoop(plan, engine(ranks)).go()
    beat.enter(Phase.SAVE)


if __name__ == "__main__":
    sys.exit(main())
