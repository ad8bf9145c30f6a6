"""What lets a detector's training leave before its last step, and what it leaves behind."""

import gc
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tests.trainer_maskrcnn.helpers import REDUCED
from trainer.common.checkpoints.checkpoint import CheckpointFolder
from trainer.common.ranks import gc_freeze
from trainer.common.ranks.horovod_rank import Ranks
from trainer.common.ranks.stopping import Stop, Terminated
from trainer.maskrcnn import keys
from trainer.maskrcnn import train_loop as attempts
from trainer.maskrcnn.config import Config
from trainer.maskrcnn.keys import apply_settings
from trainer.maskrcnn.plan import make_plan
from trainer.maskrcnn.resume import CONFIG_FILE
from trainer.maskrcnn.tensorpack_trainer import StepMeans
from trainer.maskrcnn.train_loop import DetectorTrainLoop

WORDS = [
    *REDUCED,
    "TRAIN.STEPS_PER_EPOCH=10",
    "TRAIN.LR_EPOCH_SCHEDULE=[(4,None)]",
    "TRAIN.WARMUP=2",
    "TEST.BOX_TARGET=0.5",
]


def after_a_step(shapes: Path, job: Path, scores: dict[str, float], **asked: float) -> bool:
    """Whether the only rank leaves after its first step, at such scores and with such requests."""
    from tensorpack.train import StopTraining

    plan = make_plan(apply_settings(Config(), [*WORDS, f"DATA.BASEDIR={shapes}"]), ranks=1, job_dir=job, load=None)
    attempt = DetectorTrainLoop(plan, Ranks(rank=0, size=1, local_rank=0, local_size=1, threads=1))
    attempt._read_checkpoint()
    requests = {**dict.fromkeys(StepMeans.REQUESTS, 0.0), **asked}
    report = StepMeans(["loss", *requests], np.array([1.0, *requests.values()]))
    steps: Any = SimpleNamespace(report=report, values=lambda: {"conv/W": np.ones(3, np.float32)})
    attempt.steps, attempt.scores = steps, scores
    gc_freeze.spare_start()
    try:
        attempt._trigger_step()
    except StopTraining:
        return True
    finally:
        assert gc_freeze.USUAL == gc.get_threshold(), "the start is over"
        gc.unfreeze()
    return False


@pytest.mark.parametrize(
    ("scores", "asked", "leaves"),
    [
        ({}, {}, False),
        ({"box_ap": 0.4}, {}, False),
        ({}, {"asked": 1.0}, True),
        ({}, {"terminated": 1.0}, True),
        ({"box_ap": 0.6}, {}, True),
        ({"box_ap": 0.6}, {"asked": 1.0}, True),
    ],
)
def test_who_asks_and_who_has_learned_enough_leaves_with_a_checkpoint(
    shapes: Path, tmp_path: Path, monkeypatch: Any, scores: dict[str, float], asked: dict[str, float], leaves: bool
) -> None:
    """A request alone is enough, and so are scores that reach what was wanted; otherwise it goes on, and nothing is saved."""
    monkeypatch.setattr(attempts, "Gather", lambda threads: lambda data: [data])  # one rank, without Horovod

    assert leaves == after_a_step(shapes, tmp_path, scores, **asked)
    assert leaves == len([*tmp_path.glob("checkpoints/step-*.json")])


class Judge:
    """An evaluation that has these scores as soon as it is asked."""

    def __init__(self, scores: dict[str, float]) -> None:
        self.scores, self.step, self.is_running = scores, 0, False

    def start(self, values: object, step: int) -> None:
        assert not self.is_running
        self.step, self.is_running = step, True

    def finish(self) -> tuple[dict[str, float], list[object]]:
        self.is_running = False
        return self.scores, []


