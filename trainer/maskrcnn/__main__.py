"""Mask R-CNN trainer, which checks a run or trains as one of the ranks.

Run it with `python -m trainer.maskrcnn [--check] [--job-dir DIR] KEY=VALUE ...`.
"""

import argparse
import json
import os
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from dlami.heartbeat import Phase, beat, beat_file
from trainer.coco.losses import add_share_flag
from trainer.common.checkpoints.unreadable import add_from_scratch_flags, may_begin_anew
from trainer.common.files.commandline import TrainerParser, add_check_flags
from trainer.common.files.errors import ConfigError, entry
from trainer.maskrcnn.config import Config
from trainer.maskrcnn.keys import apply_settings
from trainer.maskrcnn.plan import DetectorPlan, make_plan, summary, text


def parser() -> argparse.ArgumentParser:
    """Build the parser of the options. Settings are the words KEY=VALUE."""
    p = TrainerParser(
        prog="python -m trainer.maskrcnn", description="Train Mask R-CNN on COCO, one process per rank under mpirun."
    )
    p.add_argument(
        "--job-dir",
        "--logdir",
        type=Path,
        help="checkpoints, metrics.jsonl, tensorboard/; a run found there is continued",
    )
    p.add_argument(
        "--load", type=Path, help="start from a whole model of tensorpack or Detectron2, for example COCO-trained"
    )
    p.add_argument("--config", nargs="+", action="extend", default=[], metavar="KEY=VALUE", help="settings, as below")
    p.add_argument("--async-eval", action="store_true", help="the same as TRAIN.ASYNC_EVAL=True")
    p.add_argument("--checkpoint-seconds", metavar="S", help="the same as TRAIN.CHECKPOINT_SECONDS=S")
    p.add_argument("--threads", type=int, help="of a rank's operations, instead of its share of the host's cores")
    add_check_flags(p)
    add_share_flag(p)
    add_from_scratch_flags(p)
    p.add_argument("settings", nargs="*", metavar="KEY=VALUE", help="as in TRAIN.BASE_LR=0.01; see docs/maskrcnn.md")
    return p


@entry
def main(argv: Sequence[str]) -> None:
    """Check the run, then train. Finds all errors it can before TensorFlow is loaded."""
    arguments = parser().parse_intermixed_args(list(argv))
    extra = ["TRAIN.ASYNC_EVAL=True"] if arguments.async_eval else []
    if arguments.checkpoint_seconds is not None:
        extra.append(f"TRAIN.CHECKPOINT_SECONDS={arguments.checkpoint_seconds}")
    config = apply_settings(Config(), [*arguments.config, *arguments.settings, *extra])
    if arguments.threads is not None and arguments.threads < 1:
        raise ConfigError(f"--threads is {arguments.threads}: give 1 or more")
    beat.begin(beat_file())
    plan = make_plan(
        config,
        ranks=arguments.ranks if arguments.check else int(os.environ.get("OMPI_COMM_WORLD_SIZE", "1")),
        job_dir=arguments.job_dir,
        load=arguments.load,
        most_left_out=arguments.most_left_out,
    )
    if arguments.check:
        print(json.dumps(summary(plan), indent=1) if arguments.json else text(plan))
        return
    train(replace(plan, begins_anew=may_begin_anew(arguments)), arguments.threads)


def train(plan: DetectorPlan, threads: int | None = None) -> None:
    """Start Horovod and execute the plan."""
    from trainer.common.ranks.horovod_rank import lost_ranks_named, start

    ranks = start(threads)
    import tensorflow as tf

    tf.compat.v1.disable_eager_execution()
    from trainer.maskrcnn.train_loop import DetectorTrainLoop

    with lost_ranks_named():
        DetectorTrainLoop(plan, ranks).go()
    beat.enter(Phase.SAVE)


if __name__ == "__main__":
    sys.exit(main())
