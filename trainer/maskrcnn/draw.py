"""Drawing of detections and ground truth into a picture. No TensorFlow."""

from collections.abc import Mapping, Sequence
from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray

from trainer.coco import masks as coco_masks
from trainer.coco.annotations import AnnotatedImage
from trainer.maskrcnn.detections import Detections

Image = NDArray[np.uint8]
BLEND = 0.45
"""Share of a mask's colour in the mixed pixel."""


def draw_detections(image: Image, found: Detections, names: Sequence[str]) -> Image:
    """Return a copy of the image with each detection's mask, box, class and score. Images are blue green red."""
    result = image.copy()
    height, width = image.shape[:2]
    for i in range(len(found.scores))[::-1]:  # the best on top
        color = color_of(i)
        if found.masks is not None:
            _tint(result, found.full_mask(i, height, width), color)
        name = names[found.labels[i] - 1] if len(names) >= found.labels[i] else str(found.labels[i])
        _frame(result, found.boxes[i], color, f"{name} {found.scores[i]:.2f}")
    return result


def draw_results(
    image: Image, entries: Sequence[Mapping[str, Any]], labels: Mapping[int, int], names: Sequence[str]
) -> Image:
    """Return a copy of the image with each entry of COCO's results JSON, the first on top.

    Args:
        labels: class of each category id, from 1 on.
    """
    result = image.copy()
    height, width = image.shape[:2]
    for i, entry in reversed(list(enumerate(entries))):
        color = color_of(i)
        if "segmentation" in entry:
            _tint(result, coco_masks.decode(entry["segmentation"], height, width), color)
        x, y, w, h = entry["bbox"]
        name = names[labels[entry["category_id"]] - 1]
        _frame(result, np.array([x, y, x + w, y + h], np.float32), color, f"{name} {entry['score']:.2f}")
    return result


def draw_truth(image: Image, picture: AnnotatedImage, names: Sequence[str]) -> Image:
    """Return a copy of the image with its annotated objects; crowd regions are gray."""
    result = image.copy()
    for i, instance in enumerate(picture.instances):
        color = (160, 160, 160) if instance.is_crowd else color_of(i)
        _tint(result, coco_masks.decode(instance.segmentation, picture.height, picture.width), color)
        _frame(
            result,
            np.array(instance.box, np.float32),
            color,
            "crowd" if instance.is_crowd else names[instance.label - 1],
        )
    return result


def color_of(index: int) -> tuple[int, int, int]:
    """Return a colour that differs from its neighbours': hues are a golden angle apart."""
    hsv = np.array([[[int(index * 180 * 0.618) % 180, 200, 255]]], np.uint8)
    b, g, r = (int(v) for v in cv2.cvtColor(hsv, cv2.COLOR_HSV2BGR)[0, 0])
    return b, g, r


def _tint(image: Image, mask: NDArray[np.uint8], color: tuple[int, int, int]) -> None:
    inside = mask > 0
    image[inside] = (image[inside] * (1 - BLEND) + np.array(color) * BLEND).astype(np.uint8)
    outline, _ = cv2.findContours(mask, cv2.RETR_EXTERNAL, cv2.CHAIN_APPROX_NONE)
    cv2.drawContours(image, outline, -1, color, 1)


def _frame(image: Image, box: NDArray[np.float32], color: tuple[int, int, int], text: str) -> None:
    x1, y1, x2, y2 = (round(float(v)) for v in box)
    cv2.rectangle(image, (x1, y1), (x2, y2), color, 1)
    scale = max(min(image.shape[:2]) / 800, 0.35)
    (width, height), _ = cv2.getTextSize(text, cv2.FONT_HERSHEY_SIMPLEX, scale, 1)
    x, y = min(max(x1, 0), max(image.shape[1] - width, 0)), max(y1 - 2, height + 1)
    cv2.rectangle(image, (x, y - height - 1), (x + width, y + 2), (0, 0, 0), -1)
    cv2.putText(image, text, (x, y), cv2.FONT_HERSHEY_SIMPLEX, scale, color, 1, cv2.LINE_AA)
