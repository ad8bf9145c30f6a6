"""Staging on this machine: against an S3 in memory, hosts that are this one, and what is said of how it went."""

# ruff: noqa: N803 - arguments are called as boto3 calls them

import contextlib
import datetime
import hashlib
import io
import os
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from cluster.hosts import Host
from cluster.ssh.onhost.frame import framed
from cluster.ssh.result import FanOut, Result
from cluster.stage import stage as staging
from cluster.stage.onhost import s3 as onhost
from cluster.stage.onhost.etag import etag_of, is_checksum
from cluster.stage.onhost.folder import DestinationFolder
from cluster.stage.onhost.keys import Prefix, places, suffix_of
from cluster.stage.stage import Staged, how_it_went, not_moved, request_of
from cluster.stage.status import status_lines
from tests.tars import tar_of

BEGAN = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)


class Missing(Exception):
    """What S3 says of an object that is not there."""


class Memory:
    """As much of S3 as a stage asks for."""

    exceptions = SimpleNamespace(ClientError=Missing)

    def __init__(self) -> None:
        self.objects: dict[str, tuple[bytes, dict[str, str]]] = {}
        self.damage: Callable[[bytes], bytes] = bytes  # done to what is on its way
        self.encryption = "AES256"
        self.meta = SimpleNamespace(events=SimpleNamespace(register=lambda *_: None))

    def put(self, **objects: bytes) -> None:
        self.objects |= {name: (data, {}) for name, data in objects.items()}

    def listed(self, prefix: str) -> list[dict[str, Any]]:
        return [
            {"Key": key, "Size": len(data), "LastModified": BEGAN}
            for key, (data, _) in sorted(self.objects.items())
            if key.startswith(prefix)
        ]

    def get_paginator(self, _name: str) -> Any:
        def paginate(Bucket: str, Prefix: str) -> list[dict[str, Any]]:
            found = self.listed(Prefix)
            return [{"Contents": found[n : n + 2]} for n in range(0, len(found), 2)] or [{}]

        return SimpleNamespace(paginate=paginate)

    def list_objects_v2(self, Bucket: str, Prefix: str, MaxKeys: int, Delimiter: str = "") -> dict[str, Any]:
        found = self.listed(Prefix)
        if not Delimiter:
            return {"Contents": found[:MaxKeys]}
        below = [(o, o["Key"][len(Prefix) :].partition(Delimiter)) for o in found]
        folders = dict.fromkeys(Prefix + name + Delimiter for _, (name, slash, _) in below if slash)
        return {"CommonPrefixes": [{"Prefix": f} for f in folders], "Contents": [o for o, part in below if not part[1]]}

    def head_object(self, Bucket: str, Key: str, **_: Any) -> dict[str, Any]:
        if Key not in self.objects:
            raise Missing
        data, metadata = self.objects[Key]
        etag = hashlib.md5(data, usedforsecurity=False).hexdigest()
        return {
            "ContentLength": len(data),
            "LastModified": BEGAN,
            "ETag": f'"{etag}"',
            "Metadata": metadata,
            "ServerSideEncryption": self.encryption,
        }

    def download_fileobj(self, _bucket: str, key: str, file: Any, Config: Any, Callback: Any) -> None:
        data = self.damage(self.objects[key][0])
        file.write(data)
        Callback(len(data))

    def get_object(self, Bucket: str, Key: str) -> dict[str, Any]:
        return {"Body": io.BytesIO(self.damage(self.objects[Key][0]))}

    def upload_file(self, path: str, _bucket: str, key: str, ExtraArgs: Any, Config: Any, Callback: Any) -> None:
        data = self.damage(Path(path).read_bytes())
        self.objects[key] = data, ExtraArgs["Metadata"]
        Callback(len(data))


@pytest.fixture
def memory(monkeypatch: pytest.MonkeyPatch) -> Memory:
    """An empty S3."""
    made = Memory()
    monkeypatch.setattr(onhost, "client_of", lambda _endpoint: (made, None))
    return made


