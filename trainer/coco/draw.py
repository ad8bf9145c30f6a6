"""Synthetic scenes: circles, squares and triangles that hide one another, on textured ground, with exact masks."""

from dataclasses import dataclass

import cv2
import numpy as np
from numpy.typing import NDArray

from trainer.coco import masks

SHAPES = ("circle", "square", "triangle")
MIN_VISIBLE_PX = 40
"""Objects with fewer visible pixels are not annotated."""


@dataclass(frozen=True, kw_only=True)
class DrawnObject:
    """Object drawn in a scene."""

    shape: str
    outline: NDArray[np.float32]
    """[N, 2], x y of the corners in pixels, whole shape."""
    mask: NDArray[np.uint8]
    """[height, width], 1 where it is visible."""
    is_hidden: bool
    """True if another object covers part of it."""
    is_crowd: bool


def scene(
    rng: np.random.Generator, height: int, width: int, *, objects: int, crowd: bool
) -> tuple[NDArray[np.uint8], list[DrawnObject]]:
    """Draw a picture [height, width, 3] uint8 (blue green red). Also returns its visible objects.

    Args:
        objects: how many are drawn, later ones over earlier ones.
        crowd: also a swarm of small shapes, annotated as one crowd region.
    """
    image = _ground(rng, height, width)
    layers: list[tuple[str, NDArray[np.float32], NDArray[np.uint8], bool]] = []
    if crowd:
        layers.append(_swarm(rng, image))
    for _ in range(objects):
        kind = str(rng.choice(SHAPES))
        side = rng.uniform(0.18, 0.45) * min(height, width)
        outline = _outline(rng, kind, side, rng.uniform([side / 2] * 2, [width - side / 2, height - side / 2]))
        layers.append((kind, outline, _fill(image, outline, _color(rng, kind)), False))
    return image, _visible(layers)


def _visible(layers: list[tuple[str, NDArray[np.float32], NDArray[np.uint8], bool]]) -> list[DrawnObject]:
    seen: list[DrawnObject] = []
    covered = np.zeros_like(layers[0][2]) if layers else None
    for kind, outline, mask, is_crowd in reversed(layers):
        assert covered is not None
        left = np.asarray(mask & ~covered & 1, np.uint8)
        covered |= mask
        if left.sum() >= MIN_VISIBLE_PX:
            seen.append(
                DrawnObject(
                    shape=kind, outline=outline, mask=left, is_hidden=bool((left != mask).any()), is_crowd=is_crowd
                )
            )
    return seen[::-1]


def _ground(rng: np.random.Generator, height: int, width: int) -> NDArray[np.uint8]:
    coarse = rng.uniform(60, 190, (max(height // 24, 2), max(width // 24, 2), 3)).astype(np.float32)
    smooth = cv2.resize(coarse, (width, height), interpolation=cv2.INTER_CUBIC)
    return np.clip(smooth * 0.4 + 60 + rng.normal(0, 6, smooth.shape), 0, 255).astype(np.uint8)


def _outline(rng: np.random.Generator, kind: str, side: float, center: NDArray[np.float64]) -> NDArray[np.float32]:
    corners = {"circle": 48, "square": 4, "triangle": 3}[kind]
    turn = rng.uniform(0, 2 * np.pi)
    angles = turn + np.arange(corners) * 2 * np.pi / corners
    return np.asarray(center + side / 2 * np.stack([np.cos(angles), np.sin(angles)], 1), np.float32)


def _color(rng: np.random.Generator, kind: str) -> tuple[float, ...]:
    """Draw a bright colour of any hue, because the shape alone decides the category."""
    hsv = np.array([[[rng.integers(0, 180), rng.integers(150, 256), rng.integers(170, 256)]]], np.uint8)
    return tuple(float(v) for v in cv2.cvtColor(hsv, cv2.COLOR_HSV2BGR)[0, 0])


def as_polygon(outline: NDArray[np.float32]) -> list[float]:
    """Return x y x y ... as in an annotation, in hundredths of a pixel."""
    return [round(float(v), 2) for v in outline.ravel()]


def _fill(image: NDArray[np.uint8], outline: NDArray[np.float32], color: tuple[float, ...]) -> NDArray[np.uint8]:
    """Draw the shape and return the pixels it covers."""
    mask = masks.decode([as_polygon(outline)], *image.shape[:2])
    image[mask > 0] = color
    return mask


def _swarm(
    rng: np.random.Generator, image: NDArray[np.uint8]
) -> tuple[str, NDArray[np.float32], NDArray[np.uint8], bool]:
    """Draw fifteen small shapes of one kind in one corner of the picture."""
    height, width = image.shape[:2]
    kind = str(rng.choice(SHAPES))
    side = min(height, width) / 14
    corner = np.array([rng.integers(0, 2) * width / 2, rng.integers(0, 2) * height / 2])
    mask = np.zeros((height, width), np.uint8)
    for _ in range(15):
        center = corner + rng.uniform([side, side], [width / 2 - side, height / 2 - side])
        mask |= _fill(image, _outline(rng, kind, side, center), _color(rng, kind))
    return kind, np.zeros((0, 2), np.float32), mask, True
