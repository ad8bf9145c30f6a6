"""Detections on an image as plain arrays, and their masks over the whole image. No TensorFlow."""

from dataclasses import dataclass

import cv2
import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, kw_only=True)
class Detections:
    """Objects detected on one image, best first."""

    boxes: NDArray[np.float32]
    """[K, 4], x1 y1 x2 y2 in pixels of the original image."""
    scores: NDArray[np.float32]
    """[K]"""
    labels: NDArray[np.int32]
    """[K], 1 .. number of categories"""
    masks: NDArray[np.float32] | None
    """[K, 28, 28] probabilities over the boxes; None from a Faster R-CNN."""

    def full_mask(self, index: int, height: int, width: int, *, accurate: bool = True) -> NDArray[np.uint8]:
        """Return the mask of one detection over the whole image: [height, width] of 0 and 1."""
        assert self.masks is not None
        return paste(self.masks[index], self.boxes[index], height, width, accurate=accurate)

    def above(self, score: float) -> "Detections":
        """Return the detections with at least this score."""
        keep = self.scores >= score
        return Detections(
            boxes=self.boxes[keep],
            scores=self.scores[keep],
            labels=self.labels[keep],
            masks=None if self.masks is None else self.masks[keep],
        )


def paste(
    mask: NDArray[np.float32], box: NDArray[np.float32], height: int, width: int, *, accurate: bool = True
) -> NDArray[np.uint8]:
    """Return a mask over the whole image: [height, width] uint8, 1 where its probability is at least one half.

    Args:
        mask: [M, M] probabilities; its cells fill the box.
        box: [4], x1 y1 x2 y2 in pixels of the image.
        accurate: sample the mask bilinearly at the centre of every pixel whose centre is inside the box; otherwise
            resize it to the box rounded outwards, which is faster on large boxes and up to half a pixel off.
    """
    result = np.zeros((height, width), np.uint8)
    x0, y0 = (max(int(v), 0) for v in np.floor(box[:2]))
    x1, y1 = (int(v) for v in np.minimum(np.ceil(box[2:]), [width, height]))
    if x1 <= x0 or y1 <= y0:
        return result
    if accurate:
        rows = interpolation(np.arange(y0, y1) + 0.5, float(box[1]), float(box[3]), len(mask))
        columns = interpolation(np.arange(x0, x1) + 0.5, float(box[0]), float(box[2]), len(mask))
        values = rows @ mask @ columns.T
    else:
        left, top, right, bottom = (int(v) for v in (*np.floor(box[:2]), *np.ceil(box[2:])))
        whole = cv2.resize(mask, (right - left, bottom - top), interpolation=cv2.INTER_LINEAR)
        values = whole[y0 - top : y1 - top, x0 - left : x1 - left]
    result[y0:y1, x0:x1] = values >= 0.5
    return result


def interpolation(points: NDArray[np.float64], first: float, last: float, cells: int) -> NDArray[np.float32]:
    """Return the [points, cells] weights of bilinear samples along one axis of `cells` cells that fill first .. last.

    Half a cell at either end continues the outermost value; points outside first .. last get no weight.
    """
    where = (points - first) / max(last - first, 1e-6) * cells - 0.5
    inside = (points >= first) & (points <= last)
    where = np.clip(where, 0, cells - 1)
    low = np.minimum(where.astype(int), cells - 2)
    weights = np.zeros((len(points), cells), np.float32)
    row = np.arange(len(points))
    weights[row, low] = (low + 1 - where) * inside
    weights[row, low + 1] = (where - low) * inside
    return weights
