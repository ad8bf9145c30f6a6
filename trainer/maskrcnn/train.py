"""The training: tensorpack's loop and one attempt, from the newest checkpoint to the end or to a request to stop."""

import json
import math
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import tensorflow as tf

from trainer import checkpoint
from trainer.errors import TrainerError
from trainer.maskrcnn import preflight, weights
from trainer.maskrcnn.detector import Detector
from trainer.maskrcnn.evaluation import Evaluation
from trainer.maskrcnn.gather import Gather
from trainer.maskrcnn.layers import tf1
from trainer.maskrcnn.loader import batches
from trainer.maskrcnn.preflight import Run
from trainer.maskrcnn.tower import Callback, Fed, FedInput, HorovodSteps, MaskRcnn, Report
from trainer.metrics import Writer
from trainer.ranks import Ranks
from trainer.stopping import StopRequest

RESULTS_FILE = "detections.json"


class Attempt(Callback):
    """One attempt at a run; as a tensorpack callback it looks at every step on every rank."""

    _chief_only = False

    def __init__(self, run: Run, ranks: Ranks) -> None:
        self.run, self.config, self.ranks = run, run.config, ranks
        self.stop = StopRequest()
        self.folder = checkpoint.Folder(run.job_dir / "checkpoints") if run.job_dir else None
        self.saved: int | None = None  # on rank 0: the step of the last checkpoint
        self.step = 0  # steps done
        self.scores: dict[str, float] = {}  # of the last evaluation
        self.is_stopping = False
        self.failure: TrainerError | None = None
        self.metrics: Writer | None = None
        self._evaluation: Evaluation | None = None

    def go(self) -> dict[str, float]:
        """Trains, evaluates, prints; returns the scores of the last evaluation."""
        self.stop.listen()
        began = time.monotonic()
        with tf.Graph().as_default(), ExitStack() as stack:
            tf1.set_random_seed(self.config.train.seed)
            self._read_checkpoint()
            if self.ranks.is_first and self.run.job_dir:
                # A record's step counts steps done, so that of the checkpoint's own step stays.
                self.metrics = stack.enter_context(Writer(self.run.job_dir, self.step + 1))
                checkpoint.write_atomically(
                    self.run.job_dir / preflight.CONFIG_FILE, json.dumps(preflight.plain(self.config), indent=1) + "\n"
                )
            self._train()
            if self.is_stopping:
                self._say(f"Asked to stop: saved after step {self.step}; the same command continues from there")
            else:
                self._say(f"Finished {self.step} steps in {time.monotonic() - began:.0f} s")
        return self.scores

    def _train(self) -> None:
        model = MaskRcnn(self.config, self.ranks.size)
        self.steps = HorovodSteps(model, self.ranks, self._set_variables)
        self.steps.setup_graph(
            model.get_input_signature(), FedInput(self._feeds()), model.build_graph, model.get_optimizer
        )
        left = self.run.schedule.total_steps - self.step
        self._clock = Clock(self.run.schedule.images_per_step)
        if left > 0 or self.config.train.eval_at_end:
            self.steps.go([self], left)
        if self.failure:
            raise self.failure

    # What tensorpack calls.

    def _before_train(self) -> None:
        self._say(preflight.text(self.run))
        if self.step:
            self._say(f"Continuing after step {self.step}")
        self._clock.start()

    def _trigger_step(self) -> None:
        from tensorpack.train import StopTraining

        self.step += 1
        report = self.steps.report
        if not math.isfinite(report.loss):
            self.failure = TrainerError(_nan_message(self.step, report))
            raise StopTraining
        if self.step % self.config.train.log_period == 0 or self.step == self.run.schedule.total_steps:
            self._log(report)
        with self._clock.paused():
            if self._evaluation and report.asked("evaluated", self.ranks.size) == self.ranks.size:
                self._finish_evaluation()
            self.is_stopping = self.is_stopping or report.asked("stop", self.ranks.size) > 0
            if self.is_stopping or self._reached_targets():
                self._save()
                raise StopTraining
            self._at_boundary()

    def _after_train(self) -> None:
        is_done = self.step >= self.run.schedule.total_steps or self._reached_targets()
        if self.failure or self.is_stopping or not is_done:
            return
        self._save()
        if self._evaluation and self._evaluation.is_running:
            self._finish_evaluation()
        if self.config.train.eval_at_end and self.scores.get("step") != self.step:
            self._start_evaluation()
            self._finish_evaluation()

    # Steps.

    def _feeds(self) -> Iterator[Fed]:
        source = batches(
            self.run.pictures, self.config, rank=self.ranks.rank, ranks=self.ranks.size, first_step=self.step
        )
        while True:
            with self._clock.waiting():
                batch = next(source)
            evaluated = self._evaluation is not None and self._evaluation.is_ready
            requests = np.array([self.stop.requested, evaluated], np.float32)
            yield (*batch, np.array(self.run.schedule.learning_rate(self.step), np.float32), requests)

    def _log(self, report: Report) -> None:
        speed, waiting = self._clock.read()
        lr = self.run.schedule.learning_rate(self.step - 1)
        parts = {k: v for k, v in report.values.items() if k not in Report.REQUESTS}
        self._say(
            f"step {self.step:6d}  loss {report.loss:7.4f}  lr {lr:.2e}  {speed:7.2f} images/s  waiting "
            f"{waiting:4.0%}  " + " ".join(f"{k} {v:.3f}" for k, v in parts.items())
        )
        if self.metrics:
            self.metrics.write(
                "train",
                self.step,
                {"loss": report.loss, **parts, "lr": lr, "images_per_s": speed, "input_wait": waiting},
            )

    def _at_boundary(self) -> None:
        train, period = self.config.train, self.run.schedule.steps_per_epoch
        if self.step == self.run.schedule.total_steps:
            return
        if self.step % (train.checkpoint_period * period) == 0:
            self._save()
        if train.eval_period and self.step % (train.eval_period * period) == 0:
            if self._evaluation and self._evaluation.is_running:
                self._finish_evaluation()
            self._start_evaluation()
            if not train.async_eval:
                self._finish_evaluation()
                if self._reached_targets():
                    from tensorpack.train import StopTraining

                    self._save()
                    raise StopTraining

    # Evaluation.

    def _start_evaluation(self) -> None:
        if self._evaluation is None:
            detector = Detector(self.config, threads=self.ranks.threads, gpu=str(self.ranks.local_rank))
            self._evaluation = Evaluation(detector, self.run.validation, self.ranks, Gather())
        self._evaluation.start(self.steps.values(), self.step)

    def _finish_evaluation(self) -> None:
        assert self._evaluation is not None
        scores, entries = self._evaluation.finish()
        step = self._evaluation.step
        self.scores = {"step": step, **scores}
        self._say(
            f"step {step:6d}  evaluation: "
            + "  ".join(
                f"{kind} AP {scores[f'{kind}_ap']:.3f} AP50 {scores[f'{kind}_ap50']:.3f}"
                for kind in ("box", "mask")
                if f"{kind}_ap" in scores
            )
        )
        if self.metrics and self.run.job_dir:
            self.metrics.write("eval", step, scores)
            checkpoint.write_atomically(self.run.job_dir / RESULTS_FILE, json.dumps(entries) + "\n")

    def _reached_targets(self) -> bool:
        test = self.config.test
        wanted = {k: v for k, v in (("box_ap", test.box_target), ("mask_ap", test.mask_target)) if v}
        return bool(wanted) and all(self.scores.get(k, 0) >= v for k, v in wanted.items())

    # Checkpoints.

    def _read_checkpoint(self) -> None:
        """Rank 0 looks for the newest valid checkpoint; all ranks learn where it stands."""
        self._restored: dict[str, np.ndarray] = {}
        if self.ranks.is_first and self.folder:
            self.folder.remove_partial()
            facts = self.folder.newest()
            if facts:
                self._restored = self.folder.load(facts)
                # The data goes on at the image where it stood, in steps of this run's size.
                self.step = facts.more["images_seen"] // self.run.schedule.images_per_step
                self.saved = facts.step
        if self.ranks.size > 1:
            told = Gather()(json.dumps(self.step).encode())  # Horovod: all ranks begin at rank 0's step
            self.step = json.loads(told[0])

    def _set_variables(self, steps: HorovodSteps) -> None:
        """On rank 0, whose variables then go to all ranks: checkpoint, else COCO weights, else ImageNet weights."""
        if not self.ranks.is_first:
            return
        shapes = {n: tuple(v.shape.as_list()) for n, v in steps.variables.items()}
        of_model = {n: s for n, s in shapes.items() if weights.is_model_variable(n)}
        if self._restored:
            missing = sorted(set(shapes) - set(self._restored))
            if missing:
                raise TrainerError(
                    f"the checkpoint in {self.run.job_dir} lacks {missing[0]}: it is of another "
                    "version; give another --job-dir"
                )
            steps.assign({n: self._restored[n] for n in shapes})
            steps.assign({"global_step": np.asarray(self.step, self._restored["global_step"].dtype)})
        elif self.run.load:
            steps.assign(weights.model_weights(self.run.load, of_model))
        elif self.config.backbone.weights:
            steps.assign(weights.backbone_weights(Path(self.config.backbone.weights), of_model, self.config))
        self._restored = {}

    def _save(self) -> None:
        if not self.ranks.is_first or self.folder is None or self.saved == self.step:
            return
        self.folder.save(
            self.step,
            self.steps.values(),
            {"images_seen": self.step * self.run.schedule.images_per_step, "config": preflight.plain(self.config)},
        )
        self.folder.keep_newest(self.config.train.checkpoints_kept)
        self.saved = self.step

    def _say(self, text: str) -> None:
        if self.ranks.is_first:
            print(text, flush=True)


