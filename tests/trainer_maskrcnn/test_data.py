"""What a rank is fed: each image once per epoch, masks exact, resumable, ready for any picture."""

from collections import Counter
from dataclasses import replace
from itertools import islice
from pathlib import Path

import cv2
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image as ImageFile
from pycocotools.coco import COCO

from tests.fuzzing import at_least
from tests.trainer_maskrcnn.helpers import REDUCED
from trainer.coco.annotations import AnnotatedImage, Instance, read_set
from trainer.common.data.sampler import BEGINNING, FILLER, DataPosition, epoch_order, own_images
from trainer.common.files.errors import TrainerError
from trainer.maskrcnn.config import Config
from trainer.maskrcnn.detections import paste
from trainer.maskrcnn.examples import (
    Example,
    collate,
    object_masks,
    pad_to_shape,
    read_image,
    training_example,
)
from trainer.maskrcnn.keys import apply_settings
from trainer.maskrcnn.loader import batches, training_pictures
from trainer.maskrcnn.shapes import candidates, padded, resized


@settings(max_examples=at_least(150))
@given(
    images=st.integers(1, 60),
    batch=st.integers(1, 5),
    ranks=st.integers(1, 7),
    epoch=st.integers(0, 3),
    wide=st.floats(0, 1),
)
def test_every_image_once_per_epoch_on_one_rank(images: int, batch: int, ranks: int, epoch: int, wide: float) -> None:
    """Whatever images, batch and ranks are: all ranks have the same number of steps, and the batches that mix orientations hold only what is left over."""
    is_wide = np.random.default_rng(images).random(images) < wide
    order = epoch_order(is_wide, batch=batch, ranks=ranks, seed=3, epoch=epoch)

    assert sorted(order[order != FILLER]) == list(range(images))
    assert order.shape == (-(-images // (batch * ranks)), ranks, batch)
    groups = [g[g != FILLER] for g in order.reshape(-1, batch)]
    mixed = [g for g in groups if 0 < is_wide[g].sum() < len(g)]
    assert len(mixed) <= 1  # the rest of both orientations is less than a batch each, and one follows the other
    alone = epoch_order(is_wide, batch=batch, ranks=1, seed=3, epoch=epoch).reshape(-1, batch)
    assert alone.tolist() == order.reshape(-1, batch)[: len(alone)].tolist()


@settings(max_examples=at_least(100))
@given(
    images=st.integers(1, 40),
    batch=st.integers(1, 3),
    changes=st.lists(st.tuples(st.integers(1, 9), st.integers(0, 25)), min_size=1, max_size=6),
)
def test_every_image_once_per_epoch_over_any_changes_of_the_ranks(
    images: int, batch: int, changes: list[tuple[int, int]]
) -> None:
    """None twice and none lost in mid-epoch; steps counted to the end of an epoch are those it takes."""
    groups, place, seen = -(-images // batch), BEGINNING, list[tuple[int, int]]()

    def take(width: int) -> None:
        nonlocal place
        seen.extend((place.epoch, g) for g in range(place.group, min(groups, place.group + width)))
        place = place.after(1, groups=groups, width=width)

    for width, steps in changes:
        jumped = place.after(steps, groups=groups, width=width)
        assert steps == place.steps_to(jumped, groups=groups, width=width)
        for _ in range(steps):
            take(width)
        assert jumped == place
    end = DataPosition(place.epoch + 1)
    for _ in range(place.steps_to(end, groups=groups, width=4)):
        take(4)
    assert end == place
    assert [(epoch, g) for epoch in range(end.epoch) for g in range(groups)] == seen


def test_micro_steps_are_the_batches_of_the_ranks_before(shapes: Path) -> None:
    """One rank of two takes both batches of a step, one after the other, from the middle of an epoch on: no other arrays."""
    config = apply_settings(Config(), [*REDUCED, "TRAIN.BATCH_SIZE_PER_GPU=2"])
    pictures = training_pictures([read_set(shapes, "train2017")], config)
    two = [list(islice(batches(pictures, config, rank=rank, ranks=2), 6)) for rank in range(2)]
    one = batches(pictures, config, rank=0, ranks=1, first=DataPosition(0, 4), parts=2, origin_ranks=2)
    for step in range(2, 6):
        for rank in range(2):
            for x, y in zip(two[rank][step], next(one), strict=True):
                np.testing.assert_array_equal(x, y)


@given(count=st.integers(0, 40), ranks=st.integers(1, 9))
def test_every_image_is_evaluated_on_exactly_one_rank(count: int, ranks: int) -> None:
    shares = [list(own_images(count, r, ranks)) for r in range(ranks)]
    assert sorted(i for s in shares for i in s) == list(range(count))
    assert max(map(len, shares)) - min(map(len, shares)) <= 1


@given(height=st.integers(1, 3000), width=st.integers(1, 3000))
def test_a_resized_image_fits_a_padded_shape(height: int, width: int) -> None:
    config = Config().preproc
    size = resized(height, width, 800, 1333)
    shape = padded([size], config)
    assert max(size) <= 1333
    assert min(size) == 800 or max(size) == 1333 or min(size) == 1
    assert shape in candidates(config)
    assert shape[0] >= size[0]
    assert shape[1] >= size[1]


def test_common_photographs_need_few_shapes_and_little_padding() -> None:
    """4:3, 3:2, 16:9 and square, both ways: at most 9 shapes, padding under a tenth on average."""
    sizes = [
        resized(h, w, 800, 1333)
        for a, b in ((480, 640), (427, 640), (360, 640), (500, 500), (375, 500))
        for h, w in ((a, b), (b, a))
    ]
    shapes = [padded([s], Config().preproc) for s in sizes]
    assert len(set(shapes)) <= 9
    assert np.mean([h * w for h, w in shapes]) / np.mean([h * w for h, w in sizes]) < 1.1


def test_the_loaders_masks_are_pycocotools(coco_mini: Path) -> None:
    """On every annotation of both sets, crowds included."""
    seen = crowds = wanted_crowds = wanted = 0
    for name in ("train2017", "val2017"):
        data = read_set(coco_mini, name)
        theirs = COCO(str(data.file))
        wanted_crowds += len(theirs.getAnnIds(iscrowd=True))
        wanted += len(theirs.getAnnIds(iscrowd=False))
        for picture in data.pictures:
            masks = object_masks(picture)
            for mask, instance in zip(masks, picture.objects, strict=True):
                np.testing.assert_array_equal(mask, theirs.annToMask(theirs.anns[instance.id]))
                seen += 1
            for instance in picture.instances:
                if instance.is_crowd:
                    whole = replace(picture, instances=(replace(instance, is_crowd=False),))
                    np.testing.assert_array_equal(object_masks(whole)[0], theirs.annToMask(theirs.anns[instance.id]))
                    crowds += 1
    assert (seen, crowds) == (wanted, wanted_crowds) and wanted > 100 and crowds > 4


def test_the_batches_of_a_resumed_run_are_those_of_the_whole_one(shapes: Path) -> None:
    """From any step, over the end of an epoch, with several threads: the same arrays."""
    config = apply_settings(
        Config(), [*REDUCED, "TRAIN.BATCH_SIZE_PER_GPU=2", "DATA.NUM_WORKERS=3", "PREPROC.TRAIN_SHORT_EDGE_SIZE=96,128"]
    )
    pictures = training_pictures([read_set(shapes, "train2017")], config)
    whole = list(islice(batches(pictures, config, rank=1, ranks=2), 8))
    rest = list(islice(batches(pictures, config, rank=1, ranks=2, first=DataPosition(0, 6)), 5))
    for a, b in zip(whole[3:], rest, strict=True):
        for x, y in zip(a, b, strict=True):
            np.testing.assert_array_equal(x, y)


def test_the_ranks_weights_add_up_to_the_mean_over_images(shapes: Path) -> None:
    """18 images in batches of 2 over 4 ranks: the last step has 2 images left, and each still counts as one."""
    config = apply_settings(Config(), [*REDUCED, "TRAIN.BATCH_SIZE_PER_GPU=2"])
    pictures = training_pictures([read_set(shapes, "train2017")], config)
    per_rank = [list(islice(batches(pictures, config, rank=r, ranks=4), 3)) for r in range(4)]
    real: Counter[int] = Counter()
    for step in zip(*per_rank, strict=True):
        weights = np.stack([b[7] for b in step])
        real[int((weights > 0).sum())] += 1
        assert weights.sum() / 4 == pytest.approx(1)  # the allreduce takes the mean over 4 ranks
    assert real == {8: 2, 2: 1}


def test_an_image_of_another_size_than_annotated_is_named(shapes: Path, tmp_path: Path) -> None:
    picture = read_set(shapes, "train2017").pictures[0]
    file = tmp_path / "other.jpg"
    cv2.imwrite(str(file), np.zeros((10, 20, 3), np.uint8))
    with pytest.raises(TrainerError, match=r"other.jpg is 20 x 10 pixels, its annotation says"):
        read_image(replace(picture, path=file))
    with pytest.raises(TrainerError, match=r"gone.jpg cannot be read as an image \(No such file or directory\)"):
        read_image(replace(picture, path=tmp_path / "gone.jpg"))


def test_a_damaged_image_ends_the_training_with_its_name(shapes: Path, tmp_path: Path) -> None:
    """Where OpenCV would fill the rest with gray: cut off, cut off with an end put to it, and a size nobody has."""
    picture = read_set(shapes, "train2017").pictures[0]
    whole = picture.path.read_bytes()
    size = whole.index(b"\xff\xc0") + 5
    for data in (whole[:900], whole[:2000] + b"\xff\xd9", whole[:size] + b"\xff\xdc" * 2 + whole[size + 4 :], b""):
        (tmp_path / "a.jpg").write_bytes(data)
        with pytest.raises(TrainerError, match=r"a.jpg cannot be read as an image .*: verify the folder with"):
            read_image(replace(picture, path=tmp_path / "a.jpg"))


@pytest.mark.parametrize("form", ["JPEG", "PNG", "CMYK"])
def test_an_image_is_read_as_it_is_stored(shapes: Path, tmp_path: Path, form: str) -> None:
    """Its pixels are OpenCV's, of whatever format; a rotation noted in the file turns nothing, as with COCO's boxes."""
    picture = read_set(shapes, "train2017").pictures[0]
    file = tmp_path / "a"
    exif = ImageFile.Exif()
    exif[0x0112] = 6
    with ImageFile.open(picture.path) as image:
        kept = image.convert("CMYK") if form == "CMYK" else image
        kept.save(file, "PNG" if form == "PNG" else "JPEG", exif=exif, quality=95)
    read = read_image(replace(picture, path=file))
    theirs = cv2.imread(str(file), cv2.IMREAD_COLOR | cv2.IMREAD_IGNORE_ORIENTATION)

    assert read.shape == (picture.height, picture.width, 3)
    assert theirs is not None
    assert np.abs(read.astype(int) - theirs).max() <= (0 if form != "CMYK" else 2)


def test_pasting_samples_the_mask_at_every_pixels_centre() -> None:
    """Against a loop over pixels; a box beyond the image, of one pixel, of no area."""
    rng = np.random.default_rng(0)
    mask = cv2.GaussianBlur(rng.random((28, 28)).astype(np.float32), (7, 7), 2)
    for box in ([3.3, 4.7, 40.2, 33.9], [-10, -5, 20, 20], [30, 20, 70, 60], [5, 5, 6, 6], [7, 7, 7, 9]):
        x1, y1, x2, y2 = box
        expected = np.zeros((45, 50), np.uint8)
        near = np.zeros((45, 50), bool)
        for y in range(45):
            for x in range(50):
                if x1 <= x + 0.5 <= x2 and y1 <= y + 0.5 <= y2 and x2 > x1 and y2 > y1:
                    v = np.clip((y + 0.5 - y1) / (y2 - y1) * 28 - 0.5, 0, 27)
                    u = np.clip((x + 0.5 - x1) / (x2 - x1) * 28 - 0.5, 0, 27)
                    v0, u0 = min(int(v), 26), min(int(u), 26)
                    top = mask[v0, u0] * (1 - u + u0) + mask[v0, u0 + 1] * (u - u0)
                    low = mask[v0 + 1, u0] * (1 - u + u0) + mask[v0 + 1, u0 + 1] * (u - u0)
                    value = top * (1 - v + v0) + low * (v - v0)
                    expected[y, x], near[y, x] = value >= 0.5, abs(value - 0.5) < 1e-5
        found = paste(mask, np.float32(box), 45, 50)
        np.testing.assert_array_equal(found[~near], expected[~near])


def test_a_batch_s_arrays_are_of_its_images_and_of_nothing() -> None:
    """Images at the top left on the mean colour; what fills a batch has no weight and a size of one pixel."""
    config = apply_settings(Config(), ["PREPROC.PIXEL_MEAN=10.4,20.0,30.6", "PREPROC.PREDEFINED_PADDING=False"])
    example = Example(
        image=np.full((20, 40, 3), 200, np.uint8),
        boxes=np.float32([[1, 2, 3, 4]]),
        labels=np.int32([7]),
        crowds=np.zeros((0, 4), np.float32),
        masks=np.ones((1, 5, 6), np.uint8),
        mask_map=np.float32([2, 3, 0, 0]),
    )
    seeds = np.int32([[1, 2], [3, 4]])
    images, sizes, found, labels, crowds, masks, maps, weights, given = collate(
        [example, None], config, weight=1.5, seeds=seeds
    )
    assert (2, 32, 64, 3) == images.shape and [[20, 40], [1, 1]] == sizes.tolist()
    assert (images[0, :20, :40] == 200).all() and (images[1, 0, 0] == 0).all()
    for rest in (images[0, 20:], images[0, :, 40:], images[1, 1:], images[1, :, 1:]):
        assert (rest == [31, 20, 10]).all()
    assert [[[1, 2, 3, 4]], [[0, 0, 0, 0]]] == found.tolist() and [[7], [0]] == labels.tolist()
    assert (2, 1, 4) == crowds.shape and (2, 1, 5, 6) == masks.shape and not masks[1].any()
    assert [[2, 3, 0, 0], [1, 1, 1, 1]] == maps.tolist() and [1.5, 0] == weights.tolist() and given is seeds
    alone, size = pad_to_shape(example.image, config)
    np.testing.assert_array_equal(images[:1], alone)
    assert [[20, 40]] == size.tolist()
    nobody = collate([None], config, weight=1.5, seeds=seeds[:1])
    assert (1, 32, 32, 3) == nobody[0].shape and [0] == nobody[7].tolist()


def half_covered(tmp_path: Path) -> AnnotatedImage:
    """A picture of 40 x 20 pixels, its left half covered by an object and a corner by a crowd; on its left it is white."""
    cv2.imwrite(str(tmp_path / "a.png"), np.repeat(np.uint8([[255] * 20 + [0] * 20]), 20, 0)[..., None].repeat(3, 2))
    left = [[0.0, 0, 20, 0, 20, 20, 0, 20]]
    crowd = {"size": [20, 40], "counts": [760, 40]}
    return AnnotatedImage(
        id=3,
        path=tmp_path / "a.png",
        height=20,
        width=40,
        instances=(
            Instance(id=1, label=2, box=(0, 0, 20, 20), area=400, is_crowd=False, segmentation=left),
            Instance(id=2, label=1, box=(38, 0, 40, 20), area=40, is_crowd=True, segmentation=crowd),
            Instance(
                id=3, label=1, box=(30, 0, 40, 20), area=9, is_crowd=False, segmentation={**crowd, "counts": [600, 200]}
            ),
        ),
    )


def test_an_example_has_its_boxes_where_its_image_has_them(tmp_path: Path) -> None:
    """Resized to the drawn edge, mirrored or not; masks stay in the file's pixels, and a map leads to them."""
    picture = half_covered(tmp_path)
    words = ["PREPROC.TRAIN_SHORT_EDGE_SIZE=40", "PREPROC.TEST_SHORT_EDGE_SIZE=40", "PREPROC.MAX_SIZE=200"]
    config = apply_settings(Config(), words)
    seen = set()
    for epoch in range(8):
        example = training_example(picture, config, epoch=epoch)
        assert (40, 80, 3) == example.image.shape and [2, 1] == example.labels.tolist()
        is_mirrored = not example.image[20, 5].any()
        seen.add(is_mirrored)
        if is_mirrored:
            assert [[40, 0, 80, 40], [0, 0, 20, 40]] == example.boxes.tolist() and [
                [0, 0, 4, 40]
            ] == example.crowds.tolist()
            assert [-0.5, 0.5, 40, 0] == example.mask_map.tolist()
        else:
            assert [[0, 0, 40, 40], [60, 0, 80, 40]] == example.boxes.tolist() and [
                [76, 0, 80, 40]
            ] == example.crowds.tolist()
            assert [0.5, 0.5, 0, 0] == example.mask_map.tolist()
        assert (2, 40, 20) == example.masks.shape
        assert example.masks[0, :20].all() and not example.masks[0, 20:].any() and example.masks[1, 30:].all()
    assert {True, False} == seen
    whole = replace(config, preproc=replace(config.preproc, flip=False))
    assert all(training_example(picture, whole, epoch=epoch).mask_map[0] > 0 for epoch in range(8))
    boxes_alone = training_example(picture, replace(whole, mode_mask=False), epoch=0)
    assert (2, 1, 1) == boxes_alone.masks.shape and [0.5, 0.5, 0, 0] == boxes_alone.mask_map.tolist()
