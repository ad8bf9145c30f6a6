"""A ResNet's steps on synthetic images that take turns with another program's: flags are those of trainer.benchmark."""

import sys
from collections.abc import Callable
from typing import Any

from benchmarks.lockstep import Turns
from trainer import benchmark


def main() -> None:
    """Trains."""
    turns, make_step = Turns(), benchmark.make_step

    def in_turns(*of_step: Any) -> Callable[[Any], float]:
        step = make_step(*of_step)
        return lambda batch: turns.take(lambda: step(batch))

    benchmark.make_step = in_turns
    sys.exit(benchmark.main())


if __name__ == "__main__":
    main()
