"""COCO data: drawn, read with its oddities, verified, bundled, unpacked from the official zips."""

import email.message
import hashlib
import http.server
import io
import json
import os
import shutil
import tarfile
import threading
import urllib.error
import urllib.request
import urllib.response
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest

from trainer.coco import archives, bundle, checks, draw, masks, sample, verify
from trainer.coco.annotations import parse, read_annotations, read_set
from trainer.errors import ConfigError, TrainerError


def test_the_drawn_set_has_all_that_makes_coco_hard(shapes: Path) -> None:
    """Objects that hide one another, crowds, empty images, three shapes of picture; masks never overlap."""
    data = read_set(shapes, "train2017")
    kinds = {type(o.segmentation) for p in data.pictures for o in p.objects}

    assert kinds == {list, dict}
    assert sum(i.is_crowd for p in data.pictures for i in p.instances) == 2
    assert sum(not p.instances for p in data.pictures) == 2
    assert len({(p.height, p.width) for p in data.pictures}) == 3
    for picture in data.pictures:
        seen = np.zeros((picture.height, picture.width), int)
        for i in picture.instances:
            mask = masks.decode(i.segmentation, picture.height, picture.width)
            assert mask.sum() == i.area
            seen += mask
        assert seen.max() <= 1


def test_the_same_seed_draws_the_same_set(tmp_path: Path) -> None:
    for name in "ab":
        sample.write_sample(tmp_path / name, train=3, val=1, size=64, seed=5)
    files = [p.relative_to(tmp_path / "a") for p in sorted((tmp_path / "a").rglob("*")) if p.is_file()]
    assert len(files) == 6
    assert all((tmp_path / "a" / f).read_bytes() == (tmp_path / "b" / f).read_bytes() for f in files)
    with pytest.raises(ConfigError, match="is not empty"):
        sample.write_sample(tmp_path / "a", train=3, val=1, size=64, seed=5)


def test_odd_annotations_are_counted_and_survived(tmp_path: Path) -> None:
    """Boxes outside, boxes without area, polygons of two points, ids nobody knows."""
    square = [[10.0, 10, 20, 10, 20, 20, 10, 20]]

    def entry(number: int, **more: object) -> dict[str, object]:
        return {
            "id": number,
            "image_id": 1,
            "category_id": 7,
            "iscrowd": 0,
            "bbox": [10, 10, 10, 10],
            "area": 100,
            "segmentation": square,
            **more,
        }

    raw = {
        "images": [{"id": 1, "file_name": "a.jpg", "height": 50, "width": 60}],
        "categories": [{"id": 9, "name": "b"}, {"id": 7, "name": "a"}],
        "annotations": [
            entry(1),
            entry(2, bbox=[50, 10, 30, 10]),
            entry(3, bbox=[10, 10, 0, 5]),
            entry(4, segmentation=[[1, 2, 3, 4]]),
            entry(5, segmentation=[[1, 2, 3, 4], *square]),
            entry(6, image_id=2),
            entry(7, category_id=1),
            entry(8, bbox=[100, 100, 5, 5]),
        ],
    }
    data = parse(raw, tmp_path / "x.json", tmp_path)

    assert [i.id for i in data.pictures[0].instances] == [1, 2, 5]
    assert data.pictures[0].instances[1].box == (50, 10, 60, 20)
    assert data.class_names == ("a", "b")
    assert data.odd == {
        "box reaches outside the image": 2,
        "box without area": 2,
        "object without a mask": 1,
        "object that loses some of its polygons": 1,
        "polygon with fewer than three corners": 2,
        "annotation of an unknown image": 1,
        "annotation of an unknown category": 1,
    }


def test_run_length_codes_of_all_three_kinds_decode_alike() -> None:
    mask = (np.random.default_rng(0).random((13, 17)) < 0.4).astype(np.uint8)
    for code in (sample.run_lengths(mask), masks.encode(mask)):
        np.testing.assert_array_equal(masks.decode(code, 13, 17), mask)
    np.testing.assert_array_equal(masks.decode(sample.run_lengths(np.ones((3, 4), np.uint8)), 3, 4), 1)


SQUARE = [10.0, 10, 20, 10, 20, 20, 10, 20]
NAN = float("nan")


def one_object(**more: object) -> dict[str, object]:
    """An annotation file with one image of 60 x 50 pixels and one object of it."""
    entry = {"id": 4, "image_id": 1, "category_id": 7, "iscrowd": 0, "bbox": [10, 10, 10, 10], "area": 100}
    entry = entry | {"segmentation": [SQUARE]} | more
    return {
        "images": [{"id": 1, "file_name": "a.jpg", "height": 50, "width": 60}],
        "categories": [{"id": 7, "name": "a"}],
        "annotations": [{k: v for k, v in entry.items() if v != "missing"}],
    }


