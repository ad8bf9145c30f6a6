"""Conversion between masks and COCO's polygons and run-length codes."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pycocotools import mask as coco_mask

from trainer.coco.annotations import Segmentation


def decode(segmentation: Segmentation, height: int, width: int) -> NDArray[np.uint8]:
    """Return the mask of one object: [height, width] uint8, 1 inside. Polygons are rasterised as pycocotools does."""
    if segmentation == []:  # an object without a mask
        return np.zeros((height, width), np.uint8)
    mask: NDArray[np.uint8] = coco_mask.decode(rle(segmentation, height, width))
    return mask


def decode_all(segmentations: Sequence[Segmentation], height: int, width: int) -> NDArray[np.uint8]:
    """Return the masks of several objects at once: [N, height, width] uint8.

    In memory they lie column by column, as run-length codes do: `.transpose(0, 2, 1)` is contiguous and costs nothing.
    """
    if not segmentations:
        return np.zeros((0, width, height), np.uint8).transpose(0, 2, 1)
    masks: NDArray[np.uint8] = coco_mask.decode([rle(s, height, width) for s in segmentations])
    return masks.transpose(2, 0, 1)


def rle(segmentation: Segmentation, height: int, width: int) -> dict[str, Any]:
    """Return the compressed run-length code of polygons, of an uncompressed code, or of a compressed one."""
    if isinstance(segmentation, list):
        code: dict[str, Any] = coco_mask.merge(coco_mask.frPyObjects(segmentation, height, width))
    elif isinstance(segmentation["counts"], list):
        code = coco_mask.frPyObjects(segmentation, height, width)
    else:
        counts = segmentation["counts"]
        code = {"size": segmentation["size"], "counts": counts.encode() if isinstance(counts, str) else counts}
    return code


def encode(mask: NDArray[Any]) -> dict[str, Any]:
    """Return the run-length code of a [height, width] mask, as in COCO's results JSON."""
    code = coco_mask.encode(np.asfortranarray(mask.astype(np.uint8)))
    return {"size": [int(s) for s in code["size"]], "counts": code["counts"].decode()}
