"""What tensorpack's example says of its steps, and how it waits for its turn; `tensorpack.diff` puts it in there."""

from typing import Any

from eval import EvalCallback
from tensorpack.callbacks import Callback

from benchmarks.lockstep import Turns

SCORES = {"box_ap": "mAP(bbox)/IoU=0.5:0.95", "mask_ap": "mAP(segm)/IoU=0.5:0.95"}
"""Our names -> the example's."""


class StepLog(Callback):
    """Takes a turn for every step and for every evaluation."""

    _chief_only = False

    def _setup_graph(self) -> None:
        self._turns = turns = Turns()
        evaluate = EvalCallback._eval

        def evaluate_in_turn(callback: Any) -> None:
            turns.begin()
            evaluate(callback)
            turns.end({ours: float(callback.scores.get(name, 0)) for ours, name in SCORES.items()})

        EvalCallback._eval = evaluate_in_turn

    def _before_run(self, _: Any) -> None:
        self._turns.begin()

    def _after_run(self, *_: Any) -> None:
        self._turns.end()
