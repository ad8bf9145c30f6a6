"""Plan of a run in steps, from flags, ranks and data: the one place where epochs and examples become steps."""

import dataclasses
from dataclasses import dataclass

from trainer.common.data import dataset, records
from trainer.common.files.errors import ConfigError
from trainer.common.files.plural import counted
from trainer.common.ranks.batch_split import Origin
from trainer.common.ranks.schedule import Schedule, Shape, scaled_rate
from trainer.resnet50.config import IMAGENET_EXAMPLES, LARC_RATE, RunFlags

PARAMETERS_1000 = {
    "resnet18": 11_689_512,
    "resnet34": 21_797_672,
    "resnet50": 25_557_032,
    "resnet101": 44_549_160,
    "resnet152": 60_192_808,
}
LAST_FEATURES = {"resnet18": 512, "resnet34": 512, "resnet50": 2048, "resnet101": 2048, "resnet152": 2048}


@dataclass(frozen=True, kw_only=True)
class Data:
    """Training and validation data of the run."""

    classes: int
    train_examples: int  # an epoch; ImageNet's number when synthetic
    validation_examples: int = 0
    train: records.Index | None = None
    validation: records.Index | None = None


@dataclass(frozen=True, kw_only=True)
class RunPlan:
    """Plan of a run: everything that follows from flags, ranks and data."""

    config: RunFlags
    ranks: int
    data: Data
    origin: Origin
    schedule: Schedule  # of the whole job, in steps of its first attempt's batch
    eval_every_steps: int | None  # in such steps, too
    steps: int
    first_step: int = 0  # where this attempt begins
    first_image: int = 0  # images that earlier attempts have trained on
    change: str = ""  # difference from the job's first attempt, in one line
    begins_anew: bool = False  # allowed to start from scratch despite unreadable checkpoints

    @property
    def global_batch(self) -> int:
        """Return the images per step over all ranks."""
        return self.ranks * self.config.batch_size

    @property
    def scale(self) -> float:
        """Return the ratio of this attempt's global batch to that of the job's first attempt."""
        return self.global_batch / self.origin.batch

    def images(self, step: int) -> int:
        """Return the images before the step with this number: the run's position in the data order."""
        return self.first_image + (step - self.first_step) * self.global_batch

    def epoch(self, step: int) -> float:
        """Return the epochs before the step with this number."""
        return self.images(step) / self.data.train_examples

    def rate(self, step: int) -> float:
        """Return the step's learning rate: the one that the job planned for its image, scaled with the global batch."""
        return self.schedule(self.images(step) / self.origin.batch) * self.scale

    def evaluates_after(self, steps: int) -> bool:
        """Return True if a periodic evaluation follows this step: at the same images for any number of ranks."""
        if not self.eval_every_steps:
            return False
        period = self.eval_every_steps * self.origin.batch
        return self.images(steps) // period > self.images(steps - 1) // period


def look_up(config: RunFlags, *, keeps: bool = False) -> Data:
    """Check the data folder's shards and count their examples.

    Args:
        keeps: save the record index in it for the next run.

    Raises:
        ConfigError: the folder or a shard is missing.
        TrainerError: a shard is cut off or not a TFRecord file.
    """
    if config.data_dir is None:
        return Data(classes=config.classes or 1000, train_examples=IMAGENET_EXAMPLES)
    classes = dataset.classes_in(config.data_dir)
    if config.classes and classes and config.classes < classes:
        raise ConfigError(
            f"--classes is {config.classes}, but {config.data_dir} has {classes}: leave it out, or give at least that"
        )
    skip = config.bad_data == "skip"
    train = dataset.find_split(config.data_dir, "train").index(skip, keeps=keeps)
    validation = None
    if config.evaluates:
        validation = dataset.find_split(config.data_dir, "validation").index(skip, keeps=keeps)
    return Data(
        classes=config.classes or classes or 1000,
        train=train,
        train_examples=len(train),
        validation=validation,
        validation_examples=len(validation) if validation else 0,
    )


