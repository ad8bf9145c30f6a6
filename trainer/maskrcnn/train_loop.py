"""Attempt of a training in tensorpack's loop, from the newest checkpoint to the last step or a stop request."""

import json
import math
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import astuple
from pathlib import Path

import numpy as np
import tensorflow as tf

from dlami.heartbeat import Phase, beat
from trainer.common.checkpoints import checkpoint, checkpoint_replica
from trainer.common.checkpoints.background_save import Saver, last_good
from trainer.common.checkpoints.checkpoint_replica import Newest
from trainer.common.checkpoints.facts import Facts
from trainer.common.checkpoints.write_lease import check_lease
from trainer.common.files.errors import CommonError, TrainerError
from trainer.common.files.plural import counted
from trainer.common.ranks.gc_freeze import settle
from trainer.common.ranks.horovod_rank import Gather, Ranks
from trainer.common.ranks.progress import ProgressReporter
from trainer.common.ranks.stopping import Stop, StopRequest
from trainer.maskrcnn import keys, weights
from trainer.maskrcnn.detector import Detector
from trainer.maskrcnn.evaluation import Evaluation
from trainer.maskrcnn.layers import tf1
from trainer.maskrcnn.loader import batches
from trainer.maskrcnn.plan import DetectorPlan, continued, text
from trainer.maskrcnn.resume import CONFIG_FILE, DetectorPosition
from trainer.maskrcnn.tensorpack_trainer import Callback, Fed, FedInput, HorovodSteps, MaskRcnn, StepMeans
from trainer.maskrcnn.visualize import write_gallery

RESULTS_FILE = "detections.json"


