"""Raw files to shards within this process: labels, the shares of shards, the account of every file, what is said of it."""

import hashlib
import io
import json
import struct
import zlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import cv2
import google_crc32c
import numpy as np
import pytest
from PIL import Image

from trainer import sample, verify
from trainer.common.data import records
from trainer.common.data.jpeg import Unusable
from trainer.common.files.errors import ConfigError, TrainerError
from trainer.imagenet import __main__ as program
from trainer.imagenet.convert import Options, make_manifest
from trainer.imagenet.image import make_jpeg
from trainer.imagenet.matlab import read_structs, structs
from trainer.imagenet.raw import Raw, RawImage, read_raw, read_synsets
from trainer.imagenet.shards import ImageOptions, Shard, ShardTask, write_shard, written


def saved(height: int, width: int, form: str = "JPEG", mode: str = "L") -> bytes:
    """A picture of slopes."""
    pixels = np.add.outer(np.arange(height), np.arange(width)).astype(np.uint8)
    out = io.BytesIO()
    Image.fromarray(pixels).convert(mode).save(out, form)
    return out.getvalue()


SMALL = saved(8, 16)


@pytest.fixture
def raw(tmp_path: Path) -> Path:
    """Two classes: three files to train on, one of them no image, one that lies beside; two to judge by."""
    folder = tmp_path / "raw"
    for name in ("train/n02", "train/n01/deep", "val"):
        (folder / name).mkdir(parents=True)
    for name in ("train/n01/deep/a.JPEG", "train/n02/b.JPEG", "train/stray.JPEG", "val/1.JPEG", "val/2.JPEG"):
        (folder / name).write_bytes(SMALL)
    (folder / "train/n02/c.JPEG").write_bytes(b"text")
    (folder / "synsets.txt").write_text("n02 second one\n\nn01\n")
    (folder / "val_synsets.txt").write_text("n02\n\nn01\n")
    return folder


@pytest.mark.parametrize(
    ("name", "text", "says"),
    [
        ("synsets.txt", "", "synsets.txt: expected one synset per line, found none"),
        ("synsets.txt", "\n  \n", "synsets.txt: expected one synset per line, found none"),
        ("synsets.txt", "n01\nn02\n\nn01 again\n", "synsets.txt:4: n01 stands there twice"),
        ("synsets.txt", "n01\n", "train/n02: n02 is not in the list of synsets; complete the list"),
        ("val_synsets.txt", "n01\n", "val_synsets.txt has 1 label for 2 validation files: it must have one per file"),
        ("val_synsets.txt", "n01\nn03\n", "val_synsets.txt:2: 'n03' is not in the list of synsets"),
        ("val_synsets.txt", None, "val_synsets.txt cannot be read: No such file or directory"),
        ("synsets.txt", b"n01 \xff\n", "synsets.txt is no text (invalid start byte at byte 4)"),
    ],
)
def test_lists_that_do_not_fit_are_refused(raw: Path, name: str, text: Any, says: str) -> None:
    """By file and line."""
    if text is None:
        (raw / name).unlink()
    else:
        (raw / name).write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(ConfigError) as error:
        read_raw(raw)

    assert f"{raw}/{says}" in str(error.value)


def test_folders_that_are_not_there_are_refused(raw: Path) -> None:
    """One of either name, and one in which files can have a label."""
    (raw / "val").rename(raw / "elsewhere")
    with pytest.raises(ConfigError, match=r"no folder val or validation there; expected train/<synset>/\*\.JPEG"):
        read_raw(raw)
    (raw / "elsewhere").rename(raw / "val")
    for name in ("n01/deep/a.JPEG", "n02/b.JPEG", "n02/c.JPEG"):
        (raw / "train" / name).unlink()
    with pytest.raises(ConfigError, match="train: no file in any synset's folder"):
        read_raw(raw)
    (raw / "train").rename(raw / "other")
    with pytest.raises(ConfigError, match=r"no folder train there"):
        read_raw(raw)