def code(size: object, counts: object) -> dict[str, object]:
    return {"size": size, "counts": counts}


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"bbox": [NAN] * 4}, "bbox is nan"),
        ({"bbox": [10, 10, float("inf"), 10]}, "bbox is inf"),
        ({"bbox": [10, 10, 10]}, "not four numbers"),
        ({"bbox": [10, 10, 10, None]}, "bbox is None"),
        ({"bbox": [10, 10, 10, "10"]}, "bbox is '10'"),
        ({"bbox": [10, 10, 10, 10**400]}, "bbox is 1000"),
        ({"bbox": "missing"}, "bbox is missing"),
        ({"bbox": 5}, "bbox is 5"),
        ({"segmentation": [[*SQUARE[:-1], NAN]]}, "its sum is nan"),
        ({"segmentation": [[NAN, *SQUARE[1:]]]}, "far outside"),
        ({"segmentation": [[*SQUARE[:3], None, *SQUARE[4:]]]}, "not a list of numbers"),
        ({"segmentation": [[*SQUARE, 1e9, 1e9]]}, "far outside"),
        ({"segmentation": [[*SQUARE, -1e9, 5]]}, "far outside"),
        ({"segmentation": [SQUARE, "text"]}, "a polygon is 'text'"),
        ({"segmentation": [["x"] * 8]}, "not a list of numbers"),
        ({"segmentation": [[SQUARE]]}, "not a list of numbers"),
        ({"segmentation": [[0, 0, 60, 50] * 10_000]}, "has an outline of"),
        ({"segmentation": None}, "neither polygons nor a run-length code"),
        ({"segmentation": code([10**6, 10**6], [10**12])}, "of size"),
        ({"segmentation": code([60, 50], [3000])}, "of size"),
        ({"segmentation": code([50, 60], [2999])}, "make 2999 pixels, not 3000"),
        ({"segmentation": code([50, 60], [3001])}, "make 3001 pixels, not 3000"),
        ({"segmentation": code([50, 60], [4000, -1000])}, "not 3000"),
        ({"segmentation": code([50, 60], [3000.0])}, "a run-length code of"),
        ({"segmentation": code([50, 60], None)}, "a run-length code of None"),
        ({"segmentation": code([50, 60], masks.encode(np.ones((60, 60)))["counts"])}, "make 3600 pixels"),
        ({"segmentation": code([50, 60], masks.encode(np.ones((50, 60)))["counts"][:-1])}, "is cut off"),
        ({"segmentation": code([50, 60], "\x00\xff")}, "with '\\x00' in it"),
        ({"segmentation": {}}, "of size None"),
        ({"area": NAN}, "area is nan"),
        ({"area": None}, "area is None"),
        ({"iscrowd": "yes"}, "iscrowd is 'yes'"),
        ({"id": "4"}, "id is '4'"),
        ({"image_id": [1]}, "image_id is"),
    ],
)
def test_an_annotation_that_makes_no_sense_is_named_and_never_used(
    tmp_path: Path, more: dict[str, object], said: str
) -> None:
    """Reading leaves it out and says why, verifying reports it, and a training on it is refused."""
    (tmp_path / "annotations").mkdir()
    file = tmp_path / "annotations/instances_x.json"
    file.write_text(json.dumps(one_object(**more)))
    data = read_annotations(file, tmp_path / "x")

    assert data.pictures[0].instances == ()
    assert len(data.damaged) == 1
    assert said in data.damaged[0]
    assert any(said in str(p) for p in verify.problems(data))
    with pytest.raises(ConfigError, match=r"instances_x.json: 1 annotations are damaged, the first: annotation"):
        read_set(tmp_path, "x")


@pytest.mark.parametrize(
    ("image", "said"),
    [
        ({"file_name": "../../etc/passwd"}, "leads out of the folder"),
        ({"file_name": "a/../../b.jpg"}, "leads out of the folder"),
        ({"file_name": "/etc/passwd"}, "leads out of the folder"),
        ({"file_name": "a\0.jpg"}, "not a file's name"),
        ({"file_name": ""}, "not a file's name"),
        ({"file_name": 5}, "not a file's name"),
        ({"height": 0}, "no picture's size"),
        ({"height": 10**6, "width": 10**6}, "no picture's size"),
        ({"height": 50.0}, "not whole numbers"),
        ({"width": None}, "not whole numbers"),
        ({"id": -1}, "an image's id is -1"),
        ({"id": "1"}, "an image's id is '1'"),
    ],
)
def test_an_image_that_makes_no_sense_is_named(tmp_path: Path, image: dict[str, object], said: str) -> None:
    """Nothing is read from elsewhere, and no room is made for a size that nobody has."""
    raw = one_object()
    raw["images"] = [{"id": 1, "file_name": "a.jpg", "height": 50, "width": 60} | image]
    file = tmp_path / "instances_x.json"
    file.write_text(json.dumps(raw))
    with pytest.raises(ConfigError, match=said):
        read_annotations(file, tmp_path)


def test_ids_that_occur_twice_are_named(tmp_path: Path) -> None:
    """Of images and categories, since nobody knows which is meant; of an annotation the second is left out."""
    for key in ("images", "categories"):
        raw: dict[str, list[dict[str, object]]] = one_object()  # type: ignore[assignment]
        raw[key] *= 2
        (tmp_path / "x.json").write_text(json.dumps(raw))
        with pytest.raises(ConfigError, match=f"{key}: 2 of them have 1 ids"):
            read_annotations(tmp_path / "x.json", tmp_path)
    raw = one_object()  # type: ignore[assignment]
    raw["annotations"] *= 2
    data = parse(raw, tmp_path / "x.json", tmp_path)
    assert len(data.pictures[0].instances) == 1
    assert data.damaged == ("annotation 4: its id occurs twice",)


def test_what_is_unusual_and_whole_is_read(tmp_path: Path) -> None:
    """Codes of both kinds, a file in a folder below, numbers without a point, a polygon a little outside."""
    ones = np.ones((50, 60))
    for segmentation in (code([50, 60], [0, 3000]), masks.encode(ones), [[-5, -5, 70, -5, 70, 55, -5, 55]]):
        raw = one_object(segmentation=segmentation, bbox=[0, 0, 60, 50], area="missing", iscrowd="missing")
        raw["images"] = [{"id": 1, "file_name": "below/a.jpg", "height": 50, "width": 60}]
        data = parse(raw, tmp_path / "x.json", tmp_path)
        (instance,) = data.pictures[0].instances

        assert data.damaged == ()
        assert (instance.area, instance.is_crowd) == (3000, False)
        np.testing.assert_array_equal(masks.decode(instance.segmentation, 50, 60), 1)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "is not JSON"),
        ("[" * 100_000, "is not JSON"),
        ('{"images": [{"id": ' + "9" * 5000 + "}]}", "is not JSON"),
        ('{"images": []}', "is not in COCO's instances format"),
        ("[]", "is not in COCO's instances format"),
    ],
)
def test_a_file_that_is_not_coco_is_named(tmp_path: Path, text: str, said: str) -> None:
    file = tmp_path / "instances_x.json"
    file.write_text(text)
    with pytest.raises(ConfigError, match=said):
        read_annotations(file, tmp_path)


