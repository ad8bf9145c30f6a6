"""Images from shards: what is damaged, where crops lie, where copies go."""

import io
import shutil
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
import tensorflow as tf
from PIL import Image

from trainer.common.data import dataset, records
from trainer.common.data.sampler import examples_at, positions
from trainer.common.files.errors import TrainerError
from trainer.resnet50 import cache, images
from trainer.resnet50.reader import InputError, RecordReader


@pytest.fixture
def shards(mini_shards: Any, tmp_path: Path) -> Any:
    """A copy of the training shards that may be spoilt."""
    return shutil.copytree(mini_shards, tmp_path / "data")


def spoil(path: Any, number: Any) -> Any:
    """Changes one byte in the middle of a record's data."""
    index = records.scan([path])
    data = bytearray(path.read_bytes())
    data[int(index.offset[number] + index.length[number] // 2)] ^= 0xFF
    path.write_bytes(bytes(data))
    return int(index.offset[number]) - records.HEADER_BYTES


def share(batch: int = 10) -> Any:
    """The only rank's."""
    return images.InputShare(rank=0, ranks=1, batch=batch, size=32, threads=1)


def test_batches_follow_the_order_of_the_seed(shards: Any) -> Any:
    """The images of a step are those that `order` names for the run's seed, their crops those of its seeds."""
    reader = RecordReader(dataset.find_split(shards, "train").index())

    def batches(seed: Any) -> Any:
        data = images.training(reader, share(), steps=range(3), first_image=20, crop_area=0.5, seed=seed, classes=14)
        return [tuple(part.numpy() for part in batch) for batch in data]

    labels = [records.parse(record)["image/class/label"][0] - 1 for record in reader(np.arange(len(reader)))]
    for seed in (1, 2):
        for step, (_, found, seeds) in enumerate(batches(seed)):
            where = 20 + positions(step, 0, 10, 1)
            assert [labels[i] for i in examples_at(where, len(reader), seed)] == list(found)
            assert [[seed, p] for p in where] == seeds.tolist()
    assert (batches(1)[0][0] != batches(2)[0][0]).any()


def test_a_corrupt_record_is_named_and_ends_the_run(shards: Any) -> None:
    """With its shard and byte, out of the pipeline as one sentence."""
    byte = spoil(shards / "train-00001-of-00003", 4)
    reader = RecordReader(dataset.find_split(shards, "train").index())
    data = images.training(reader, share(), steps=range(13), first_image=0, crop_area=0.5, seed=1, classes=14)
    with (
        pytest.raises(InputError, match=rf"train-00001-of-00003: wrong checksum of the record at byte {byte}"),
        images.unwrapped(),
    ):
        list(data)


def test_a_corrupt_record_is_skipped_and_named_when_asked(shards: Any, capfd: pytest.CaptureFixture[str]) -> None:
    """In training the next whole one takes its place; in evaluation it is left out and counted."""
    spoil(shards / "train-00001-of-00003", 4)
    spoil(shards / "validation-00001-of-00002", 0)
    reader = RecordReader(dataset.find_split(shards, "train").index(), skip_damaged=True)
    data = images.training(reader, share(), steps=range(13), first_image=0, crop_area=0.5, seed=1, classes=14)
    assert [10] * 13 == [len(labels) for _, labels, _ in data]
    judged = RecordReader(dataset.find_split(shards, "validation").index(), skip_damaged=True)

    assert 26 == sum(len(labels) for _, labels in images.evaluation(judged, share(), crop="centre", classes=14))
    assert (1, 1) == (reader.left_out, judged.left_out)
    said = capfd.readouterr().err
    assert said.count("left out") == 2 and "train-00001-of-00003" in said and "validation-00001-of-00002" in said


@pytest.mark.parametrize("damage", ["half", "no image", "no record"])
def test_a_damaged_image_is_skipped_and_named_when_asked(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], damage: Any
) -> None:
    """Its record's checksum is right: the image itself is looked at, once."""
    whole = coordinates(40, 60)
    bad = {"half": whole[: len(whole) // 2] + b"\xff\xd9", "no image": b"text", "no record": None}[damage]
    examples = [records.example({"image/encoded": whole, "image/class/label": 1})] * 11
    examples.insert(4, records.example({"image/encoded": bad, "image/class/label": 1}) if bad else b"\xff")
    path = tmp_path / "train-00000-of-00001"
    path.write_bytes(b"".join(map(records.frame, examples)))
    reader = RecordReader(dataset.find_split(tmp_path, "train").index(), skip_damaged=True)
    data = images.training(reader, share(), steps=range(4), first_image=0, crop_area=0.5, seed=1, classes=1)

    assert [10] * 4 == [len(labels) for _, labels, _ in data]
    assert 11 == sum(len(labels) for _, labels in images.evaluation(reader, share(), crop="centre", classes=1))
    assert 1 == reader.left_out
    said = capfd.readouterr().err
    byte = int(records.scan([path]).offset[4]) - records.HEADER_BYTES
    assert said.count("left out") == 1 and f"{path}: the image of the record at byte {byte} is damaged" in said


def test_a_truncated_shard_is_skipped_and_named_when_asked(shards: Any, capsys: pytest.CaptureFixture[str]) -> None:
    """The whole shard; without the wish it is an error."""
    split, path = dataset.find_split(shards, "train"), shards / "train-00002-of-00003"
    whole = len(split.index())
    lost = len(records.scan([path]))
    path.write_bytes(path.read_bytes()[:-1])

    assert whole - lost == len(split.index(skip_damaged=True))
    assert "train-00002-of-00003: cut off" in capsys.readouterr().err
    path.write_bytes(b"")
    assert whole - lost == len(split.index(skip_damaged=True))
    assert "train-00002-of-00003: 0 bytes, but the manifest says" in capsys.readouterr().err
    with pytest.raises(TrainerError, match="0 bytes, but the manifest says"):
        split.index()


def test_labels_outside_the_classes_are_an_error_not_a_nan(shards: Any) -> None:
    """The network has half as many as the data."""
    reader = RecordReader(dataset.find_split(shards, "train").index())
    data = images.training(reader, share(), steps=range(13), first_image=0, crop_area=0.5, seed=1, classes=5)
    with (
        pytest.raises(InputError, match=r"a label lies outside 1 to 5: give the --classes of the data$"),
        images.unwrapped(),
    ):
        list(data)


def test_records_without_a_label_are_an_error_that_says_who_names_them(tmp_path: Path) -> None:
    """As of a test set."""
    jpeg = coordinates(40, 40)
    (tmp_path / "train-00000-of-00001").write_bytes(records.frame(records.example({"image/encoded": jpeg})) * 12)
    reader = RecordReader(dataset.find_split(tmp_path, "train").index())
    data = images.training(reader, share(), steps=range(1), first_image=0, crop_area=0.5, seed=1, classes=10)
    with pytest.raises(InputError, match=r"no readable JPEG image with a label"), images.unwrapped():
        list(data)


def coordinates(height: Any, width: Any) -> Any:
    """A JPEG whose red is the row and green the column, in 0 to 255 over the image."""
    y, x = np.mgrid[:height, :width].astype(np.float32)
    rgb = np.stack([y / height * 255, x / width * 255, np.full_like(x, 128)], 2)
    return cv2.imencode(".jpg", rgb[:, :, ::-1].astype(np.uint8), [cv2.IMWRITE_JPEG_QUALITY, 95])[1].tobytes()


@pytest.mark.parametrize(
    ("crop", "rows", "columns"),
    [
        # A square of 224/256 of the shorter side, from the centre; 80% of both sides.
        ("centre", (0.0625, 0.9375), (0.28125, 0.71875)),
        ("reference", (0.1, 0.9), (0.1, 0.9)),
    ],
)
def test_evaluation_crops_show_what_they_should(crop: Any, rows: Any, columns: Any) -> None:
    """On an image twice as wide as high."""
    found = images.CROPS[crop](tf.constant(coordinates(200, 400)), 64).numpy().astype(float) / 255

    np.testing.assert_allclose((found[0, :, 0].mean(), found[-1, :, 0].mean()), rows, atol=0.03)
    np.testing.assert_allclose((found[:, 0, 1].mean(), found[:, -1, 1].mean()), columns, atol=0.03)


def photograph(data: Path, number: int) -> bytes:
    """A real JPEG, as a camera's software wrote it."""
    return sorted((data / "coco-mini").rglob("*.jpg"))[number].read_bytes()


@pytest.mark.parametrize(("number", "size"), [(0, 224), (5, 96), (11, 160), (17, 448)])
def test_the_central_crop_is_pillows_resize_and_then_its_crop(data: Path, number: int, size: int) -> None:
    """Within a grey level of torchvision's way, whole JPEG in, whether the image is shrunk or enlarged; antialiased."""
    encoded = photograph(data, number)
    image = Image.open(io.BytesIO(encoded)).convert("RGB")
    shorter, short = round(size * 256 / 224), min(image.size)
    whole = image.resize([int(shorter * side / short) for side in image.size], Image.Resampling.BILINEAR)
    left, top = (round((side - size) / 2) for side in whole.size)
    wanted = np.asarray(whole.crop((left, top, left + size, top + size)))

    found = images.central_crop(tf.constant(encoded), size).numpy()
    np.testing.assert_allclose(found.astype(int), wanted.astype(int), atol=1)


@pytest.mark.parametrize(("number", "size"), [(0, 224), (11, 64)])
def test_the_references_crop_is_its_own_operation(data: Path, number: int, size: int) -> None:
    """Points from corner to corner of the middle 80%, each of four pixels: as its crop_and_resize, by NumPy."""
    encoded = photograph(data, number)
    image = tf.io.decode_jpeg(encoded, 3, dct_method="INTEGER_FAST", fancy_upscaling=False).numpy().astype(float)
    for axis in (0, 1):
        where = np.linspace(0.1, 0.9, size) * (image.shape[axis] - 1)
        before = np.floor(where).astype(int)
        share = (where - before).reshape((-1, 1, 1) if axis == 0 else (-1, 1))
        image = np.take(image, before, axis) * (1 - share) + np.take(image, before + 1, axis) * share

    found = images.stretched_crop(tf.constant(encoded), size).numpy()
    np.testing.assert_allclose(found, image, atol=0.51)


def test_the_cache_holds_whole_copies_and_copies_once(shards: Any, tmp_path: Path) -> None:
    """A second filling copies only what has changed."""
    split = dataset.find_split(shards, "train").shards
    folder = cache.place(str(tmp_path / "disk"), split)
    cache.fill(folder, split)
    times = [(folder / p.name).stat().st_ctime_ns for p in split]
    spoil(split[1], 0)
    cache.fill(folder, split)

    assert [p.read_bytes() for p in split] == [(folder / p.name).read_bytes() for p in split]
    assert [True, False, True] == [(folder / p.name).stat().st_ctime_ns == t for p, t in zip(split, times, strict=True)]


def test_batches_come_to_the_device_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    """In their order, all of them; without a GPU the data are not touched."""
    data, real = tf.data.Dataset.range(10).batch(3), tf.config.list_logical_devices
    if not tf.config.list_logical_devices("GPU"):
        assert images.on_device(data) is data
        monkeypatch.setattr(tf.config, "list_logical_devices", lambda kind: list(real("CPU")))
    assert [[0, 1, 2], [3, 4, 5], [6, 7, 8], [9]] == [list(b.numpy()) for b in images.on_device(data)]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (f"{InputError.__name__}: a label lies\nmore", "^a label lies$"),
        ("Invalid JPEG data", "a record holds no readable JPEG image with a label"),
        ("Could not Parse Example input", "a record holds no readable JPEG image with a label"),
        ("Feature: image/encoded is required", "a record holds no readable JPEG image with a label"),
    ],
)
def test_trouble_in_a_pipeline_comes_out_as_one_sentence(text: str, says: str) -> None:
    """Ours as it was said, TensorFlow's of a record by who names it; a bug stays what it is."""
    with pytest.raises(InputError, match=says), images.unwrapped():
        raise tf.errors.InvalidArgumentError(None, None, text)
    with pytest.raises(tf.errors.InvalidArgumentError, match="a bug"), images.unwrapped():
        raise tf.errors.InvalidArgumentError(None, None, "a bug")
