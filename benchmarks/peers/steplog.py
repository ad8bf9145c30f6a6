"""What tensorpack's example says of its steps, and how it waits for its turn; `tensorpack.diff` puts it in there."""

from typing import Any

from tensorpack.callbacks import Callback

from benchmarks.lockstep import Turns


class StepLog(Callback):
    """Takes a turn for every step."""

    _chief_only = False

    def _setup_graph(self) -> None:
        self._turns = Turns()

    def _before_run(self, _: Any) -> None:
        self._turns.begin()

    def _after_run(self, *_: Any) -> None:
        self._turns.end()
