"""Start of a ResNet trainer: from its command line to a plan. Finds all errors it can before a framework is loaded."""

import argparse
import json
from collections.abc import Sequence
from dataclasses import fields, replace
from typing import TypeVar

from dlami.heartbeat import beat, beat_file
from trainer.common.checkpoints.checkpoint import CheckpointFolder
from trainer.common.checkpoints.unreadable import add_from_scratch_flags, may_begin_anew
from trainer.common.files.commandline import TrainerParser, add_check_flags, add_flags
from trainer.common.files.errors import mpi_rank
from trainer.resnet50.config import RunFlags
from trainer.resnet50.plan import RunPlan, look_up, make_plan, summary, text
from trainer.resnet50.recipes import RECIPES
from trainer.resnet50.resume import RunPosition, continued

AnyRun = TypeVar("AnyRun", bound=RunFlags)


def parse(argv: Sequence[str], kind: type[AnyRun], program: str, about: str) -> tuple[AnyRun, argparse.Namespace]:
    """Return the run's configuration, and the arguments that are not part of it: check, ranks, json.

    Raises:
        ConfigError: a flag is unknown, its value unusable, or two contradict each other.
    """
    recipe = TrainerParser(prog=program, add_help=False, allow_abbrev=False)
    recipe.add_argument("--recipe", choices=RECIPES, help="a named set of flags; other flags win over it")
    chosen, _ = recipe.parse_known_args(argv)
    parser = TrainerParser(prog=program, description=about, parents=[recipe], allow_abbrev=False)
    add_flags(parser, kind, RECIPES[chosen.recipe]() if chosen.recipe else None)
    add_check_flags(parser)
    add_from_scratch_flags(parser)
    arguments = parser.parse_args(argv)
    return kind(**{f.name: getattr(arguments, f.name) for f in fields(kind)}), arguments


def planned(config: RunFlags, arguments: argparse.Namespace, ranks: int) -> RunPlan | None:
    """Return the run's plan for this rank. With `--check` prints the plan and returns None.

    Raises:
        TrainerError: flags, data, ranks and the newest checkpoint do not fit together.
    """
    beat.begin(beat_file())
    ranks = arguments.ranks if arguments.check else ranks
    newest = CheckpointFolder(config.job_dir / "checkpoints").peek() if config.job_dir else None
    position = RunPosition.of(newest) if newest else RunPosition()
    data = look_up(config, keeps=not arguments.check and mpi_rank() == 0)
    plan = make_plan(config, ranks, data, position.origin if position.images else None)
    if not arguments.check:
        return replace(plan, begins_anew=may_begin_anew(arguments))
    plan = continued(plan, position)
    print(json.dumps(summary(plan), indent=1) if arguments.json else text(plan))
    return None
