"""Attempt of a training, from the newest checkpoint or from scratch, to the last step or a stop request."""

import json
import platform
import time
from contextlib import ExitStack
from typing import Any

import numpy as np

from dlami.heartbeat import Phase, beat
from trainer.common.checkpoints import checkpoint, checkpoint_replica
from trainer.common.checkpoints.background_save import Saver, last_good
from trainer.common.checkpoints.checkpoint_replica import Newest
from trainer.common.files.errors import CommonError
from trainer.common.files.plural import counted
from trainer.common.ranks.gc_freeze import settle
from trainer.common.ranks.precision import DYNAMIC
from trainer.common.ranks.progress import ProgressReporter
from trainer.common.ranks.stopping import Stop, StopRequest
from trainer.resnet50 import cache
from trainer.resnet50.engine import Engine, Learner, Requests, StepResult
from trainer.resnet50.plan import RunPlan
from trainer.resnet50.resume import RunPosition, continued
from trainer.resnet50.shards import Shards

MOST_SKIPS = 40  # overflows in a row; by then the dynamic scale is at its minimum
TRAIN_HEADER = "  Step Epoch   Speed   Loss FinLoss      LR"
EVAL_HEADER = "  step  epoch    top1    top5    loss  checkpoint_time(UTC)"


class TrainLoop:
    """Part of a training attempt that runs on one rank."""

    def __init__(self, plan: RunPlan, engine: Engine) -> None:
        self.engine, self.ranks, self.gather = engine, engine.ranks, engine.gather
        self.stop = StopRequest()
        self.stop.listen()
        self.folder = checkpoint.CheckpointFolder(plan.config.job_dir / "checkpoints") if plan.config.job_dir else None
        self.progress = ProgressReporter(self.ranks, self.gather)
        self.newest = self._find(plan)
        position = RunPosition.of(self.newest.facts) if self.newest.facts else RunPosition()
        # All ranks resume from one position.
        told = self.gather(json.dumps(position.numbers()).encode())
        self.plan = continued(plan, RunPosition(*json.loads(told[self.newest.rank])))
        self.config = self.plan.config
        self.step = self.plan.first_step  # steps done
        self.learner = engine.learner(self.config, plan.data.classes)
        self.shards = Shards(self.config, plan.data, self.ranks, self.gather)
        self.source = engine.source(self.config, plan.data.classes, self.ranks, self.shards)
        self.saver = None if self.config.eval_only else self._saver()
        self._stopping = Stop.NO
        self._is_due = False  # a checkpoint by time, as decided by all ranks' requests
        self._skips = 0  # in a row

    def _saver(self) -> Saver | None:
        config = self.config
        return checkpoint_replica.make_saver(
            self.newest,
            self.folder,
            self.progress.hosts,
            self.ranks.rank,
            keep=config.keep,
            seconds=config.checkpoint_seconds,
            cores=self.ranks.threads,
            rate="--lr",
        )

    def go(self) -> None:
        """Train, evaluate and print. A stop request ends it early, with a checkpoint.

        Raises:
            Terminated: SIGTERM ended it, with a checkpoint.
        """
        self.progress.say(header(self.engine))
        self._restore()
        with ExitStack() as stack:
            if not self.config.eval_only:
                stack.enter_context(self.progress.recorded(self.config.job_dir, self.step))
            if self.newest.is_copy:
                self.progress.say(checkpoint_replica.source_sentence(self.newest, self.progress.hosts))
                self._save_last()
            if self.config.cache:
                self.shards.copy(self.config.cache)
            if self.config.eval_only:
                self._evaluate()
            else:
                self._train()
            if self.config.cache == cache.MEMORY:
                self.shards.remove_copies()
        if not self.config.eval_only and self.step >= self.plan.steps:
            checkpoint_replica.remove_copies(self.progress.hosts, self.ranks.rank, self.gather)
        if self._stopping is Stop.TERMINATED and self.step < self.plan.steps:
            raise self.stop.termination(self.gather, self.progress.hosts, self._saved_text())

    def _find(self, plan: RunPlan) -> Newest:
        """Find the checkpoint to resume from, on any rank.

        For an evaluation alone, rank 0 selects one in the shared folder.
        """
        is_first, config = self.ranks.is_first, plan.config
        if is_first and self.folder and not config.eval_only:
            self.folder.remove_partial()
        if not config.eval_only:
            return checkpoint_replica.find_newest(
                self.folder, self.progress.hosts, self.ranks.rank, self.gather, begins_anew=plan.begins_anew
            )
        if not is_first or self.folder is None:
            return Newest()
        best = self.folder.best() if config.eval_best else None
        return Newest(0, self.folder, self.folder.facts(best.step) if best else self.folder.newest_or_refuse())

    def _restore(self) -> None:
        newest = self.newest
        if newest.facts and newest.folder:
            file = newest.folder.arrays_file(newest.facts.step)
            restore(self.learner, newest.folder.load(newest.facts), str(file))
        elif not self.step and self.engine.begin and self.config.weights_file and self.ranks.is_first:
            self.progress.say(self.engine.begin(self.config, self.learner))
        self.learner.broadcast(newest.rank)
        if self.step:
            self.progress.say(f"Resuming after step {self.step - 1}")
            if self.plan.change:
                self.progress.say(self.plan.change)
        elif self.config.eval_only and not self.config.weights_file:
            raise CommonError(f"{self.config.job_dir}: no valid checkpoint to evaluate; train first")

    def _train(self) -> None:
        began = time.monotonic()
        self.progress.say(TRAIN_HEADER)
        batches, pending = self.source.training(self.plan, self.step), None
        clock = self.progress.clock
        clock.restart()
        beat.enter(Phase.COMPILE)
        if self.saver:
            self.saver.pace.begin()
        while self.step < self.plan.steps and self._stopping is Stop.NO:
            with clock.waiting():
                batch = next(batches)
            current = self.learner.train(batch, self.plan.rate(self.step), self._requests(), self.step)
            # Read one step late, so that the device computes the next step while the host handles the last one.
            if pending is not None:
                self._look(pending)
            pending = current
            if self._shows(self.step):
                self._show(self.step, self._look(current))
                pending = None
            self.step += 1
            beat.stepped(self.step)
            settle()
            if self._is_boundary() or self._is_due:
                if pending is not None:
                    self._look(pending)
                    pending = None
                self._at_boundary()
        if pending is not None:
            self._look(pending)
        self._save_last()
        beat.enter(Phase.SAVE)  # no step follows; an evaluation returns to this phase
        if self.step < self.plan.steps:
            if self._stopping is Stop.ASKED:
                self.progress.say(f"Asked to stop: {self._saved_text()}")
            return
        self.progress.say(f"Finished in {time.monotonic() - began}")
        if self.config.eval or self.config.eval_every:
            self._evaluate()

    def _requests(self) -> Requests:
        """Return this rank's requests to all ranks: a stop and a checkpoint by time.

        Raises TrainerError if the last checkpoint could not be written.
        """
        if self.saver:
            self.saver.look()
        return *self.stop.numbers, float(self.saver is not None and self.saver.is_due)

    def _saved_text(self) -> str:
        if self.folder is None:
            return f"ended after step {self.step - 1}; nothing is saved without --job-dir"
        return f"saved after step {self.step - 1}; the same command resumes from there"

    def _look(self, pending: Any) -> StepResult:
        """Return a step's result and count it. Records a stop request, which all ranks receive at the same step.

        Raises:
            CommonError: the loss is not finite, or too many steps in a row overflowed. All ranks raise it, and the
                message names the ranks whose own loss is not finite.
        """
        result = self.learner.result(pending)
        self.progress.clock.stepped(self.plan.global_batch, result.compute_s, result.reduce_s)
        if self._stopping is Stop.NO:
            self._stopping = Stop.of(result.asked, result.terminated)
        self._is_due = self._is_due or result.due > 0
        self._skips = self._skips + 1 if result.skipped else 0
        if np.isfinite(result.loss) and self._skips < MOST_SKIPS:
            return result
        if result.skipped and self._skips < MOST_SKIPS:
            return result
        # All ranks come here at the same step, because the loss and the skips are the same on all.
        losses = [json.loads(loss) for loss in self.gather(json.dumps(result.own_loss).encode())]
        bad = [rank for rank, loss in enumerate(losses) if not np.isfinite(loss)]
        hosts = self.progress.hosts
        where = "rank " + ", ".join(f"{rank} ({hosts[rank]})" for rank in bad[:8]) if bad else "no rank alone"
        what = (
            f"{counted(self._skips, 'step')} in a row overflowed"
            if self._skips >= MOST_SKIPS
            else f"the loss is {result.loss}"
        )
        is_fixed = self._skips >= MOST_SKIPS and self.config.loss_scale != DYNAMIC
        remedy = (
            f"lower --loss-scale {self.config.loss_scale} or leave it out" if is_fixed else "lower --lr, warm up longer"
        )
        raise CommonError(
            f"{what} at about step {self.step}, first on {where}: {remedy}, or look at "
            f"the data; {last_good(self.saver.written if self.saver else None)}"
        )

    def _shows(self, step: int) -> bool:
        return step % self.config.display_every == 0 or step == 1 or step == self.plan.steps - 1

    def _show(self, step: int, result: StepResult) -> None:
        look = self.progress.look()
        if not self.ranks.is_first:
            return
        lr, epoch, total = self.plan.rate(step), self.plan.epoch(step), result.loss + self.learner.penalty()
        line = train_line(step, epoch, look.interval.images_per_s, result.loss, total, lr)
        values = {"epoch": epoch, "loss": result.loss, "total_loss": total, "lr": lr, "top1": 100 * result.accuracy}
        if self.learner.scale is not None:
            values["loss_scale"] = self.learner.scale
        self.progress.tell_step(step, line, values, look, self.config.batch_size)

    def _is_boundary(self) -> bool:
        if self.step == self.plan.steps:
            return False
        return self.step % self.config.checkpoint_every == 0 or self.plan.evaluates_after(self.step)

    def _at_boundary(self) -> None:
        """Save a checkpoint, by steps or by time, and evaluate if it is due. This time does not count as training."""
        with self.progress.clock.paused():
            self._save()
            if self.plan.evaluates_after(self.step):
                self._evaluate()
                self.progress.say(TRAIN_HEADER)

    @beat.during(Phase.SAVE)
    def _save(self) -> None:
        self._is_due = False
        if self.saver is None:
            return
        more = {"model": self.config.model, "classes": self.plan.data.classes}
        self.saver.save(self.step, self.learner.arrays, {**more, **RunPosition.after(self.plan, self.step).record()})

    @beat.during(Phase.SAVE)
    def _save_last(self) -> None:
        """Save a checkpoint and return once it is on disk."""
        if self.saver:
            with self.saver.finishing():
                self._save()

    @beat.during(Phase.EVALUATE)
    def _evaluate(self) -> None:
        """Evaluate every validation image once over all ranks. Rank 0 prints and records the means over all images."""
        data, reader = self.source.validation()
        sums = [*self.learner.scores(data).tolist(), reader.left_out]
        # Sums, so that every image counts once, however the images are divided among the ranks.
        told = [json.loads(own) for own in self.gather(json.dumps(sums).encode())]
        count, top1, top5, loss, left_out = map(sum, zip(*told, strict=True))
        if count + left_out != len(reader) or not count:
            raise CommonError(
                f"{int(count)} of {counted(len(reader), 'validation image')} were counted, {int(left_out)} are "
                "damaged: prepare the shards again"
            )
        if self.ranks.is_first:
            scores = {
                "epoch": self.plan.epoch(self.step),
                "top1": 100 * top1 / count,
                "top5": 100 * top5 / count,
                "loss": loss / count,
            }
            if self.saver:
                self.saver.wait()
            saved = self.saver.written if self.saver else self.newest.facts
            line = eval_line(self.step, **scores, checkpoint_time=saved.time if saved else "")
            self.progress.tell_evaluation(self.step, f"{EVAL_HEADER}\n{line}", {**scores, "images": int(count)})
            if self.saver and saved:
                self.saver.folder.mark_best(saved.step, scores["top1"])


