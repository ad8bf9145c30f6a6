"""From raw files to shards: nothing lost, nothing changed that was right."""

import hashlib
import io
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import cv2
import google_crc32c
import numpy as np
import pytest
from PIL import Image

from cluster.inventory import ROOT
from tests.conftest import PATIENCE_S
from trainer import verify
from trainer.common.data import dataset, records
from trainer.common.data.jpeg import Unusable
from trainer.common.files.errors import ConfigError
from trainer.imagenet.image import CHECKS, make_jpeg
from trainer.imagenet.raw import RawImage, read_raw
from trainer.imagenet.shards import make_example
from trainer.verify import image_problem

SHAPE = ("image/height", "image/width", "image/channels")


def drawn(height: Any, width: Any, seed: int = 0) -> Any:
    """A picture with slopes and edges, [H, W, 3] uint8."""
    rng = np.random.default_rng(seed)
    slopes = cv2.resize(rng.uniform(0, 255, (4, 5, 3)).astype(np.float32), (width, height))
    cv2.circle(slopes, (width // 2, height // 2), min(height, width) // 3, (10, 200, 90), -1)
    return np.clip(slopes, 0, 255).astype(np.uint8)


def saved(array: Any, form: Any, **options: Any) -> Any:
    """The array as a file of this format."""
    out = io.BytesIO()
    Image.fromarray(array).save(out, form, **options)
    return out.getvalue()


def of_size(data: Any, height: Any, width: Any) -> Any:
    """The JPEG, whose frame header now says another size."""
    at = max(data.find(b"\xff\xc0"), data.find(b"\xff\xc2"))
    return data[: at + 5] + height.to_bytes(2) + width.to_bytes(2) + data[at + 9 :]


JPEG = saved(drawn(60, 80), "JPEG")
PROGRESSIVE = saved(drawn(60, 80), "JPEG", progressive=True)
SCANS = [m.start() for m in re.finditer(b"\xff\xda", PROGRESSIVE)]
TENTH = JPEG[: (JPEG.index(b"\xff\xda") * 9 + len(JPEG)) // 10] + b"\xff\xd9"


@pytest.fixture
def hostile(tmp_path: Path, imagenet_mini: Any) -> Any:
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


def test_every_file_of_a_hostile_folder_is_accounted_for(hostile: Any, tmp_path: Path, python: Any) -> None:
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


def test_tensorflow_reads_the_records_and_their_facts_are_true(hostile: Any, tmp_path: Path, python: Any) -> None:
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


def test_all_of_imagenet_mini_is_there_with_its_label(imagenet_mini: Any, mini_shards: Any) -> None:
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


def _label(record: Any) -> Any:
    import tensorflow as tf

    return tf.train.Example.FromString(record).features.feature["image/class/label"].int64_list.value[0]


def test_an_image_that_is_small_enough_is_copied_byte_by_byte(imagenet_mini: Any, tmp_path: Path, python: Any) -> None:
    """Encoding it again would cost quality for nothing."""
    python("trainer.imagenet", "--raw", imagenet_mini, "--out", tmp_path, "--shorter-side", 0)
    originals = {path.read_bytes() for path in imagenet_mini.glob("train/*/*.JPEG")}
    stored = [record for path in dataset.find_split(tmp_path, "train").shards for record in records.read_all(path)]

    assert len(originals) == sum(any(o in record for record in stored) for o in originals)


def test_a_finished_folder_is_not_written_again(hostile: Any, tmp_path: Path, python: Any) -> None:
    """Nothing is overwritten unasked."""
    python("trainer.imagenet", "--raw", hostile, "--out", tmp_path / "out")
    again = python("trainer.imagenet", "--raw", hostile, "--out", tmp_path / "out", check=False)

    assert again.returncode == 2
    assert "already prepared" in again.stderr


@pytest.mark.parametrize(
    ("spoil", "says"),
    [
        (lambda raw: shutil.rmtree(raw / "val"), "no folder val or validation"),
        (lambda raw: (raw / "val_synsets.txt").write_text("n02\nn01\n"), "2 labels for 1 validation file:"),
        (lambda raw: (raw / "val_synsets.txt").write_text("n77\n"), "val_synsets.txt:1: 'n77'"),
        (lambda raw: (raw / "synsets.txt").write_text("n02 second\n"), "n01 is not in the list of synsets"),
        (lambda raw: (raw / "synsets.txt").unlink(), "synsets.txt cannot be read"),
        (lambda raw: (raw / "synsets.txt").write_bytes(b"n01 \xff\n"), "synsets.txt is no text"),
        (lambda raw: (raw / "synsets.txt").write_text("n01\nn02\nn01\n"), "synsets.txt:3: n01 stands there twice"),
    ],
)
def test_a_raw_folder_that_does_not_fit_is_refused(
    hostile: Any, tmp_path: Path, python: Any, spoil: Any, says: Any
) -> None:
    """One sentence with file and line; nothing is written."""
    spoil(hostile)
    done = python("trainer.imagenet", "--raw", hostile, "--out", tmp_path / "out", check=False)

    assert done.returncode == 2
    assert says in done.stderr and "Traceback" not in done.stderr
    assert not (tmp_path / "out").exists()


def test_the_sample_set_is_drawn_the_same_every_time(tmp_path: Path, python: Any) -> None:
    """Equal seeds give equal files, another seed others; ten classes, labelled, in the raw layout."""
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        python("trainer.sample", "--out", tmp_path / name, "--train", 20, "--validation", 10, "--seed", seed)
    a, b, c = (sorted((tmp_path / n).rglob("*.JPEG")) for n in "abc")

    assert len(a) == 30
    assert [p.read_bytes() for p in a] == [p.read_bytes() for p in b]
    assert [p.read_bytes() for p in a] != [p.read_bytes() for p in c]
    assert all(min(cv2.imread(str(p)).shape[:2]) >= 72 for p in a)
    assert len(set((tmp_path / "a/val_synsets.txt").read_text().split())) == 10


def test_every_input_and_output_is_counted_with_its_checksum(imagenet_mini: Any, mini_shards: Any) -> None:
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


def test_an_interrupted_conversion_goes_on_with_what_is_missing(
    imagenet_mini: Any, tmp_path: Path, python: Any
) -> None:
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

    assert "already written: 3 shards" in said
    assert times == {p.name: p.stat().st_mtime_ns for p in out.glob("train-*") if p.name in times}
    whole, parts = (json.loads((tmp_path / n / "manifest.json").read_text()) for n in ("whole", "parts"))
    assert whole == parts
    assert {p.name for p in out.iterdir()} == {p.name for p in (tmp_path / "whole").iterdir()}


def test_other_options_do_not_mix_with_the_shards_of_an_interrupted_run(
    imagenet_mini: Any, tmp_path: Path, python: Any
) -> None:
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


def test_ranks_share_the_shards(imagenet_mini: Any, tmp_path: Path, ranks: Any) -> None:
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
def test_verify_names_each_damaged_shard(mini_shards: Any, tmp_path: Path, python: Any, spoil: Any, says: Any) -> None:
    """And ends with 1; whole shards pass, also when every image is decoded."""
    assert "as manifest.json says, every image decodes" in python("trainer.verify", mini_shards, "--decode").stdout
    data = shutil.copytree(mini_shards, tmp_path / "data")
    spoil(data / "train-00001-of-00003")
    done = python("trainer.verify", data, check=False)

    assert done.returncode == 1
    assert "train-00001-of-00003" in done.stdout and says in done.stdout
    assert "1 problem " in done.stderr and "Traceback" not in done.stderr


def record_of(**changed: Any) -> Any:
    """One record as the conversion writes it, with some of its features otherwise; None takes one out."""
    source = RawImage(Path("a.JPEG"), "a.JPEG", "a.JPEG", "n01", 1)
    features = records.parse(make_example(source, make_jpeg(JPEG, 0, 85)))
    features |= {f"image/{key.replace('_', '/')}": value for key, value in changed.items()}
    return records.example({key: value for key, value in features.items() if value is not None})


@pytest.mark.parametrize(
    ("record", "why"),
    [
        (record_of(), None),
        (record_of(encoded=TENTH), "holds an image that cannot be used: truncated or damaged"),
        (record_of(encoded=b"text"), "holds no JPEG image"),
        (record_of(encoded=7), "holds no JPEG image"),
        (record_of(encoded=None), "is no example with an image and a label"),
        (record_of(class_label=None), "is no example with an image and a label"),
        (record_of(class_label=6), "has the label 6, but the classes are 1 to 5"),
        (record_of(class_label=0), "has the label 0"),
        (record_of(class_synset="n02"), "says n02, but its label 1 is n01 in manifest.json"),
        (record_of(class_synset=None), None),
        (record_of(height=61), "says 80 x 61 pixels, its image has 80 x 60"),
        (b"\x0a\x04\x0a\x02\x12\x00", "is no example"),
        (b"text", "is no example"),
    ],
)
def test_verifying_says_why_a_record_cannot_be_trained_on(record: Any, why: Any) -> None:
    """Its image decoded with every warning an error, its label one of the classes."""
    assert why == (found := image_problem(record, classes=["n01"] * 5)) or why in found


def test_images_are_drawn_and_converted_where_opencv_has_threads(tmp_path: Path) -> None:
    """No fork takes them along, and who looked for them in a child waited for ever. They are as many as before, then."""
    program = """if True:
        import sys
        from pathlib import Path
        import cv2, numpy as np
        from trainer import sample
        from trainer.imagenet.__main__ import main
        cv2.setNumThreads(2)
        cv2.GaussianBlur(np.zeros((2000, 2000, 3), np.uint8), (31, 31), 0)
        sample.write_set(Path(sys.argv[1]), train=10, validation=10, seed=1, processes=2)
        code = main(["--raw", sys.argv[1], "--out", sys.argv[2], "--processes", "2"])
        sys.exit(code or cv2.getNumThreads() != 2)
    """
    words = [sys.executable, "-c", program, tmp_path / "raw", tmp_path / "shards"]
    subprocess.run(words, cwd=ROOT, check=True, timeout=PATIENCE_S, capture_output=True)
    assert (tmp_path / "shards/manifest.json").exists()


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "[" * 100_000,
        "{}",
        '{"splits": []}',
        '{"splits": {"train": {"shards": [{}]}}, "rejected": {}, "classes": []}',
        '{"splits": {"train": {"shards": [{"name": "../x", "records": 1, "bytes": 1, "sha256": ""}]}}, "files": 1,'
        ' "written": 1, "rejected": {}, "classes": []}',
        '{"splits": {}, "files": 1.5, "written": 1, "rejected": {}, "classes": []}',
        '{"splits": {}, "files": 1, "written": 1, "rejected": [], "classes": []}',
        '{"splits": {}, "files": 1, "written": 1, "rejected": {}, "classes": "n01"}',
        '{"splits": {}, "files": null, "written": 1, "rejected": {}, "classes": []}',
    ],
)
def test_a_damaged_manifest_is_named(tmp_path: Path, text: Any) -> None:
    """By whoever reads it: verifying and trainings."""
    (tmp_path / "manifest.json").write_text(text)
    for read in (verify.verify, dataset.classes_in):
        with pytest.raises(ConfigError, match=r"manifest.json is no manifest of python -m trainer.imagenet"):
            read(tmp_path)


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"", "empty"),
        (b"text", "no image"),
        (b"\xff\xd8\xff", "no image"),
        (b"\xff\xd8" + b"\xff" * 40, "no image"),
    ],
)
def test_what_is_no_image_says_so(data: Path, why: Any) -> None:
    """Also when it begins like a JPEG."""
    with pytest.raises(Unusable, match=why):
        make_jpeg(data, 0, 85)