def test_verification_names_every_kind_of_damage(
    shapes: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert verify.main([str(shapes)]) == 0
    broken = tmp_path / "set"
    shutil.copytree(shapes, broken)
    images = sorted((broken / "train2017").iterdir())
    images[0].unlink()
    images[1].write_bytes(images[1].read_bytes()[:900])
    images[2].write_bytes(b"text")
    images[3].write_bytes(b"")
    cv2.imwrite(str(images[4]), np.zeros((30, 30, 3), np.uint8))
    shutil.copy(images[5], broken / "train2017" / "extra.jpg")
    capsys.readouterr()

    assert verify.main([str(broken)]) == 1
    out = capsys.readouterr()
    for name, what in zip(
        images,
        ("cannot be read", "truncated", ": no image", "empty file", "is 30 x 30"),
        strict=False,
    ):
        assert any(name.name in line and what in line for line in out.out.splitlines()), what
    assert "extra.jpg: is not mentioned" in out.out
    assert "6 problems" in out.err


def test_a_folder_that_cannot_be_read_is_no_part_of_a_bundle(shapes: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its images would be missing without a word."""
    scandir = os.scandir

    def refusing(path: str | Path) -> Any:
        if str(path).endswith("val2017"):
            raise PermissionError(13, "Permission denied", str(path))
        return scandir(path)

    monkeypatch.setattr(os, "scandir", refusing)
    with pytest.raises(ConfigError, match=r"val2017 cannot be read: Permission denied"):
        bundle.bundled_files(shapes)


def test_a_bundle_is_whole_repeatable_and_checked(shapes: Path, tmp_path: Path) -> None:
    """Layout as the reference's tar; the manifest finds a changed, a cut and a missing file."""
    manifest = bundle.make_bundle(shapes, tmp_path / "coco.tar")
    bundle.make_bundle(shapes, tmp_path / "again.tar")
    assert (tmp_path / "coco.tar").read_bytes() == (tmp_path / "again.tar").read_bytes()
    with tarfile.open(tmp_path / "coco.tar") as tar:
        tar.extractall(tmp_path / "node", filter="data")
    assert len(manifest["files"]) == 32
    assert list(bundle.differences(tmp_path / "node")) == []

    images = sorted((tmp_path / "node/train2017").iterdir())
    images[0].unlink()
    images[1].write_bytes(images[1].read_bytes()[:-1])
    images[2].write_bytes(images[2].read_bytes()[:-1] + b"x")
    said = list(bundle.differences(tmp_path / "node"))
    assert ["is missing" in said[0], "bytes, not" in said[1], "checksum" in said[2]] == [True] * 3
    assert bundle.main([str(tmp_path)]) == 2


@pytest.mark.parametrize(
    "text",
    [
        "[]",
        "{",
        '{"files": []}',
        '{"files": {}}',
        '{"files": {"a": 1}}',
        '{"files": {"a": {"bytes": "x", "sha256": ""}}}',
        '{"files": {"../a": {"bytes": 1, "sha256": ""}}}',
        '{"files": {"a": {"bytes": 1e999, "sha256": ""}}}',
    ],
)
def test_a_bundle_with_a_damaged_manifest_is_refused(
    tmp_path: Path, text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "manifest.json").write_text(text)
    assert bundle.main([str(tmp_path)]) == 2
    assert str(tmp_path / "manifest.json") in capsys.readouterr().err


def test_looking_only_changes_nothing(shapes: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """--check of the three programs that write: what would be, in one line each, and nothing is there afterwards."""
    assert sample.main(["--out", str(tmp_path / "s"), "--train", "5", "--check"]) == 0
    assert bundle.main([str(shapes), "--out", str(tmp_path / "b.tar"), "--check"]) == 0
    (tmp_path / "c/archives").mkdir(parents=True)
    (tmp_path / "c/archives/val2017.zip").write_bytes(b"")
    assert archives.main([str(tmp_path / "c"), "--check"]) == 0
    said = capsys.readouterr().out

    assert f"{tmp_path}/s would get 5 images to learn from" in said
    assert f"{tmp_path}/b.tar would hold 32 files" in said
    assert f"{tmp_path}/c/archives/val2017.zip would become {tmp_path}/c/val2017" in said
    assert f"{archives.SITE}/zips/train2017.zip would become {tmp_path}/c/train2017" in said
    assert sorted(p.name for p in tmp_path.rglob("*")) == ["archives", "c", "val2017.zip"]


@pytest.mark.parametrize(
    "words",
    [("--seed", "-1"), ("--size", "10"), ("--train", "0"), ("--max-objects", "0"), ("--train", "x"), ("--odd",)],
)
def test_a_set_that_cannot_be_drawn_is_refused_in_one_line(
    tmp_path: Path, words: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    assert sample.main(["--out", str(tmp_path / "s"), *words]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1
    assert not (tmp_path / "s").exists()


@pytest.fixture
def site(shapes: Path, tmp_path: Path) -> Iterator[tuple[str, list[str]]]:
    """A web server with the official zips (of the drawn set) that cuts the first answer for val2017.zip short."""
    root = tmp_path / "site"
    for archive in archives.ARCHIVES:
        target = root / archive.name
        target.parent.mkdir(parents=True, exist_ok=True)
        with zipfile.ZipFile(target, "w") as z:
            for file in sorted((shapes / archive.folder).iterdir()):
                z.write(file, f"{archive.folder}/{file.name}")
    asked: list[str] = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            data = (root / self.path.lstrip("/")).read_bytes()
            start = int((self.headers["Range"] or "bytes=0-")[6:-1])
            asked.append(f"{self.path} {start}")
            if start >= len(data):
                self.send_error(416)
                return
            self.send_response(206 if start else 200)
            self.send_header("Content-Length", str(len(data) - start))
            self.send_header("Content-Range", f"bytes {start}-{len(data) - 1}/{len(data)}")
            self.end_headers()
            cut = len(data) // 2 if "zips/val2017" in self.path and not start else len(data)
            self.wfile.write(data[start:cut])

        def log_message(self, format: str, *args: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}", asked
        server.shutdown()
        thread.join()


def test_archives_are_fetched_continued_unpacked_and_verified(
    site: tuple[str, list[str]], shapes: Path, tmp_path: Path
) -> None:
    """A connection that breaks in the middle is continued where it stopped; what is there is not fetched again."""
    address, asked = site
    out = tmp_path / "coco"
    with pytest.raises(ConfigError, match=r"lacks annotations_trainval2017\.zip"):
        archives.prepare(out, download=False)
    with pytest.raises(TrainerError, match=r"start again"):
        archives.prepare(out, download=True, site=address)
    archives.prepare(out, download=True, site=address)
    again = asked.copy()
    archives.prepare(out, download=True, site=address)

    assert asked == again
    val = [a for a in asked if "zips/val2017" in a]
    assert len(val) == 2
    assert int(val[1].split()[1]) > 0
    assert verify.main([str(out)]) == 0
    assert json.loads((out / "annotations/instances_val2017.json").read_text()) == json.loads(
        (shapes / "annotations/instances_val2017.json").read_text()
    )
    assert (out / "pretrained-models").is_dir()


def test_the_weights_to_start_from_are_fetched_once_and_read_whole(site: tuple[str, list[str]], tmp_path: Path) -> None:
    """Into the folder that BACKBONE.WEIGHTS names; what is no backbone, or damaged, is refused by name."""
    address, asked = site
    out, served = tmp_path / "coco", tmp_path / "site/w.npz"
    (out / "pretrained-models").mkdir(parents=True)
    np.savez(served, **{"conv0/W": np.zeros(archives.KERNEL, np.float32)})
    fetched = archives.fetch_weights(out, f"{address}/w.npz")
    assert fetched == out / "pretrained-models/ImageNet-R50-AlignPadding.npz"
    archives.fetch_weights(out, f"{address}/w.npz")
    assert asked == ["/w.npz 0"]

    whole = fetched.read_bytes()
    for damaged, said in ((whole[:5000], "cannot be read as weights"), (b"<html>gone</html>", "cannot be read")):
        fetched.write_bytes(damaged)
        with pytest.raises(ConfigError, match=f"{fetched}.*{said}.*: remove it and start again"):
            archives.fetch_weights(out)
    np.savez(fetched, a=np.zeros(3))
    with pytest.raises(ConfigError, match=r"is no ResNet's: its conv0/W is \(0,\), not"):
        archives.fetch_weights(out)


def test_a_whole_download_that_was_not_renamed_is_fetched_again(site: tuple[str, list[str]], tmp_path: Path) -> None:
    """The server has nothing after its end, and nobody knows whether it is the same file."""
    address, asked = site
    name = archives.ARCHIVES[0].name
    archives.fetch(f"{address}/{name}", tmp_path / "a.zip")
    whole = (tmp_path / "a.zip").read_bytes()
    (tmp_path / "b.zip.partial").write_bytes(whole)
    archives.fetch(f"{address}/{name}", tmp_path / "b.zip")

    assert (tmp_path / "b.zip").read_bytes() == whole
    assert asked[1:] == [f"/{name} {len(whole)}", f"/{name} 0"]


@pytest.mark.parametrize("begin", [None, 0, 3, 7])
def test_only_what_follows_is_appended_to_a_broken_download(tmp_path: Path, begin: int | None) -> None:
    """A server without ranges sends the whole file again, one that errs another part of it."""
    data = b"0123456789"

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200 if begin is None else 206)
            if begin is not None:
                self.send_header("Content-Range", f"bytes {begin}-9/10")
            self.send_header("Content-Length", str(len(data[begin or 0 :])))
            self.end_headers()
            self.wfile.write(data[begin or 0 :])

        def log_message(self, format: str, *args: object) -> None:
            pass

    (tmp_path / "a.zip.partial").write_bytes(data[:3])
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_address[1]}/a.zip"
        try:
            if begin in (None, 3):
                archives.fetch(url, tmp_path / "a.zip")
                assert (tmp_path / "a.zip").read_bytes() == data
            else:
                with pytest.raises(
                    TrainerError, match=f"asked for the bytes from 3, the server sends bytes {begin}-9/10"
                ):
                    archives.fetch(url, tmp_path / "a.zip")
        finally:
            server.shutdown()


def test_a_zip_with_a_damaged_member_is_refused(tmp_path: Path) -> None:
    """Its checksum says so, and no file of that name is left."""
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as z:
        z.writestr("val2017/a.jpg", b"pixels" * 100)
    data = (tmp_path / "a.zip").read_bytes()
    (tmp_path / "a.zip").write_bytes(data.replace(b"pixels", b"pixles", 1))
    with pytest.raises(TrainerError, match=r"a.zip is damaged"):
        archives.unpack(tmp_path / "a.zip", tmp_path / "out")
    assert not (tmp_path / "out/val2017/a.jpg").exists()


def test_a_zip_that_is_damaged_or_leaves_its_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "bad.zip").write_bytes(b"PK nothing")
    with pytest.raises(TrainerError, match=r"bad.zip is damaged"):
        archives.unpack(tmp_path / "bad.zip", tmp_path / "out")
    with zipfile.ZipFile(tmp_path / "evil.zip", "w") as z:
        z.writestr("../evil.txt", "x")
    with pytest.raises(ConfigError, match="lies outside of the folder"):
        archives.unpack(tmp_path / "evil.zip", tmp_path / "out")
    assert not (tmp_path / "evil.txt").exists()


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"iscrowd": 2}, "iscrowd is 2, neither 0 nor 1"),
        ({"iscrowd": -1}, "iscrowd is -1, neither 0 nor 1"),
        ({"iscrowd": 1.0}, "iscrowd is 1.0, neither 0 nor 1"),
        ({"area": True}, "area is True, not a number"),
        ({"area": 10**400}, "area is 1000"),
        ({"area": float("-inf")}, "area is -inf"),
        ({"bbox": {"0": 1}}, "bbox is {'0': 1}, not four numbers"),
        ({"bbox": [10, 10, 10, 10, 10]}, "not four numbers"),
        ({"id": True}, "id is True, not a whole number from 0"),
        ({"id": -1}, "id is -1, not a whole number from 0"),
        ({"category_id": 7.0}, "category_id is 7.0, not a whole number from 0"),
        ({"category_id": "missing"}, "category_id is missing"),
        ({"segmentation": [[*SQUARE, 121, 5]]}, "a polygon reaches from 5 to 121, its sum is 246"),
        ({"segmentation": [[*SQUARE, -61, 5]]}, "a polygon reaches from -61 to 20"),
        ({"segmentation": code([50, 60], [True, 2999])}, "a run-length code of [True, 2999]"),
        ({"segmentation": code([50, 60], [3001, -1])}, "make 3000 pixels, not 3000"),
        ({"segmentation": code([50, 60], "p")}, "with 'p' in it"),
        ({"segmentation": code([50, 60], "/")}, "with '/' in it"),
        ({"segmentation": code([50, 60], "oooooooo0")}, "with 'o' in it"),
    ],
)
def test_a_value_just_beyond_what_is_possible_is_named(tmp_path: Path, more: dict[str, object], said: str) -> None:
    """The annotation is left out with a sentence that names it."""
    data = parse(one_object(**more), tmp_path / "x.json", tmp_path)
    assert [said in sentence for sentence in data.damaged] == [True], data.damaged
    assert () == data.pictures[0].instances