def moved(folder: Path, prefix: str = "", **more: Any) -> dict[str, Any]:
    """What a host says of its stage."""
    request = request_of(f"s3://bucket/{prefix}", str(folder))
    said = onhost.Staging({**vars(request), "part": (0, 1), **more}).move_all()
    assert said.pop("seconds") >= 0
    return said


def there(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def test_what_is_in_s3_comes_once(memory: Memory, tmp_path: Path) -> None:
    """Bytes and time of each object below the prefix; a second stage skips them, and one that is other comes again."""
    memory.put(**{"a/x": b"one", "a/b/y": b"", "a/folder/": b"", "ab": b"no", "a/../z": b"out"})
    refused = {"a/../z": "'..' in it leads out of the folder"}
    first, second = moved(tmp_path / "d", "a"), moved(tmp_path / "d", "a")
    (tmp_path / "d/x").write_bytes(b"oni")
    third = moved(tmp_path / "d", "a")

    counts = {"objects": 3, "failed": refused, "num_failed": 1}
    assert {"files": 2, "bytes": 3, "skipped": 0, **counts} == first
    assert {"files": 0, "bytes": 0, "skipped": 2, **counts} == second
    assert {"files": 1, "bytes": 3, "skipped": 1, **counts} == third
    assert {"x": b"one", "b/y": b""} == there(tmp_path / "d")
    assert BEGAN.timestamp() == (tmp_path / "d/x").stat().st_mtime


def test_a_dry_run_counts_and_writes_nothing(memory: Memory, tmp_path: Path) -> None:
    """What would come, and what is there."""
    memory.put(**{"x": b"one", "y": b"four"})
    said = moved(tmp_path / "d", plan=True)

    assert (2, 7, 0) == (said["files"], said["bytes"], said["skipped"])
    assert not (tmp_path / "d").exists()


@pytest.mark.parametrize("damage", [lambda data: data[:-1], lambda data: data[:-1] + b"x"], ids=["short", "changed"])
def test_what_is_damaged_on_its_way_has_no_name_here(memory: Memory, tmp_path: Path, damage: Any) -> None:
    """Neither by its size nor by its checksum is it taken for the object; where S3 keeps no checksum, by its size."""
    memory.put(x=b"some bytes")
    memory.damage = damage
    said = moved(tmp_path / "d")
    assert {} == there(tmp_path / "d")
    assert said["failed"]["x"].startswith("what arrived is not what is there (")
    memory.encryption = "aws:kms"
    assert (1 if len(damage(b"123")) < 3 else 0) == moved(tmp_path / "e")["num_failed"]


def archive(**files: bytes) -> bytes:
    return tar_of(files, "w:gz")


def test_an_archive_becomes_a_folder_whole_or_not(memory: Memory, tmp_path: Path) -> None:
    """Of its name, once; one that comes short leaves nothing; other objects come as they are."""
    memory.put(**{"t/a.tgz": archive(f=b"one"), "t/x": b"two", "t/.tar": b"no archive"})
    said = moved(tmp_path / "d", "t", untar=True)
    again = moved(tmp_path / "d", "t", untar=True)
    assert (3, 0, 3) == (said["files"], said["num_failed"], again["skipped"])
    assert {"a/f": b"one", "x": b"two", ".tar": b"no archive"} == there(tmp_path / "d")
    memory.damage = lambda data: data + b"more"
    assert "bytes came of" in moved(tmp_path / "e", "t/a.tgz", untar=True)["failed"]["t/a.tgz"]
    assert {} == there(tmp_path / "e")


def test_files_here_go_to_s3_once(memory: Memory, tmp_path: Path) -> None:
    """Below the prefix, whole ones alone; by checksum, and by their time where S3 keeps none."""
    (tmp_path / "r/sub").mkdir(parents=True)
    (tmp_path / "r/a").write_bytes(b"one")
    (tmp_path / "r/sub/b").write_bytes(b"two")
    (tmp_path / "r/.c.dlami-part").write_bytes(b"part")
    asked = {"upload": True, "prefix": "/up/"}
    first, second = moved(tmp_path / "r", **asked), moved(tmp_path / "r", **asked)
    assert [(2, 0), (0, 2)] == [(s["files"], s["skipped"]) for s in (first, second)]
    assert {"up/a": b"one", "up/sub/b": b"two"} == {key: data for key, (data, _) in memory.objects.items()}
    memory.encryption = "aws:kms"
    assert 2 == moved(tmp_path / "r", **asked)["skipped"]
    os.utime(tmp_path / "r/a", (1, 1))
    touched = moved(tmp_path / "r", **asked)
    assert (1, 1) == (touched["files"], touched["skipped"])
    memory.damage = lambda data: data[:1]
    (tmp_path / "r/a").write_bytes(b"other")
    assert "it changed while it was sent; stage it again" in moved(tmp_path / "r", **asked)["failed"]["up/a"]
    with pytest.raises(LookupError, match="none: there is no such folder"):
        moved(tmp_path / "none", upload=True, prefix="")
    memory.damage = bytes
    moved(tmp_path / "r", upload=True, prefix="")
    assert {"a", "sub/b"} == {key for key in memory.objects if not key.startswith("up/")}


def test_a_file_that_shrinks_while_it_is_sent_is_named_and_not_s3(memory: Memory, tmp_path: Path) -> None:
    """S3 waits for what it was told to expect, and says nothing: it is not to blame."""
    (tmp_path / "r").mkdir()
    file = tmp_path / "r/log"
    file.write_bytes(b"much")
    request = {**vars(request_of("s3://bucket/", str(tmp_path / "r"), upload=False)), "part": (0, 1), "upload": True}
    asked, said = onhost.Staging(request), []

    def waits(data: bytes) -> bytes:
        file.write_bytes(b"")
        said.append(asked._why_silent())
        return data

    memory.damage = waits
    asked.move_all()
    assert [f"{file} changed while it was sent"] == [text.partition(":")[0] for text in said]
    assert asked._why_silent().startswith("nothing has come from"), "it is not on its way any more"


def test_who_is_ended_moves_nothing_more(memory: Memory, tmp_path: Path) -> None:
    """Each object is said not to have moved, with why; no part stays."""
    memory.put(x=b"1", y=b"2")
    asked = onhost.Staging({**vars(request_of("s3://bucket/", str(tmp_path / "d"))), "part": (0, 1)})
    asked.end()
    said = asked.move_all()

    assert {"x": "ended before it was whole", "y": "ended before it was whole"} == said["failed"]
    assert {} == there(tmp_path / "d")
    part = tmp_path / "part"
    part.touch()
    asked._moving.add(str(part))
    asked._remove_parts()
    assert not part.exists()


@pytest.mark.parametrize(("data", "code"), [(b"whole", 0), (None, 1)])
def test_the_program_says_its_result_and_exits_by_it(
    memory: Memory, tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes], data: bytes | None, code: int
) -> None:
    """Its own part goes before what is asked of all; an error is said in a sentence."""
    if data:
        memory.put(x=data)
    request = {**vars(request_of("s3://bucket/none", str(tmp_path / "d"))), "environment": {}}
    assert code == onhost.main(request, {"part": (0, 1), "prefix": ""})
    said = staging.Frames().feed(capfdbinary.readouterr().out)[-1]
    assert ({"result"} if data else {"error"}) == set(said)


