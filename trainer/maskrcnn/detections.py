"""What a detector says of an image, as plain arrays. No TensorFlow."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from trainer.maskrcnn.paste import paste


@dataclass(frozen=True, kw_only=True)
class Detections:
    """What was seen on one image, best first."""

    boxes: NDArray[np.float32]
    """[K, 4], x1 y1 x2 y2 in pixels of the image as it came."""
    scores: NDArray[np.float32]
    """[K]"""
    labels: NDArray[np.int32]
    """[K], 1 .. number of categories"""
    masks: NDArray[np.float32] | None
    """[K, 28, 28] probabilities over the boxes; None from a Faster R-CNN."""

    def full_mask(self, index: int, height: int, width: int, *, accurate: bool = True) -> NDArray[np.uint8]:
        """[height, width] of 0 and 1, the mask of one detection over the whole image."""
        assert self.masks is not None
        return paste(self.masks[index], self.boxes[index], height, width, accurate=accurate)

    def above(self, score: float) -> "Detections":
        """Those with at least this score."""
        keep = self.scores >= score
        return Detections(
            boxes=self.boxes[keep],
            scores=self.scores[keep],
            labels=self.labels[keep],
            masks=None if self.masks is None else self.masks[keep],
        )