@pytest.mark.parametrize(
    "more",
    [
        {"iscrowd": False},
        {"area": 0},
        {"id": 0},
        {"bbox": [0, 0, 60, 50]},
        {"bbox": [10.5, 10, 1e-3, 10]},
        {"segmentation": [SQUARE[:6]]},
        {"segmentation": [[*SQUARE, 120, -60]]},
        {"segmentation": [[], SQUARE]},
        {"segmentation": code([50, 60], [3000])},
        {"segmentation": code([50, 60], [0, 0, 3000])},
    ],
)
def test_a_value_that_is_just_possible_is_taken(tmp_path: Path, more: dict[str, object]) -> None:
    """The object is there and nothing is damaged."""
    data = parse(one_object(**more), tmp_path / "x.json", tmp_path)
    assert ((), 1) == (data.damaged, len(data.pictures[0].instances))


def test_what_is_no_object_is_counted_from_one(tmp_path: Path) -> None:
    """An annotation without a usable id is named by its place in the file."""
    raw: dict[str, Any] = one_object()
    raw["annotations"] += [5, {"id": "x"}, {"id": 9}]
    data = parse(raw, tmp_path / "x.json", tmp_path)
    assert (
        "annotation number 2 of the file: it is no object",
        "annotation number 3 of the file: image_id is missing",
        "annotation 9: image_id is missing",
    ) == data.damaged


