"""`python -m trainer.resnet50`: checks, or trains as one of the ranks."""

import argparse
import json
import os
import sys
from collections.abc import Sequence
from dataclasses import fields

from trainer.checkpoint import Folder
from trainer.commandline import Parser, add_check_flags, add_flags
from trainer.errors import entry
from trainer.resnet50.config import Config
from trainer.resnet50.plan import Plan, look_up, make_plan, summary, text
from trainer.resnet50.recipes import RECIPES
from trainer.resnet50.resume import Position, continued


def parse(argv: Sequence[str]) -> tuple[Config, argparse.Namespace]:
    """The run's configuration, and what only the command line knows: check, ranks, json.

    Raises:
        ConfigError: a flag is unknown, its value unusable, or two do not go together.
    """
    recipe = Parser(prog="python -m trainer.resnet50", add_help=False, allow_abbrev=False)
    recipe.add_argument("--recipe", choices=RECIPES, help="a named set of flags; other flags win over it")
    chosen, _ = recipe.parse_known_args(argv)
    parser = Parser(
        prog="python -m trainer.resnet50",
        description="Trains a ResNet over Horovod ranks.",
        parents=[recipe],
        allow_abbrev=False,
    )
    add_flags(parser, Config, RECIPES[chosen.recipe]() if chosen.recipe else None)
    add_check_flags(parser)
    arguments = parser.parse_args(argv)
    return Config(**{f.name: getattr(arguments, f.name) for f in fields(Config)}), arguments


@entry
def main(argv: Sequence[str]) -> None:
    """Everything that can be found wrong is found before TensorFlow is loaded."""
    config, arguments = parse(argv)
    ranks = arguments.ranks if arguments.check else int(os.environ.get("OMPI_COMM_WORLD_SIZE", "1"))
    plan = make_plan(config, ranks, look_up(config))
    if arguments.check and config.job_dir:
        newest = Folder(config.job_dir / "checkpoints").peek()
        plan = continued(plan, Position.of(newest)) if newest else plan
    if arguments.check:
        print(json.dumps(summary(plan), indent=1) if arguments.json else text(plan))
        return
    train(plan)


def train(plan: Plan) -> None:
    """Starts Horovod and carries the plan out."""
    from trainer.ranks import lost_ranks_named, start

    ranks = start(plan.config.threads, deterministic=plan.config.deterministic)
    from trainer.resnet50.attempt import Attempt

    with lost_ranks_named():
        Attempt(plan, ranks).go()


if __name__ == "__main__":
    sys.exit(main())
