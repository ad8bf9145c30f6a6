"""Preparation of training examples: from a picture and its annotations to the arrays of a batch. No TensorFlow."""

from collections.abc import Sequence
from dataclasses import dataclass

import cv2
import numpy as np
from numpy.typing import NDArray

from trainer.coco import masks as coco_masks
from trainer.coco.annotations import AnnotatedImage, Instance
from trainer.common.data import pictures
from trainer.common.data.jpeg import Unusable
from trainer.common.files.errors import TrainerError
from trainer.maskrcnn.config import Config
from trainer.maskrcnn.shapes import Shape, padded, resized

Image = NDArray[np.uint8]


@dataclass(frozen=True, kw_only=True)
class Example:
    """Image ready for the network, without padding."""

    image: Image
    """[h, w, 3], blue green red."""
    boxes: NDArray[np.float32]
    """[G, 4] in pixels of `image`."""
    labels: NDArray[np.int32]
    """[G]"""
    crowds: NDArray[np.float32]
    """[C, 4]"""
    masks: NDArray[np.uint8]
    """[G, W, H], column by column, in pixels of the file: they are sampled, never resized nor mirrored. With
    MRCNN.RESIZED_MASKS in pixels of `image`. [G, 1, 1] when no masks are learned."""
    mask_map: NDArray[np.float32]
    """[4], scale and offset: the pixel x, y of `image` is x * [0] + [2], y * [1] + [3] of `masks`."""


def read_image(picture: AnnotatedImage) -> Image:
    """Read an image as [height, width, 3] uint8, blue green red. Ignores a rotation in its metadata, as COCO does.

    Raises:
        TrainerError: not readable, damaged, or of another size than annotated. The message names the file.
    """
    try:
        image = np.asarray(pictures.decode(pictures.read(picture.path)), np.uint8)
    except (OSError, Unusable) as e:
        raise TrainerError(
            f"{picture.path} cannot be read as an image ({getattr(e, 'strerror', None) or e}): verify the folder with "
            f"python -m trainer.coco.verify {picture.path.parent.parent}"
        ) from e
    if image.shape[:2] != (picture.height, picture.width):
        raise TrainerError(
            f"{picture.path} is {image.shape[1]} x {image.shape[0]} pixels, its annotation says "
            f"{picture.width} x {picture.height}: they do not belong together"
        )
    return image


def resize(image: Image, short_edge: int, max_size: int) -> Image:
    """Resize the image to `short_edge` pixels on its shorter side, or less if the longer one would pass `max_size`."""
    height, width = resized(image.shape[0], image.shape[1], short_edge, max_size)
    if (height, width) == image.shape[:2]:
        return image
    return np.asarray(cv2.resize(image, (width, height), interpolation=cv2.INTER_LINEAR), np.uint8)


def training_example(picture: AnnotatedImage, config: Config, *, epoch: int) -> Example:
    """Return the picture's example in this epoch. Random scale and mirroring depend on seed, epoch and image only."""
    rng = np.random.default_rng([config.train.seed, epoch, picture.id])
    short, long = config.preproc.train_short_edge_size[0], config.preproc.train_short_edge_size[-1]
    is_mirrored = config.preproc.flip and rng.random() < 0.5
    image = read_image(picture)
    image = resize(
        np.asarray(cv2.flip(image, 1), np.uint8) if is_mirrored else image,
        int(rng.integers(short, long + 1)),
        config.preproc.longest_side,
    )
    scale = np.array([image.shape[1] / picture.width, image.shape[0] / picture.height] * 2, np.float32)
    boxes, crowds = _boxes(picture.objects) * scale, _boxes([i for i in picture.instances if i.is_crowd]) * scale
    across, down = (1 / scale[:2]).tolist()
    mask_map = (-across, down, picture.width, 0) if is_mirrored else (across, down, 0, 0)
    if not config.mode_mask:
        masks = np.zeros((len(boxes), 1, 1), np.uint8)
    elif config.mrcnn.resized_masks:
        masks, mask_map = resized_masks(picture, (image.shape[0], image.shape[1]), is_mirrored), (1, 1, 0, 0)
    else:
        masks = object_masks(picture).transpose(0, 2, 1)
    if is_mirrored:
        boxes, crowds = _mirrored(boxes, image.shape[1]), _mirrored(crowds, image.shape[1])
    return Example(
        image=image,
        boxes=boxes,
        crowds=crowds,
        masks=masks,
        mask_map=np.array(mask_map, np.float32),
        labels=np.array([i.label for i in picture.objects], np.int32),
    )


def object_masks(picture: AnnotatedImage) -> NDArray[np.uint8]:
    """Return [G, height, width] of 0 and 1, one mask per object that is not a crowd."""
    return coco_masks.decode_all([o.segmentation for o in picture.objects], picture.height, picture.width)


