"""Shards that an attempt reads, or their copies on its hosts."""

import dataclasses

from dlami.heartbeat import Phase, beat
from trainer.common.data.records import Index
from trainer.common.ranks.horovod_rank import GatherBytes, Ranks
from trainer.resnet50 import cache
from trainer.resnet50.config import RunFlags
from trainer.resnet50.plan import Data
from trainer.resnet50.reader import RecordReader


class Shards:
    """Training and validation shards, as this rank reads them."""

    def __init__(self, config: RunFlags, data: Data, ranks: Ranks, gather: GatherBytes) -> None:
        self._skip = config.bad_data == "skip"
        self._ranks, self._gather = ranks, gather
        self._indices: dict[str, Index | None] = {"train": data.train, "validation": data.validation}

    def reader(self, split: str) -> RecordReader | None:
        """Return the reader of the split's records; None for a split that this run does not have."""
        index = self._indices[split]
        return RecordReader(index, skip_damaged=self._skip) if index is not None else None

    def copy(self, where: str) -> None:
        """Copy the shards to `where` on one rank per host, and read the copies from then on. All ranks must call it."""
        for split, index in self._indices.items():
            if index is None:
                continue
            folder = cache.place(where, index.paths)
            if self._ranks.local_rank == 0:
                cache.fill(folder, index.paths)
            paths = tuple(folder / path.name for path in index.paths)
            self._indices[split] = dataclasses.replace(index, paths=paths)
        self._gather(b"copied")  # all copies are complete before any rank reads them

    @beat.during(Phase.SAVE)
    def remove_copies(self) -> None:
        """Delete the copies to free their memory. All ranks must call it."""
        self._gather(b"read")  # no rank reads them any more
        for index in self._indices.values():
            if index is not None and self._ranks.local_rank == 0:
                cache.remove(index.paths[0].parent)