def task_of(folder: Path, **options: Any) -> ShardTask:
    """A shard of a picture to shrink, one that is a PNG, one that is none, and one that is not there."""
    (folder / ".shards").mkdir(exist_ok=True)
    contents = {"a.JPEG": saved(40, 60, mode="RGB"), "b.JPEG": saved(8, 16, "PNG"), "c.JPEG": b"text", "d.JPEG": b""}
    for name, data in contents.items():
        (folder / name).write_bytes(data)
    (folder / "d.JPEG").unlink()
    sources = tuple(RawImage(folder / n, f"train/{n}", n, "n07", i) for i, n in enumerate(contents, start=1))
    return ShardTask(folder / "train-00000-of-00001", sources, ImageOptions(**options))


def test_a_shard_tells_what_it_holds_and_what_became_of_each_file(tmp_path: Path) -> None:
    """Records, bytes and checksums are those of the file; its files' are those of what was read."""
    task = task_of(tmp_path, shorter_side=20)
    shard = write_shard(task)
    content = task.path.read_bytes()
    examples = [records.parse(record) for record in records.read_all(task.path)]

    assert ({"train/b.JPEG": "png"}, ["train/c.JPEG", "train/d.JPEG"]) == (shard.repaired, list(shard.rejected))
    assert ("no image", "cannot be read: No such file or directory") == tuple(shard.rejected.values())
    assert (2, len(content), hashlib.sha256(content).hexdigest()) == (shard.records, shard.bytes, shard.sha256)
    inputs = b"".join((tmp_path / f"{n}.JPEG").read_bytes() for n in "abc")
    assert (4, len(inputs), google_crc32c.value(inputs)) == (shard.inputs, shard.input_bytes, shard.input_crc32c)
    keys = ("height", "width", "channels", "class/label")
    assert [[20, 30, 3, 1], [8, 16, 3, 2]] == [[e[f"image/{key}"][0] for key in keys] for e in examples]
    words = ("colorspace", "class/synset", "class/text", "format", "filename")
    assert [b"RGB", b"n07", b"n07", b"JPEG", b"a.JPEG"] == [examples[0][f"image/{word}"][0] for word in words]
    assert [".shards", *"abc", "train-00000-of-00001"] == sorted(p.name.split(".J")[0] for p in tmp_path.iterdir())
    assert {"name", "records", "bytes", "sha256", "inputs", "input_bytes", "input_crc32c"} == set(shard.facts())


def test_a_shard_counts_as_written_only_as_it_was_asked_for(tmp_path: Path) -> None:
    """With the same files, options and labels, and its size."""
    task = task_of(tmp_path)
    assert written(task) is None
    shard = write_shard(task)
    assert shard == written(task)

    others = (
        replace(task, options=ImageOptions(quality=84)),
        replace(task, sources=task.sources[:-1]),
        *(replace(task, sources=(replace(task.sources[0], **{k: v}), *task.sources[1:])) for k, v in
          (("label", 9), ("offset", 1), ("name", "x"))),
    )  # fmt: skip
    assert [None] * 5 == [written(other) for other in others]
    facts = task.facts_file.read_text()
    for damaged in ("", "{}", "[]", facts.replace('"records"', '"other"')):
        task.facts_file.write_text(damaged)
        assert written(task) is None
    task.facts_file.write_text(facts)
    task.path.write_bytes(task.path.read_bytes() + b"x")
    assert written(task) is None


def test_a_shard_that_cannot_be_written_is_one_sentence(tmp_path: Path) -> None:
    """Nothing half-written stays."""
    task = task_of(tmp_path)
    (tmp_path / ".shards").rmdir()
    with pytest.raises(TrainerError, match="train-00000-of-00001"):
        write_shard(task)
    with pytest.raises(TrainerError, match="cannot be written: No such file or directory; the shards before it stay"):
        write_shard(replace(task, path=tmp_path / "none" / "train-00000-of-00001"))

    assert [] == [p.name for p in tmp_path.iterdir() if p.name.endswith(".partial")]


