"""ResNet trainer on PyTorch, `python -m trainer.resnet50_torch`, which checks a run or trains as one of the ranks.

It runs in the user's own environment, which has PyTorch and need not have anything else of this project.
"""

import sys
from collections.abc import Sequence
from importlib.util import find_spec

from trainer.common.files.errors import CommonError, entry

LEAST_PYTHON = (3, 11)
NEEDED = {  # modules, and what pip calls them
    "torch": "torch",
    "numpy": "numpy",
    "google_crc32c": "google-crc32c",
    "simplejpeg": "simplejpeg",
    "PIL": "pillow",
}


def check_interpreter() -> None:
    """Raise CommonError, with the remedy, unless this interpreter has the packages that the trainer needs."""
    if sys.version_info[:2] < LEAST_PYTHON:
        raise CommonError(
            f"{sys.executable} is Python {sys.version_info[0]}.{sys.version_info[1]}, and the trainer wants "
            f"{'.'.join(map(str, LEAST_PYTHON))} or later: make PyTorch's environment with that"
        )
    missing = [name for module, name in NEEDED.items() if find_spec(module) is None]
    if missing:
        raise CommonError(
            f"{sys.executable} lacks {', '.join(missing)}: install it there ({sys.executable} -m pip install "
            f"{' '.join(missing)}), or name another interpreter that has PyTorch"
        )


@entry
def main(argv: Sequence[str]) -> None:
    """Check the run with `--check`, or execute its plan."""
    if not {"--help", "-h"} & set(argv):
        check_interpreter()
    from trainer.common.ranks.gc_freeze import spare_start
    from trainer.resnet50 import start
    from trainer.resnet50_torch.config import TorchResNetConfig
    from trainer.resnet50_torch.dist_env import DistEnv

    config, arguments = start.parse(
        argv, TorchResNetConfig, "python -m trainer.resnet50_torch", "Trains a ResNet over PyTorch's ranks."
    )
    plan = start.planned(config, arguments, DistEnv.of().size)
    if plan is None:
        return
    spare_start()
    from dlami.heartbeat import Phase, beat
    from trainer.resnet50.train_loop import TrainLoop
    from trainer.resnet50_torch.decoders import Decoders
    from trainer.resnet50_torch.engine import engine
    from trainer.resnet50_torch.process_group import leave_ranks, lost_ranks_named, start_ranks

    with lost_ranks_named():
        world = start_ranks(config)
        with Decoders(world.ranks.threads) as decoders:
            TrainLoop(plan, engine(world, decoders)).go()
        leave_ranks(world)
    beat.enter(Phase.SAVE)


if __name__ == "__main__":
    sys.exit(main())