def test_a_crowd_is_no_object(tmp_path: Path) -> None:
    """It stays with the picture's instances; an object's label counts from 1 in the order of the ids."""
    raw: dict[str, Any] = one_object(iscrowd=1)
    raw["categories"].append({"id": 3, "name": "b"})
    (picture,) = parse(raw, tmp_path / "x.json", tmp_path).pictures
    assert ((), 1, True, 2) == (
        picture.objects,
        len(picture.instances),
        picture.instances[0].is_crowd,
        picture.instances[0].label,
    )
    (picture,) = parse(one_object(), tmp_path / "x.json", tmp_path).pictures
    assert picture.objects == picture.instances and (10, 10, 20, 20) == picture.objects[0].box


def test_a_box_without_height_or_beyond_a_side_is_no_object(tmp_path: Path) -> None:
    """One that touches the image's edges is whole; one that begins outside is cut."""
    kinds = {
        (10, 10, 5, 0): ["box without area"],
        (10, 10, 0, 5): ["box without area"],
        (60, 10, 5, 5): ["box reaches outside the image", "box without area"],
        (10, 50, 5, 5): ["box reaches outside the image", "box without area"],
        (55, 45, 5, 5): [],
        (-1, 0, 5, 5): ["box reaches outside the image"],
        (0, -1, 5, 5): ["box reaches outside the image"],
        (58, 0, 5, 5): ["box reaches outside the image"],
        (0, 48, 5, 5): ["box reaches outside the image"],
    }
    for box, odd in kinds.items():
        data = parse(one_object(bbox=list(box)), tmp_path / "x.json", tmp_path)
        assert dict.fromkeys(odd, 1) == data.odd, box
        assert ("box without area" not in odd) == bool(data.pictures[0].instances), box
    (instance,) = parse(one_object(bbox=[-2, -3, 65, 60]), tmp_path / "x.json", tmp_path).pictures[0].instances
    assert (0, 0, 60, 50) == instance.box


