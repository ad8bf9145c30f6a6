"""Shards without a trainer: their records byte by byte, a reader of them, copies on a host, what JPEG headers say."""

import io
import os
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from PIL import Image

from trainer.common.data import dataset, jpeg, records
from trainer.common.files.errors import CommonError, ConfigError, TrainerError, mpi_rank, report
from trainer.common.ranks.horovod_rank import Ranks, check_together, owned_cores
from trainer.resnet50 import cache
from trainer.resnet50.plan import Data
from trainer.resnet50.reader import InputError, RecordReader
from trainer.resnet50.shards import Shards


def picture(mode: str = "RGB", **options: Any) -> bytes:
    """A JPEG of 24 x 40 pixels."""
    out = io.BytesIO()
    pixels = np.add.outer(np.arange(24), np.arange(40)).astype(np.uint8)
    Image.fromarray(pixels * 3).convert(mode).save(out, "JPEG", **options)
    return out.getvalue()


WHOLE = picture()


def shard(folder: Path, *contents: bytes, name: str = "train-00000-of-00001") -> Path:
    """These records in one file."""
    folder.mkdir(exist_ok=True)
    path = folder / name
    path.write_bytes(b"".join(map(records.frame, contents)))
    return path


@pytest.mark.parametrize(
    ("spoil", "says"),
    [
        (lambda data: data[:5], "cut off in the header at byte 0"),
        (lambda data: data[:19] + data[19:25], "cut off in the header at byte 19"),
        (lambda data: data[:8] + b"\0\0\0\0" + data[12:], "no TFRecord header at byte 0"),
        (lambda data: data[:-1], "cut off in the record at byte 19"),
    ],
)
def test_a_damaged_shard_is_named_with_the_byte(
    tmp_path: Path, spoil: Any, says: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Or left out with a line of the first rank alone, if that was asked for."""
    for name in ("OMPI_COMM_WORLD_RANK", "PMI_RANK", "RANK"):
        monkeypatch.delenv(name, raising=False)
    path, good = shard(tmp_path, b"abc", b"defgh"), shard(tmp_path, b"x", name="good")
    path.write_bytes(spoil(path.read_bytes()))
    wanted = f"{path}: {says}: prepare or copy this shard again"
    with pytest.raises(TrainerError, match=f"^{re.escape(wanted)}$"):
        records.scan([path, good])
    found = records.scan([path, good], skip_damaged=True)
    assert ((good,), [0], 1) == (found.paths, found.shard.tolist(), len(found))
    assert f"warning: the whole shard is left out: {wanted}\n" == capsys.readouterr().err
    monkeypatch.setenv("OMPI_COMM_WORLD_RANK", "1")
    records.scan([path, good], skip_damaged=True)
    assert "" == capsys.readouterr().err


def test_a_shard_that_is_not_there_or_not_of_its_size_is_named(tmp_path: Path) -> None:
    """Also one whose last record is wrong, when it is read."""
    path = shard(tmp_path, b"abc")
    with pytest.raises(TrainerError, match=r"none cannot be read: No such file or directory"):
        records.scan([tmp_path / "none"])
    with pytest.raises(TrainerError, match=r"19 bytes, but the manifest says 20: prepare"):
        records.scan([path], sizes={path.name: 20})
    assert 1 == len(records.scan([path], sizes={path.name: 19, "other": 5}))
    path.write_bytes(path.read_bytes()[:-1] + b"\xff")
    with pytest.raises(TrainerError, match="wrong checksum of the record at byte 0"):
        list(records.read_all(path))


def reader(folder: Path, *contents: bytes, skip: bool = False) -> RecordReader:
    """Of these records."""
    return RecordReader(records.scan([shard(folder, *contents)]), skip_damaged=skip)


def of_picture(encoded: Any) -> bytes:
    """A record with a picture."""
    return records.example({"image/encoded": encoded, "image/class/label": 1})


def test_a_record_that_is_damaged_while_it_is_read_ends_the_run(tmp_path: Path) -> None:
    """With the byte where it begins; also a shard that became shorter, and one that is gone."""
    read = reader(tmp_path, b"a", b"bb")
    path = tmp_path / "train-00000-of-00001"
    whole = path.read_bytes()
    path.write_bytes(whole[:-1] + b"\xff")
    with pytest.raises(InputError, match=r"wrong checksum of the record at byte 17: prepare or copy this shard again"):
        read(np.array([1]))
    assert [b"a"] == read(np.array([0])).tolist()
    path.write_bytes(whole[:-1])
    with pytest.raises(InputError, match="became shorter while it was read"):
        read(np.array([1]))
    gone = RecordReader(records.scan([shard(tmp_path, b"a", name="y")]))
    (tmp_path / "y").unlink()
    with pytest.raises(InputError, match="y cannot be read: No such file or directory"):
        gone(np.array([0]))


def test_damaged_records_are_left_out_or_replaced_and_counted_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """By the next whole one, beyond the end by the first; each is named once with its reason."""
    good, other = of_picture(WHOLE), of_picture(picture(quality=50))
    bad = (of_picture(b"text"), of_picture(7), b"\xff", records.example({"a": 1}), of_picture(WHOLE[:-9]))
    read = reader(tmp_path, good, bad[0], bad[1], other, *bad[2:], skip=True)

    assert [good, other] == read(np.arange(7)).tolist()
    assert [good, other, other, other, good, good, good] == read(np.arange(7), replace=True).tolist()
    assert 5 == read.left_out
    said = capsys.readouterr().err.splitlines()
    assert 5 == len(said) and all("warning: left out: " in line and " is damaged: " in line for line in said)
    at = len(records.frame(good))
    assert f"the image of the record at byte {at} is damaged: it is no JPEG" in said[0] and "it is no JPEG" in said[1]
    assert "truncated" in said[4]
    none = reader(tmp_path, bad[0], bad[2], skip=True)
    with pytest.raises(InputError, match=f"every record of {tmp_path} is damaged: prepare the shards again"):
        none(np.array([0]), replace=True)
    assert bad[0] == reader(tmp_path, bad[0])(np.array([0]))[0]  # images are left to who decodes them


def ranks_of(local_rank: int) -> Ranks:
    """One of two on its host."""
    return Ranks(local_rank, 2, local_rank, 2, threads=1)


def test_shards_are_copied_once_per_host_read_there_and_removed(tmp_path: Path) -> None:
    """By the first rank of a host; whoever reads, reads the copies from then on."""
    index = records.scan([shard(tmp_path / "data", b"abc", b"de")])
    data = Data(classes=1, train_examples=2, train=index)
    config: Any = SimpleNamespace(bad_data="fatal")
    told: list[bytes] = []
    second, first = (Shards(config, data, ranks_of(n), lambda own: told.append(own) or [own]) for n in (1, 0))
    second.copy(str(tmp_path / "disk"))
    copy = cache.place(str(tmp_path / "disk"), index.paths)
    assert not copy.exists()
    first.copy(str(tmp_path / "disk"))
    assert [index.paths[0].name] == [p.name for p in copy.iterdir()]
    index.paths[0].unlink()

    for shards in (first, second):
        read = shards.reader("train")
        assert read and [b"de"] == read(np.array([1])).tolist() and shards.reader("validation") is None
    second.remove_copies()
    assert copy.exists()
    first.remove_copies()
    assert not copy.exists()
    cache.remove(copy)  # another process was quicker
    assert [b"copied", b"copied", b"read", b"read"] == told


def test_copies_are_made_again_only_where_they_differ(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By size and time; without room nothing is copied, and what cannot be read is named."""
    path, folder = shard(tmp_path / "data", b"abc"), tmp_path / "copies" / "deep"
    cache.fill(folder, [path])
    copy = folder / path.name
    assert (path.read_bytes(), path.stat().st_mtime_ns) == (copy.read_bytes(), copy.stat().st_mtime_ns)
    before = copy.stat().st_ino
    cache.fill(folder, [path])
    assert before == copy.stat().st_ino
    os.utime(path, ns=(1, 1))
    cache.fill(folder, [path])
    assert before != copy.stat().st_ino and 1 == copy.stat().st_mtime_ns
    monkeypatch.setattr(cache.shutil, "disk_usage", lambda _: SimpleNamespace(free=18))
    cache.fill(folder, [path])  # it is there already
    copy.unlink()
    with pytest.raises(
        TrainerError, match=rf"--cache: {folder} needs 0\.0 GiB, but 0\.0 are free: give another folder"
    ):
        cache.fill(folder, [path])
    monkeypatch.setattr(cache.shutil, "disk_usage", lambda _: SimpleNamespace(free=19))
    cache.fill(folder, [path])
    with pytest.raises(TrainerError, match=r"--cache: .*none cannot be copied to .*deep: No such file or directory"):
        cache.fill(folder, [tmp_path / "none"])


def segment(marker: int, body: bytes) -> bytes:
    """One of a JPEG's."""
    return bytes((0xFF, marker)) + (len(body) + 2).to_bytes(2) + body


def frame(height: int, width: int, components: int = 3, marker: int = 0xC0) -> bytes:
    """A frame's header."""
    return segment(
        marker, b"\x08" + height.to_bytes(2) + width.to_bytes(2) + bytes([components]) + bytes(3 * components)
    )


BEGIN = b"\xff\xd8"


@pytest.mark.parametrize("marker", [0xC0, 0xC1, 0xC2, 0xC3, 0xCF])
def test_a_jpegs_header_is_that_of_its_frame(marker: int) -> None:
    """Whatever stands before it: other segments, fill bytes, markers by themselves; and where its first scan begins."""
    table, fill, alone = segment(0xC4, b"\x00" * 9), b"\xff", b"\xff\x01\xff\xd0\xff\xd8"
    before = BEGIN + segment(0xE0, b"app") + table + segment(0xCC, b"12345678") + fill + alone
    data = before + frame(30, 50, 3, marker) + segment(0xDB, b"more") + segment(0xDA, bytes(20))

    found = jpeg.read_header(data)
    assert found == jpeg.Header(30, 50, 3, marker, data.rindex(b"\xff\xda"))
    unscanned = jpeg.read_header(before + frame(30, 50, 1, marker) + segment(0xDB, bytes(20)))
    assert unscanned == jpeg.Header(30, 50, 1, marker, 0)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        BEGIN,
        b"text" * 9,
        BEGIN + segment(0xC4, bytes(30)),
        BEGIN + b"garbage" * 4,
        BEGIN + segment(0xDA, bytes(9)),
    ],
)
def test_what_has_no_frame_is_no_jpeg(data: bytes) -> None:
    """A table, a scan without one, something between segments."""
    assert jpeg.read_header(data) is None


