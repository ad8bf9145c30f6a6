"""The training loop."""

import dataclasses
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import horovod.tensorflow as hvd
import numpy as np
import tensorflow as tf

from trainer import checkpoint, stragglers
from trainer.errors import CommonError
from trainer.metrics import Writer
from trainer.ranks import Ranks
from trainer.records import Index
from trainer.resnet50 import cache, images, table
from trainer.resnet50.plan import Plan
from trainer.resnet50.reader import Reader
from trainer.resnet50.resume import Position, continued
from trainer.resnet50.step import Learner, StepResult
from trainer.stopping import StopRequest

MOST_SKIPS = 40  # overflows in a row; the dynamic scale is then at its least


class Run:
    """One attempt: from the newest checkpoint, or from nothing, to the last step or a request to stop."""

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
        self.hosts = stragglers.host_names()
        self.clock = stragglers.Clock()
        self.metrics: Writer | None = None
        self._stopping = False
        self._skips = 0  # in a row
        self._slow: list[int] = []  # ranks in the last interval
        self._indices = {"train": plan.data.train, "validation": plan.data.validation}

    def go(self) -> None:
        """Trains, evaluates, prints. A request to stop ends it early, with a checkpoint."""
        self._print(table.header(tf.__version__, self.ranks.size, self.ranks.threads))
        self._restore()
        with ExitStack() as stack:
            if self.ranks.is_first and self.config.job_dir and not self.config.eval_only:
                self.metrics = stack.enter_context(Writer(self.config.job_dir, self.step))
            if self.config.cache:
                self._fill_cache(self.config.cache)
            if self.config.eval_only:
                self._evaluate()
            else:
                self._train()
            if self.config.cache == cache.MEMORY:
                self._drop_cache()

    def _found(self, plan: Plan) -> checkpoint.Facts | None:
        if not self.ranks.is_first or self.folder is None:
            return None
        if not plan.config.eval_only:
            self.folder.remove_partial()
        best = self.folder.best() if plan.config.eval_best else None
        return self.folder.facts(best.step) if best else self.folder.newest()

    def _restore(self) -> None:
        if self.saved and self.folder:
            restore(self.learner, self.folder.load(self.saved), self.folder.arrays_file(self.saved.step))
        self.learner.broadcast()
        if self.step:
            self._print(f"Resuming after step {self.step - 1}")
        elif self.config.eval_only:
            raise CommonError(f"{self.config.job_dir}: no valid checkpoint to evaluate; train first")

    def _fill_cache(self, where: str) -> None:
        """Points the indices at copies that one rank per host makes."""
        for split, index in self._indices.items():
            if index is None:
                continue
            folder = cache.place(where, index.paths)
            if self.ranks.local_rank == 0:
                cache.fill(folder, index.paths)
            paths = tuple(folder / path.name for path in index.paths)
            self._indices[split] = dataclasses.replace(index, paths=paths)
        # Horovod: the copies are whole before any rank reads them.
        hvd.allreduce(tf.constant(0), name="cached")

    def _drop_cache(self) -> None:
        # Horovod: nobody reads any more.
        hvd.allreduce(tf.constant(0), name="read")
        for index in self._indices.values():
            if index is not None and self.ranks.local_rank == 0:
                cache.remove(index.paths[0].parent)

    def _share(self, batch: int) -> images.Share:
        return images.Share(
            rank=self.ranks.rank,
            ranks=self.ranks.size,
            batch=batch,
            size=self.config.image_size,
            threads=self.ranks.threads,
        )

    def _reader(self, index: Index) -> Reader:
        return Reader(index, skip_damaged=self.config.bad_data == "skip")

    def _batches(self) -> Iterator[images.Batch]:
        config, classes, index = self.config, self.plan.data.classes, self._indices["train"]
        if index is None:
            return images.synthetic(
                batch=config.batch_size, size=config.image_size, classes=classes, seed=config.seed, rank=self.ranks.rank
            )
        data = images.training(
            self._reader(index),
            self._share(config.batch_size),
            classes=classes,
            steps=range(self.step, self.plan.steps),
            first_image=self.plan.images(self.step),
            crop_area=config.crop_area,
            seed=config.seed,
        )
        return iter(images.on_device(data))

    def _train(self) -> None:
        began = time.monotonic()
        self._print(table.TRAIN_HEADER)
        batches, pending = self._batches(), None
        self.clock = stragglers.Clock()
        while self.step < self.plan.steps and not self._stopping:
            with self.clock.waiting(), images.unwrapped():
                batch = next(batches)
            current = self.learner.train(batch, self.plan.rate(self.step), self.stop.requested, self.step)
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
            self._print(f"Asked to stop: saved after step {self.step - 1}; the same command resumes from there")
            return
        self._print(f"Finished in {time.monotonic() - began}")
        if self.config.eval or self.config.eval_every:
            self._evaluate()

    def _look(self, scalars: tf.Tensor) -> StepResult:
        """What a step found, counted; notes a request to stop, of which all ranks learn at the same step.

        Raises:
            CommonError: on all ranks alike, naming the ranks whose loss is no number.
        """
        result = self.learner.result(scalars)
        self.clock.stepped(self.plan.global_batch, result)
        self._stopping = self._stopping or result.stops > 0
        self._skips = self._skips + 1 if result.skipped else 0
        if np.isfinite(result.loss) and self._skips < MOST_SKIPS:
            return result
        if result.skipped and self._skips < MOST_SKIPS:
            return result
        # Horovod: all ranks come here at the same step, because the loss and the skips are the same on all.
        losses = hvd.allgather(tf.constant([result.own_loss]), name="losses").numpy()
        bad = [rank for rank, loss in enumerate(losses) if not np.isfinite(loss)]
        where = "rank " + ", ".join(f"{rank} ({self.hosts[rank]})" for rank in bad[:8]) if bad else "no rank alone"
        what = f"{self._skips} steps in a row overflowed" if self._skips >= MOST_SKIPS else f"the loss is {result.loss}"
        raise CommonError(
            f"{what} at about step {self.step}, first on {where}: lower --lr, warm up longer, or look at "
            "the data; the last checkpoint is from before"
        )

    def _shows(self, step: int) -> bool:
        return step % self.config.display_every == 0 or step == 1 or step == self.plan.steps - 1

    def _show(self, step: int, result: StepResult) -> None:
        interval = self.clock.read()
        everyone = stragglers.gather(interval.times)
        if not self.ranks.is_first:
            return
        lr, epoch, total = self.plan.rate(step), self.plan.epoch(step), result.loss + self.learner.penalty()
        self._print(table.train_line(step, epoch, interval.images_per_s, result.loss, total, lr))
        slow = stragglers.slow_ranks(everyone) if step > 1 else []
        for rank in (r for r in slow if r in self._slow):  # twice in a row is no accident
            self._print(stragglers.straggler_line(rank, self.hosts[rank], everyone))
        self._slow = slow
        if self.metrics:
            scale = {"loss_scale": float(self.learner.loss_scale.value.numpy())} if self.learner.loss_scale else {}
            self.metrics.write(
                "train",
                step,
                {
                    "epoch": epoch,
                    "images_per_s": interval.images_per_s,
                    "loss": result.loss,
                    "total_loss": total,
                    "lr": lr,
                    "top1": 100 * result.accuracy,
                    "ranks": self.ranks.size,
                    "input_wait": interval.input_wait,
                    **scale,
                    **stragglers.mean_values(everyone),
                    **stragglers.rank_values(everyone, self.config.batch_size),
                },
            )

    def _is_boundary(self) -> bool:
        if self.step == self.plan.steps:
            return False
        period = self.plan.eval_every_steps
        return self.step % self.config.checkpoint_every == 0 or bool(period and self.step % period == 0)

    def _at_boundary(self) -> None:
        """The periodic checkpoint and evaluation, whose time is not counted as training."""
        with self.clock.paused():
            self._save()
            if self.plan.eval_every_steps and self.step % self.plan.eval_every_steps == 0:
                self._evaluate()
                self._print(table.TRAIN_HEADER)

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
        index = self._indices["validation"]
        assert index is not None
        reader, classes = self._reader(index), self.plan.data.classes
        data = images.evaluation(
            reader, self._share(self.config.eval_batch_size), crop=self.config.eval_crop, classes=classes
        )
        sums = tf.zeros([4], tf.float64)
        with images.unwrapped(), self.learner.smoothed():
            for batch, labels in images.on_device(data):
                sums += self.learner.evaluate(batch, labels)
        # Horovod: sums, so that every image counts once however the ranks share them.
        everyone = hvd.allreduce(tf.concat([sums, [float(reader.left_out)]], 0), op=hvd.Sum, name="evaluation")
        count, top1, top5, loss, left_out = everyone.numpy()
        if count + left_out != len(index) or not count:
            raise CommonError(
                f"{int(count)} of {len(index)} validation images were counted, {int(left_out)} are "
                "damaged: prepare the shards again"
            )
        if self.ranks.is_first:
            scores = {
                "epoch": self.plan.epoch(self.step),
                "top1": 100 * top1 / count,
                "top5": 100 * top5 / count,
                "loss": loss / count,
            }
            self._print(table.EVAL_HEADER)
            self._print(table.eval_line(self.step, **scores, checkpoint_time=self.saved.time if self.saved else ""))
            if self.metrics:
                self.metrics.write("eval", self.step, {**scores, "images": int(count)})
            if self.folder and self.saved and not self.config.eval_only:
                self.folder.mark_best(self.saved.step, scores["top1"])

    def _print(self, text: str) -> None:
        if self.ranks.is_first:
            print(text, flush=True)


def restore(learner: Learner, arrays: dict[str, np.ndarray], path: Path) -> None:
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
            f"{path} is of another model ({wrong[0]} and {len(wrong) - 1} more differ): give the "
            "--model, --classes, --precision and --ema-decay it was trained with, or another --job-dir"
        )
    for name, variable in state.items():
        variable.assign(arrays[name])