def test_a_manifest_accounts_for_every_file() -> None:
    """By name, split and class; where the numbers do not add up something was lost."""
    files = tuple(RawImage(Path("x"), n, n, "n01", 1) for n in "abcd")
    raw = Raw(("n01", "n02"), ("one", "two"), files[:3], files[3:], ("stray",))
    common: dict[str, Any] = {"recipe": "r", "bytes": 5, "sha256": "s", "input_bytes": 4, "input_crc32c": 3}
    train = Shard(name="t", records=2, inputs=3, repaired={"a": "png"}, rejected={"b": "no image"}, **common)
    judging = Shard(name="v", records=1, inputs=1, **common)
    results = {"train": [train], "validation": [judging]}

    assert {
        "format": 1,
        "files": 5,
        "written": 3,
        "rejected": {"b": "no image", "stray": "lies in no synset's folder"},
        "repaired": {"a": "png"},
        "classes": [{"label": 1, "synset": "n01", "name": "one"}, {"label": 2, "synset": "n02", "name": "two"}],
        "options": {"shorter_side": 480, "quality": 85, "check": "decode", "first_number": 1},
        "splits": {
            "train": {"examples": 2, "shards": [train.facts()]},
            "validation": {"examples": 1, "shards": [judging.facts()]},
        },
    } == make_manifest(raw, results, Options(first_number=1))
    with pytest.raises(TrainerError, match=r"^of 5 files 2 written and 2 rejected: some were lost$"):
        make_manifest(raw, {"train": [train]}, Options())


