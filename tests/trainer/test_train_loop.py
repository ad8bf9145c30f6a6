"""What an attempt does around its framework: steps, checkpoints, lines, evaluations. The network is one number in NumPy."""

import json
import math
import signal
import socket
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from trainer.common.checkpoints.checkpoint import CheckpointFolder
from trainer.common.files.errors import CommonError, TrainerError
from trainer.common.ranks import metrics
from trainer.common.ranks.horovod_rank import Ranks
from trainer.common.ranks.stopping import Stop, Terminated
from trainer.resnet50.config import ResNetConfig
from trainer.resnet50.engine import Engine, StepResult, moving_average_decay
from trainer.resnet50.plan import Data, make_plan
from trainer.resnet50.train_loop import EVAL_HEADER, TRAIN_HEADER, TrainLoop, restore

FINE = StepResult(2.0, 0.25, 0, 0, 0, 0, 2.0, 0.1, 0.1)
OVERFLOW = replace(FINE, loss=math.inf, own_loss=math.inf, skipped=1.0)
RANKS = Ranks(0, 1, 0, 1, threads=3)


class Learner:
    """Counts its steps in its only weight; each finds what it is told to, else nothing special."""

    scale: float | None = None

    def __init__(self, found: dict[int, StepResult]) -> None:
        self.weight, self.found = np.zeros(1), found
        self.begun_with: list[tuple[int, int, float, int]] = []  # step, batch, rate, weight

    def arrays(self) -> dict[str, np.ndarray]:
        return {"weight": self.weight.copy()}

    def shapes(self) -> dict[str, tuple[int, ...]]:
        return {"weight": (1,)}

    def load(self, arrays: Any) -> None:
        self.weight = arrays["weight"].copy()

    def broadcast(self, rank: int = 0) -> None:
        pass

    def train(self, batch: Any, lr: float, requests: Any = None, step: int = 0) -> StepResult:
        self.begun_with.append((step, batch, round(lr, 6), int(self.weight[0])))
        self.weight += 1
        return self.found.get(step, FINE)

    def result(self, pending: StepResult) -> StepResult:
        return pending

    def scores(self, batches: Any) -> np.ndarray:
        return np.array([4.0, 1.0 + (self.weight[0] < 6), 3.0, 6.0])

    def penalty(self) -> float:
        return 0.5


class Source:
    """Batches are numbers: ten times their steps. Four images to evaluate on."""

    def training(self, plan: Any, step: int) -> Iterator[int]:
        return iter(range(10 * step, 10 * plan.steps, 10))

    def validation(self) -> Any:
        class Four:
            left_out = 0

            def __len__(self) -> int:
                return 4

        return (), Four()


@pytest.fixture(autouse=True)
def own_signals() -> Iterator[None]:
    """What a signal does is put back."""
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGUSR1)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def attempt(
    job: Path | None,
    found: dict[int, StepResult] | None = None,
    begin: Any = None,
    begins_anew: bool = False,
    **flags: Any,
) -> Any:
    """One over seven steps of 8 of 40 images, at the same rate always."""
    learner = Learner(found or {})
    engine = Engine("NP1", "nothing", RANKS, lambda data: [data], lambda *_: learner, lambda *_: Source(), begin)
    more = {"data_dir": Path("data"), "job_dir": job} if job else {"synthetic": True}
    common = {"batch_size": 8, "num_batches": 7, "lr": 0.5, "lr_decay_mode": "constant", "checkpoint_seconds": 0.0}
    data = Data(classes=10, train_examples=40, validation_examples=4)
    plan = make_plan(ResNetConfig(**{**more, **common, **flags}), 1, data)
    return TrainLoop(replace(plan, begins_anew=begins_anew), engine)


def without_speed(said: str) -> list[str]:
    """The lines; of the table's rows all but the speed."""
    rows = [line.split() for line in said.splitlines()]
    return [" ".join(row[:2] + row[3:] if len(row) == 6 and row[0].isdigit() else row) for row in rows]


def of_kind(job: Path, kind: str, *names: str) -> list[tuple[Any, ...]]:
    """These values of the records of one kind."""
    return [tuple(r[name] for name in names) for r in metrics.read(job) if r["kind"] == kind]


