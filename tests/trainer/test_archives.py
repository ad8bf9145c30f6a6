"""The official archives, built small: a tar of tars, a validation tar, a packed development kit.

recorded/meta*.mat were written by SciPy 1.17.1's savemat in the layout of the development kit's file: three synsets
and an inner node, compressed and not.
"""

import io
import json
import shutil
import tarfile
from pathlib import Path
from typing import Any

import pytest

from tests.tars import tar_of
from trainer.common.data import dataset, records
from trainer.common.files.errors import ConfigError
from trainer.imagenet.archives import TRAIN, VALIDATION, read_archives
from trainer.imagenet.devkit import DEVKITS
from trainer.imagenet.matlab import read_structs
from trainer.imagenet.tar import files_in

RECORDED = Path(__file__).parent / "recorded"
COUNTS = {"n02119789": 3, "n02100735": 2, "n01443537": 2}  # kit fox is 1, setter 2, goldfish 3 to the kit
TRUTH = (3, 1, 2, 1)


@pytest.fixture
def official(tmp_path: Path, imagenet_mini: Any) -> Any:
    """The folder, and each file's bytes by its name."""
    folder = tmp_path / "official"
    folder.mkdir()
    pictures = iter(sorted(imagenet_mini.glob("train/*/*.JPEG")))
    train = {s: {f"{s}_{i}.JPEG": next(pictures).read_bytes() for i in range(n)} for s, n in COUNTS.items()}
    validation = {f"ILSVRC2012_val_{i:08d}.JPEG": next(pictures).read_bytes() for i in range(1, 5)}
    (folder / TRAIN).write_bytes(tar_of({f"{s}.tar": tar_of(files) for s, files in train.items()}))
    (folder / VALIDATION).write_bytes(
        tar_of(dict(reversed(validation.items())))
    )  # the order of names counts, not of members
    with tarfile.open(folder / DEVKITS[0], "w:gz") as kit:
        kit.add(RECORDED / "meta.mat", "ILSVRC2012_devkit_t12/data/meta.mat")
        truth = "".join(f"{n}\n" for n in TRUTH).encode()
        info = tarfile.TarInfo("ILSVRC2012_devkit_t12/data/ILSVRC2012_validation_ground_truth.txt")
        info.size = len(truth)
        kit.addfile(info, io.BytesIO(truth))
    return folder, {k: v for files in (*train.values(), validation) for k, v in files.items()}


def cut_between_two_files(path: Any) -> None:
    """Takes the last file and the end from a tar."""
    with tarfile.open(path) as tar:
        last = tar.getmembers()[-1].offset
    path.write_bytes(path.read_bytes()[:last])


@pytest.mark.parametrize("name", ["meta.mat", "meta-plain.mat"])
def test_the_development_kits_table_is_read(name: Any) -> None:
    """Numbers, synsets and names, also of inner nodes."""
    rows = read_structs(RECORDED / name)["synsets"]

    assert [(1, "n02119789"), (2, "n02100735"), (3, "n01443537"), (1001, "n00001740")] == [
        (r["ILSVRC2012_ID"], r["WNID"]) for r in rows
    ]
    assert ("kit fox, Vulpes macrotis", 3) == (rows[0]["words"], rows[0]["num_train_images"])


def test_archives_become_shards_with_the_right_labels(official: Any, tmp_path: Path, python: Any) -> None:
    """Labels from 1 by sorted synset, not the kit's numbers; every file's bytes unchanged."""
    folder, files = official
    out = tmp_path / "out"
    python("trainer.imagenet", "--raw", folder, "--out", out, "--shorter-side", 0)
    found = {}
    for split in dataset.SPLITS:
        for shard in dataset.find_split(out, split).shards:
            for example in map(records.parse, records.read_all(shard)):
                name = example["image/filename"][0].decode()
                found[name] = example["image/class/label"][0]
                assert files[name] == example["image/encoded"][0]

    labels = {"n01443537": 1, "n02100735": 2, "n02119789": 3}
    of_kit = {1: 3, 2: 2, 3: 1}
    wanted = {name: labels[name.split("_")[0]] for name in files if not name.startswith("ILSVRC")}
    wanted |= {f"ILSVRC2012_val_{i:08d}.JPEG": of_kit[n] for i, n in enumerate(TRUTH, start=1)}
    assert wanted == found
    manifest = json.loads((out / "manifest.json").read_text())
    assert (11, 11, "goldfish, Carassius auratus") == (
        manifest["files"],
        manifest["written"],
        manifest["classes"][0]["name"],
    )