@pytest.mark.parametrize(
    ("text", "listed", "above"),
    [("", "", ""), ("a", "a/", "a/"), ("a/", "a/", "a/"), ("a/b*", "a/b", "a/"), ("b*", "b", ""), ("a/*", "a/", "a/")],
)
def test_a_prefix_is_a_folder_or_the_beginning_of_names(text: str, listed: str, above: str) -> None:
    """By the star at its end."""
    assert Prefix(listed, above) == Prefix.of(text)


def test_keys_that_can_be_no_file_are_refused_with_why() -> None:
    """Each with its own reason; the border of a name's length is 255 bytes."""
    bad = {
        "a/../b": "'..' in it leads out of the folder",
        "a//b": "it has an empty name or '.' between slashes, which no file system tells from none",
        "a/./b": "it has an empty name or '.' between slashes, which no file system tells from none",
        "a\0": "no file's name has a zero byte in it",
        "\ud800": "it is no text",
        "n" * 256: "a name in it has 256 bytes, and no file's may have more than 255",
        ".x.dlami-part": "it is called like our own unfinished files",
    }
    assert ({"n" * 255: "n" * 255}, bad) == places([*bad, "n" * 255, "folder/"], "")
    assert ({"p/z": "z"}, {}) == places(["p/z"], "p/")
    found, refused = places(["x", "x/1", "y", "y.tar"], "", untar=True)
    assert {"x/1": "x/1"} == found
    assert {
        "x": "it would be in the same place as x/1",
        "y": "it would be in the same place as y.tar",
        "y.tar": "it would be in the same place as y",
    } == refused
    assert [".tar", ".tar.gz", "", ""] == [suffix_of(k) for k in ("a/b.tar", "b.tar.gz", "a/.tar", "b.zip")]


