"""Flags of the ResNet trainer, as one frozen value. TensorFlow is not imported here: checks must be quick."""
# ruff: noqa: RUF009  # `flag` is `dataclasses.field` with its metadata spelled out

from dataclasses import dataclass
from pathlib import Path

from trainer.common.files.commandline import check_fields, flag, numbers
from trainer.common.files.errors import ConfigError
from trainer.common.ranks import schedule
from trainer.common.ranks.precision import DYNAMIC, is_loss_scale
from trainer.resnet50.network import OWN, VARIANTS

MODELS = ("resnet18", "resnet34", "resnet50", "resnet101", "resnet152")
PRECISIONS = ("float32", "bfloat16", "float16")
EVAL_CROPS = ("centre", "reference")
RANK_CHANGES = ("keep-batch", "rescale-lr", "refuse")
BAD_DATA = ("fatal", "skip")
IMAGENET_EXAMPLES = 1_281_167
LARC_RATE = 3.7  # the reference's peak with LARC


@dataclass(frozen=True, kw_only=True)
class Learning:
    """Flags of network, optimizer and numerics."""

    model: str = flag("resnet50", "network", choices=MODELS)
    batch_size: int = flag(256, "images per rank and step", least=1)
    accumulate: int = flag(1, "parts a rank's batch is computed in, one after the other, with one update", least=1)
    num_epochs: float | None = flag(None, "epochs to train; wins over --num-batches", type=float)
    num_batches: int | None = flag(None, "steps to train", type=int, least=1)
    lr: float | None = flag(None, "peak learning rate; default: 0.1 x global batch / 256, with LARC 3.7", type=float)
    momentum: float = flag(0.9, "Nesterov momentum")
    weight_decay: float = flag(1e-4, "L2 on the kernels of convolutions and of the last layer")
    warmup_epochs: float = flag(0.0, "epochs of linear warm-up")
    warmup_lr: float = flag(0.001, "learning rate at step 0 of the warm-up")
    lr_decay_mode: str = flag("poly", "decay after the warm-up", choices=schedule.MODES)
    lr_decay_steps: tuple[float, ...] = flag(
        (30.0, 60.0, 80.0), "steps: epochs at which the rate changes", type=numbers
    )
    lr_decay_lrs: tuple[float, ...] = flag(
        (), "steps: the rate from each of them on; default: a tenth of the one before", type=numbers
    )
    cdr_first_decay_ratio: float = flag(0.33, "cosine_decay_restarts: share of the decay in the first period")
    cdr_t_mul: float = flag(2.0, "cosine_decay_restarts: growth of the periods")
    cdr_m_mul: float = flag(0.1, "cosine_decay_restarts: growth of the peaks")
    cdr_alpha: float = flag(0.0, "cosine_decay_restarts: lowest rate as a share of the peak")
    lc_periods: float = flag(0.47, "linear_cosine: cosine periods over the decay")
    lc_alpha: float = flag(0.0, "linear_cosine: added to the linear factor")
    lc_beta: float = flag(1e-5, "linear_cosine: added to the product")
    larc: bool = flag(False, "layer-wise rate control: no weight moves by more than eta of its norm")
    larc_eta: float = flag(0.013, "eta of LARC")
    label_smoothing: float = flag(0.0, "share of the target spread over all classes", most=0.9)
    mixup_alpha: float = flag(0.0, "alpha of mixup's beta distribution; 0: none")
    ema_decay: float = flag(0.0, "decay of the moving average of the weights that is evaluated; 0: none", most=0.999999)
    adv_bn_init: bool = flag(True, "last gamma of each block zero: it begins as the identity")
    adv_conv_init: bool = flag(True, "convolutions by He's rule; else Glorot's uniform one")
    precision: str = flag("float32", "type of activations; weights and statistics stay float32", choices=PRECISIONS)
    loss_scale: str = flag(DYNAMIC, "float16: factor of the loss while gradients are computed, a number or dynamic")
    fp16_compression: bool = flag(False, "send gradients as float16")


@dataclass(frozen=True, kw_only=True)
class Input:
    """Flags of the images' way to the network."""

    data_dir: Path | None = flag(None, "folder of train-* and validation-* TFRecord shards", type=Path)
    synthetic: bool = flag(False, "train on one random batch held in memory: speed without input")
    classes: int | None = flag(None, "classes; default: the data folder's manifest, else 1000", type=int, least=2)
    image_size: int = flag(224, "pixels of the square the network sees", least=32)
    crop_area: float = flag(0.08, "smallest share of the image's area that a training crop may show")
    increased_aug: bool = flag(False, "vary brightness, hue, saturation and contrast too")
    brightness: float = flag(0.3, "increased augmentation: largest shift, as a share of full white", most=1)
    hue: float = flag(0.13, "increased augmentation: largest turn of the colours, in half turns", most=1)
    saturation: float = flag(0.6, "increased augmentation: largest change of the factor 1", most=1)
    contrast: float = flag(0.6, "increased augmentation: largest change of the factor 1", most=1)
    eval_crop: str = flag(
        "centre",
        "centre: shorter side antialiased to 256/224 of the size, square from the centre; reference: 80% of both "
        "sides, stretched",
        choices=EVAL_CROPS,
    )
    cache: str | None = flag(None, "copy the shards first: to memory, or to this folder on a local disk", type=str)
    bad_data: str = flag(
        "fatal",
        "what a damaged shard or record does: fatal ends the run, skip leaves it out and names it",
        choices=BAD_DATA,
    )