@pytest.mark.parametrize("check", CHECKS)
@pytest.mark.parametrize(
    ("data", "why"),
    [
        (of_size(JPEG, 65500, 65500), "65500 x 65500 pixels, more than"),
        (of_size(JPEG, 20000, 20000), "20000 x 20000 pixels, more than"),
        (of_size(JPEG, 2000, 2000), "2000 x 2000 pixels, but the file has"),
        (of_size(JPEG, 0, 80), "80 x 0 pixels"),
        (saved(drawn(2, 70000), "PNG"), "70000 x 2 pixels: a JPEG has at most 65500"),
        (
            saved(drawn(9, 9), "BMP")[:18] + b"\xff\xff\xff\x7f" + saved(drawn(9, 9), "BMP")[22:],
            "2147483647 x 9 pixels",
        ),
        (
            saved(drawn(9, 9), "BMP")[:18] + b"\x00\x00\x00\x80" + saved(drawn(9, 9), "BMP")[22:],
            "damaged|no image|pixels",
        ),
        (saved(drawn(16, 16), "DDS"), "no image"),
        (saved(drawn(16, 16).astype(np.float32)[:, :, 0], "TIFF"), "32 bits per pixel"),
        (saved(drawn(99, 99), "PNG")[:-900], "damaged"),
        (saved(drawn(99, 99), "PNG").replace(b"IDAT", b"IDAT\0", 1), "damaged"),
        (saved(drawn(99, 99), "TIFF", compression="jpeg"), "a TIFF with JPEG inside"),
        (JPEG[:2] + b"garbage" + JPEG[2:], "damaged|no image"),
        (JPEG[:-2], "truncated"),
        (PROGRESSIVE[: SCANS[-1]], "truncated"),
    ],
)
def test_an_image_of_an_absurd_size_or_an_exotic_kind_is_refused_alone(data: Path, why: Any, check: Any) -> None:
    """As `Unusable`, before anybody makes room for its pixels."""
    with pytest.raises(Unusable, match=why):
        make_jpeg(data, 0, 85, check)


