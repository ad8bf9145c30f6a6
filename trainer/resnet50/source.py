"""Where one rank's batches come from: the shards or their local copies, or one synthetic batch."""

import dataclasses
from collections.abc import Iterator

import horovod.tensorflow as hvd
import tensorflow as tf

from trainer.ranks import Ranks
from trainer.records import Index
from trainer.resnet50 import cache, images
from trainer.resnet50.config import Config
from trainer.resnet50.plan import Data, Plan
from trainer.resnet50.reader import Reader


class Source:
    """The input of one attempt on this rank."""

    def __init__(self, config: Config, data: Data, ranks: Ranks) -> None:
        self.config, self.classes, self.ranks = config, data.classes, ranks
        self._indices = {"train": data.train, "validation": data.validation}

    def copy_shards(self, where: str) -> None:
        """Makes one rank per host copy the shards to `where`, and reads the copies from then on."""
        for split, index in self._indices.items():
            if index is None:
                continue
            folder = cache.place(where, index.paths)
            if self.ranks.local_rank == 0:
                cache.fill(folder, index.paths)
            paths = tuple(folder / path.name for path in index.paths)
            self._indices[split] = dataclasses.replace(index, paths=paths)
        # Horovod: the copies are whole before any rank reads them.
        hvd.allreduce(tf.constant(0), name="cached")

    def remove_copies(self) -> None:
        """Gives the memory back."""
        # Horovod: nobody reads any more.
        hvd.allreduce(tf.constant(0), name="read")
        for index in self._indices.values():
            if index is not None and self.ranks.local_rank == 0:
                cache.remove(index.paths[0].parent)

    def training(self, plan: Plan, step: int) -> Iterator[images.Batch]:
        """Batches from this step to the plan's last one."""
        config, index = self.config, self._indices["train"]
        if index is None:
            return images.synthetic(
                batch=config.batch_size,
                size=config.image_size,
                classes=self.classes,
                seed=config.seed,
                rank=self.ranks.rank,
            )
        data = images.training(
            self._reader(index),
            self._share(config.batch_size),
            classes=self.classes,
            steps=range(step, plan.steps),
            first_image=plan.images(step),
            crop_area=config.crop_area,
            seed=config.seed,
        )
        return iter(images.on_device(data))

    def validation(self) -> tuple[tf.data.Dataset, Reader]:
        """This rank's validation images with their labels, and the reader, which counts those it left out."""
        index = self._indices["validation"]
        assert index is not None
        reader = self._reader(index)
        data = images.evaluation(
            reader, self._share(self.config.eval_batch_size), crop=self.config.eval_crop, classes=self.classes
        )
        return images.on_device(data), reader

    def _share(self, batch: int) -> images.Share:
        return images.Share(
            rank=self.ranks.rank,
            ranks=self.ranks.size,
            batch=batch,
            size=self.config.image_size,
            threads=self.ranks.threads,
        )

    def _reader(self, index: Index) -> Reader:
        return Reader(index, skip_damaged=self.config.bad_data == "skip")
