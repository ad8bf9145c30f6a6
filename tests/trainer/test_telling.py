"""What ranks tell each other and the operator: who is slow, why they leave, which processor is whose. No TensorFlow."""

import json
import signal
from dataclasses import astuple
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from trainer.common.files.errors import CommonError
from trainer.common.ranks import metrics
from trainer.common.ranks.clock import Times
from trainer.common.ranks.horovod_rank import Ranks, own_gpu, owned_cores
from trainer.common.ranks.progress import ProgressReporter
from trainer.common.ranks.stopping import Stop, StopRequest, Terminated
from trainer.resnet50.train_loop import TrainLoop

FAST, SLOW = Times(0.01, 0.2, 0.3), Times(0.3, 0.2, 0.01)


class Three:
    """What three ranks tell each other: this one what it is asked to, the others what is set."""

    others = (b"gpu1", b"gpu2")

    def __call__(self, data: Any) -> Any:
        """As `Gather`."""
        return [data, *self.others]


@pytest.fixture
def three() -> Any:
    """Rank 0 of three."""
    gather = Three()
    return gather, ProgressReporter(Ranks(0, 3, 0, 1, 1), gather)


def look(gather: Any, progress: Any, *others: Any) -> Any:
    """An interval in which this rank was fast, and the others what is given."""
    gather.others = [json.dumps(astuple(times)).encode() for times in others]
    progress.clock.stepped(30, FAST.compute_s, FAST.reduce_s)
    return progress.look()


def test_a_rank_that_is_slow_twice_in_a_row_is_named_with_its_host(
    three: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Once is an accident; the record has every rank's times whichever trainer writes it."""
    gather, progress = three
    with progress.recorded(tmp_path, 0):
        for step, rank1 in enumerate((SLOW, FAST, SLOW, SLOW), start=10):
            progress.tell_step(step, f"line {step}", {"loss": 1.5}, look(gather, progress, rank1, FAST), batch=10)
    said = capsys.readouterr().out.splitlines()

    assert ["line 10", "line 11", "line 12", "line 13"] == said[:4]
    assert 5 == len(said) and said[4].startswith("slow: rank 1 on gpu1 needs 0.500 s of its own per step")
    last = metrics.read(tmp_path)[-1]
    assert ("train", 13, 3, 1.5) == (last["kind"], last["step"], last["ranks"], last["loss"])
    assert 20.0 == last["rank_images_per_s"][1]
    assert [0.3, 0.01] == last["rank_input_s"][1:]


@pytest.mark.parametrize(
    ("signals", "stop"),
    [
        ((), Stop.NO),
        ((signal.SIGUSR1,), Stop.ASKED),
        ((signal.SIGTERM,), Stop.TERMINATED),
        ((signal.SIGUSR1, signal.SIGTERM), Stop.ASKED),
        ((signal.SIGTERM, signal.SIGUSR1), Stop.ASKED),
    ],
)
def test_a_stop_that_was_asked_for_wins_over_termination(signals: Any, stop: Any) -> None:
    """SIGTERM follows a request where a rank takes long; alone it is nobody's wish. One rank of many is enough."""
    request = StopRequest()
    for number in signals:
        request._note(number, None)

    assert stop is Stop.of(*(number / 512 for number in request.numbers))


def test_who_was_terminated_is_named() -> None:
    """With its host, and what was saved; the exit code is that of a process which SIGTERM ended."""
    request, gather = StopRequest(), Three()
    gather.others = (b"true", b"false")
    error = request.termination(gather, ["gpu0", "gpu1", "gpu2"], "saved after step 7")

    assert (143, Terminated) == (error.exit_code, type(error))
    assert "SIGTERM came to rank 1 (gpu1), and nobody had asked for a stop: saved after step 7" == str(error)


def test_every_rank_of_a_host_has_its_own_gpu() -> None:
    """Shared in turn where there are more ranks than GPUs; none where there is none."""
    assert [0, 1, 2, 3] == [own_gpu(4, rank) for rank in range(4)]
    assert [0, 1, 0, 1] == [own_gpu(2, rank) for rank in range(4)]
    assert own_gpu(0, 3) is None


def test_a_rank_computes_on_the_cores_it_is_bound_to_or_its_share() -> None:
    """Never on none."""
    assert (2, 4, 1) == (owned_cores(2, 16, 4), owned_cores(16, 16, 4), owned_cores(2, 2, 4))


@pytest.mark.parametrize(("counted", "left_out", "there"), [(2, 0, 3), (3, 1, 3), (0, 3, 3), (0, 0, 0)])
def test_an_evaluation_that_did_not_count_every_image_has_no_scores(counted: int, left_out: int, there: int) -> None:
    """Too few, one twice, all of them damaged, or none there: means over those would be of something else."""

    class Reader:
        def __init__(self) -> None:
            self.left_out = left_out

        def __len__(self) -> int:
            return there

    attempt: Any = SimpleNamespace(
        source=SimpleNamespace(validation=lambda: (None, Reader())),
        learner=SimpleNamespace(scores=lambda data: np.array([counted, 1.0, 2.0, 3.0])),
        gather=lambda own: [own],
    )
    with pytest.raises(
        CommonError, match=f"{counted} of {there} validation images were counted, {left_out} are damaged"
    ):
        TrainLoop._evaluate(attempt)
