"""Settings of the network, part by part: backbone, pyramid, proposals, box head, mask head, cascade."""

from dataclasses import dataclass

from trainer.maskrcnn.rules import choice, fraction, need, positive

NORMS = ("FreezeBN", "SyncBN", "GN", "None")
BOX_HEADS = ("fastrcnn_2fc_head", "fastrcnn_4conv1fc_head", "fastrcnn_4conv1fc_gn_head")
MASK_HEADS = ("maskrcnn_up4conv_head", "maskrcnn_up4conv_gn_head")
BOX_LOSSES = ("huber", "l1")
GN_HEAD_ORDERS = ("norm-relu", "relu-norm")
STRIDES = (4, 8, 16, 32, 64)
"""Pixels between the cells of P2 .. P6."""
C4_STRIDE = 16
NORM_EPSILON = 1e-5
"""Added to the variance by every normalisation."""
GROWTH = 1333 / 16
"""A predicted side is at most this many times the anchor's, which keeps exp() finite."""


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
    """2: stem and first group stay as loaded; 1: only the stem; 0: everything learns."""
    tf_pad_mode: bool = False
    """True pads as TensorFlow's SAME; False as the AlignPadding weights want."""
    stride_1x1: bool = False
    """Stride in the first 1x1 convolution of a block (MSRA's weights) instead of in the 3x3."""

    def __post_init__(self) -> None:
        choice("BACKBONE.NORM", self.norm, NORMS)
        choice("BACKBONE.FREEZE_AT", self.freeze_at, (0, 1, 2))
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
    gn_head_order: str = "norm-relu"
    """What follows a convolution of the gn heads: norm-relu as in Detectron, relu-norm as tensorpack's weights want."""

    def __post_init__(self) -> None:
        choice("FPN.NORM", self.norm, ("None", "GN"))
        choice("FPN.FRCNN_HEAD_FUNC", self.frcnn_head_func, BOX_HEADS)
        choice("FPN.MRCNN_HEAD_FUNC", self.mrcnn_head_func, MASK_HEADS)
        choice("FPN.GN_HEAD_ORDER", self.gn_head_order, GN_HEAD_ORDERS)
        for key in ("num_channel", "frcnn_conv_head_dim", "frcnn_fc_head_dim"):
            positive(f"FPN.{key.upper()}", getattr(self, key))

    @property
    def has_gn_heads(self) -> bool:
        """Return True if a head normalises by group norm."""
        return self.frcnn_head_func.endswith("_gn_head") or self.mrcnn_head_func.endswith("_gn_head")


@dataclass(frozen=True, kw_only=True)
class RpnConfig:
    anchor_sizes: tuple[int, ...] = (32, 64, 128, 256, 512)
    """Square root of the anchors' area in pixels, one per level of the pyramid; without it all five on C4."""
    anchor_ratios: tuple[float, ...] = (0.5, 1.0, 2.0)
    """Height over width."""
    positive_anchor_thresh: float = 0.7
    negative_anchor_thresh: float = 0.3
    fg_ratio: float = 0.5
    batch_per_im: int = 256
    min_size: float = 0.0
    """Proposals whose sides are not above this many pixels are dropped; -1: none, as tensorpack's 0."""
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
    head_dim: int = 1024
    """Channels of the head without a pyramid; with it they are FPN.NUM_CHANNEL."""
    anchor_center: float = 0.5
    """Where in their cells the anchors are, in strides: 0.5 in the middle, 0 on the corners as in tensorpack."""
    tied_anchors: bool = True
    """An object's best anchors are positive even below NEGATIVE_ANCHOR_THRESH; False: background, as in tensorpack."""
    npz_anchor_center: float = 0.0
    """Where in their cells an npz has its anchors, in strides: 0 as tensorpack, 0.5 as its versions before 2019."""

    def __post_init__(self) -> None:
        need(
            len(self.anchor_sizes) == 5 and min(self.anchor_sizes) > 0,
            f"RPN.ANCHOR_SIZES is {self.anchor_sizes}: give five sizes, one for each level of the pyramid",
        )
        fraction("RPN.NPZ_ANCHOR_CENTER", self.npz_anchor_center)
        fraction("RPN.ANCHOR_CENTER", self.anchor_center)
        need(bool(self.anchor_ratios) and min(self.anchor_ratios) > 0, "RPN.ANCHOR_RATIOS must be above 0")
        for key in ("positive_anchor_thresh", "negative_anchor_thresh", "fg_ratio", "proposal_nms_thresh"):
            fraction(f"RPN.{key.upper()}", getattr(self, key))
        need(
            self.negative_anchor_thresh <= self.positive_anchor_thresh,
            "RPN.NEGATIVE_ANCHOR_THRESH is above RPN.POSITIVE_ANCHOR_THRESH: an anchor would be both",
        )
        for key in (
            "batch_per_im",
            "head_dim",
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
    box_loss: str = "huber"
    """Of the heads: huber with delta 1 (smooth L1) as in Fast R-CNN, or l1 as in tensorpack."""

    def __post_init__(self) -> None:
        choice("FRCNN.BOX_LOSS", self.box_loss, BOX_LOSSES)
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
class MrcnnConfig:
    head_dim: int = 256
    soft_targets: bool = False
    """Learn the sampled share of the object in each cell, as tensorpack; False: whether it is at least one half."""
    resized_masks: bool = False
    """Rasterise polygons at the resized image's size, empty beyond it, as tensorpack; False: at the file's."""
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
