"""Settings of the data, the training and the evaluation: images, sizes, duration, learning rate."""

from dataclasses import dataclass

from trainer.common.ranks.precision import DYNAMIC, is_loss_scale
from trainer.maskrcnn.config_network import GROWTH
from trainer.maskrcnn.rules import choice, fraction, need, positive

PRECISIONS = ("float32", "bfloat16", "float16")


@dataclass(frozen=True, kw_only=True)
class DataConfig:
    basedir: str = ""
    """Folder that holds the images' folders and annotations/."""
    train: tuple[str, ...] = ("coco_train2017",)
    """Training sets; `coco_NAME` reads BASEDIR/NAME and BASEDIR/annotations/instances_NAME.json."""
    val: tuple[str, ...] = ("coco_val2017",)
    """Sets to evaluate on."""
    num_category: int = -1
    """Categories without the background; -1 takes the number from the annotation file."""
    class_names: tuple[str, ...] = ()
    """Names in the order of the class numbers; empty takes them from the annotation file."""
    filter_empty_annotations: bool = True
    """Leave images without a usable object out of the training."""
    num_workers: int = 4
    """Threads that decode for one rank."""

    def __post_init__(self) -> None:
        need(
            self.num_category == -1 or self.num_category > 0,
            f"DATA.NUM_CATEGORY is {self.num_category}: give -1 (read it from the annotations) or a number above 0",
        )
        need(bool(self.train), "DATA.TRAIN is empty: name at least one set, as in coco_train2017")
        positive("DATA.NUM_WORKERS", self.num_workers)
        need(
            not self.class_names or self.num_category in (-1, len(self.class_names)),
            f"DATA.CLASS_NAMES has {len(self.class_names)} names for DATA.NUM_CATEGORY={self.num_category}",
        )