def make_plan(config: RunFlags, ranks: int, data: Data, origin: Origin | None = None) -> RunPlan:
    """Return the run's plan in steps.

    Steps are floor(examples x epochs / global batch) and steps per epoch floor(examples / global batch), as the
    reference counts them: 14075 and 156 on 32 ranks of 256 images for 90 epochs of ImageNet.

    Args:
        origin: global batch and ranks of the job's first attempt, if this is a later one.

    Raises:
        ConfigError: flags, ranks and data do not fit together.
    """
    if ranks < 1:
        raise ConfigError(f"--ranks is {ranks}, but a run has at least 1")
    batch = ranks * config.batch_size
    if batch > data.train_examples:
        raise ConfigError(
            f"{counted(ranks, 'rank')} x --batch-size {config.batch_size} = {counted(batch, 'image')} per step, "
            "but the data "
            f"has only {counted(data.train_examples, 'example')}: use fewer ranks or a smaller --batch-size"
        )
    if config.evaluates and data.validation_examples < ranks:
        raise ConfigError(
            f"{counted(ranks, 'rank')} but only {counted(data.validation_examples, 'validation example')}: use "
            "fewer ranks"
        )
    origin = origin or Origin(batch, ranks)
    schedule = _schedule(config, data, origin.batch)
    return RunPlan(
        config=config,
        ranks=ranks,
        data=data,
        origin=origin,
        schedule=schedule,
        eval_every_steps=_eval_period(config, data, origin.batch, schedule.steps),
        steps=-(-schedule.steps * origin.batch // batch),
    )


def _schedule(config: RunFlags, data: Data, batch: int) -> Schedule:
    per_epoch = data.train_examples // batch
    steps = int(data.train_examples * config.num_epochs / batch) if config.num_epochs else config.num_batches or 1
    if steps < 1:
        raise ConfigError(
            f"--num-epochs {config.num_epochs:g} is less than one step of {counted(batch, 'image')}: train longer"
        )
    warmup = int(config.warmup_epochs * per_epoch)
    if warmup >= steps:
        raise ConfigError(
            f"--warmup-epochs {config.warmup_epochs:g} is {counted(warmup, 'step')}, but the run has only {steps}"
        )
    peak = config.lr or (LARC_RATE if config.larc else scaled_rate(batch))
    return Schedule(
        mode=config.lr_decay_mode,
        peak=peak,
        steps=steps,
        warmup_steps=warmup,
        warmup_start=config.warmup_lr,
        shape=_shape(config, peak, per_epoch),
    )


def _eval_period(config: RunFlags, data: Data, batch: int, steps: int) -> int | None:
    if not config.eval_every:
        return None
    period = max(1, round(config.eval_every * data.train_examples / batch))
    if period > steps:
        raise ConfigError(
            f"--eval-every {counted(config.eval_every, 'epoch')} is {counted(period, 'step')}, but the run ends after "
            f"{steps}: use --eval for one evaluation at the end"
        )
    return period


def _shape(config: RunFlags, peak: float, steps_per_epoch: int) -> Shape:
    rates = config.lr_decay_lrs or tuple(peak * 0.1 ** (i + 1) for i in range(len(config.lr_decay_steps)))
    return Shape(
        periods=config.lc_periods,
        alpha=config.lc_alpha,
        beta=config.lc_beta,
        first_decay=config.cdr_first_decay_ratio,
        t_mul=config.cdr_t_mul,
        m_mul=config.cdr_m_mul,
        end=config.cdr_alpha,
        boundaries=tuple(int(e * steps_per_epoch) for e in config.lr_decay_steps),
        rates=rates,
    )


def parameters(model: str, classes: int) -> int:
    """Return the number of a model's trainable parameters without building it."""
    return PARAMETERS_1000[model] + (classes - 1000) * (LAST_FEATURES[model] + 1)


def summary(plan: RunPlan) -> dict[str, object]:
    """Return the plan in plain values, as `--check --json` prints it."""
    config = plan.config
    flags = {f.name: getattr(config, f.name) for f in dataclasses.fields(config)}
    return {
        "model": config.model,
        "parameters": parameters(config.model, plan.data.classes),
        "classes": plan.data.classes,
        "ranks": plan.ranks,
        "batch_size": config.batch_size,
        "global_batch": plan.global_batch,
        "train_examples": plan.data.train_examples,
        "validation_examples": plan.data.validation_examples,
        "steps": plan.steps,
        "epochs": round(plan.epoch(plan.steps), 4),
        "steps_per_epoch": plan.data.train_examples // plan.global_batch,
        "lr_peak": plan.schedule.peak * plan.scale,
        "lr_first": plan.rate(plan.first_step),
        "lr_last": plan.rate(plan.steps - 1),
        "first_step": plan.first_step,
        "warmup_steps": round(plan.schedule.warmup_steps / plan.scale),
        "eval_every_steps": plan.eval_every_steps and round(plan.eval_every_steps / plan.scale),
        "flags": {name: str(value) if hasattr(value, "parts") else value for name, value in flags.items()},
    }


def text(plan: RunPlan) -> str:
    """Return the plan as a few lines for the operator."""
    s, config = summary(plan), plan.config
    source = "synthetic images" if config.synthetic else f"{counted(s['train_examples'], 'image')} of {config.data_dir}"
    return "\n".join(
        (
            *([plan.change] if plan.change else []),
            f"{config.model}, {counted(s['parameters'], 'parameter')}, {s['classes']} classes, "
            f"{config.image_size} pixels, {config.precision}",
            f"{source}; {s['validation_examples']} to evaluate on",
            f"{counted(plan.ranks, 'rank')} x {config.batch_size} = {counted(plan.global_batch, 'image')} per step"
            + (f", each rank's in {config.accumulate} micro-steps" if config.accumulate > 1 else ""),
            f"{counted(plan.steps, 'step')} = {counted(s['epochs'], 'epoch')} of "
            f"{counted(s['steps_per_epoch'], 'whole step')}"
            + (f", the first {plan.first_step} are done" if plan.first_step else ""),
            f"learning rate {s['lr_first']:.5f}, warm-up {counted(s['warmup_steps'], 'step')} to {s['lr_peak']:.5f}, "
            f"{config.lr_decay_mode} to {s['lr_last']:.5f}",
            f"writes to {config.job_dir}" if config.job_dir else "writes nothing",
        )
    )
