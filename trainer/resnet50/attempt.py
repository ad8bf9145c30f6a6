"""One attempt at a training: from the newest checkpoint, or from nothing, to the last step or a request to stop."""

import platform
import time
from contextlib import ExitStack

import horovod.tensorflow as hvd
import numpy as np
import tensorflow as tf

from trainer import checkpoint
from trainer.errors import CommonError
from trainer.facts import Facts
from trainer.progress import Progress
from trainer.ranks import Gather, Ranks
from trainer.resnet50 import cache, images
from trainer.resnet50.plan import Plan
from trainer.resnet50.resume import Position, continued
from trainer.resnet50.source import Source
from trainer.resnet50.step import Learner, StepResult
from trainer.stopping import Stop, StopRequest

MOST_SKIPS = 40  # overflows in a row; the dynamic scale is then at its least
TRAIN_HEADER = "  Step Epoch   Speed   Loss FinLoss      LR"
EVAL_HEADER = "  step  epoch    top1    top5    loss  checkpoint_time(UTC)"


class Attempt:
    """What one rank does in it."""

    def __init__(self, plan: Plan, ranks: Ranks) -> None:
        self.ranks = ranks
        self.stop = StopRequest()
        self.stop.listen()
        self.folder = checkpoint.Folder(plan.config.job_dir / "checkpoints") if plan.config.job_dir else None
        self.saved = self._found(plan)  # on rank 0: what the last checkpoint on disk is
        position = Position.of(self.saved) if self.saved else Position()
        # Horovod: all ranks at one position.
        numbers = hvd.broadcast(tf.constant(position.numbers(), tf.int64), root_rank=0, name="position").numpy()
        self.plan = continued(plan, Position(*(int(n) for n in numbers)))
        self.config = self.plan.config
        self.step = self.plan.first_step  # steps done
        self.learner = Learner(self.config, plan.data.classes)
        self.source = Source(self.config, plan.data, ranks)
        self.gather = Gather()
        self.progress = Progress(ranks, self.gather)
        self._stopping = Stop.NO
        self._skips = 0  # in a row

    def go(self) -> None:
        """Trains, evaluates, prints. A request to stop ends it early, with a checkpoint.

        Raises:
            Terminated: SIGTERM ended it, with a checkpoint.
        """
        self.progress.say(header(tf.__version__, self.ranks))
        self._restore()
        with ExitStack() as stack:
            if not self.config.eval_only:
                stack.enter_context(self.progress.recorded(self.config.job_dir, self.step))
            if self.config.cache:
                self.source.copy_shards(self.config.cache)
            if self.config.eval_only:
                self._evaluate()
            else:
                self._train()
            if self.config.cache == cache.MEMORY:
                self.source.remove_copies()
        if self._stopping is Stop.TERMINATED and self.step < self.plan.steps:
            raise self.stop.termination(self.gather, self.progress.hosts, self._saved_text())

    def _found(self, plan: Plan) -> Facts | None:
        if not self.ranks.is_first or self.folder is None:
            return None
        if not plan.config.eval_only:
            self.folder.remove_partial()
        best = self.folder.best() if plan.config.eval_best else None
        return self.folder.facts(best.step) if best else self.folder.newest()

    def _restore(self) -> None:
        if self.saved and self.folder:
            restore(self.learner, self.folder.load(self.saved), str(self.folder.arrays_file(self.saved.step)))
        self.learner.broadcast()
        if self.step:
            self.progress.say(f"Resuming after step {self.step - 1}")
        elif self.config.eval_only:
            raise CommonError(f"{self.config.job_dir}: no valid checkpoint to evaluate; train first")

    def _train(self) -> None:
        began = time.monotonic()
        self.progress.say(TRAIN_HEADER)
        batches, pending = self.source.training(self.plan, self.step), None
        clock = self.progress.clock
        clock.restart()
        while self.step < self.plan.steps and self._stopping is Stop.NO:
            with clock.waiting(), images.unwrapped():
                batch = next(batches)
            current = self.learner.train(batch, self.plan.rate(self.step), self.stop.numbers, self.step)
            # Read one step late, so that the device has the next step while the host looks at the last one.
            if pending is not None:
                self._look(pending)
            pending = current
            if self._shows(self.step):
                self._show(self.step, self._look(current))
                pending = None
            self.step += 1
            if self._is_boundary():
                if pending is not None:
                    self._look(pending)
                    pending = None
                self._at_boundary()
        if pending is not None:
            self._look(pending)
        self._save()
        if self.step < self.plan.steps:
            if self._stopping is Stop.ASKED:
                self.progress.say(f"Asked to stop: {self._saved_text()}")
            return
        self.progress.say(f"Finished in {time.monotonic() - began}")
        if self.config.eval or self.config.eval_every:
            self._evaluate()

    def _saved_text(self) -> str:
        if self.folder is None:
            return f"ended after step {self.step - 1}; nothing is saved without --job-dir"
        return f"saved after step {self.step - 1}; the same command resumes from there"

    def _look(self, scalars: tf.Tensor) -> StepResult:
        """What a step found, counted; notes a request to stop, of which all ranks learn at the same step.

        Raises:
            CommonError: on all ranks alike, naming the ranks whose loss is no number.
        """
        result = self.learner.result(scalars)
        self.progress.clock.stepped(self.plan.global_batch, result.compute_s, result.reduce_s)
        if self._stopping is Stop.NO:
            self._stopping = Stop.of(result.asked, result.terminated)
        self._skips = self._skips + 1 if result.skipped else 0
        if np.isfinite(result.loss) and self._skips < MOST_SKIPS:
            return result
        if result.skipped and self._skips < MOST_SKIPS:
            return result
        # Horovod: all ranks come here at the same step, because the loss and the skips are the same on all.
        losses = hvd.allgather(tf.constant([result.own_loss]), name="losses").numpy()
        bad = [rank for rank, loss in enumerate(losses) if not np.isfinite(loss)]
        hosts = self.progress.hosts
        where = "rank " + ", ".join(f"{rank} ({hosts[rank]})" for rank in bad[:8]) if bad else "no rank alone"
        what = f"{self._skips} steps in a row overflowed" if self._skips >= MOST_SKIPS else f"the loss is {result.loss}"
        raise CommonError(
            f"{what} at about step {self.step}, first on {where}: lower --lr, warm up longer, or look at "
            "the data; the last checkpoint is from before"
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
        if self.learner.loss_scale:
            values["loss_scale"] = float(self.learner.loss_scale.value.numpy())
        self.progress.tell_step(step, line, values, look, self.config.batch_size)

    def _is_boundary(self) -> bool:
        if self.step == self.plan.steps:
            return False
        period = self.plan.eval_every_steps
        return self.step % self.config.checkpoint_every == 0 or bool(period and self.step % period == 0)

    def _at_boundary(self) -> None:
        """The periodic checkpoint and evaluation, whose time is not counted as training."""
        with self.progress.clock.paused():
            self._save()
            if self.plan.eval_every_steps and self.step % self.plan.eval_every_steps == 0:
                self._evaluate()
                self.progress.say(TRAIN_HEADER)

    def _save(self) -> None:
        if not self.ranks.is_first or self.folder is None or (self.saved and self.saved.step == self.step):
            return
        arrays = {name: variable.numpy() for name, variable in self.learner.state().items()}
        for name, array in arrays.items():
            if not np.isfinite(array).all():
                raise CommonError(
                    f"{name} holds values that are no numbers after step {self.step - 1}: lower --lr or "
                    "warm up longer; the last checkpoint is from before"
                )
        more = {"model": self.config.model, "classes": self.plan.data.classes}
        self.saved = self.folder.save(self.step, arrays, {**more, **Position.after(self.plan, self.step).record()})
        self.folder.keep_newest(self.config.keep)

    def _evaluate(self) -> None:
        """Every validation image once over all ranks; rank 0 prints and records the means over all images."""
        data, reader = self.source.validation()
        sums = tf.zeros([4], tf.float64)
        with images.unwrapped(), self.learner.smoothed():
            for batch, labels in data:
                sums += self.learner.evaluate(batch, labels)
        # Horovod: sums, so that every image counts once however the ranks share them.
        everyone = hvd.allreduce(tf.concat([sums, [float(reader.left_out)]], 0), op=hvd.Sum, name="evaluation")
        count, top1, top5, loss, left_out = everyone.numpy()
        if count + left_out != len(reader) or not count:
            raise CommonError(
                f"{int(count)} of {len(reader)} validation images were counted, {int(left_out)} are "
                "damaged: prepare the shards again"
            )
        if self.ranks.is_first:
            scores = {
                "epoch": self.plan.epoch(self.step),
                "top1": 100 * top1 / count,
                "top5": 100 * top5 / count,
                "loss": loss / count,
            }
            line = eval_line(self.step, **scores, checkpoint_time=self.saved.time if self.saved else "")
            self.progress.tell_evaluation(self.step, f"{EVAL_HEADER}\n{line}", {**scores, "images": int(count)})
            if self.folder and self.saved and not self.config.eval_only:
                self.folder.mark_best(self.saved.step, scores["top1"])


def restore(learner: Learner, arrays: dict[str, np.ndarray], source: str) -> None:
    """Sets every variable of the learner.

    Raises:
        CommonError: the checkpoint belongs to another model or number of classes.
    """
    state = learner.state()
    wrong = sorted(
        {name for name, v in state.items() if name not in arrays or tuple(v.shape) != arrays[name].shape}
        | (set(arrays) - set(state))
    )
    if wrong:
        raise CommonError(
            f"{source} is of another model ({wrong[0]} and {len(wrong) - 1} more differ): give the "
            "--model, --classes, --precision and --ema-decay it was trained with, or another --job-dir"
        )
    for name, variable in state.items():
        variable.assign(arrays[name])


def header(tensorflow: str, ranks: Ranks) -> str:
    """Versions and the number of ranks."""
    return f"PY{platform.python_version()} TF{tensorflow} threads per rank: {ranks.threads}\nHorovod size: {ranks.size}"


def train_line(step: int, epoch: float, images_per_s: float, loss: float, total_loss: float, lr: float) -> str:
    """One line of the reference's table: speed over all ranks, loss without and with the L2 term."""
    return f"{step:6} {epoch:5.1f} {images_per_s:7.1f} {loss:6.3f} {total_loss:7.3f} {lr:7.5f}"


def eval_line(step: int, epoch: float, top1: float, top5: float, loss: float, checkpoint_time: str) -> str:
    """The reference's line per evaluated checkpoint; top-1 and top-5 in percent, the time ISO 8601 in UTC."""
    when = checkpoint_time.replace("T", " ").removesuffix("Z")
    return f"{step:6} {epoch:6.1f} {top1:7.3f} {top5:7.3f} {loss:7.3f}  {when}"
