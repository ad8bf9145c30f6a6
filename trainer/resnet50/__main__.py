"""`python -m trainer.resnet50`: checks, or trains as one of the ranks."""

import argparse
import os
import sys
from collections.abc import Sequence

from dlami.beat import Phase, beat
from trainer.checkpoint import Folder
from trainer.errors import entry
from trainer.resnet50 import start
from trainer.resnet50.config import Config
from trainer.resnet50.plan import Plan


def parse(argv: Sequence[str]) -> tuple[Config, argparse.Namespace]:
    """The run's configuration, and what only the command line knows."""
    return start.parse(argv, Config, "python -m trainer.resnet50", "Trains a ResNet over Horovod ranks.")


@entry
def main(argv: Sequence[str]) -> None:
    """Checks, or carries the plan out."""
    config, arguments = parse(argv)
    if arguments.check:
        check_weights(config)
    plan = start.planned(config, arguments, int(os.environ.get("OMPI_COMM_WORLD_SIZE", "1")))
    if plan:
        train(plan)


def check_weights(config: Config) -> None:
    """Raises ConfigError where the run is to begin with weights that it cannot have."""
    if config.load is None or (config.job_dir and Folder(config.job_dir / "checkpoints").peek()):
        return
    from trainer.resnet50 import pretrained

    pretrained.read(config.load, config.model, config.variant)


def train(plan: Plan) -> None:
    """Starts Horovod and carries the plan out."""
    from trainer.ranks import lost_ranks_named
    from trainer.ranks import start as start_horovod

    ranks = start_horovod(plan.config.threads, deterministic=plan.config.deterministic)
    from trainer.resnet50.attempt import Attempt
    from trainer.resnet50.horovod import engine

    with lost_ranks_named():
        Attempt(plan, engine(ranks)).go()
    beat.enter(Phase.SAVE)


if __name__ == "__main__":
    sys.exit(main())
