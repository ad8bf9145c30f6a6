"""COCO data: drawn, read with its oddities, verified, bundled, unpacked from the official zips."""

import email.message
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

from trainer.coco import archives, bundle, masks, sample, verify
from trainer.coco.annotations import parse, read_annotations, read_set
from trainer.common.files.errors import ConfigError, TrainerError


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