@pytest.mark.parametrize(
    ("height", "width", "says"),
    [
        (0, 5, "its header says 5 x 0 pixels"),
        (5, 0, "its header says 0 x 5 pixels"),
        (1, 1, None),
        (1 << 13, 1 << 14, None),
        ((1 << 13) + 1, 1 << 14, "its header says 16384 x 8193 pixels, more than 134,217,728"),
    ],
)
def test_a_size_that_no_picture_has_is_refused(height: int, width: int, says: str | None) -> None:
    """No pixels, or more than anybody makes room for."""
    if says is None:
        jpeg.check_size(height, width)
        return
    with pytest.raises(jpeg.Unusable, match=f"^{says}"):
        jpeg.check_size(height, width)


@pytest.mark.parametrize("mode", ["L", "RGB", "CMYK"])
@pytest.mark.parametrize("more", [{}, {"progressive": True}])
def test_a_whole_jpeg_is_checked_to_its_last_scan(mode: str, more: dict[str, Any]) -> None:
    """Of one component, of three, of four; without its last scan it is not whole."""
    data = picture(mode, **more)
    header = jpeg.read_header(data)
    assert header
    jpeg.check(data, header)
    if mode != "CMYK":
        assert (24, 40, 3) == jpeg.decode(data, header).shape
    scans = [m.start() for m in re.finditer(b"\xff\xda", data)]
    if more:
        with pytest.raises(jpeg.Unusable, match="truncated: scans are missing, though it has an end"):
            jpeg.check(data[: scans[-1]] + b"\xff\xd9", header)