def test_a_training_shows_saves_and_evaluates_at_its_steps(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Rows of the first two steps, of each third and of the last; checkpoints of each third and of the end, then the scores."""
    done = attempt(tmp_path, checkpoint_every=3, display_every=3, keep=9, eval=True)
    done.go()
    said = without_speed(capsys.readouterr().out)

    assert [(s, 10 * s, 0.5, s) for s in range(7)] == done.learner.begun_with
    rows = [f"{step} {step / 5:.1f} 2.000 2.500 0.50000" for step in (0, 1, 3, 6)]
    assert [" ".join(TRAIN_HEADER.split()), *rows] == said[2:7]
    assert said[7].startswith("Finished in ")
    assert " ".join(EVAL_HEADER.split()) == said[8] and said[9].startswith("7 1.4 25.000 75.000 1.500 2")
    assert 10 == len(said)
    folder = CheckpointFolder(tmp_path / "checkpoints")
    assert [7, 6, 3] == folder.steps()
    assert [0.0, 4.0] == [folder.load(folder.facts(step))["weight"][0] - 3 for step in (3, 7)]
    more = folder.facts(6).more
    assert ("resnet50", 10, 48, 8, 1) == tuple(more[n] for n in ("model", "classes", "images", "global_batch", "ranks"))
    wanted = [(s, s / 5, 2.0, 2.5, 0.5, 25.0) for s in (0, 1, 3, 6)]
    assert wanted == of_kind(tmp_path, "train", "step", "epoch", "loss", "total_loss", "lr", "top1")
    assert [(7, 1.4, 25.0, 75.0, 1.5, 4)] == of_kind(
        tmp_path, "eval", "step", "epoch", "top1", "top5", "loss", "images"
    )
    assert all("loss_scale" not in record for record in metrics.read(tmp_path))
    assert folder.best() and 7 == folder.best().step


def test_evaluations_between_steps_mark_the_best_checkpoint(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Each has a checkpoint of its step; the table's head is said again; the end has one more, worse than the one before."""
    attempt(tmp_path, eval_every=1.0, display_every=50, keep=9).go()
    said = without_speed(capsys.readouterr().out)

    assert [(5, 50.0), (7, 25.0)] == of_kind(tmp_path, "eval", "step", "top1")
    folder = CheckpointFolder(tmp_path / "checkpoints")
    assert ([7, 5], 5) == (folder.steps(), folder.best().step)
    assert 2 == said.count(" ".join(TRAIN_HEADER.split()))

    best = attempt(tmp_path, eval_only=True, eval_best=True)
    newest = attempt(tmp_path, eval_only=True)
    assert (5, 7) == (best.step, newest.step)
    best.go()
    newest.go()
    rows = [line.split()[:4] for line in capsys.readouterr().out.splitlines() if line[:6].strip().isdigit()]
    assert [["5", "1.0", "50.000", "75.000"], ["7", "1.4", "25.000", "75.000"]] == rows
    assert (None, [], [7, 5]) == (best.saver, best.learner.begun_with, folder.steps())
    assert 2 == len(of_kind(tmp_path, "eval"))  # an evaluation alone writes nothing


def test_the_best_is_the_newest_where_nothing_was_called_best(tmp_path: Path) -> None:
    """An evaluation of the best that finds no mark judges the newest; where no checkpoint is there it says so."""
    with pytest.raises(CommonError, match=f"{tmp_path}: no valid checkpoint to evaluate; train first"):
        attempt(tmp_path, eval_only=True).go()
    attempt(tmp_path).go()

    assert 7 == attempt(tmp_path, eval_only=True, eval_best=True).step


def test_an_evaluation_alone_needs_no_flags_of_the_training(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Neither how long, nor the seed, nor the batch: it judges the checkpoint at the step that it has."""
    attempt(tmp_path, seed=3).go()
    capsys.readouterr()
    again = attempt(tmp_path, eval_only=True, num_batches=None, batch_size=4)
    again.go()

    assert 7 == again.step and "7 1.4 25.000 75.000" in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize("begins_anew", [False, True])
def test_an_attempt_with_unreadable_checkpoints_begins_anew_only_when_told(tmp_path: Path, begins_anew: bool) -> None:
    """Else it ends before its first step; an evaluation alone says the same."""
    attempt(tmp_path, checkpoint_every=3).go()
    for path in (tmp_path / "checkpoints").glob("*.npz"):
        path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(TrainerError, match="none can be read"):
        attempt(tmp_path, eval_only=True)
    if not begins_anew:
        with pytest.raises(CommonError, match="none can be read"):
            attempt(tmp_path)
        return
    again = attempt(tmp_path, begins_anew=True)
    again.go()

    assert (0, 7) == (again.learner.begun_with[0][0], again.step)
    assert (tmp_path / "checkpoints.unreadable-1").is_dir() and [7] == CheckpointFolder(
        tmp_path / "checkpoints"
    ).steps()[:1]


@pytest.mark.parametrize("skipped", [0.0, 1.0])
def test_a_stop_that_was_asked_for_saves_and_is_gone_on_from(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], skipped: float
) -> None:
    """It is read one step late; the next attempt says where it goes on, and makes the steps that were left."""
    attempt(tmp_path, {2: replace(FINE, asked=1.0, skipped=skipped)}, display_every=50, eval=True).go()
    said = capsys.readouterr().out

    assert said.endswith("Asked to stop: saved after step 3; the same command resumes from there\n")
    assert [4] == CheckpointFolder(tmp_path / "checkpoints").steps()
    assert "Finished" not in said and [] == of_kind(tmp_path, "eval")
    rest = attempt(tmp_path)
    rest.go()
    assert [(s, 10 * s, 0.5, s) for s in (4, 5, 6)] == rest.learner.begun_with
    said = capsys.readouterr().out
    assert said.splitlines()[2] == "Resuming after step 3" and "Finished in" in said
    again = attempt(tmp_path)
    again.go()
    assert [] == again.learner.begun_with


def test_without_a_job_folder_a_stop_saves_nothing_and_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    """Drawn images need none."""
    attempt(None, {3: replace(FINE, asked=0.5)}).go()

    assert "Asked to stop: ended after step 4; nothing is saved without --job-dir" in capsys.readouterr().out


def test_a_training_that_sigterm_ended_says_so_unless_it_was_done(tmp_path: Path) -> None:
    """With another exit code, after it has saved; at the last step there is nothing that it cut off."""
    ended = attempt(tmp_path, {1: replace(FINE, terminated=1.0)})
    ended.stop._note(signal.SIGTERM, None)
    says = rf"SIGTERM came to rank 0 \({socket.gethostname()}\).*: saved after step 1; the same command resumes"
    with pytest.raises(Terminated, match=says):
        ended.go()
    assert [2] == CheckpointFolder(tmp_path / "checkpoints").steps()

    attempt(tmp_path, {6: replace(FINE, terminated=1.0)}).go()
    assert 7 == CheckpointFolder(tmp_path / "checkpoints").steps()[0]


def test_a_loss_scale_is_on_record(tmp_path: Path) -> None:
    """Beside each row."""
    scaled = attempt(tmp_path, display_every=5)
    scaled.learner.scale = 64.0
    scaled.go()

    assert [(0, 64.0), (1, 64.0), (5, 64.0), (6, 64.0)] == of_kind(tmp_path, "train", "step", "loss_scale")


def test_weights_of_a_file_begin_a_training_that_has_no_checkpoint(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Only then: a job's own checkpoint wins over the file; a file can be judged without a training."""

    def begin(config: Any, learner: Any) -> str:
        learner.weight += 100
        return f"begins with {config.load}"

    flags = {"begin": begin, "load": Path("w.npz")}
    judged = attempt(tmp_path, eval_only=True, **flags)
    judged.go()
    assert "begins with w.npz" in capsys.readouterr().out
    first = attempt(tmp_path, **flags)
    first.go()
    assert (0, 0, 0.5, 100) == first.learner.begun_with[0]
    assert "begins with w.npz" in capsys.readouterr().out
    attempt(tmp_path, num_batches=8, **flags).go()
    assert "begins with" not in capsys.readouterr().out
    assert ResNetConfig(synthetic=True, num_batches=1, load=Path("x")).weights_file == Path("x")


def looking(ranks_losses: list[float], skips: int = 0) -> Any:
    """An attempt as far as `_look` sees it; the losses are those of the ranks after this one."""
    return SimpleNamespace(
        learner=SimpleNamespace(result=lambda pending: pending),
        progress=SimpleNamespace(clock=SimpleNamespace(stepped=lambda *_: None), hosts=["a", "b", "c"]),
        plan=SimpleNamespace(global_batch=8),
        gather=lambda own: [own, *(json.dumps(loss).encode() for loss in ranks_losses)],
        step=12,
        config=SimpleNamespace(loss_scale="dynamic"),
        _stopping=Stop.NO,
        _is_due=False,
        _skips=skips,
        saver=None,
    )


def test_steps_that_overflow_are_counted_until_there_are_too_many() -> None:
    """The fortieth in a row ends the training; one that went well begins the count anew."""
    held = looking([1.0, 1.0], skips=38)
    assert OVERFLOW == TrainLoop._look(held, OVERFLOW)
    with pytest.raises(
        CommonError, match=r"^40 steps in a row overflowed at about step 12, first on rank 0 \(a\): lower --lr"
    ):
        TrainLoop._look(held, OVERFLOW)
    fixed = looking([1.0, 1.0], skips=39)
    fixed.config.loss_scale = "1024"
    with pytest.raises(CommonError, match=r"on rank 0 \(a\): lower --loss-scale 1024 or leave it out"):
        TrainLoop._look(fixed, OVERFLOW)
    sound = looking([1.0, 1.0], skips=39)
    with pytest.raises(CommonError, match=r"^40 steps in a row overflowed at about step 12, first on no rank alone:"):
        TrainLoop._look(sound, replace(FINE, skipped=1.0))

    held = looking([1.0, 1.0], skips=39)
    assert FINE == TrainLoop._look(held, FINE)
    assert 0 == held._skips


def test_a_loss_that_is_no_number_ends_the_training_and_names_the_ranks() -> None:
    """With their hosts, all of those where it began."""
    with pytest.raises(CommonError, match=r"^the loss is nan at about step 12, first on rank 1 \(b\), 2 \(c\): lower"):
        TrainLoop._look(looking([math.nan, math.inf]), replace(FINE, loss=math.nan))
    for written, said in ((None, "no checkpoint was written"), (SimpleNamespace(step=8), "checkpoint is of step 8")):
        held = looking([math.nan, math.inf])
        held.saver = SimpleNamespace(written=written)
        with pytest.raises(CommonError, match=said):
            TrainLoop._look(held, replace(FINE, loss=math.nan))


@pytest.mark.parametrize(
    ("arrays", "says"),
    [
        ({"a": np.ones(2)}, "file is of another model (b and 0 more differ)"),
        ({"a": np.ones(3), "b": np.ones(1)}, "file is of another model (a and 0 more differ)"),
        ({"c": np.ones(1)}, "file is of another model (a and 2 more differ)"),
        ({"a": np.ones(2), "b": np.ones(1), "c": np.ones(1)}, "file is of another model (c and 0 more differ)"),
    ],
)
def test_a_checkpoint_of_another_model_is_refused(arrays: Any, says: str) -> None:
    """One that lacks something, has it in another shape, or has more; nothing is set."""
    held: list[Any] = []
    learner: Any = SimpleNamespace(shapes=lambda: {"a": (2,), "b": (1,)}, load=held.append)
    with pytest.raises(TrainerError) as error:
        restore(learner, arrays, "file")

    assert str(error.value).startswith(says) and not held
    whole = {"a": np.ones(2), "b": np.ones(1)}
    restore(learner, whole, "file")
    assert [whole] == held


def test_the_moving_average_follows_fast_at_first() -> None:
    """A tenth is kept after the first step; the decay that was asked for is the most."""
    assert [0.1, 0.5, 0.9, 0.0] == [moving_average_decay(*of) for of in ((0.9, 0), (0.9, 8), (0.9, 1000), (0.0, 5))]
