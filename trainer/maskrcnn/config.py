"""The typed configuration of Mask R-CNN: one frozen object per owner, each value explained under it.

R50-FPN, 1x schedule on COCO 2017: the reference (tensorpack) gives 38.2 box AP and 34.8 mask AP in 12.5 h on 8 V100.
This trainer's own accuracy on full COCO: not measured.
"""

from dataclasses import dataclass, field

from trainer.errors import ConfigError

NORMS = ("FreezeBN", "SyncBN", "GN", "None")
BOX_HEADS = ("fastrcnn_2fc_head", "fastrcnn_4conv1fc_head", "fastrcnn_4conv1fc_gn_head")
MASK_HEADS = ("maskrcnn_up4conv_head", "maskrcnn_up4conv_gn_head")
PRECISIONS = ("float32", "bfloat16")
NORM_EPSILON = 1e-5
"""Added to the variance by every normalisation."""


def need(condition: bool, message: str) -> None:
    """Raise `ConfigError(message)` unless the condition holds."""
    if not condition:
        raise ConfigError(message)


def choice(key: str, value: object, choices: tuple[object, ...]) -> None:
    """Raise `ConfigError` unless the value is one of the choices."""
    need(value in choices, f"{key} is {value!r}: give one of {', '.join(map(str, choices))}")


def fraction(key: str, value: float) -> None:
    """Raise `ConfigError` unless 0 <= value <= 1."""
    need(0 <= value <= 1, f"{key} is {value}: give a number from 0 to 1")


def positive(key: str, value: float) -> None:
    """Raise `ConfigError` unless value > 0."""
    need(value > 0, f"{key} is {value}: give a number above 0")


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
class BackboneConfig:
    weights: str = ""
    """ImageNet weights: an npz in tensorpack's layout, or a checkpoint's npz of trainer.resnet50."""
    resnet_num_blocks: tuple[int, ...] = (3, 4, 6, 3)
    """Blocks per group: 3,4,6,3 is ResNet-50, 3,4,23,3 ResNet-101."""
    channels: int = 64
    """Channels after the first convolution; 64 in every published ResNet, less for small tests."""
    freeze_affine: bool = False
    """Keep gamma and beta of frozen batch norms fixed."""
    norm: str = "FreezeBN"
    """FreezeBN (needs weights), SyncBN (statistics over all ranks), GN (trains from random), None."""
    freeze_at: int = 2
    """2: stem and first group stay as loaded; 0: everything learns."""
    tf_pad_mode: bool = False
    """True pads as TensorFlow's SAME; False as the AlignPadding weights want."""
    stride_1x1: bool = False
    """Stride in the first 1x1 convolution of a block (MSRA's weights) instead of in the 3x3."""

    def __post_init__(self) -> None:
        choice("BACKBONE.NORM", self.norm, NORMS)
        choice("BACKBONE.FREEZE_AT", self.freeze_at, (0, 2))
        need(
            len(self.resnet_num_blocks) == 4 and min(self.resnet_num_blocks) > 0,
            f"BACKBONE.RESNET_NUM_BLOCKS is {self.resnet_num_blocks}: give four numbers, 3,4,6,3 for ResNet-50",
        )
        need(
            self.channels > 0 and self.channels % 8 == 0, f"BACKBONE.CHANNELS is {self.channels}: give a multiple of 8"
        )
        need(
            not self.freeze_affine or self.norm == "FreezeBN",
            f"BACKBONE.FREEZE_AFFINE=True needs BACKBONE.NORM=FreezeBN, not {self.norm}",
        )


