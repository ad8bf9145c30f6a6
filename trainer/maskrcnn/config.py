"""Typed configuration of Mask R-CNN: one frozen object per owner, each value explained under it.

R50-FPN, 1x schedule on COCO 2017: the reference (tensorpack) reaches 38.2 box AP and 34.8 mask AP in 12.5 h on 8 V100.
This trainer's own accuracy on full COCO: not measured.

Departures from the reference, which docs/maskrcnn.md describes: every anchor that ties for an object's best is
positive, about three times as many. Box losses are Huber's. Mask targets are 0 or 1, not fractions. Anchors are centred
on their cells. The group-norm heads normalise before the ReLU. REFERENCE=tensorpack restores tensorpack's behaviour in
all of them.
"""

from dataclasses import dataclass, field

from trainer.maskrcnn import reference
from trainer.maskrcnn.config_network import (
    C4_STRIDE,
    STRIDES,
    BackboneConfig,
    CascadeConfig,
    FpnConfig,
    FrcnnConfig,
    MrcnnConfig,
    RpnConfig,
)
from trainer.maskrcnn.config_training import DataConfig, PreprocConfig, TestConfig, TrainConfig
from trainer.maskrcnn.rules import need


@dataclass(frozen=True, kw_only=True)
class Config:
    """Configuration of Mask R-CNN. `trainer.maskrcnn.keys` has its names on the command line."""

    reference: str = ""
    """tensorpack: compute as its example does, by the settings under "Departures"; empty: as the defaults say."""
    overlay: tuple[str, ...] = ()
    """Named experiments of the AWS fork (table below) under the settings that are given: 32x4, 24epoch, ..."""
    mode_mask: bool = True
    """False trains a Faster R-CNN."""
    mode_fpn: bool = True
    """False: no feature pyramid; heads on C4, the fourth group of the backbone in them (R50-C4)."""
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
        need(self.mode_fpn or not self.fpn.cascade, "FPN.CASCADE=True needs MODE_FPN=True")
        reference.check(self)

    @property
    def anchor_places(self) -> tuple[tuple[int, tuple[int, ...]], ...]:
        """Return each feature map's stride and the sizes of its anchors."""
        sizes = self.rpn.anchor_sizes
        return tuple(zip(STRIDES, ((s,) for s in sizes), strict=True)) if self.mode_fpn else ((C4_STRIDE, sizes),)

    @property
    def num_classes(self) -> int:
        """Return the number of classes including the background. It is known once the annotations were read."""
        assert self.data.num_category > 0
        return self.data.num_category + 1
