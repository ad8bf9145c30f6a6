"""Source of one rank's batches: the shards or their local copies, or one synthetic batch."""

from collections.abc import Iterable, Iterator

import tensorflow as tf

from trainer.common.ranks.horovod_rank import Ranks
from trainer.resnet50 import images
from trainer.resnet50.config import ResNetConfig
from trainer.resnet50.plan import RunPlan
from trainer.resnet50.reader import RecordReader
from trainer.resnet50.shards import Shards


class AttemptInput:
    """Input of one attempt on this rank."""

    def __init__(self, config: ResNetConfig, classes: int, ranks: Ranks, shards: Shards) -> None:
        self.config, self.classes, self.ranks, self.shards = config, classes, ranks, shards

    def training(self, plan: RunPlan, step: int) -> Iterator[images.Batch]:
        """Yield batches from this step to the plan's last one."""
        config, reader = self.config, self.shards.reader("train")
        if reader is None:
            return images.synthetic(
                batch=config.batch_size,
                size=config.image_size,
                classes=self.classes,
                seed=config.seed,
                rank=self.ranks.rank,
            )
        data = images.training(
            reader,
            self._share(config.batch_size),
            classes=self.classes,
            steps=range(step, plan.steps),
            first_image=plan.images(step),
            crop_area=config.crop_area,
            seed=config.seed,
        )
        return images.brought_out(images.on_device(data))

    def validation(self) -> tuple[Iterable[tuple[tf.Tensor, tf.Tensor]], RecordReader]:
        """Return this rank's validation images with labels, and the reader, which counts the examples it skipped."""
        reader = self.shards.reader("validation")
        assert reader is not None
        data = images.evaluation(
            reader, self._share(self.config.eval_batch_size), crop=self.config.eval_crop, classes=self.classes
        )
        return images.brought_out(images.on_device(data)), reader

    def _share(self, batch: int) -> images.InputShare:
        return images.InputShare(
            rank=self.ranks.rank,
            ranks=self.ranks.size,
            batch=batch,
            size=self.config.image_size,
            threads=self.ranks.threads,
        )