@dataclass(frozen=True, kw_only=True)
class TrainConfig:
    batch_size_per_gpu: int = 1
    """Images per rank and step, padded to one shape."""
    precision: str = "float32"
    """Type of the convolutions and dense layers: float32 or bfloat16. Weights, norms and losses stay float32."""
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
    checkpoints_kept: int = 3
    gradient_clip: float = 0.0
    """Largest global norm of the averaged gradient; 0: no limit. The AWS table's large runs use 0.36."""
    seed: int = 1234
    async_eval: bool = False
    """Evaluate in a thread while the training goes on."""
    fp16_allreduce: bool = False
    """Send gradients as float16."""
    log_period: int = 20
    """Steps between lines in metrics.jsonl."""

    def __post_init__(self) -> None:
        choice("TRAIN.PRECISION", self.precision, PRECISIONS)
        for key in ("batch_size_per_gpu", "base_lr", "checkpoint_period", "checkpoints_kept", "log_period"):
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
class PreprocConfig:
    train_short_edge_size: tuple[int, ...] = (800, 800)
    """Shorter side in pixels, drawn uniformly between the two for each image."""
    test_short_edge_size: int = 800
    max_size: int = 1333
    """Longest longer side in pixels."""
    pixel_mean: tuple[float, ...] = (123.675, 116.28, 103.53)
    """Red, green, blue."""
    pixel_std: tuple[float, ...] = (58.395, 57.12, 57.375)
    flip: bool = True
    """Mirror every second training image."""
    predefined_padding: bool = True
    """Pad to one of a few shapes, so that kernels are prepared once; False: to the next multiple of 32."""
    padding_shapes: tuple[tuple[int, int], ...] = ()
    """Height and width pairs to pad to; empty: derived from the sizes above."""

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
class RpnConfig:
    anchor_sizes: tuple[int, ...] = (32, 64, 128, 256, 512)
    """Square root of the anchors' area, one per pyramid level, in pixels."""
    anchor_ratios: tuple[float, ...] = (0.5, 1.0, 2.0)
    """Height over width."""
    positive_anchor_thresh: float = 0.7
    negative_anchor_thresh: float = 0.3
    fg_ratio: float = 0.5
    batch_per_im: int = 256
    min_size: float = 0.0
    """Proposals whose sides are not above this many pixels are dropped."""
    proposal_nms_thresh: float = 0.7
    crowd_overlap_thresh: float = 9.99
    """Anchors that overlap a crowd region by more than this share of their area are left out; above 1: never."""
    train_per_level_pre_nms_topk: int = 2000
    train_per_level_nms_topk: int = 2000
    test_per_level_pre_nms_topk: int = 1000
    test_per_level_nms_topk: int = 1000
    train_image_topk: int = 2000
    """Proposals kept per image over all levels."""
    test_image_topk: int = 1000

    def __post_init__(self) -> None:
        need(
            len(self.anchor_sizes) == 5 and min(self.anchor_sizes) > 0,
            f"RPN.ANCHOR_SIZES is {self.anchor_sizes}: the pyramid has five levels, give five sizes",
        )
        need(bool(self.anchor_ratios) and min(self.anchor_ratios) > 0, "RPN.ANCHOR_RATIOS must be above 0")
        for key in ("positive_anchor_thresh", "negative_anchor_thresh", "fg_ratio", "proposal_nms_thresh"):
            fraction(f"RPN.{key.upper()}", getattr(self, key))
        need(
            self.negative_anchor_thresh <= self.positive_anchor_thresh,
            "RPN.NEGATIVE_ANCHOR_THRESH is above RPN.POSITIVE_ANCHOR_THRESH: an anchor would be both",
        )
        for key in (
            "batch_per_im",
            "train_per_level_pre_nms_topk",
            "train_per_level_nms_topk",
            "train_image_topk",
            "test_per_level_pre_nms_topk",
            "test_per_level_nms_topk",
            "test_image_topk",
        ):
            positive(f"RPN.{key.upper()}", getattr(self, key))


