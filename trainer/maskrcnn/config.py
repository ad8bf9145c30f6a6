"""The typed configuration of Mask R-CNN: one frozen object per owner, each value explained under it.

R50-FPN, 1x schedule on COCO 2017: the reference (tensorpack) gives 38.2 box AP and 34.8 mask AP in 12.5 h on 8 V100.
This trainer's own accuracy on full COCO: not measured. Departures from the reference, told in docs/maskrcnn.md: every
anchor that ties for an object's best is positive, about three times as many; box losses are Huber's; mask targets are 0
or 1, not fractions; anchors are centred on their cells; the group-norm heads normalise before the ReLU.
"""

from dataclasses import dataclass, field

from trainer.maskrcnn.config_network import (
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
