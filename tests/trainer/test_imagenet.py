"""From raw files to shards: nothing lost, nothing changed that was right."""

import hashlib
import io
import json
import re
import shutil

import cv2
import google_crc32c
import numpy as np
import pytest
from PIL import Image

from trainer import dataset, records
from trainer.imagenet.image import CHECKS, Unusable, make_jpeg

SHAPE = ("image/height", "image/width", "image/channels")


@pytest.fixture
def hostile(tmp_path, imagenet_mini):
    """Two classes whose training folder holds every kind of file that was ever found in one."""
    raw = tmp_path / "raw"
    (raw / "train/n01").mkdir(parents=True)
    (raw / "train/n02").mkdir()
    (raw / "val").mkdir()
    whole = sorted(imagenet_mini.glob("train/*/*.JPEG"))[0].read_bytes()
    image = Image.open(io.BytesIO(whole)).convert("RGB")
    image.convert("L").save(raw / "train/n01/gray.JPEG", "JPEG")
    image.convert("CMYK").save(raw / "train/n01/cmyk.JPEG", "JPEG")
    image.save(raw / "train/n01/png.JPEG", "PNG")
    (raw / "train/n01/whole.JPEG").write_bytes(whole)
    (raw / "train/n02/truncated.JPEG").write_bytes(whole[: len(whole) // 2])
    (raw / "train/n02/empty.JPEG").write_bytes(b"")
    (raw / "train/n02/notes.txt").write_text("not an image")
    (raw / "train/n02/with 'quotes' and\nnewline.JPEG").write_bytes(whole)
    (raw / "train/stray.JPEG").write_bytes(whole)
    (raw / "val/val_1.JPEG").write_bytes(whole)
    (raw / "synsets.txt").write_text("n02 second\nn01 first\n")
    (raw / "val_synsets.txt").write_text("n02\n")
    return raw


def test_every_file_of_a_hostile_folder_is_accounted_for(hostile, tmp_path, python):
    """Repaired, rejected by name and reason, or written; the sum is the number of files."""
    out = tmp_path / "out"
    said = python("trainer.imagenet", "--raw", hostile, "--out", out).stdout
    manifest = json.loads((out / "manifest.json").read_text())

    assert manifest["repaired"] == {"train/n01/cmyk.JPEG": "cmyk", "train/n01/png.JPEG": "png"}
    assert {"train/n02/truncated.JPEG", "train/n02/empty.JPEG", "train/n02/notes.txt", "train/stray.JPEG"} == set(
        manifest["rejected"]
    )
    assert (manifest["files"], manifest["written"]) == (10, 6)
    assert "rejected train/n02/truncated.JPEG" in said and "10 files: 6 written" in said


def test_tensorflow_reads_the_records_and_their_facts_are_true(hostile, tmp_path, python):
    """Keys as the reference's tools write them, labels from 1 by sorted synset, height and width of what is stored."""
    import tensorflow as tf

    out = tmp_path / "out"
    python("trainer.imagenet", "--raw", hostile, "--out", out, "--shorter-side", 64)
    shards = [str(path) for path in dataset.find_split(out, "train").shards]
    found = {}
    for raw in tf.data.TFRecordDataset(shards):
        example = tf.train.Example.FromString(raw.numpy())
        feature = example.features.feature
        pixels = tf.io.decode_jpeg(feature["image/encoded"].bytes_list.value[0], channels=3)
        found[feature["image/filename"].bytes_list.value[0].decode()] = feature["image/class/label"].int64_list.value[0]

        assert min(pixels.shape[:2]) == 64
        assert list(pixels.shape) == [feature[key].int64_list.value[0] for key in SHAPE]
        assert {
            *SHAPE,
            "image/colorspace",
            "image/class/label",
            "image/class/synset",
            "image/class/text",
            "image/format",
            "image/filename",
            "image/encoded",
        } == set(feature)
    assert found == {
        "gray.JPEG": 1,
        "cmyk.JPEG": 1,
        "png.JPEG": 1,
        "whole.JPEG": 1,
        "with 'quotes' and\nnewline.JPEG": 2,
    }


def test_all_of_imagenet_mini_is_there_with_its_label(imagenet_mini, mini_shards):
    """Counted per split and per label against the folders; the checksums are those of the files."""
    manifest = json.loads((mini_shards / "manifest.json").read_text())
    synsets = sorted(line.split()[0] for line in (imagenet_mini / "synsets.txt").read_text().splitlines())
    wanted = [len(list((imagenet_mini / "train" / s).iterdir())) for s in synsets]
    labels = np.zeros(len(synsets) + 1, int)
    for shard in dataset.find_split(mini_shards, "train").shards:
        for record in records.read_all(shard):
            labels[_label(record)] += 1

    assert [0, *wanted] == list(labels)
    assert manifest["splits"]["validation"]["examples"] == 27
    assert manifest["rejected"] == {}
    for shard in manifest["splits"]["train"]["shards"]:
        assert shard["sha256"] == hashlib.sha256((mini_shards / shard["name"]).read_bytes()).hexdigest()


def _label(record):
    import tensorflow as tf

    return tf.train.Example.FromString(record).features.feature["image/class/label"].int64_list.value[0]


def test_an_image_that_is_small_enough_is_copied_byte_by_byte(imagenet_mini, tmp_path, python):
    """Encoding it again would cost quality for nothing."""
    python("trainer.imagenet", "--raw", imagenet_mini, "--out", tmp_path, "--shorter-side", 0)
    originals = {path.read_bytes() for path in imagenet_mini.glob("train/*/*.JPEG")}
    stored = [record for path in dataset.find_split(tmp_path, "train").shards for record in records.read_all(path)]

    assert len(originals) == sum(any(o in record for record in stored) for o in originals)


def test_a_finished_folder_is_not_written_again(hostile, tmp_path, python):
    """Nothing is overwritten unasked."""
    python("trainer.imagenet", "--raw", hostile, "--out", tmp_path / "out")
    again = python("trainer.imagenet", "--raw", hostile, "--out", tmp_path / "out", check=False)

    assert again.returncode == 2
    assert "already prepared" in again.stderr


@pytest.mark.parametrize(
    ("spoil", "says"),
    [
        (lambda raw: shutil.rmtree(raw / "val"), "no folder val or validation"),
        (lambda raw: (raw / "val_synsets.txt").write_text("n02\nn01\n"), "2 labels for 1 validation files"),
        (lambda raw: (raw / "val_synsets.txt").write_text("n77\n"), "val_synsets.txt:1: 'n77'"),
        (lambda raw: (raw / "synsets.txt").write_text("n02 second\n"), "n01 is not in the list of synsets"),
        (lambda raw: (raw / "synsets.txt").unlink(), "synsets.txt cannot be read"),
        (lambda raw: (raw / "synsets.txt").write_text("n01\nn02\nn01\n"), "synsets.txt:3: n01 stands there twice"),
    ],
)
def test_a_raw_folder_that_does_not_fit_is_refused(hostile, tmp_path, python, spoil, says):
    """One sentence with file and line; nothing is written."""
    spoil(hostile)
    done = python("trainer.imagenet", "--raw", hostile, "--out", tmp_path / "out", check=False)

    assert done.returncode == 2
    assert says in done.stderr and "Traceback" not in done.stderr
    assert not (tmp_path / "out").exists()


def test_the_sample_set_is_drawn_the_same_every_time(tmp_path, python):
    """Equal seeds give equal files, another seed others; ten classes, labelled, in the raw layout."""
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        python("trainer.sample", "--out", tmp_path / name, "--train", 20, "--validation", 10, "--seed", seed)
    a, b, c = (sorted((tmp_path / n).rglob("*.JPEG")) for n in "abc")

    assert len(a) == 30
    assert [p.read_bytes() for p in a] == [p.read_bytes() for p in b]
    assert [p.read_bytes() for p in a] != [p.read_bytes() for p in c]
    assert all(min(cv2.imread(str(p)).shape[:2]) >= 72 for p in a)
    assert len(set((tmp_path / "a/val_synsets.txt").read_text().split())) == 10


@pytest.mark.parametrize("value", [b"bytes", "text", 7, -1, [1, 300, 2**40], [0.5, -2.0], [b"a", b"b"]])
def test_an_example_is_what_tensorflow_makes_of_it(value):
    """Our encoder against TensorFlow's parser."""
    import tensorflow as tf

    feature = tf.train.Example.FromString(records.example({"key": value})).features.feature["key"]
    kind = feature.WhichOneof("kind")
    got = list(getattr(feature, kind).value)

    wanted = value if isinstance(value, list) else [value]
    assert [v.encode() if isinstance(v, str) else v for v in wanted] == got
    if not isinstance(wanted[0], float):
        assert {"key": got} == records.parse(records.example({"key": value}))


def test_every_input_and_output_is_counted_with_its_checksum(imagenet_mini, mini_shards):
    """Per shard: files read, their bytes, a checksum of them; the sums are those of the folders."""
    manifest = json.loads((mini_shards / "manifest.json").read_text())
    for split, folder in (("train", "train"), ("validation", "val")):
        files = [p for p in (imagenet_mini / folder).rglob("*") if p.is_file()]
        shards = manifest["splits"][split]["shards"]

        assert len(files) == sum(s["inputs"] for s in shards)
        assert sum(p.stat().st_size for p in files) == sum(s["input_bytes"] for s in shards)
    (first, *_), names = (
        manifest["splits"]["validation"]["shards"],
        sorted(p.name for p in (imagenet_mini / "val").iterdir()),
    )
    data = b"".join((imagenet_mini / "val" / name).read_bytes() for name in names[: first["inputs"]])
    assert google_crc32c.value(data) == first["input_crc32c"]


def test_an_interrupted_conversion_goes_on_with_what_is_missing(imagenet_mini, tmp_path, python):
    """Whole shards stay untouched, a lost or changed one is written again; the result is the same as in one go."""
    words = (
        "trainer.imagenet",
        "--raw",
        imagenet_mini,
        "--shorter-side",
        32,
        "--train-shards",
        6,
        "--validation-shards",
        2,
        "--out",
    )
    python(*words, tmp_path / "whole")
    out = tmp_path / "parts"
    assert "last part to end writes" in python(*words, out, "--part", "1/2").stdout
    lost = sorted(out.glob("train-*"))[1]
    lost.write_bytes(lost.read_bytes()[:-1])
    times = {p.name: p.stat().st_mtime_ns for p in out.glob("train-*") if p != lost}
    said = python(*words, out, "--part", "1/1").stdout

    assert "3 shards were already written" in said
    assert times == {p.name: p.stat().st_mtime_ns for p in out.glob("train-*") if p.name in times}
    whole, parts = (json.loads((tmp_path / n / "manifest.json").read_text()) for n in ("whole", "parts"))
    assert whole == parts
    assert {p.name for p in out.iterdir()} == {p.name for p in (tmp_path / "whole").iterdir()}


def test_other_options_do_not_mix_with_the_shards_of_an_interrupted_run(imagenet_mini, tmp_path, python):
    """Shards of another size are not taken over."""
    words = (
        "trainer.imagenet",
        "--raw",
        imagenet_mini,
        "--train-shards",
        2,
        "--validation-shards",
        1,
        "--out",
        tmp_path,
    )
    python(*words, "--shorter-side", 32, "--part", "1/2")
    said = python(*words, "--shorter-side", 48).stdout

    assert "already written" not in said
    assert "" == python("trainer.verify", tmp_path, "--decode").stderr


def test_ranks_share_the_shards(imagenet_mini, tmp_path, ranks):
    """Under mpirun each takes its part, and one of them writes the manifest; names may count from 1."""
    words = (
        "trainer.imagenet",
        "--raw",
        imagenet_mini,
        "--out",
        tmp_path,
        "--shorter-side",
        32,
        "--first-number",
        1,
        "--train-shards",
        4,
        "--validation-shards",
        1,
        "--job-dir",
        tmp_path / "job",
    )
    ranks(2, *words)

    assert ["train-00001-of-00004", "train-00004-of-00004"] == sorted(p.name for p in tmp_path.glob("train-*"))[::3]
    assert 130 == len(dataset.find_split(tmp_path, "train").index())
    late = ranks(2, *words).stdout  # as ranks of other hosts that begin when all is done
    assert ["part 1 of 2: 0 shards written", "part 2 of 2: 0 shards written"] == sorted(
        re.findall(r"part . of 2: 0 shards written", late)
    )


@pytest.mark.parametrize(
    ("spoil", "says"),
    [
        (lambda p: p.unlink(), "missing"),
        (lambda p: p.write_bytes(p.read_bytes()[:-3]), "bytes, the manifest says"),
        (lambda p: p.write_bytes(p.read_bytes()[:500] + b"x" + p.read_bytes()[501:]), "wrong checksum of the record"),
        (lambda p: p.write_bytes(p.read_bytes()[::-1]), "no TFRecord header at byte 0"),
    ],
)
def test_verify_names_each_damaged_shard(mini_shards, tmp_path, python, spoil, says):
    """And ends with 1; whole shards pass, also when every image is decoded."""
    assert "as manifest.json says, every image decodes" in python("trainer.verify", mini_shards, "--decode").stdout
    data = shutil.copytree(mini_shards, tmp_path / "data")
    spoil(data / "train-00001-of-00003")
    done = python("trainer.verify", data, check=False)

    assert done.returncode == 1
    assert "train-00001-of-00003" in done.stdout and says in done.stdout
    assert "1 problems" in done.stderr and "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"", "empty"),
        (b"text", "no image"),
        (b"\xff\xd8\xff", "no image"),
        (b"\xff\xd8" + b"\xff" * 40, "no image"),
    ],
)
def test_what_is_no_image_says_so(data, why):
    """Also when it begins like a JPEG."""
    with pytest.raises(Unusable, match=why):
        make_jpeg(data, 0, 85)


@pytest.mark.parametrize("check", CHECKS)
def test_every_cut_of_a_jpeg_is_found(imagenet_mini, check):
    """Wherever it ends."""
    whole = sorted(imagenet_mini.glob("train/*/*.JPEG"))[0].read_bytes()
    assert make_jpeg(whole, 0, 85, check).encoded == whole
    for length in np.linspace(1, len(whole) - 1, 50).astype(int):
        with pytest.raises(Unusable):
            make_jpeg(whole[:length], 0, 85, check)
