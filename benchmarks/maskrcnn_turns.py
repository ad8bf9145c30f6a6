"""A Mask R-CNN training whose steps and evaluations take turns with another program's: flags are trainer.maskrcnn's."""

import sys

from benchmarks.lockstep import Turns
from trainer.maskrcnn import __main__, tensorpack_trainer
from trainer.maskrcnn.train_loop import DetectorTrainLoop


def main() -> None:
    """Trains."""
    turns = Turns()
    step = tensorpack_trainer.HorovodSteps.run_step
    begin_evaluation, finish_evaluation = DetectorTrainLoop._start_evaluation, DetectorTrainLoop._finish_evaluation

    def begin(attempt: DetectorTrainLoop) -> None:
        turns.begin()
        begin_evaluation(attempt)

    def finish(attempt: DetectorTrainLoop) -> None:
        finish_evaluation(attempt)
        turns.end({name: attempt.scores[name] for name in ("box_ap", "mask_ap")})

    tensorpack_trainer.HorovodSteps.run_step = lambda self: turns.take(lambda: step(self))  # type: ignore[method-assign]
    DetectorTrainLoop._start_evaluation, DetectorTrainLoop._finish_evaluation = begin, finish  # type: ignore[method-assign]
    sys.exit(__main__.main())


if __name__ == "__main__":
    main()