def resized_masks(picture: AnnotatedImage, size: Shape, is_mirrored: bool) -> NDArray[np.uint8]:
    """Return the masks [G, W, H] as tensorpack makes them. W is a multiple of 8.

    Polygons are moved with the image, then rasterised. Run-length codes, which tensorpack cannot learn, are resized
    with the image.
    """
    height, width = size
    canvas = -(-width // 8) * 8
    masks = np.zeros((len(picture.objects), canvas, height), np.uint8)
    for mask, o in zip(masks, picture.objects, strict=True):
        if isinstance(o.segmentation, dict):
            whole = coco_masks.decode(o.segmentation, picture.height, picture.width)
            small = cv2.resize(whole, (width, height), interpolation=cv2.INTER_NEAREST)
            mask[:width] = np.asarray(small[:, ::-1] if is_mirrored else small).T
        else:
            moved = [_moved(p, picture, size, is_mirrored) for p in o.segmentation]
            mask[:] = coco_masks.decode(moved, height, canvas).T
    return masks


def _moved(polygon: Sequence[float], picture: AnnotatedImage, size: Shape, is_mirrored: bool) -> list[float]:
    corners = np.array(polygon, np.float32).reshape(-1, 2)
    corners[:, 0] *= size[1] / picture.width
    corners[:, 1] *= size[0] / picture.height
    if is_mirrored:
        corners[:, 0] = size[1] - corners[:, 0]
    return [float(v) for v in corners.ravel()]


def collate(
    examples: Sequence[Example | None], config: Config, *, weight: float, seeds: NDArray[np.int32]
) -> tuple[NDArray[np.generic], ...]:
    """Return the arrays of `trainer.maskrcnn.batch.Batch` in its order.

    Args:
        examples: B of them; None becomes an empty image of weight 0.
        weight: of every real image.
        seeds: [B, 2].
    """
    real = [e for e in examples if e is not None]
    shape = padded([(e.image.shape[0], e.image.shape[1]) for e in real] or [(1, 1)], config.preproc)
    images = np.empty((len(examples), *shape, 3), np.uint8)
    filled = [e if e is not None else _EMPTY for e in examples]
    for canvas, e in zip(images, filled, strict=True):
        _place(canvas, e.image, config)
    sizes = np.array([e.image.shape[:2] for e in filled], np.float32)
    return (
        images,
        sizes,
        _stack([e.boxes for e in filled]),
        _stack([e.labels for e in filled]),
        _stack([e.crowds for e in filled]),
        _stack([e.masks for e in filled]),
        np.stack([e.mask_map for e in filled]),
        np.array([0.0 if e is None else weight for e in examples], np.float32),
        seeds,
    )


def pad_to_shape(image: Image, config: Config) -> tuple[Image, NDArray[np.float32]]:
    """Return one image as a batch: [1, H, W, 3] padded with the mean colour, and its size [1, 2] without padding."""
    height, width = image.shape[:2]
    canvas = np.empty((1, *padded([(height, width)], config.preproc), 3), np.uint8)
    _place(canvas[0], image, config)
    return canvas, np.array([[height, width]], np.float32)


_EMPTY = Example(
    image=np.zeros((1, 1, 3), np.uint8),
    boxes=np.zeros((0, 4), np.float32),
    labels=np.zeros(0, np.int32),
    crowds=np.zeros((0, 4), np.float32),
    masks=np.zeros((0, 1, 1), np.uint8),
    mask_map=np.ones(4, np.float32),
)


def _place(canvas: Image, image: Image, config: Config) -> None:
    """Put the image at the canvas's top left and fill the rest with the mean colour, about zero after normalisation."""
    height, width = image.shape[:2]
    mean = np.round(config.preproc.pixel_mean[::-1]).astype(np.uint8)
    canvas[:height, :width] = image
    canvas[:height, width:] = mean
    canvas[height:] = mean


def _boxes(instances: Sequence[Instance]) -> NDArray[np.float32]:
    return np.array([i.box for i in instances], np.float32).reshape(-1, 4)


def _mirrored(boxes: NDArray[np.float32], width: int) -> NDArray[np.float32]:
    return np.stack([width - boxes[:, 2], boxes[:, 1], width - boxes[:, 0], boxes[:, 3]], 1)


def _stack(arrays: Sequence[NDArray[np.generic]]) -> NDArray[np.generic]:
    """Stack the arrays, each padded with zeros to the largest.

    There is at least one row, since the graph gathers from it.
    """
    if len(arrays) == 1 and len(arrays[0]):
        return arrays[0][None]
    shape = np.max([a.shape for a in arrays], axis=0)
    shape[0] = max(shape[0], 1)
    result = np.zeros((len(arrays), *shape), arrays[0].dtype)
    for target, array in zip(result, arrays, strict=True):
        target[tuple(slice(n) for n in array.shape)] = array
    return result