@dataclass(frozen=True, kw_only=True)
class FrcnnConfig:
    batch_per_im: int = 512
    """Proposals per image that the box head learns from."""
    bbox_reg_weights: tuple[float, ...] = (10.0, 10.0, 5.0, 5.0)
    fg_thresh: float = 0.5
    fg_ratio: float = 0.25

    def __post_init__(self) -> None:
        positive("FRCNN.BATCH_PER_IM", self.batch_per_im)
        fraction("FRCNN.FG_THRESH", self.fg_thresh)
        fraction("FRCNN.FG_RATIO", self.fg_ratio)
        need(
            int(self.batch_per_im * self.fg_ratio) >= 1,
            f"FRCNN.BATCH_PER_IM={self.batch_per_im} x FRCNN.FG_RATIO={self.fg_ratio} leaves no foreground: raise one",
        )
        need(
            len(self.bbox_reg_weights) == 4 and min(self.bbox_reg_weights) > 0,
            f"FRCNN.BBOX_REG_WEIGHTS is {self.bbox_reg_weights}: give four numbers above 0",
        )


@dataclass(frozen=True, kw_only=True)
class FpnConfig:
    cascade: bool = False
    """Three box heads, each refining the boxes of the one before."""
    num_channel: int = 256
    norm: str = "None"
    """None or GN, in the pyramid's convolutions."""
    frcnn_head_func: str = "fastrcnn_2fc_head"
    frcnn_conv_head_dim: int = 256
    frcnn_fc_head_dim: int = 1024
    mrcnn_head_func: str = "maskrcnn_up4conv_head"

    def __post_init__(self) -> None:
        choice("FPN.NORM", self.norm, ("None", "GN"))
        choice("FPN.FRCNN_HEAD_FUNC", self.frcnn_head_func, BOX_HEADS)
        choice("FPN.MRCNN_HEAD_FUNC", self.mrcnn_head_func, MASK_HEADS)
        for key in ("num_channel", "frcnn_conv_head_dim", "frcnn_fc_head_dim"):
            positive(f"FPN.{key.upper()}", getattr(self, key))


@dataclass(frozen=True, kw_only=True)
class MrcnnConfig:
    head_dim: int = 256
    accurate_paste: bool = True
    """Sample the mask at every pixel's centre; False: resize it to the rounded box, faster and half a pixel off."""

    def __post_init__(self) -> None:
        positive("MRCNN.HEAD_DIM", self.head_dim)


@dataclass(frozen=True, kw_only=True)
class CascadeConfig:
    ious: tuple[float, ...] = (0.5, 0.6, 0.7)
    bbox_reg_weights: tuple[tuple[float, ...], ...] = (
        (10.0, 10.0, 5.0, 5.0),
        (20.0, 20.0, 10.0, 10.0),
        (30.0, 30.0, 15.0, 15.0),
    )

    def __post_init__(self) -> None:
        need(
            len(self.ious) == len(self.bbox_reg_weights) == 3,
            "CASCADE.IOUS and BBOX_REG_WEIGHTS need three stages each",
        )
        need(
            all(len(w) == 4 and min(w) > 0 for w in self.bbox_reg_weights),
            "CASCADE.BBOX_REG_WEIGHTS needs four numbers above 0 per stage",
        )
        for iou in self.ious:
            fraction("CASCADE.IOUS", iou)


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


@dataclass(frozen=True, kw_only=True)
class Config:
    """Everything the trainer is told; see `trainer.maskrcnn.keys` for its names on the command line."""

    mode_mask: bool = True
    """False trains a Faster R-CNN."""
    data: DataConfig = field(default_factory=DataConfig)
    backbone: BackboneConfig = field(default_factory=BackboneConfig)
    train: TrainConfig = field(default_factory=TrainConfig)
    preproc: PreprocConfig = field(default_factory=PreprocConfig)
    rpn: RpnConfig = field(default_factory=RpnConfig)
    frcnn: FrcnnConfig = field(default_factory=FrcnnConfig)
    fpn: FpnConfig = field(default_factory=FpnConfig)
    mrcnn: MrcnnConfig = field(default_factory=MrcnnConfig)
    cascade: CascadeConfig = field(default_factory=CascadeConfig)
    test: TestConfig = field(default_factory=TestConfig)

    def __post_init__(self) -> None:
        need(self.mode_mask or not self.test.mask_target, "TEST.MASK_TARGET needs MODE_MASK=True")

    @property
    def num_classes(self) -> int:
        """Classes with the background; known once the annotations were read."""
        assert self.data.num_category > 0
        return self.data.num_category + 1