def test_parts_of_a_conversion_leave_the_manifest_to_the_last(
    raw: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first says which it was; what is there is not written again; verifying finds all as it should be."""
    monkeypatch.delenv("OMPI_COMM_WORLD_SIZE", raising=False)
    out = raw.parent / "out"
    words = ["--raw", str(raw), "--out", str(out), "--processes", "1", "--validation-shards", "1", "--part"]
    assert 0 == program.main([*words, "1/2"])
    assert "part 1 of 2: 1 shard written; the last part to end writes manifest.json\n" == capsys.readouterr().out
    assert 0 == program.main([*words, "1/2"])
    assert capsys.readouterr().out.startswith("already written: 1 shard\npart 1 of 2: 1 shard written;")
    assert not (out / "manifest.json").exists()
    assert 0 == program.main([*words, "2/2"])
    said = capsys.readouterr().out.splitlines()
    assert ["rejected train/n02/c.JPEG: no image", "rejected train/stray.JPEG: lies in no synset's folder"] == said[:2]
    assert said[2].startswith(f"6 files: 4 written to {out}, 2 rejected, 0 repaired, in ")
    assert ["manifest.json", "train-00000-of-00001", "validation-00000-of-00001"] == sorted(
        p.name for p in out.iterdir()
    )

    assert 2 == program.main([*words, "2/2"])
    assert f"{out}/manifest.json exists: this folder is already prepared" in capsys.readouterr().err
    assert 0 == verify.main([str(out), "--processes", "1"])
    assert f"{out}: 2 shards with 4 records are as manifest.json says\n" == capsys.readouterr().out
    (out / "train-00000-of-00001").unlink()
    assert 1 == verify.main([str(out), "--processes", "1", "--json"])
    told = json.loads(capsys.readouterr().out)
    assert (2, 4, [f"{out}/train-00000-of-00001: missing"]) == (told["shards"], told["records"], told["problems"])
    manifest = json.loads((out / "manifest.json").read_text())
    (out / "manifest.json").write_text(json.dumps({**manifest, "files": 9}))
    assert 1 == verify.main([str(out), "--processes", "1"])
    found = capsys.readouterr()
    assert f"{out}/manifest.json: 9 files, but 6 accounted for" == found.out.splitlines()[0]
    assert f"2 problems in {out}: copy or prepare these shards again" in found.err
    assert 2 == verify.main([str(out), "--processes", "0"])
    (out / "manifest.json").unlink()
    assert 2 == verify.main([str(out)])


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--train-shards", "0"), "--train-shards is 0, but must be at least 1"),
        (("--validation-shards", "0"), "--validation-shards is 0"),
        (("--processes", "-1"), "--processes is -1"),
        (("--shorter-side", "-1"), "--shorter-side must not be negative and --quality must be between 1 and 100"),
        (("--quality", "0"), "--quality must be between 1 and 100"),
        (("--quality", "101"), "--quality must be between 1 and 100"),
        (("--part", "0/2"), "'0/2' is no part: the first of four is 1/4, the last 4/4"),
        (("--part", "3/2"), "'3/2' is no part"),
        (("--part", "2"), "'2' is not like 2/4"),
        (("--first-number", "2"), "--first-number"),
        (("--image-check", "none"), "--image-check"),
    ],
)
def test_a_conversion_that_cannot_be_is_refused(
    raw: Path, capsys: pytest.CaptureFixture[str], words: tuple[str, ...], says: str
) -> None:
    """In one line, before anything is written."""
    assert 2 == program.main(["--raw", str(raw), "--out", str(raw.parent / "out"), *words])
    assert says in capsys.readouterr().err and not (raw.parent / "out").exists()


def test_the_quality_and_the_kind_of_a_repaired_picture() -> None:
    """A better quality takes more bytes; CMYK is called so, and its colours stay."""
    data = saved(64, 64, "PNG")
    sizes = [len(make_jpeg(data, 0, quality).encoded) for quality in (10, 85, 99)]
    assert sizes == sorted(set(sizes))
    cmyk = make_jpeg(saved(16, 16, mode="CMYK"), 0, 95)
    assert "cmyk" == cmyk.repair
    for form in ("GIF", "BMP", "WEBP", "TIFF"):
        assert form.lower() == make_jpeg(saved(8, 8, form), 0, 85).repair
    with pytest.raises(Unusable, match="32 bits per pixel: nobody knows which of its values is white"):
        make_jpeg(saved(8, 8, "TIFF", "I"), 0, 85)


def element(kind: int, data: bytes, order: str) -> bytes:
    """One of MATLAB's: type, size, data, filled up to eight bytes."""
    return struct.pack(order + "II", kind, len(data)) + data + bytes(-len(data) % 8)


def matrix(kind: int, name: str, body: bytes, order: str, shape: tuple[int, ...] = (1, 1)) -> bytes:
    """An array: its kind, shape and name before what it holds."""
    head = element(6, struct.pack(order + "II", kind, 0), order)
    head += element(5, struct.pack(f"{order}{len(shape)}i", *shape), order)
    return element(14, head + element(1, name.encode(), order) + body, order)


def mat_file(fields: dict[str, bytes], order: str, *, rows: int = 1, packed: bool = False) -> bytes:
    """A file with a number and a structure `s` of these fields, which each row has."""
    width = 8
    names = b"".join(name.encode().ljust(width, b"\0") for name in fields)
    body = element(5, struct.pack(order + "i", width), order) + element(1, names, order)
    whole = matrix(2, "s", body + b"".join(fields.values()) * rows, order, (rows, 1))
    if packed:
        whole = struct.pack(order + "II", 15, len(zlib.compress(whole))) + zlib.compress(whole)
    number = matrix(6, "n", element(9, struct.pack(order + "d", 1), order), order)
    return bytes(126) + (b"IM" if order == "<" else b"MI") + whole + number


NUMBER_TYPES = {1: "b", 2: "B", 3: "h", 4: "H", 5: "i", 6: "I", 7: "f", 9: "d", 12: "q", 13: "Q", 18: "I"}


@pytest.mark.parametrize("order", ["<", ">"])
@pytest.mark.parametrize("packed", [False, True])
def test_a_matlab_file_has_numbers_of_every_type_in_either_order(order: str, packed: bool) -> None:
    """Text of one and of two bytes a letter; what is neither, or no single number, is None."""
    fields = {
        str(t): matrix(6, "", element(t, struct.pack(order + c, 5), order), order) for t, c in NUMBER_TYPES.items()
    }
    fields |= {
        "short": matrix(4, "", element(16, b"ab", order), order, (1, 2)),
        "wide": matrix(4, "", element(17, struct.pack(order + "HH", 0x101, 0x62), order), order, (1, 2)),
        "several": matrix(6, "", element(2, b"\1\2", order), order, (1, 2)),
        "cell": matrix(1, "", matrix(6, "", element(2, b"\1", order), order), order),
        "empty": matrix(6, "", b"", order),
        "nothing": element(14, b"", order),
    }
    found = structs(mat_file(fields, order, rows=2, packed=packed))

    wanted = dict.fromkeys(map(str, NUMBER_TYPES), 5) | {"short": "ab", "wide": "āb"}
    assert {"s": [wanted | dict.fromkeys(("several", "cell", "empty", "nothing"))] * 2} == found


def test_what_is_no_matlab_file_says_so(tmp_path: Path) -> None:
    """A wrong header, a damaged field, too few values, a file that is not there."""
    whole = mat_file({"a": matrix(6, "", element(2, b"\5", "<"), "<")}, "<")
    for data, says in (
        (whole[:126] + b"XX" + whole[128:], "wrong header"),
        (whole[:100], "wrong header"),
        (mat_file({"a": b""}, "<"), "s: 0 values for 1 x 1 fields"),
        (whole[:128] + struct.pack("<II", 15, 8) + b"damaged!", "damaged"),
    ):
        (tmp_path / "meta.mat").write_bytes(data)
        with pytest.raises(ConfigError, match=r"meta\.mat is no MATLAB file of level 5") as error:
            read_structs(tmp_path / "meta.mat")
        assert says in str(error.value)
    with pytest.raises(ConfigError, match=r"none\.mat cannot be read: No such file"):
        read_structs(tmp_path / "none.mat")


def test_a_set_is_drawn_class_by_class(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Ten kinds in turn, each file with a seed of its own; validation images by number, their labels in a list."""
    todo = sample.tasks(Path("o"), 21, 11, seed=4)
    assert (32, 10) == (len(todo), len({t.path.parent for t in todo}) - 1)
    assert ("o/train/n90000000/n90000000_0.JPEG", 0, (4, 0, 0)) == (str(todo[0].path), todo[0].kind, todo[0].seed)
    assert ("o/train/n90000009/n90000009_1.JPEG", 9, (4, 0, 19)) == (str(todo[19].path), todo[19].kind, todo[19].seed)
    assert ("o/train/n90000000/n90000000_2.JPEG", 0) == (str(todo[20].path), todo[20].kind)
    assert ("o/val/sample_val_00000001.JPEG", 0, (4, 1, 0)) == (str(todo[21].path), todo[21].kind, todo[21].seed)
    assert ("o/val/sample_val_00000011.JPEG", 0, (4, 1, 10)) == (str(todo[31].path), todo[31].kind, todo[31].seed)

    out = tmp_path / "set"
    words = ["--out", str(out), "--train", "10", "--validation", "11"]
    assert 0 == sample.main([*words, "--check"])
    assert f"{out} would get 10 training and 11 validation images of 10 classes\n" == capsys.readouterr().out
    assert 0 == sample.main(words)
    begun = f"drawing 21 images into {out}\n"
    assert f"{begun}10 training and 11 validation images of 10 classes in {out}\n" == capsys.readouterr().out
    for task in sample.tasks(out, 10, 11, seed=1):
        assert cv2.imread(str(task.path)) is not None
    names = read_synsets(out / "synsets.txt")
    assert ("striped disc", "striped cross") == (names["n90000000"], names["n90000009"])
    labels = (out / "val_synsets.txt").read_text().split()
    assert [*sorted(names), "n90000000"] == labels
    assert 2 == sample.main(words)
    assert f"{out} is not empty: give another --out" in capsys.readouterr().err