def test_the_outline_that_pycocotools_walks_has_a_limit(tmp_path: Path) -> None:
    """Two million pixels are walked, a corner more is not."""
    there_and_back = [20, 0, 60, 0]
    for corners, damaged in ((50_000, False), (50_002, True)):
        data = parse(one_object(segmentation=[there_and_back * (corners // 2)]), tmp_path / "x.json", tmp_path)
        assert damaged == bool(data.damaged)
        assert not damaged or "a polygon of 50002 corners has an outline of 2000080 pixels" in data.damaged[0]


def test_compressed_lengths_are_pycocotools() -> None:
    """Of masks at random, of long and of short runs."""
    rng = np.random.default_rng(0)
    for share in (0.02, 0.5, 0.98):
        mask = (rng.random((61, 83)) < share).astype(np.uint8)
        assert sample.run_lengths(mask)["counts"] == checks._uncompressed(masks.encode(mask)["counts"])
    long = np.zeros((900, 1200), np.uint8)
    long[5:800, 7:1100] = 1
    assert sample.run_lengths(long)["counts"] == checks._uncompressed(masks.encode(long)["counts"])


@pytest.mark.parametrize(
    ("name", "is_one"),
    [("a.jpg", True), ("a/b/c.jpg", True), ("a" * 4000, True), ("a" * 4001, False), ("a/..", False), (".", False)],
)
def test_a_file_s_name_stays_below_its_folder(name: str, is_one: bool) -> None:
    """Given back as it is, or refused."""
    if is_one:
        assert name == checks.file_name(name)
    else:
        with pytest.raises(checks.Damaged, match="file_name"):
            checks.file_name(name)


def test_a_size_is_two_whole_numbers_of_pixels_that_fit_into_memory() -> None:
    """From one by one to 2 ** 27 in all."""
    for size in ((1, 1), (1 << 13, 1 << 14)):
        assert size == checks.image_size(*size)
    wrong: list[tuple[Any, Any]] = [(1, 0), (0, 1), (1 << 13, (1 << 14) + 1), (True, 5), (5, True), (5, 5.0)]
    for height, width in wrong:
        with pytest.raises(checks.Damaged):
            checks.image_size(height, width)


def test_masks_of_several_objects_are_those_of_each() -> None:
    """Polygons and codes; of no object there is an array without rows."""
    found = masks.decode_all([[SQUARE], sample.run_lengths(np.eye(50, 60, dtype=np.uint8))], 50, 60)
    np.testing.assert_array_equal(masks.decode([SQUARE], 50, 60), found[0])
    np.testing.assert_array_equal(np.eye(50, 60), found[1])
    assert (0, 50, 60) == masks.decode_all([], 50, 60).shape and (2, 50, 60) == found.shape
    coded = masks.encode(found[0])
    assert [50, 60] == coded["size"]
    np.testing.assert_array_equal(masks.decode({**coded, "counts": coded["counts"].encode()}, 50, 60), found[0])


def test_what_covers_what_is_known_of_a_scene() -> None:
    """Later layers lie over earlier ones; what shows fewer than 40 pixels is left out."""
    whole, corner, most = (np.zeros((20, 20), np.uint8) for _ in range(3))
    whole[:10, :10] = 1
    corner[8:12, 8:18] = 1
    most[:10, :6] = 1
    outline = np.zeros((4, 2), np.float32)
    seen = draw._visible([("circle", outline, whole, True), ("square", outline, corner, False)])
    assert [("circle", 96, True, True), ("square", 40, False, False)] == [
        (d.shape, int(d.mask.sum()), d.is_hidden, d.is_crowd) for d in seen
    ]
    seen = draw._visible([("circle", outline, whole, False), ("square", outline, most, False)])
    assert [("circle", 40), ("square", 60)] == [(d.shape, int(d.mask.sum())) for d in seen]
    corner[11, 17] = 0
    whole[0, 9] = 0
    assert ["square"] == [
        d.shape for d in draw._visible([("circle", outline, whole, False), ("square", outline, most, False)])
    ]
    assert ["circle"] == [
        d.shape for d in draw._visible([("circle", outline, whole, False), ("square", outline, corner, False)])
    ]
    assert [] == draw._visible([])


@pytest.mark.parametrize(("kind", "corners"), [("circle", 48), ("square", 4), ("triangle", 3)])
def test_a_drawn_shape_is_regular(kind: str, corners: int) -> None:
    """All its corners are half a side from its centre and equally far apart, whichever way it is turned."""
    for seed in range(4):
        outline = draw._outline(np.random.default_rng(seed), kind, 20.0, np.array([30.0, 40.0]))
        assert (corners, 2) == outline.shape
        np.testing.assert_allclose(np.hypot(*(outline - [30, 40]).T), 10, rtol=1e-5)
        np.testing.assert_allclose(
            np.hypot(*(outline - np.roll(outline, 1, 0)).T), 20 * np.sin(np.pi / corners), rtol=1e-3
        )


def test_a_scene_is_coloured_shapes_on_dim_ground() -> None:
    """Shapes lie inside it, a swarm in one quarter; the ground is neither black nor bright, and every colour is strong."""
    rng = np.random.default_rng(1)
    image, drawn = draw.scene(rng, 96, 128, objects=3, crowd=True)
    assert (96, 128, 3) == image.shape and drawn[0].is_crowd and 2 <= len(drawn) <= 4
    for one in drawn[1:]:
        assert (one.outline >= 0).all() and (one.outline <= [128, 96]).all()
    ground, nothing = draw.scene(rng, 96, 128, objects=0, crowd=False)
    assert [] == nothing and 95 < ground.mean() < 125 and 5 < ground.std() < 25
    picture = np.zeros((96, 128, 3), np.uint8)
    kind, outline, mask, is_crowd = draw._swarm(rng, picture)
    rows, columns = np.flatnonzero(mask.any(1)), np.flatnonzero(mask.any(0))
    assert kind in draw.SHAPES and is_crowd and 0 == len(outline)
    assert rows[-1] - rows[0] < 48 and columns[-1] - columns[0] < 64
    assert 150 < mask.sum() < 15 * np.pi * (96 / 28) ** 2 and 1 == mask.max()
    np.testing.assert_array_equal(picture.any(2), mask > 0)
    colours = np.array([draw._color(rng, kind) for _ in range(60)])
    assert (colours.max(1) >= 168).all() and (colours.min(1) <= 0.45 * colours.max(1)).all()
    assert {0, 1, 2} == set(colours.argmax(1))
    assert [1.23, 4.57] == draw.as_polygon(np.float32([[1.234, 4.567]]))


def test_a_sample_has_the_sizes_and_numbers_that_are_asked_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Three shapes of picture in turn, one to MAX-OBJECTS objects, every tenth picture empty, ids from 1 on."""
    words = ["--train", "10", "--val", "1", "--size", "64", "--max-objects", "1", "--seed", "4"]
    assert 0 == sample.main(["--out", str(tmp_path / "s"), *words])
    said = capsys.readouterr().out
    assert (
        said.splitlines()[-1] == f"{tmp_path}/s: 10 images to learn from and 1 to evaluate on, circle, square, triangle"
    )
    raw = json.loads((tmp_path / "s/annotations/instances_train2017.json").read_text())
    assert [(48, 64), (64, 48), (64, 64), (48, 64)] == [(i["height"], i["width"]) for i in raw["images"][:4]]
    assert ["000000000001.jpg", "000000000010.jpg"] == [raw["images"][i]["file_name"] for i in (0, 9)]
    assert [*range(1, len(raw["annotations"]) + 1)] == [a["id"] for a in raw["annotations"]]
    assert [(1, "circle"), (2, "square"), (3, "triangle")] == [(c["id"], c["name"]) for c in raw["categories"]]
    objects = [a["image_id"] for a in raw["annotations"] if not a["iscrowd"]]
    assert len(set(objects)) == len(objects) and 10 not in objects
    assert [8] == [a["image_id"] for a in raw["annotations"] if a["iscrowd"]]
    assert 0 == sample.main(["--out", str(tmp_path / "t"), "--check"])
    assert "would get 96 images to learn from and 24 to evaluate on, circle" in capsys.readouterr().out


def test_where_a_sample_may_be_drawn(tmp_path: Path) -> None:
    """Into an absent or an empty folder; over nothing, and of no less than one image, object and 64 pixels."""
    fine = {"train": 1, "val": 1, "size": 64, "seed": 0, "max_objects": 1}
    for out in (tmp_path, tmp_path / "new"):
        sample.check(out, **fine)
    for key, value in (("train", 0), ("val", 0), ("size", 63), ("seed", -1), ("max_objects", 0)):
        with pytest.raises(
            ConfigError, match="a set needs at least 1 image each with 1 object, a --size of at least 64"
        ):
            sample.check(tmp_path, **{**fine, key: value})
    (tmp_path / "file").write_text("")
    for out in (tmp_path, tmp_path / "file"):
        with pytest.raises(ConfigError, match="is not empty: give a new folder"):
            sample.check(out, **fine)
    with pytest.raises(TrainerError, match=r"file/s cannot be written \(.*\): remove what is there and start again"):
        sample.write_sample(tmp_path / "file/s", **fine)


def test_what_a_set_holds_is_one_line(tmp_path: Path) -> None:
    """Images, objects, crowds and categories, and the oddities by their names."""
    raw: dict[str, Any] = one_object()
    first = raw["annotations"][0]
    raw["images"].append({"id": 2, "file_name": "b.jpg", "height": 50, "width": 60})
    raw["annotations"] += [{**first, "id": 5, "iscrowd": 1}, {**first, "id": 6}, {**first, "id": 7, "image_id": 3}]
    data = parse(raw, tmp_path / "instances_x.json", tmp_path)
    assert verify.counts(data) == (
        "x: 2 images (1 without objects), 2 objects and 1 crowd region of 1 categories; 1 x annotation of an unknown image"
    )
    assert f"{data.file}: 1 times: annotation of an unknown image" in [str(p) for p in verify.problems(data)]


def test_an_empty_mask_is_a_problem_and_so_is_an_unknown_category(tmp_path: Path) -> None:
    """Each names its annotation or how often it was met; a picture that is as annotated is none."""
    (tmp_path / "x").mkdir()
    cv2.imwrite(str(tmp_path / "x/a.jpg"), np.zeros((50, 60, 3), np.uint8))
    raw: dict[str, Any] = one_object(segmentation=code([50, 60], [3000]))
    raw["annotations"].append({**raw["annotations"][0], "id": 5, "category_id": 8})
    data = parse(raw, tmp_path / "annotations/instances_x.json", tmp_path / "x")
    assert [
        f"{tmp_path}/x/a.jpg: annotation 4 has an empty mask",
        f"{data.file}: 1 times: annotation of an unknown category",
    ] == [str(p) for p in verify.problems(data, threads=1)]
    whole = parse(one_object(), tmp_path / "annotations/instances_x.json", tmp_path / "x")
    assert [] == list(verify.problems(whole))


def test_verification_names_twenty_problems_and_counts_all(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The rest would scroll the first away; a folder without annotations, and no thread, are refused."""
    (tmp_path / "annotations").mkdir()
    for missing, shown in ((21, 20), (2, 2)):
        raw: dict[str, Any] = one_object()
        raw["images"] = [{**raw["images"][0], "id": i, "file_name": f"{i}.jpg"} for i in range(1, missing + 1)]
        (tmp_path / "annotations/instances_x.json").write_text(json.dumps(raw))
        assert 1 == verify.main([str(tmp_path), "--threads", "1"])
        out = capsys.readouterr()
        assert shown == out.out.count("cannot be read (No such file or directory)")
        assert f"{tmp_path}: {missing} problems, the first {shown} above; copy these files again" in out.err
    assert 2 == verify.main([str(tmp_path), "--threads", "0"])
    assert "--threads is 0, but must be at least 1" in capsys.readouterr().err
    assert 2 == verify.main([str(tmp_path / "nowhere")])
    assert "is not in COCO's layout: annotations/instances_*.json is missing" in capsys.readouterr().err


def little_set(folder: Path) -> Path:
    """A folder in COCO's layout of one image and its annotations, whose contents say nothing."""
    for name, content in (("annotations/instances_x.json", "{}"), ("train2017/a.JPEG", "abc"), ("val2017/b.txt", "")):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(content)
    (folder / "other").mkdir()
    (folder / "other/c.jpg").write_text("left out")
    return folder


def test_a_bundle_is_the_parts_of_the_layout_and_last_its_manifest(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """In order of their names, readable by all; what it takes is said before and after."""
    folder, tar = little_set(tmp_path / "set"), tmp_path / "new/b.tar"
    assert 0 == bundle.main([str(folder), "--out", str(tar), "--check"])
    assert f"{tar} would hold 3 files, 0.000 GB\n" == capsys.readouterr().out
    assert 0 == bundle.main([str(folder), "--out", str(tar)])
    assert f"{tar}: 3 files, 0.000 GB\n" == capsys.readouterr().out
    with tarfile.open(tar) as read:
        members = read.getmembers()
        read.extractall(tmp_path / "node", filter="data")
    names = ["annotations/instances_x.json", "train2017/a.JPEG", "val2017/b.txt", "manifest.json"]
    assert [(name, 0o644) for name in names] == [(m.name, m.mode) for m in members]
    manifest = json.loads((tmp_path / "node/manifest.json").read_text())["files"]
    assert {"bytes": 3, "sha256": hashlib.sha256(b"abc").hexdigest()} == manifest["train2017/a.JPEG"]
    assert names[:3] == list(manifest)
    assert 0 == bundle.main([str(tmp_path / "node")])
    assert f"{tmp_path}/node: all files are as the manifest says\n" == capsys.readouterr().out
    (tmp_path / "node/train2017/a.JPEG").write_text("abd")
    assert 1 == bundle.main([str(tmp_path / "node")])
    assert "1 file not as in the manifest, the first: train2017/a.JPEG does not match its checksum" in (
        capsys.readouterr().err
    )
    (tmp_path / "node/train2017/a.JPEG").write_text("abcd")
    assert ["train2017/a.JPEG has 4 bytes, not 3"] == list(bundle.differences(tmp_path / "node"))


def test_a_folder_without_images_or_annotations_is_no_bundle(tmp_path: Path) -> None:
    """PNGs are images, too; a file that cannot be written is said."""
    folder = little_set(tmp_path / "set")
    (folder / "train2017/a.JPEG").rename(folder / "train2017/a.txt")
    with pytest.raises(ConfigError, match=r"has no images in train2017/ or val2017/"):
        bundle.bundled_files(folder)
    for name in ("a.jpg", "a.png"):
        (folder / "val2017" / name).write_text("")
        assert folder / "val2017" / name in bundle.bundled_files(folder)
        (folder / "val2017" / name).unlink()
    (folder / "val2017/a.jpg").write_text("")
    with pytest.raises(TrainerError, match=r"set/val2017/a.jpg/b.tar cannot be written"):
        bundle.make_bundle(folder, folder / "val2017/a.jpg/b.tar")
    with pytest.raises(ConfigError, match="is not in COCO's layout: annotations/ is missing"):
        bundle.bundled_files(folder / "val2017")


def test_files_that_have_their_size_are_not_unpacked_again(tmp_path: Path) -> None:
    """Of another size they are; folders are no files."""
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as z:
        z.writestr("val2017/", "")
        z.writestr("val2017/a.jpg", b"pixels")
        z.writestr("val2017/b.jpg", b"pixels")
        z.writestr("val2017/c.jpg", b"")
    (tmp_path / "out/val2017").mkdir(parents=True)
    (tmp_path / "out/val2017/a.jpg").write_bytes(b"kept!!")
    (tmp_path / "out/val2017/b.jpg").write_bytes(b"cut")
    assert 3 == archives.unpack(tmp_path / "a.zip", tmp_path / "out")
    assert {"a.jpg": b"kept!!", "b.jpg": b"pixels", "c.jpg": b""} == {
        p.name: p.read_bytes() for p in (tmp_path / "out/val2017").iterdir()
    }
    (tmp_path / "file").write_text("")
    with pytest.raises(TrainerError, match=r"a.zip cannot be unpacked to .*file"):
        archives.unpack(tmp_path / "a.zip", tmp_path / "file")


def test_a_download_that_fails_says_what_to_do(tmp_path: Path) -> None:
    """No such file, and no room; what came whole is in its place and nothing else is left."""
    (tmp_path / "here").write_bytes(b"content")
    archives.fetch(f"file://{tmp_path}/here", tmp_path / "a.zip")
    assert b"content" == (tmp_path / "a.zip").read_bytes() and not (tmp_path / "a.zip.partial").exists()
    with pytest.raises(TrainerError, match=r"nowhere broke off \(.*\): start again, it continues where it stopped"):
        archives.fetch(f"file://{tmp_path}/nowhere", tmp_path / "b.zip")
    (tmp_path / "b.zip.partial").symlink_to("/dev/full")
    with pytest.raises(
        TrainerError, match=r"b.zip.partial cannot be written \(No space .*\): make room and start again"
    ):
        archives.fetch(f"file://{tmp_path}/here", tmp_path / "b.zip")


@pytest.mark.parametrize(
    ("code", "length", "said"),
    [
        (404, None, "cannot be had (HTTP Error 404: gone): start again, or put the file at "),
        (416, None, "cannot be had (HTTP Error 416: gone)"),
        (200, "9", ": 7 of 9 bytes came; start again to continue"),
        (200, None, "broke off ("),
        (200, "many", "broke off ("),
    ],
)
def test_an_answer_that_is_no_file_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int, length: str | None, said: str
) -> None:
    """A refusal, an end before its time, and one that does not say its length."""

    def answer(request: urllib.request.Request, timeout: float) -> Any:
        headers = email.message.Message()
        if length:
            headers["Content-Length"] = length
        if code >= 400:
            raise urllib.error.HTTPError(request.full_url, code, "gone", headers, None)
        return urllib.response.addinfourl(io.BytesIO(b"content"), headers, request.full_url, code)

    monkeypatch.setattr(urllib.request, "urlopen", answer)
    with pytest.raises(TrainerError) as error:
        archives.fetch("http://there/a.zip", tmp_path / "a.zip")
    assert said in str(error.value)
    assert not (tmp_path / "a.zip").exists()


def test_zips_that_are_there_are_unpacked_without_a_download(
    shapes: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One line each; the set is verified unless that is not wanted, and what is missing is named."""
    out = tmp_path / "coco"
    (out / "archives").mkdir(parents=True)
    for archive in archives.ARCHIVES:
        with zipfile.ZipFile(out / "archives" / archive.file, "w") as z:
            for file in sorted((shapes / archive.folder).iterdir()):
                z.write(file, f"{archive.folder}/{file.name}")
    assert 0 == archives.main([str(out), "--no-download", "--no-verify"])
    lines = ["annotations_trainval2017.zip: 2 files", "val2017.zip: 10 files", "train2017.zip: 20 files"]
    assert lines == capsys.readouterr().out.splitlines()
    assert 0 == archives.main([str(out), "--no-weights"])
    assert "everything is as annotated" == capsys.readouterr().out.splitlines()[-1]
    (out / "val2017/extra.jpg").write_bytes(b"")
    assert 1 == archives.main([str(out), "--no-download"])
    assert f"{out} was unpacked but is not as annotated" in capsys.readouterr().err
    (out / "archives/val2017.zip").unlink()
    assert [archives.ARCHIVES[1]] == archives.missing(out)
    assert 2 == archives.main([str(out), "--no-download"])
    assert f"{out}/archives lacks val2017.zip: put them there" in capsys.readouterr().err


def test_what_would_be_downloaded_has_the_weights_unless_they_are_there(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Or nobody wants them, or nothing is to be downloaded."""
    line = f"{archives.WEIGHTS} would become {tmp_path}/pretrained-models/ImageNet-R50-AlignPadding.npz"

    def said(*words: str) -> str:
        assert 0 == archives.main([str(tmp_path), "--check", *words])
        return capsys.readouterr().out

    assert line in said()
    assert line not in said("--no-weights") and line not in said("--no-download")
    archives.weights_file(tmp_path).parent.mkdir()
    archives.weights_file(tmp_path).write_bytes(b"")
    assert line not in said()


def test_weights_that_cannot_be_had_leave_coco_complete(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Which the message says; those that are there are named as a setting."""
    file = archives.weights_file(tmp_path)
    file.parent.mkdir()
    np.savez(file, **{"conv0/W": np.zeros(archives.KERNEL, np.float32)})
    archives._say_weights(tmp_path)
    assert f"BACKBONE.WEIGHTS={file}\n" == capsys.readouterr().out
    np.savez(file, **{"conv0/W": np.zeros((7, 7, 3, 32), np.float32)})
    with pytest.raises(
        TrainerError, match=r"COCO is complete, but the weights to start from are not: .*, not \(7, 7, 3, 64\)"
    ):
        archives._say_weights(tmp_path)


def test_a_set_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    """With the folder's layout where it is missing, and the reason where it is there; COCO's prefix may be given."""
    with pytest.raises(
        ConfigError, match=r"instances_y.json is missing: DATA.BASEDIR needs annotations/instances_y.json"
    ):
        read_set(tmp_path, "coco_y")
    (tmp_path / "annotations/instances_y.json").mkdir(parents=True)
    with pytest.raises(ConfigError, match=r"instances_y.json cannot be read: Is a directory"):
        read_annotations(tmp_path / "annotations/instances_y.json", tmp_path)
    (tmp_path / "annotations/instances_x.json").write_text(json.dumps(one_object()))
    data = read_set(tmp_path, "coco_x")
    assert data == read_set(tmp_path, "x")
    assert one_object() == data.raw and tmp_path / "x/a.jpg" == data.pictures[0].path