class DetectorTrainLoop(Callback):
    """Part of a training attempt that runs on one rank.

    As a tensorpack callback it runs after every step on every rank.
    """

    _chief_only = False

    def __init__(self, plan: DetectorPlan, ranks: Ranks) -> None:
        self.plan, self.config, self.ranks = plan, plan.config, ranks
        self.stop = StopRequest()
        self.folder = checkpoint.CheckpointFolder(plan.job_dir / "checkpoints") if plan.job_dir else None
        self.saver: Saver | None = None
        self.newest = Newest()  # the checkpoint to resume from
        self.step = 0  # steps done
        self.scores: dict[str, float] = {}  # of the last evaluation
        self.failure: TrainerError | None = None
        self.gather = Gather(ranks.threads)
        self.progress = ProgressReporter(ranks, self.gather)
        self._stopping = Stop.NO
        self._evaluation: Evaluation | None = None

    def go(self) -> dict[str, float]:
        """Train, evaluate and print. Returns the scores of the last evaluation.

        Raises:
            Terminated: SIGTERM ended it, with a checkpoint.
        """
        self.stop.listen()
        began = time.monotonic()
        with tf.Graph().as_default(), ExitStack() as stack:
            tf1.set_random_seed(self.config.train.seed)
            self._read_checkpoint()
            # A record's step counts steps done, so that of the checkpoint's own step stays.
            stack.enter_context(self.progress.recorded(self.plan.job_dir, self.step + 1))
            self._write(CONFIG_FILE, json.dumps(keys.plain(self.config), indent=1))
            self._train()
            if self._stopping is Stop.NO:
                checkpoint_replica.remove_copies(self.progress.hosts, self.ranks.rank, self.gather)
            if self._stopping is Stop.ASKED:
                self.progress.say(f"Asked to stop: {self._saved_text()}")
            elif self._stopping is Stop.NO:
                self.progress.say(f"Finished {counted(self.step, 'step')} in {time.monotonic() - began:.0f} s")
        if self._stopping is Stop.TERMINATED:
            raise self.stop.termination(self.gather, self.progress.hosts, self._saved_text())
        return self.scores

    def _train(self) -> None:
        model = MaskRcnn(self.config, self.ranks.size, "CPU" if self.ranks.gpu is None else "GPU")
        self.steps = HorovodSteps(model, self.ranks, self._set_variables, self.newest.rank, parts=self.plan.parts)
        self.steps.setup_graph(
            model.get_input_signature(), FedInput(self._feeds()), model.build_graph, model.get_optimizer
        )
        left = self.plan.steps - self.step
        if left > 0 or self.config.train.eval_at_end:
            self.steps.go([self], left)
        if self.failure:
            raise self.failure

    def _saved_text(self) -> str:
        if self.folder is None:
            return f"ended after step {self.step}; nothing is saved without --job-dir"
        return f"saved after step {self.step}; the same command continues from there"

    # Callbacks of tensorpack.

    def _before_train(self) -> None:
        self.progress.say(text(self.plan))
        if self.step:
            self.progress.say(f"Continuing after step {self.step}")
            if self.plan.change:
                self.progress.say(self.plan.change)
        self.progress.clock.restart()
        if self.newest.is_copy:
            self.progress.say(checkpoint_replica.source_sentence(self.newest, self.progress.hosts))
            self._save_last()
        if self.saver:
            self.saver.pace.begin()

    def _trigger_step(self) -> None:
        from tensorpack.train import StopTraining

        self.step += 1
        beat.stepped(self.step)
        settle()
        report = self.steps.report
        if self.saver:
            self.saver.look()
        self.progress.clock.stepped(self.plan.images_per_step, report.compute_s, report.reduce_s)
        if not math.isfinite(report.loss):
            self.failure = CommonError(_nan_message(self.step, report, self.saver.written if self.saver else None))
            raise StopTraining
        if self.step % self.config.train.log_period == 0 or self.step == self.plan.steps:
            self._log(report)
        with self.progress.clock.paused():
            if self._evaluation and report.count("evaluated", self.ranks.size) == self.ranks.size:
                self._finish_evaluation()
            self._stopping = Stop.of(report.values["asked"], report.values["terminated"])
            if self._stopping is not Stop.NO or self._reached_targets():
                self._save_last()
                raise StopTraining
            if report.values["due"]:
                self._save()
            self._at_boundary()

    def _after_train(self) -> None:
        is_done = self.step >= self.plan.steps or self._reached_targets()
        if self.failure or self._stopping is not Stop.NO or not is_done:
            return
        self._save_last()
        if self._evaluation and self._evaluation.is_running:
            self._finish_evaluation()
        if self.config.train.eval_at_end and self.scores.get("step") != self.step:
            self._start_evaluation()
            self._finish_evaluation()

    # Steps.

    def _feeds(self) -> Iterator[Fed]:
        source = batches(
            self.plan.pictures,
            self.config,
            rank=self.ranks.rank,
            ranks=self.ranks.size,
            first=self.plan.place(self.step),
            parts=self.plan.parts,
            origin_ranks=self.plan.origin_ranks,
        )
        shapes = set()
        while True:
            with self.progress.clock.waiting():
                batch = next(source)
            if batch[0].shape not in shapes:
                shapes.add(batch[0].shape)
                beat.enter(Phase.COMPILE)
            evaluated = self._evaluation is not None and self._evaluation.is_ready
            due = self.saver is not None and self.saver.is_due
            requests = np.array([*self.stop.numbers, evaluated, due], np.float32)
            yield (*batch, np.array(self.plan.rate(self.step), np.float32), requests)

    def _log(self, report: StepMeans) -> None:
        look = self.progress.look()
        lr = self.plan.rate(self.step - 1)
        parts = {k: v for k, v in report.values.items() if k not in StepMeans.REQUESTS}
        line = (
            f"step {self.step:6d}  loss {report.loss:7.4f}  lr {lr:.2e}  {look.interval.images_per_s:7.2f} images/s  "
            f"waiting {look.interval.input_wait:4.0%}  " + " ".join(f"{k} {v:.3f}" for k, v in parts.items())
        )
        values = {"loss": report.loss, **parts, "lr": lr}
        if report.loss_scale:
            values["loss_scale"] = report.loss_scale
        self.progress.tell_step(self.step, line, values, look, self.config.train.batch_size_per_gpu * self.plan.parts)

    def _at_boundary(self) -> None:
        train = self.config.train
        if self.step == self.plan.steps:
            return
        if self.plan.is_due(train.checkpoint_period, self.step):
            self._save()
        if self.plan.is_due(train.eval_period, self.step):
            if self._evaluation and self._evaluation.is_running:
                self._finish_evaluation()
            self._start_evaluation()
            if not train.async_eval:
                self._finish_evaluation()
                if self._reached_targets():
                    from tensorpack.train import StopTraining

                    self._save_last()
                    raise StopTraining

    # Evaluation.

    def _start_evaluation(self) -> None:
        if self._evaluation is None:
            detector = Detector(self.config, threads=self.ranks.threads, gpu=self.ranks.gpu)
            self._evaluation = Evaluation(detector, self.plan.validation, self.ranks, self.gather)
        self._evaluation.start(self.steps.values(), self.step)

    @beat.during(Phase.EVALUATE)
    def _finish_evaluation(self) -> None:
        assert self._evaluation is not None
        scores, entries = self._evaluation.finish()
        step = self._evaluation.step
        self.scores = {"step": step, **scores}
        line = f"step {step:6d}  evaluation: " + "  ".join(
            f"{kind} AP {scores[f'{kind}_ap']:.3f} AP50 {scores[f'{kind}_ap50']:.3f}"
            for kind in ("box", "mask")
            if f"{kind}_ap" in scores
        )
        self.progress.tell_evaluation(step, line, scores)
        self._write(RESULTS_FILE, json.dumps(entries))
        if self.ranks.is_first and self.plan.job_dir:
            least = self.config.test.result_score_thresh_vis
            write_gallery(self.plan.job_dir, self.plan.validation, entries, least)

    def _reached_targets(self) -> bool:
        test = self.config.test
        wanted = {k: v for k, v in (("box_ap", test.box_target), ("mask_ap", test.mask_target)) if v}
        return bool(wanted) and all(self.scores.get(k, 0) >= v for k, v in wanted.items())

    # The job's folder.

    def _write(self, name: str, content: str) -> None:
        """Write a file to the job's folder atomically, on rank 0 only."""
        if self.ranks.is_first and self.plan.job_dir:
            check_lease()
            checkpoint.write_atomically(self.plan.job_dir / name, content + "\n")

    def _read_checkpoint(self) -> None:
        """Find the newest valid checkpoint and send its position to all ranks."""
        self._restored: dict[str, np.ndarray] = {}
        position, hosts, rank = DetectorPosition(), self.progress.hosts, self.ranks.rank
        if self.ranks.is_first and self.folder:
            self.folder.remove_partial()
        self.newest = checkpoint_replica.find_newest(
            self.folder, hosts, rank, self.gather, begins_anew=self.plan.begins_anew
        )
        if self.newest.facts and self.newest.folder:
            position = DetectorPosition.of(self.newest.facts)
            self._restored = self.newest.folder.load(self.newest.facts)
        train = self.config.train
        self.saver = checkpoint_replica.make_saver(
            self.newest,
            self.folder,
            hosts,
            rank,
            keep=train.checkpoints_kept,
            seconds=train.checkpoint_seconds if train.checkpoint_seconds >= 0 else None,
            cores=self.ranks.threads,
            rate="TRAIN.BASE_LR",
        )
        # Horovod: all ranks start at the position of the rank that read the checkpoint.
        told = json.loads(self.gather(json.dumps(astuple(position)).encode())[self.newest.rank])
        self.plan = continued(self.plan, DetectorPosition(*told))
        self.step = self.plan.first_step

    def _set_variables(self, steps: HorovodSteps) -> None:
        """Set the variables on the rank that broadcasts them: from the checkpoint, else COCO or ImageNet weights."""
        if self.ranks.rank != self.newest.rank:
            return
        shapes = {n: tuple(v.shape.as_list()) for n, v in steps.variables.items()}
        of_model = {n: s for n, s in shapes.items() if weights.is_model_variable(n)}
        if self._restored:
            missing = sorted(set(shapes) - set(self._restored))
            if missing:
                raise TrainerError(
                    f"the checkpoint in {self.plan.job_dir} lacks {missing[0]}: it is of another "
                    "version; give another --job-dir"
                )
            steps.assign({n: self._restored[n] for n in shapes})
            steps.assign({"global_step": np.asarray(self.step, self._restored["global_step"].dtype)})
        elif self.plan.load:
            steps.assign(weights.model_weights(self.plan.load, of_model, self.config))
        elif self.config.backbone.weights:
            steps.assign(weights.backbone_weights(Path(self.config.backbone.weights), of_model, self.config))
        self._restored = {}

    @beat.during(Phase.SAVE)
    def _save(self) -> None:
        if self.saver:
            place = self.plan.place(self.step)
            ranks = {"ranks": self.plan.ranks, "origin_ranks": self.plan.origin_ranks}
            position = {"images_seen": self.plan.images(self.step), "epoch": place.epoch, "group": place.group}
            self.saver.save(self.step, self.steps.values, {**position, **ranks, "config": keys.plain(self.config)})

    @beat.during(Phase.SAVE)
    def _save_last(self) -> None:
        """Save a checkpoint and return once it is on disk."""
        if self.saver:
            with self.saver.finishing():
                self._save()


def _nan_message(step: int, report: StepMeans, written: Facts | None) -> str:
    bad = [name for name, value in report.values.items() if not math.isfinite(value)]
    return (
        f"the loss is not a number at step {step} ({', '.join(bad)}), on all ranks alike: lower TRAIN.BASE_LR, "
        f"warm up longer or set TRAIN.GRADIENT_CLIP; {last_good(written)}"
    )