class Clock:
    """Images per second over all ranks since the last look, and the share of the time spent waiting for input."""

    def __init__(self, images_per_step: int) -> None:
        self._images_per_step = images_per_step
        self.start()

    def start(self) -> None:
        """Begins anew."""
        self._since, self._steps, self._waited, self._away = time.monotonic(), 0, 0.0, 0.0

    def waiting(self) -> "Timed":
        """Measures one step's wait for input."""
        self._steps += 1
        return Timed(self, "_waited")

    def paused(self) -> "Timed":
        """Leaves out what is no training."""
        return Timed(self, "_away")

    def read(self) -> tuple[float, float]:
        """(images per second, share of waiting); begins anew."""
        taken = max(time.monotonic() - self._since - self._away, 1e-9)
        speed, waiting = self._steps * self._images_per_step / taken, self._waited / taken
        self.start()
        return speed, waiting


class Timed:
    """Adds the time inside a `with` to one field of a clock."""

    def __init__(self, clock: Clock, name: str) -> None:
        self._clock, self._name = clock, name

    def __enter__(self) -> None:
        self._began = time.monotonic()

    def __exit__(self, *_: object) -> None:
        setattr(self._clock, self._name, getattr(self._clock, self._name) + time.monotonic() - self._began)


def _nan_message(step: int, report: Report) -> str:
    bad = [name for name, value in report.values.items() if not math.isfinite(value)]
    return (
        f"the loss is not a number at step {step} ({', '.join(bad)}), on all ranks alike: lower TRAIN.BASE_LR, "
        "warm up longer or set TRAIN.GRADIENT_CLIP; the last checkpoint is from before"
    )