@dataclass(frozen=True, kw_only=True)
class PreprocConfig:
    train_short_edge_size: tuple[int, ...] = (800, 800)
    """Shorter side in pixels, drawn uniformly between the two for each image."""
    test_short_edge_size: int = 800
    max_size: int = 1333
    """Longest longer side in pixels."""
    round_max_size: bool = False
    """MAX_SIZE up to a multiple of 32, and predicted boxes up to a 16th of it times their anchor, as tensorpack."""
    pixel_mean: tuple[float, ...] = (123.675, 116.28, 103.53)
    """Red, green, blue."""
    pixel_std: tuple[float, ...] = (58.395, 57.12, 57.375)
    flip: bool = True
    """Mirror every second training image."""
    predefined_padding: bool = True
    """Pad to one of a few shapes, so that kernels are prepared once; False: to the next multiple of 32."""
    padding_shapes: tuple[tuple[int, int], ...] = ()
    """Height and width pairs to pad to; empty: derived from the sizes above."""

    @property
    def longest_side(self) -> int:
        """Return the longest side of a resized image, in pixels."""
        return -(-self.max_size // 32) * 32 if self.round_max_size else self.max_size

    @property
    def growth(self) -> float:
        """Return the largest ratio of a predicted side to its anchor's side."""
        return self.longest_side / 16 if self.round_max_size else GROWTH

    def __post_init__(self) -> None:
        low, high = self.train_short_edge_size[0], self.train_short_edge_size[-1]
        need(
            len(self.train_short_edge_size) in (1, 2) and 0 < low <= high,
            f"PREPROC.TRAIN_SHORT_EDGE_SIZE is {self.train_short_edge_size}: give one size, or smallest and largest",
        )
        positive("PREPROC.TEST_SHORT_EDGE_SIZE", self.test_short_edge_size)
        need(
            self.max_size >= max(high, self.test_short_edge_size),
            f"PREPROC.MAX_SIZE {self.max_size} is smaller than the short edge {max(high, self.test_short_edge_size)}",
        )
        need(
            len(self.pixel_mean) == 3 and len(self.pixel_std) == 3 and min(self.pixel_std) > 0,
            "PREPROC.PIXEL_MEAN and PIXEL_STD need three numbers each (red, green, blue), the latter above 0",
        )
        for shape in self.padding_shapes:
            need(
                len(shape) == 2 and min(shape) >= 32 and all(side % 32 == 0 for side in shape),
                f"PREPROC.PADDING_SHAPES has {shape}: give (height, width), both multiples of 32",
            )


@dataclass(frozen=True, kw_only=True)
class TrainConfig:
    batch_size_per_gpu: int = 1
    """Images per rank and step, padded to one shape."""
    precision: str = "float32"
    """Type of the convolutions and dense layers: float32, bfloat16 or float16. Weights, norms, losses stay float32."""
    loss_scale: str = DYNAMIC
    """float16: factor of the loss while gradients are computed, dynamic or a number (1024 in the AWS fork)."""
    weight_decay: float = 1e-4
    base_lr: float = 1e-2
    """Learning rate for 8 images per step over all ranks; scaled linearly with the images per step."""
    momentum: float = 0.9
    warmup: int = 1000
    """Steps from WARMUP_INIT_LR to the full rate."""
    warmup_init_lr: float = 1e-5
    """Learning rate of step 0 for 8 images per step; scaled like BASE_LR."""
    lr_schedule: str | tuple[int, ...] = "1x"
    """'1x', '2x', ... as in the reference, or the steps of each tenfold drop and the end, for 8 images per step."""
    lr_epoch_schedule: tuple[tuple[float, float | None], ...] = ()
    """((8, .1), (10, .01), (12, None)): a tenth from epoch 8, a hundredth from 10, end at 12; precedes LR_SCHEDULE."""
    max_steps: int = 0
    """End after this many steps whatever the schedule says; 0: the schedule's end."""
    steps_per_epoch: int = 0
    """Steps that EVAL_PERIOD and CHECKPOINT_PERIOD count in; 0: one pass over the training images."""
    eval_period: int = 1
    """Epochs between evaluations; 0: only the one at the end."""
    eval_at_end: bool = True
    """Evaluate after the last step."""
    checkpoint_period: int = 1
    """Epochs between checkpoints; one is always written at the end."""
    checkpoint_seconds: float = -1.0
    """Seconds between checkpoints, beside CHECKPOINT_PERIOD; 0: none by time; -1: 30, or more where 30 cost over 1%."""
    checkpoints_kept: int = 3
    gradient_clip: float = 0.0
    """Largest global norm of the averaged gradient; 0: no limit. The AWS table's large runs use 0.36."""
    seed: int = 1234
    async_eval: bool = False
    """Evaluate in a thread while the training goes on."""
    fp16_allreduce: bool = False
    """Send gradients as float16."""
    larc: bool = False
    """Layer-wise rate control: no kernel moves by more than LARC_ETA of its norm in a step."""
    larc_eta: float = 0.013
    log_period: int = 20
    """Steps between lines in metrics.jsonl."""

    def __post_init__(self) -> None:
        choice("TRAIN.PRECISION", self.precision, PRECISIONS)
        need(
            is_loss_scale(self.loss_scale),
            f"TRAIN.LOSS_SCALE is {self.loss_scale!r}: give a number above 0, or {DYNAMIC}",
        )
        for key in ("batch_size_per_gpu", "base_lr", "checkpoint_period", "checkpoints_kept", "log_period", "larc_eta"):
            positive(f"TRAIN.{key.upper()}", getattr(self, key))
        for key in (
            "weight_decay",
            "warmup",
            "warmup_init_lr",
            "max_steps",
            "steps_per_epoch",
            "eval_period",
            "gradient_clip",
            "seed",
        ):
            need(getattr(self, key) >= 0, f"TRAIN.{key.upper()} is {getattr(self, key)}: give 0 or more")
        need(
            self.checkpoint_seconds >= 0 or self.checkpoint_seconds == -1,
            f"TRAIN.CHECKPOINT_SECONDS is {self.checkpoint_seconds:g}: give seconds, 0 (none by time) or -1 (by cost)",
        )
        need(0 <= self.momentum < 1, f"TRAIN.MOMENTUM is {self.momentum}: give 0 <= momentum < 1")
        if isinstance(self.lr_schedule, str):
            need(
                self.lr_schedule[:-1].isdigit() and self.lr_schedule.endswith("x") and int(self.lr_schedule[:-1]) > 0,
                f"TRAIN.LR_SCHEDULE is {self.lr_schedule!r}: give 1x, 2x, ... or steps as 120000,160000,180000",
            )
        else:
            rising = list(self.lr_schedule) == sorted(set(self.lr_schedule))
            need(
                bool(self.lr_schedule) and min(self.lr_schedule) > 0 and rising,
                f"TRAIN.LR_SCHEDULE is {self.lr_schedule}: its steps must be above 0 and rise",
            )
        if self.lr_epoch_schedule:
            epochs = [e for e, _ in self.lr_epoch_schedule]
            need(
                self.lr_epoch_schedule[-1][1] is None and all(f is not None for _, f in self.lr_epoch_schedule[:-1]),
                "TRAIN.LR_EPOCH_SCHEDULE must end in (last epoch, None), and only there",
            )
            need(
                epochs == sorted(set(epochs)) and epochs[0] > 0,
                f"TRAIN.LR_EPOCH_SCHEDULE has epochs {epochs}: they must be above 0 and rise",
            )


@dataclass(frozen=True, kw_only=True)
class TestConfig:
    __test__ = False
    frcnn_nms_thresh: float = 0.5
    result_score_thresh: float = 0.05
    result_score_thresh_vis: float = 0.5
    results_per_im: int = 100
    box_target: float = 0.0
    """Stop the training when an evaluation reaches this box AP and MASK_TARGET; 0: no target."""
    mask_target: float = 0.0

    def __post_init__(self) -> None:
        for key in ("frcnn_nms_thresh", "result_score_thresh", "result_score_thresh_vis", "box_target", "mask_target"):
            fraction(f"TEST.{key.upper()}", getattr(self, key))
        positive("TEST.RESULTS_PER_IM", self.results_per_im)
