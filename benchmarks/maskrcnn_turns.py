"""A Mask R-CNN training whose steps take turns with another program's: flags are those of trainer.maskrcnn."""

import sys

from benchmarks.lockstep import Turns
from trainer.maskrcnn import __main__, tower


def main() -> None:
    """Trains."""
    turns = Turns()
    step = tower.HorovodSteps.run_step
    tower.HorovodSteps.run_step = lambda self: turns.take(lambda: step(self))  # type: ignore[method-assign]
    sys.exit(__main__.main())


if __name__ == "__main__":
    main()
