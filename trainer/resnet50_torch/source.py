"""Source of one rank's batches: the shards or their local copies, or one synthetic batch."""

from collections.abc import Iterator

from trainer.common.ranks.horovod_rank import Ranks
from trainer.resnet50.plan import RunPlan
from trainer.resnet50.reader import RecordReader
from trainer.resnet50.shards import Shards
from trainer.resnet50_torch import images
from trainer.resnet50_torch.config import TorchResNetConfig
from trainer.resnet50_torch.decoders import Decoders
from trainer.resnet50_torch.images import ImageBatch


class TorchAttemptInput:
    """Input of one attempt on this rank."""

    def __init__(
        self, config: TorchResNetConfig, classes: int, ranks: Ranks, shards: Shards, decoders: Decoders
    ) -> None:
        self.config, self.classes, self.ranks, self.shards = config, classes, ranks, shards
        self._decoders = decoders

    def training(self, plan: RunPlan, step: int) -> Iterator[ImageBatch]:
        """Yield batches from this step to the plan's last one."""
        config, reader = self.config, self.shards.reader("train")
        if reader is None:
            return images.synthetic(
                batch=config.batch_size,
                size=config.image_size,
                classes=self.classes,
                seed=config.seed,
                rank=self.ranks.rank,
                is_pinned=self.ranks.gpu is not None,
            )
        return images.training(
            reader,
            self._share(config.batch_size),
            self._decoders,
            steps=range(step, plan.steps),
            first_image=plan.images(step),
            crop_area=config.crop_area,
            seed=config.seed,
        )

    def validation(self) -> tuple[Iterator[ImageBatch], RecordReader]:
        """Return this rank's validation images with labels, and the reader, which counts the examples it skipped."""
        reader = self.shards.reader("validation")
        assert reader is not None
        return images.evaluation(
            reader, self._share(self.config.eval_batch_size), self._decoders, crop=self.config.eval_crop
        ), reader

    def _share(self, batch: int) -> images.TorchInputShare:
        return images.TorchInputShare(
            rank=self.ranks.rank,
            ranks=self.ranks.size,
            batch=batch,
            size=self.config.image_size,
            classes=self.classes,
            is_pinned=self.ranks.gpu is not None,
        )