def attempt_at(
    shapes: Path, job: Path | None, step: int, *words: str, **values: float
) -> tuple[DetectorTrainLoop, Judge]:
    """The only rank's attempt after this many steps, the next of which will report such losses and requests."""
    plan = make_plan(
        apply_settings(Config(), [*WORDS, f"DATA.BASEDIR={shapes}", *words]), ranks=1, job_dir=job, load=None
    )
    attempt = DetectorTrainLoop(plan, Ranks(rank=0, size=1, local_rank=0, local_size=1, threads=1))
    attempt._read_checkpoint()
    told = {"one": 1.0, "other": 0.5, "fg_rois": 9.0, **dict.fromkeys(StepMeans.REQUESTS, 0.0), **values}
    variables = {"w": SimpleNamespace(shape=SimpleNamespace(as_list=lambda: [3]))}
    steps: Any = SimpleNamespace(
        report=StepMeans([*told], np.array([*told.values()])),
        values=lambda: {"w": np.ones(3, np.float32)},
        variables=variables,
    )
    judge: Any = Judge({"box_ap": 0.25, "box_ap50": 0.5, "mask_ap": 0.125, "mask_ap50": 0.375})
    attempt.steps, attempt.step, attempt._evaluation = steps, step, judge
    return attempt, judge


def one_more(attempt: DetectorTrainLoop) -> bool:
    """A step; whether the training goes on after it."""
    from tensorpack.train import StopTraining

    try:
        attempt._trigger_step()
    except StopTraining:
        return False
    return True


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """One rank, without Horovod."""
    monkeypatch.setattr(attempts, "Gather", lambda threads: lambda data: [data])


def saved(job: Path) -> list[int]:
    """Steps of the checkpoints of a job."""
    return [int(p.stem.removeprefix("step-")) for p in sorted(job.glob("checkpoints/step-*.json"))]


def test_a_loss_that_is_no_number_is_told_and_not_saved(shapes: Path, tmp_path: Path, alone: None) -> None:
    """With the losses that are none; the training ends there."""
    attempt, _ = attempt_at(shapes, tmp_path, 4, one=float("nan"), due=1.0)
    assert not one_more(attempt) and [] == saved(tmp_path)
    assert "the loss is not a number at step 5 (one), on all ranks alike: lower TRAIN.BASE_LR" in str(attempt.failure)
    assert "no checkpoint was written" in str(attempt.failure)
    attempt._after_train()
    assert [] == saved(tmp_path)


def test_a_checkpoint_is_made_at_each_period_and_where_it_is_due(shapes: Path, tmp_path: Path, alone: None) -> None:
    """It tells where to go on; the last step's is made afterwards."""
    words = ("TRAIN.CHECKPOINT_PERIOD=2", "TRAIN.EVAL_PERIOD=0")
    for step, due, steps in ((18, 0, []), (19, 0, [20]), (29, 0, []), (30, 1, [31]), (71, 0, [])):
        attempt, _ = attempt_at(shapes, tmp_path / str(step), step, *words, due=float(due))
        assert one_more(attempt) and attempt.saver
        attempt.saver.wait()
        assert steps == saved(tmp_path / str(step))
    facts = CheckpointFolder(tmp_path / "19/checkpoints").facts(20)
    assert {"images_seen": 20, "epoch": 1, "group": 2, "ranks": 1, "origin_ranks": 1}.items() <= facts.more.items()
    assert keys.plain(attempt.config) == facts.more["config"]


def test_evaluations_are_made_at_their_periods(shapes: Path, alone: None, capsys: pytest.CaptureFixture[str]) -> None:
    """Not before, nor after the last step, which has its own; what goes on beside a training ends when all ranks are done."""
    line = "evaluation: box AP 0.250 AP50 0.500  mask AP 0.125 AP50 0.375"
    for step, is_made in ((18, False), (19, True), (9, False), (71, False)):
        attempt, judge = attempt_at(shapes, None, step, "TRAIN.EVAL_PERIOD=2", "TEST.BOX_TARGET=0")
        assert one_more(attempt) and not judge.is_running
        assert is_made == (f"step {step + 1:6d}  {line}\n" in capsys.readouterr().out)
    beside = ("TRAIN.ASYNC_EVAL=True", "TEST.BOX_TARGET=0")
    attempt, judge = attempt_at(shapes, None, 9, *beside)
    assert one_more(attempt) and judge.is_running and line not in capsys.readouterr().out
    attempt.step = 19
    assert one_more(attempt) and judge.is_running
    assert f"step     10  {line}" in capsys.readouterr().out
    attempt.steps.report.values["evaluated"] = 1.0
    attempt.step = 23
    assert one_more(attempt) and not judge.is_running
    assert f"step     20  {line}" in capsys.readouterr().out


