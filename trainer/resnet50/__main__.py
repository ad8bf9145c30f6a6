"""`python -m trainer.resnet50`: checks, or trains as one of the ranks."""

import json
import os
import sys
from collections.abc import Sequence

from trainer.checkpoint import Folder
from trainer.errors import entry
from trainer.resnet50 import plan
from trainer.resnet50.flags import parse
from trainer.resnet50.resume import Position, continued


@entry
def main(argv: Sequence[str]) -> None:
    """Everything that can be found wrong is found before TensorFlow is loaded."""
    config, arguments = parse(argv)
    ranks = arguments.ranks if arguments.check else int(os.environ.get("OMPI_COMM_WORLD_SIZE", "1"))
    planned = plan.plan(config, ranks, plan.look_up(config))
    if arguments.check and config.job_dir:
        newest = Folder(config.job_dir / "checkpoints").peek()
        planned = continued(planned, Position.of(newest)) if newest else planned
    if arguments.check:
        print(json.dumps(plan.summary(planned), indent=1) if arguments.json else plan.text(planned))
        return
    train(planned)


def train(planned: plan.Plan) -> None:
    """Starts Horovod and runs the plan."""
    from trainer.ranks import lost_ranks_named, start

    ranks = start(planned.config.threads, deterministic=planned.config.deterministic)
    from trainer.resnet50.train import Run

    with lost_ranks_named():
        Run(planned, ranks).go()


if __name__ == "__main__":
    sys.exit(main())