def test_a_checksum_is_s3_s_own(tmp_path: Path) -> None:
    """Whole or in parts of a size; not where a key is another's; each block is heard of."""
    data, heard = os.urandom(2_500_000), []
    (tmp_path / "f").write_bytes(data)

    def md5(text: bytes) -> Any:
        return hashlib.md5(text, usedforsecurity=False)

    with (tmp_path / "f").open("rb") as file:
        assert md5(data).hexdigest() == etag_of(file, None, lambda: heard.append(1))
        assert 3 == len(heard)
        sums = [md5(data[n : n + 1_200_000]).digest() for n in range(0, len(data), 1_200_000)]
        assert f"{md5(b''.join(sums)).hexdigest()}-3" == etag_of(file, 1_200_000)
    good = {"ETag": '"' + "0" * 32 + '-12"'}
    assert is_checksum(good)
    for bad in (
        {"ETag": "0" * 31},
        {**good, "ServerSideEncryption": "aws:kms"},
        {**good, "ServerSideEncryption": "aws:kms:dsse"},
        {**good, "SSECustomerAlgorithm": "AES256"},
    ):
        assert not is_checksum(bad)
    assert is_checksum({**good, "ServerSideEncryption": "AES256"})


def test_a_folder_knows_what_it_has(tmp_path: Path) -> None:
    """By size and whole seconds, a folder by its time alone; not through a link."""
    before = os.umask(0o027)
    try:
        folder = DestinationFolder(str(tmp_path / "top"))
    finally:
        os.umask(before)
    folder.write("sub/f", 5.9, lambda file: file.write(b"123") and None)
    assert 0o640 == 0o777 & (tmp_path / "top/sub/f").stat().st_mode
    folder.write_folder("sub/d", 7.0, lambda path: Path(path, "x").touch())
    (tmp_path / "top/link").symlink_to("sub/f")

    assert [True, False, False, False] == [folder.has("sub/f", t, s) for t, s in ((5, 3), (6, 3), (5, 4), (5, None))]
    assert [True, False, False] == [folder.has("sub/d", t, s) for t, s in ((7, None), (8, None), (7, 0))]
    assert [False, False] == [folder.has(name, 5, 3) for name in ("link", "none")]
    with pytest.raises(OSError, match="is there already and is of another object: remove it first"):
        folder.write_folder("sub/d", 7.0, lambda _: None)
    with pytest.raises(OSError, match="is a folder here and an object there"):
        folder.write("sub/d", 7.0, lambda _: None)
    with pytest.raises(OSError, match="is a file here and a folder there"):
        folder.write("sub/f/x", 7.0, lambda _: None)
    with pytest.raises(OSError, match="is a link here, and nothing is written through it"):
        folder.write("link/x", 7.0, lambda _: None)

    def fails(_: Any) -> None:
        raise ValueError

    for write in (folder.write, folder.write_folder):
        with contextlib.suppress(ValueError):
            write("sub/new", 1.0, fails)
    assert {"sub/f", "sub/d/x"} == {name for name in there(tmp_path / "top") if name != "link"}


