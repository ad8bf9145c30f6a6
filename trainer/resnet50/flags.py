"""The command line of `python -m trainer.resnet50` as a checked `Config`."""

import argparse
from collections.abc import Sequence
from dataclasses import fields

from trainer.commandline import Parser, add_flags
from trainer.resnet50.config import Config
from trainer.resnet50.recipes import RECIPES


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
    parser.add_argument("--check", action="store_true", help="say what would be done, or why it cannot be; then leave")
    parser.add_argument("--ranks", type=int, default=1, help="with --check: ranks the run will have (default 1)")
    parser.add_argument("--json", action="store_true", help="with --check: the plan as JSON")
    arguments = parser.parse_args(argv)
    return Config(**{f.name: getattr(arguments, f.name) for f in fields(Config)}), arguments