@pytest.mark.parametrize(
    ("spoil", "says"),
    [
        (lambda f: (f / VALIDATION).unlink(), "ILSVRC2012_img_val.tar cannot be read"),
        (lambda f: (f / DEVKITS[0]).unlink(), "the development kit is missing"),
        (
            lambda f: (f / DEVKITS[0]).write_bytes((f / DEVKITS[0]).read_bytes()[:300]),
            "devkit_t12.tar.gz cannot be read",
        ),
        (lambda f: (f / TRAIN).write_bytes(b"x" * 5000), "ILSVRC2012_img_train.tar cannot be read as a tar file"),
        (lambda f: cut_between_two_files(f / TRAIN), "ILSVRC2012_img_train.tar cannot be read as a tar file"),
        (lambda f: (f / VALIDATION).write_bytes(tar_of({"a.JPEG": b""})), "4 labels for 1 validation file:"),
        (lambda f: (f / TRAIN).write_bytes(tar_of({"n99.tar": tar_of({"a.JPEG": b"x"})})), "n99.tar is not one of"),
        (
            lambda f: (f / TRAIN).write_bytes(tar_of({"n02119789.tar": b"y" * 2000})),
            "n02119789.tar inside cannot be read",
        ),
    ],
)
def test_archives_that_do_not_fit_are_refused(official: Any, spoil: Any, says: Any) -> None:
    """One sentence with the archive."""
    folder, _ = official
    spoil(folder)
    with pytest.raises(ConfigError, match=says):
        read_archives(folder)


def mixed_tar(form: Any) -> Any:
    """Files with short and long names, in folders and with links between them."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=form) as tar:
        for name, size in (
            ("a.JPEG", 700),
            ("empty", 0),
            ("d/b.JPEG", 512),
            ("é" * 30, 3),
            ("long/" * 40 + "c.JPEG", 1),
        ):
            info = tarfile.TarInfo(name)
            info.size = size
            tar.addfile(info, io.BytesIO(b"x" * size))
        for name, kind, target in (("folder", tarfile.DIRTYPE, ""), ("link", tarfile.LNKTYPE, "a.JPEG")):
            info = tarfile.TarInfo(name)
            info.type, info.linkname = kind, target
            tar.addfile(info)
    return out.getvalue()


@pytest.mark.parametrize("form", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_files_lie_where_tarfile_finds_them(tmp_path: Path, form: Any) -> None:
    """By itself and inside something else, with whatever headers a tar may have."""
    data = mixed_tar(form)
    (tmp_path / "a").write_bytes(b"before it" + data + b"after it")
    with tarfile.open(fileobj=io.BytesIO(data)) as tar:
        wanted = [(m.name, m.offset_data + 9, m.size) for m in tar if m.isfile()]
    with (tmp_path / "a").open("rb") as file:
        assert wanted == [(m.name, m.offset, m.size) for m in files_in(file, 9, len(data))]


@pytest.mark.parametrize(
    "data", [tar_of({f"{i}.JPEG": b"x" * 300 * i for i in range(5)}), mixed_tar(tarfile.GNU_FORMAT)]
)
def test_a_tar_cut_off_or_damaged_anywhere_is_noticed(tmp_path: Path, data: bytes) -> None:
    """Between two files as well, where tarfile sees an end; in the rest of the last block nothing is left to see."""
    path = tmp_path / "a.tar"
    end = len(data.rstrip(b"\0"))
    end += -end % 512 + 512
    for length in [*range(0, end, 512), 700, end - 1]:
        path.write_bytes(data[:length])
        with path.open("rb") as file, pytest.raises(tarfile.ReadError):
            files_in(file)
    with tarfile.open(fileobj=io.BytesIO(data)) as tar:
        headers = [m.offset for m in tar if m.isfile()]
    for header in headers:
        path.write_bytes(data[: header + 2] + b"\xff" + data[header + 3 :])
        with path.open("rb") as file, pytest.raises(tarfile.ReadError):
            files_in(file)


def test_an_unpacked_development_kit_does_too(official: Any) -> None:
    """Beside the archives."""
    folder, _ = official
    with tarfile.open(folder / DEVKITS[0]) as kit:
        kit.extractall(folder, filter="data")
    packed = read_archives(folder)
    (folder / DEVKITS[0]).unlink()

    assert packed == read_archives(folder)
    shutil.rmtree(folder / DEVKITS[2])