def restore(learner: Learner, arrays: dict[str, np.ndarray], source: str) -> None:
    """Set every variable of the learner.

    Raises:
        CommonError: the checkpoint belongs to another model or number of classes.
    """
    shapes = learner.shapes()
    wrong = sorted(
        {name for name, shape in shapes.items() if name not in arrays or shape != arrays[name].shape}
        | (set(arrays) - set(shapes))
    )
    if wrong:
        raise CommonError(
            f"{source} is of another model ({wrong[0]} and {len(wrong) - 1} more differ): give the "
            "--model, --classes, --precision, --ema-decay and --variant it was trained with, or another --job-dir"
        )
    learner.load(arrays)


def header(engine: Engine) -> str:
    """Return the lines with the versions and the number of ranks."""
    ranks = engine.ranks
    return (
        f"PY{platform.python_version()} {engine.version} threads per rank: {ranks.threads}\n"
        f"{engine.exchange} size: {ranks.size}"
    )


def train_line(step: int, epoch: float, images_per_s: float, loss: float, total_loss: float, lr: float) -> str:
    """Format a line of the reference's table: speed over all ranks, loss without and with the L2 term."""
    return f"{step:6} {epoch:5.1f} {images_per_s:7.1f} {loss:6.3f} {total_loss:7.3f} {lr:7.5f}"


def eval_line(step: int, epoch: float, top1: float, top5: float, loss: float, checkpoint_time: str) -> str:
    """Format the reference's line per evaluated checkpoint: top-1 and top-5 in percent, the time ISO 8601 in UTC."""
    when = checkpoint_time.replace("T", " ").removesuffix("Z")
    return f"{step:6} {epoch:6.1f} {top1:7.3f} {top5:7.3f} {loss:7.3f}  {when}"