def test_shards_of_a_folder_are_found_whole_or_refused(tmp_path: Path) -> None:
    """There or one folder below, counted from 0 or from 1; what is missing, or of another set, is named."""
    folder = tmp_path / "data"
    with pytest.raises(ConfigError, match=r"no such data folder: 'inv data\.imagenet' prepares one"):
        dataset.find_split(folder, "train")
    shard(folder, b"a", name="train-00000-of-00005")
    with pytest.raises(
        ConfigError, match=rf"{folder}: no validation-\*-of-\* shards there or in {folder}/validation: "
    ):
        dataset.find_split(folder, "validation")
    says = (
        r"4 of 5 train shards are missing \(train-00001-of-00005, train-00002-of-00005, train-00003-of-00005, …\); copy"
    )
    with pytest.raises(ConfigError, match=says):
        dataset.find_split(folder, "train")
    below = folder / "validation"
    for name in ("validation-00001-of-00002", "validation-00002-of-00002", "validation-00003-of-00002.tmp"):
        shard(below, b"a", name=name)
    assert [below / f"validation-0000{n}-of-00002" for n in (1, 2)] == list(
        dataset.find_split(folder, "validation").shards
    )
    shard(below, b"a", name="validation-00001-of-00004")
    with pytest.raises(
        ConfigError, match=r"validation shards of different sets lie together \(of 2, 4\); keep one set"
    ):
        dataset.find_split(folder, "validation")
    (below / "validation-00001-of-00004").unlink()
    (below / "validation-00002-of-00002").unlink()
    with pytest.raises(ConfigError, match=r"1 of 2 validation shards are missing \(validation-00002-of-00002\)"):
        dataset.find_split(folder, "validation")
    assert dataset.classes_in(folder) is None