@pytest.mark.parametrize(("target", "goes_on"), [(0.25, False), (0.26, True)])
def test_a_target_that_an_evaluation_reaches_ends_the_training(
    shapes: Path, tmp_path: Path, alone: None, target: float, goes_on: bool
) -> None:
    """With a checkpoint of that step."""
    attempt, _ = attempt_at(shapes, tmp_path, 9, f"TEST.BOX_TARGET={target}", "TRAIN.CHECKPOINT_PERIOD=5")
    assert goes_on == one_more(attempt)
    assert ([] if goes_on else [10]) == saved(tmp_path)


def test_the_last_step_is_saved_and_evaluated_once(
    shapes: Path, tmp_path: Path, alone: None, capsys: pytest.CaptureFixture[str]
) -> None:
    """Unless it was already, nobody wants it, or the training was left before its end."""
    for step, words, scores, lines in (
        (72, (), {}, 1),
        (72, (), {"step": 71.0}, 1),
        (72, (), {"step": 72.0}, 0),
        (72, ("TRAIN.EVAL_AT_END=False",), {}, 0),
        (71, (), {}, 0),
    ):
        job = tmp_path / str(len([*tmp_path.iterdir()]))
        attempt, _ = attempt_at(shapes, job, step, *words)
        attempt.scores = scores
        attempt._after_train()
        assert lines == capsys.readouterr().out.count(f"step {step:6d}  evaluation: ")
        assert ([72] if step == 72 else []) == saved(job)
    attempt, judge = attempt_at(shapes, None, 72, "TRAIN.EVAL_AT_END=False")
    judge.start({}, 70)
    attempt._after_train()
    assert "step     70  evaluation: " in capsys.readouterr().out and not judge.is_running


def test_what_a_rank_is_fed_has_its_rate_and_its_requests(shapes: Path, alone: None) -> None:
    """Batch after batch; an evaluation that is ready and a signal are requests."""
    attempt, judge = attempt_at(shapes, None, 0)
    judge.is_ready = False  # type: ignore[attr-defined]
    feeds = attempt._feeds()
    *batch, rate, requests = next(feeds)
    assert 9 == len(batch) and attempt.plan.rate(0) == pytest.approx(float(rate)) and [0, 0, 0, 0] == requests.tolist()
    judge.is_ready, attempt.step = True, 2  # type: ignore[attr-defined]
    *_, rate, requests = next(feeds)
    assert attempt.plan.rate(2) == pytest.approx(float(rate)) and [0, 0, 1, 0] == requests.tolist()


def test_an_attempt_goes_on_after_what_its_checkpoint_has(
    shapes: Path, tmp_path: Path, alone: None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Records up to its step stay, later ones go; the settings are written, and why it ends is said."""
    attempt, _ = attempt_at(shapes, tmp_path, 0)
    (tmp_path / CONFIG_FILE).write_text(json.dumps(keys.plain(attempt.config)))
    more = {"images_seen": 5, "epoch": 0, "group": 5, "ranks": 1, "origin_ranks": 1}
    CheckpointFolder(tmp_path / "checkpoints").save(5, {"w": np.ones(3, "f")}, more)
    records = [{"kind": "train", "step": step, "time": 1.0, "loss": 1.0} for step in (4, 5, 6)]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(r) + "\n" for r in records))
    for stopping, said in ((Stop.NO, "Finished 5 steps in "), (Stop.ASKED, "Asked to stop: saved after step 5; ")):
        attempt = DetectorTrainLoop(attempt.plan, attempt.ranks)
        monkeypatch.setattr(attempt.stop, "listen", lambda: None)
        monkeypatch.setattr(attempt, "_train", lambda: None)
        attempt._stopping, attempt.scores = stopping, {"box_ap": 0.5}
        assert {"box_ap": 0.5} == attempt.go() and 5 == attempt.step
        assert said in capsys.readouterr().out
        kept = [json.loads(line)["step"] for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
        assert [4, 5] == kept
        assert keys.plain(attempt.config) == json.loads((tmp_path / CONFIG_FILE).read_text())
    attempt = DetectorTrainLoop(attempt.plan, attempt.ranks)
    monkeypatch.setattr(attempt.stop, "listen", lambda: None)
    monkeypatch.setattr(attempt, "_train", lambda: None)
    attempt._stopping = Stop.TERMINATED
    with pytest.raises(Terminated, match="saved after step 5"):
        attempt.go()