# From the operator's side --------------------------------------------------------------------------------------------

HERE, ALSO_HERE = Host(rank=0, address="localhost", slots=1), Host(rank=1, address="127.0.0.1", slots=1)


RESULT = {"files": 2, "bytes": 5_000_000, "skipped": 1, "objects": 3, "failed": {}, "num_failed": 0, "seconds": 2.0}


def test_how_it_went_is_what_the_host_said_last() -> None:
    """A result before an error; else its error, else why there is no answer."""
    broken = {**RESULT, "num_failed": 2, "failed": {"x": "lost", "y": "lost"}}
    assert Staged(HERE, None, RESULT) == how_it_went(HERE, [{"error": "old"}, {"result": RESULT}, {"at": 1}], "no")
    assert Staged(HERE, "2 of 3 not moved; x, y: lost", broken) == how_it_went(HERE, [{"result": broken}], "no")
    assert Staged(HERE, "full", {}) == how_it_went(HERE, [{"error": "old"}, {"error": "full"}], "no")
    assert Staged(HERE, "no", {}) == how_it_went(HERE, [{"at": 1}], "no")

    def result(code: int, stdout: bytes) -> Result:
        return Result(host=HERE, exit_code=code, stdout=stdout, seconds=0.0)

    assert "its answer did not arrive whole" == staging.staged(result(0, b"")).error
    assert "exited 3   | oh" == staging.staged(result(3, b"oh")).error
    assert RESULT == staging.staged(result(0, b"motd" + framed({"result": RESULT}))).said


def test_the_same_data_on_all_hosts_is_one_line_and_fine() -> None:
    """What differs from most is marked; nothing there, unfinished files and no answer are not fine."""
    has = {"there": True, "files": 1, "bytes": 2, "shards": 0, "sample": "aa", "unfinished": 0}
    hosts = [Host(rank=n, address=f"h{n}", slots=1) for n in range(3)]
    results = FanOut("look", {h: Result(host=h, exit_code=0, seconds=0) for h in hosts})

    def told(*found: Any) -> tuple[list[str], bool]:
        text, fine = status_lines(results, {h: f for h, f in zip(hosts, found, strict=True) if f})
        return text.splitlines(), fine

    line = "1 file, 0 shards, 2 bytes, sample aa"
    assert ([f"h[0-2] (3)  {line}"], True) == told(has, has, has)
    assert ([f"h[0-1] (2)  {line}", f"h2 (1)  {line[:-2]}bb   <- not what most hosts have"], False) == told(
        has, has, {**has, "sample": "bb"}
    )
    assert ([f"h[0-2] (3)  {line}, 1 unfinished"], False) == told(*[{**has, "unfinished": 1}] * 3)
    assert (["h[0-2] (3)  nothing there"], False) == told(*[{**has, "there": False}] * 3)
    assert "h2 (1)  unknown: " == told(has, has, None)[0][1]
    assert not told(None, None, None)[1]


def test_every_object_that_was_not_moved_is_named() -> None:
    """Those with one reason together; of too many to read ten, and where the others are."""
    few = {"failed": {"a": "no room", "b": "no room", "c": "denied", "d": "denied"}}
    assert "a, b: no room; c, d: denied" == not_moved(few)
    many = not_moved({"failed": {f"k{n:02}": "denied" for n in range(25)}})
    assert many.startswith("k00, k01, ")
    assert many.endswith("k09 and 15 more: denied; --json names them all")
