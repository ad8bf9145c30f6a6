"""Evaluation over all ranks: every image on exactly one, scored on rank 0."""

import json
import threading
import zlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dlami.heartbeat import beat
from trainer.coco.annotations import CocoSet
from trainer.common.data.sampler import own_images
from trainer.common.files.errors import TrainerError
from trainer.common.files.plural import counted
from trainer.common.ranks.horovod_rank import Ranks
from trainer.maskrcnn.detector import Detector
from trainer.maskrcnn.scoring import results, score

Entries = list[dict[str, Any]]


def own_part(
    detector: Detector, data: CocoSet, rank: int, ranks: int, detected: Callable[[], None] = lambda: None
) -> bytes:
    """Detect on this rank's images and return indices and results, compressed. Calls `detected` after each image."""
    indices = list(own_images(len(data.pictures), rank, ranks))
    entries: Entries = []
    for picture, found in detector.detect_all(data.pictures[i] for i in indices):
        entries += results(picture, found, data.category_ids, accurate=detector.config.mrcnn.accurate_paste)
        detected()
    return zlib.compress(json.dumps({"images": indices, "entries": entries}).encode(), 1)


def merged(parts: Sequence[bytes], data: CocoSet) -> Entries:
    """Merge all ranks' results.

    Raises:
        TrainerError: an image was detected on no rank or on two.
    """
    loaded = [json.loads(zlib.decompress(part)) for part in parts]
    seen = sorted(i for part in loaded for i in part["images"])
    if seen != list(range(len(data.pictures))):
        raise TrainerError(
            f"{counted(len(seen), 'evaluation')} of {counted(len(set(seen)), 'image')}, of a set of "
            f"{len(data.pictures)}: the ranks do not read the same annotation file"
        )
    return [entry for part in loaded for entry in part["entries"]]


class Evaluation:
    """Evaluation of given weights on every rank, in a background thread, with scores.

    All ranks call the same methods in the same order, because `finish` gathers through Horovod.
    """

    def __init__(self, detector: Detector, data: CocoSet, ranks: Ranks, gather: Callable[[bytes], list[bytes]]) -> None:
        self._detector, self._data, self._ranks, self._gather = detector, data, ranks, gather
        self._thread: threading.Thread | None = None
        self._part: bytes | BaseException = b""
        self.step = self._detected = 0

    @property
    def is_running(self) -> bool:
        """Return True if `start` was called and `finish` has not completed."""
        return self._thread is not None

    @property
    def is_ready(self) -> bool:
        """Return True if this rank's images are done and only `finish` is missing."""
        return self._thread is not None and not self._thread.is_alive()

    def start(self, weights: Mapping[str, NDArray[np.generic]], step: int) -> None:
        """Start a thread that detects this rank's images with these weights."""
        assert self._thread is None
        self.step, self._detected = step, 0
        self._detector.assign(weights)
        self._thread = threading.Thread(target=self._detect, name="evaluation", daemon=True)
        self._thread.start()

    def finish(self) -> tuple[dict[str, float], Entries]:
        """Wait for the thread and the other ranks. Returns the scores, and on rank 0 the results.

        Scores are the same on all ranks.
        """
        assert self._thread is not None
        self._wait()
        self._thread = None
        if isinstance(self._part, BaseException):
            raise self._part
        entries = merged(self._gather(self._part), self._data)
        scores = score(self._data, entries, with_masks=self._detector.config.mode_mask) if self._ranks.is_first else {}
        # Horovod: rank 0 scores, all ranks get the result.
        shared = json.loads(self._gather(json.dumps(scores).encode())[0])
        return shared, entries if self._ranks.is_first else []

    def _wait(self) -> None:
        """Wait for the thread. Writes the heartbeat whenever the thread has finished another image."""
        assert self._thread is not None
        seen = 0
        while self._thread.is_alive():
            self._thread.join(1.0)
            if self._detected > seen:
                seen = self._detected
                beat.alive()

    def _count(self) -> None:
        self._detected += 1

    def _detect(self) -> None:
        try:
            self._part = own_part(self._detector, self._data, self._ranks.rank, self._ranks.size, self._count)
        except BaseException as e:  # handed to the thread that calls finish()
            self._part = e