@dataclass(frozen=True, kw_only=True)
class RunFlags(Learning, Input):
    """Flags of a ResNet trainer's run, in any framework."""

    job_dir: Path | None = flag(
        None,
        "folder for metrics.jsonl, tensorboard/ and checkpoints/; resumes from what "
        "is there. Only a synthetic run may leave it out: it writes nothing",
        type=Path,
    )
    eval: bool = flag(False, "evaluate on the validation shards at the end")
    eval_every: float | None = flag(None, "evaluate also every so many epochs", type=float)
    eval_only: bool = flag(False, "evaluate the newest checkpoint and leave")
    eval_best: bool = flag(False, "with --eval-only: the best checkpoint instead")
    eval_batch_size: int = flag(128, "images per rank at a time in evaluation", least=1)
    display_every: int = flag(50, "steps between two lines of the table", least=1)
    checkpoint_every: int = flag(1000, "steps between two checkpoints; one more is written at the end", least=1)
    checkpoint_seconds: float | None = flag(
        None,
        "seconds between two checkpoints, beside those by steps; 0: none by time; default: 30, or more where saving "
        "would take more than 1% of the time",
        type=float,
    )
    keep: int = flag(3, "newest checkpoints to keep, beside the best by top-1", least=1)
    when_ranks_change: str = flag(
        "keep-batch",
        "resuming with another number of ranks: keep-batch shares the same global batch among them where that "
        "goes, else as rescale-lr, which keeps --batch-size and scales the rate",
        choices=RANK_CHANGES,
    )
    threads: int | None = flag(None, "threads per rank; default: the cores this rank owns", type=int, least=1)
    deterministic: bool = flag(False, "same seed and ranks, same curve, bit by bit; slower on GPUs")
    seed: int = flag(1, "of weights, data order and augmentation", least=0)

    def __post_init__(self) -> None:
        check_fields(self)
        self._check_combinations()
        self._check_numerics()

    def _check_combinations(self) -> None:
        if self.synthetic == (self.data_dir is not None):
            raise ConfigError("give either --data-dir FOLDER or --synthetic")
        if self.synthetic and self.evaluates:
            raise ConfigError("--synthetic has no validation images: leave out the evaluation or give --data-dir")
        if self.synthetic and self.cache:
            raise ConfigError("--synthetic reads no shards: leave out --cache")
        if self.eval_best and not self.eval_only:
            raise ConfigError("--eval-best goes with --eval-only")
        if self.job_dir is None and not self.synthetic:
            raise ConfigError("--job-dir is missing: name the folder for metrics and checkpoints")
        if self.num_epochs is None and self.num_batches is None and not self.eval_only:
            raise ConfigError("how long? give --num-epochs or --num-batches")
        if self.num_epochs == 0 or self.lr == 0 or self.eval_every == 0:
            raise ConfigError("--num-epochs, --lr and --eval-every must be above 0")
        if not 0 < self.crop_area <= 1:
            raise ConfigError(f"--crop-area is {self.crop_area:g}, but must be above 0 and at most 1")
        if self.batch_size % self.accumulate:
            raise ConfigError(
                f"--batch-size {self.batch_size} cannot be split into --accumulate {self.accumulate} equal parts"
            )

    def _check_numerics(self) -> None:
        if not is_loss_scale(self.loss_scale):
            raise ConfigError(f"--loss-scale is {self.loss_scale!r}; give a number above 0, or dynamic")
        if self.lr_decay_mode == "steps":
            if not self.lr_decay_steps or list(self.lr_decay_steps) != sorted(set(self.lr_decay_steps)):
                raise ConfigError("--lr-decay-steps must be epochs that rise, like 30,60,80")
            if self.lr_decay_lrs and len(self.lr_decay_lrs) != len(self.lr_decay_steps):
                raise ConfigError(
                    f"--lr-decay-lrs has {len(self.lr_decay_lrs)} rates for {len(self.lr_decay_steps)} "
                    "--lr-decay-steps: give one rate per epoch"
                )
        if not 0 < self.cdr_first_decay_ratio <= 1 or self.cdr_t_mul < 1:
            raise ConfigError("--cdr-first-decay-ratio must be above 0 and at most 1, --cdr-t-mul at least 1")

    @property
    def evaluates(self) -> bool:
        """Return True if the run needs validation images at any time."""
        return self.eval or self.eval_only or self.eval_every is not None

    @property
    def weights_file(self) -> Path | None:
        """Return the weights file of a run without a checkpoint; None for random weights."""
        return None

    @property
    def scales_loss(self) -> bool:
        """Return True if gradients are computed of a scaled loss."""
        return self.precision == "float16"


@dataclass(frozen=True, kw_only=True)
class ResNetConfig(RunFlags):
    """Flags of `python -m trainer.resnet50`."""

    xla: bool = flag(False, "compile forward and backward with XLA; several times slower on CPUs")
    variant: str = flag(
        OWN, "whose ResNet: own, or torchvision's or keras' padding, strides, batch norm and pixels", choices=VARIANTS
    )
    load: Path | None = flag(
        None,
        "weights to begin with, or with --eval-only to judge: torchvision's or Keras' (npz, safetensors, h5) or ours",
        type=Path,
    )

    @property
    def weights_file(self) -> Path | None:
        """Return the file that `--load` names."""
        return self.load