@pytest.mark.parametrize(
    "data",
    [
        TENTH,
        JPEG[: len(JPEG) // 2] + b"\xff\xd9",
        JPEG[:-300] + bytes(200) + JPEG[-100:],
        PROGRESSIVE[: SCANS[1]] + b"\xff\xd9",
        PROGRESSIVE[: SCANS[-1]] + b"\xff\xd9",
    ],
    ids=["a tenth", "half", "hole", "one scan", "all scans but one"],
)
@pytest.mark.parametrize("shorter_side", [0, 30])
def test_a_jpeg_with_an_end_and_not_all_before_it_is_refused(data: Path, shorter_side: Any) -> None:
    """A decoder that mends fills in what is missing: gray, or what is coarser."""
    with pytest.raises(Unusable, match=r"truncated|damaged"):
        make_jpeg(data, shorter_side, 85)


def test_a_jpeg_of_many_scans_is_refused() -> None:
    """Each costs a pass over all pixels: a small file would take a processor for minutes."""
    many = PROGRESSIVE[:-2] + PROGRESSIVE[SCANS[-1] : -2] * 600 + b"\xff\xd9"
    with pytest.raises(Unusable, match="more than 500 scans"):
        make_jpeg(many, 0, 85)


@pytest.mark.parametrize("form", ["PNG", "TIFF"])
def test_sixteen_bits_become_eight(form: Any) -> None:
    """Black is black, white white and the middle between them."""
    ramp = np.repeat(np.linspace(0, 65535, 64).astype(np.uint16)[None], 40, axis=0)
    made = make_jpeg(saved(ramp, form), 0, 95)
    found = cv2.imdecode(np.frombuffer(made.encoded, np.uint8), cv2.IMREAD_GRAYSCALE)

    assert made.repair == form.lower()
    np.testing.assert_allclose(found.mean(axis=0), np.linspace(0, 255, 64), atol=3)


def test_a_file_may_have_any_name(hostile: Any, tmp_path: Path, python: Any) -> None:
    """Names are bytes: what is no text is written, or named as rejected, like any other."""
    folder = os.fsencode(hostile / "train/n01")
    for name, data in ((b"\xff\xfe.JPEG", JPEG), (b"\xe9.JPEG", b"no image")):
        with open(os.path.join(folder, name), "wb") as file:  # noqa: PTH118, PTH123
            file.write(data)
    said = python("trainer.imagenet", "--raw", hostile, "--out", tmp_path / "out").stdout
    names = {records.parse(r)["image/filename"][0] for r in records.read_all(tmp_path / "out/train-00000-of-00001")}

    assert b"\xff\xfe.JPEG" in names
    assert "rejected train/n01/\\udce9.JPEG: no image" in said


def test_a_folder_that_cannot_be_read_is_named(hostile: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Its images would be missing without a word."""
    scandir = os.scandir

    def refusing(path: Any) -> Any:
        if str(path).endswith("n02"):
            raise PermissionError(13, "Permission denied", str(path))
        return scandir(path)

    monkeypatch.setattr(os, "scandir", refusing)
    with pytest.raises(ConfigError, match=r"n02 cannot be read: Permission denied"):
        read_raw(hostile)


def test_damaged_images_do_not_end_a_conversion(hostile: Any, tmp_path: Path, python: Any) -> None:
    """Each of them is named with its reason, all others are written."""
    folder = hostile / "train/n01"
    damaged = {
        "absurd.JPEG": of_size(JPEG, 65500, 65500),
        "wide.png": saved(drawn(2, 70000), "PNG"),
        "texture.dds": saved(drawn(16, 16), "DDS"),
        "tenth.JPEG": TENTH,
    }
    for name, data in damaged.items():
        (folder / name).write_bytes(data)
    said = python("trainer.imagenet", "--raw", hostile, "--out", tmp_path / "out").stdout
    manifest = json.loads((tmp_path / "out/manifest.json").read_text())

    assert (manifest["files"], manifest["written"]) == (14, 6)
    assert {f"train/n01/{name}" for name in damaged} <= set(manifest["rejected"])
    assert all(f"rejected train/n01/{name}: " in said for name in damaged)
    assert "every image decodes" in python("trainer.verify", tmp_path / "out", "--decode").stdout


@pytest.mark.parametrize("check", CHECKS)
def test_every_cut_of_a_jpeg_is_found(imagenet_mini: Any, check: Any) -> None:
    """Wherever it ends."""
    whole = sorted(imagenet_mini.glob("train/*/*.JPEG"))[0].read_bytes()
    assert make_jpeg(whole, 0, 85, check).encoded == whole
    for length in np.linspace(1, len(whole) - 1, 50).astype(int):
        with pytest.raises(Unusable):
            make_jpeg(whole[:length], 0, 85, check)


def test_each_record_that_cannot_be_trained_on_is_named_once_images_are_decoded(tmp_path: Path) -> None:
    """By its number, with the reason; whatever else is wrong with the shard stands beside it."""
    whole = saved(drawn(40, 60), "JPEG")

    def record(encoded: bytes, label: int = 2, height: int = 40) -> bytes:
        sizes: dict[str, Any] = {"image/height": height, "image/width": 60}
        return records.example({"image/encoded": encoded, "image/class/label": label, **sizes})

    kept = (
        record(whole), b"\xff", record(b"text"), record(whole[: len(whole) // 2] + b"\xff\xd9"),
        record(whole, height=41), record(whole, label=3), record(whole, label=1),
    )  # fmt: skip
    path = tmp_path / "train-00000-of-00001"
    path.write_bytes(b"".join(map(records.frame, kept)))
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    facts = dataset.ShardFacts(name=path.name, records=len(kept), bytes=path.stat().st_size, sha256=digest)
    found = verify.shard_problems(facts, tmp_path, classes=["n01", "n02"], decode=True)

    assert [f"{path}: record {n}" for n in (2, 3, 4, 5, 6)] == [" ".join(one.split()[:3]) for one in found]
    assert "is no example with an image and a label" in found[0] and "holds no JPEG image" in found[1]
    assert "holds an image that cannot be used" in found[2]
    assert "says 60 x 41 pixels, its image has 60 x 40" in found[3]
    assert "has the label 3, but the classes are 1 to 2" in found[4]
    assert [] == verify.shard_problems(facts, tmp_path, classes=["n01", "n02"])
    other = dataset.ShardFacts(name=path.name, records=8, bytes=path.stat().st_size, sha256="0" * 64)
    assert [f"{path}: 7 records, the manifest says 8", f"{path}: its SHA-256 is not the manifest's"] == (
        verify.shard_problems(other, tmp_path, classes=["n01", "n02"])
    )