@pytest.mark.parametrize(
    ("environment", "rank"),
    [({}, 0), ({"OMPI_COMM_WORLD_RANK": "3", "RANK": "5"}, 3), ({"PMI_RANK": "2"}, 2), ({"RANK": "7"}, 7)],
)
def test_errors_are_said_by_the_first_rank_or_with_the_rank(
    environment: dict[str, str], rank: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """What all find alike only the first one says."""
    for name in ("OMPI_COMM_WORLD_RANK", "PMI_RANK", "RANK", "OMPI_COMM_WORLD_SIZE", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert rank == mpi_rank()
    report(TrainerError("mine"))
    report(CommonError("ours"))
    report(ConfigError("flags"))
    wanted = "error: mine\nerror: ours\nerror: flags\n" if rank == 0 else f"error on rank {rank}: mine\n"
    assert wanted == capsys.readouterr().err


def test_a_rank_owns_what_it_is_bound_to_or_its_share() -> None:
    """Never none; ranks that mpirun started and Horovod does not find are told."""
    assert [4, 2, 2, 1] == [owned_cores(*of) for of in ((16, 16, 4), (2, 16, 4), (8, 8, 4), (1, 1, 4))]
    check_together(2, {"OMPI_COMM_WORLD_SIZE": "2"})
    check_together(1, {})
    with pytest.raises(TrainerError, match=r"^mpirun started ranks: 2, Horovod finds: 1\. It was built with another"):
        check_together(1, {"OMPI_COMM_WORLD_SIZE": "2"})
