"""Which file each S3 key becomes, and what is written where: on this machine, against a fake S3 of its own."""

import contextlib
import gzip
import io
import os
import socket
import subprocess
import sys
import tarfile
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import boto3
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from cluster.errors import ConfigError
from cluster.hosts import Host
from cluster.ssh.onhost.frame import Frames
from cluster.ssh.onhost.partial_file import is_part, open_part, part_of
from cluster.ssh.program import program
from cluster.stage.onhost import archive as archives
from cluster.stage.onhost import client
from cluster.stage.onhost import s3 as onhost
from cluster.stage.onhost.archive import unpack
from cluster.stage.onhost.files import files_below, finished
from cluster.stage.onhost.folder import DestinationFolder
from cluster.stage.onhost.keys import places
from cluster.stage.onhost.look import summarize
from cluster.stage.onhost.stall_watchdog import Silence
from cluster.stage.stage import SILENCE_S, Staged, environment_of, of_one_list, request_of
from tests import fake_s3
from tests.conftest import PATIENCE_S, wait_for

NOBODY = 65534
KEYS = {"AWS_ACCESS_KEY_ID": "testing", "AWS_SECRET_ACCESS_KEY": "testing", "AWS_DEFAULT_REGION": "us-east-1"}
NAMES = st.sampled_from(
    ["a", "b", "..", ".", "", ".x.dlami-part", "x", "é" * 127, "n" * 255, "n" * 256, "a.tar", "a.tgz"]
)
PATHS = st.lists(NAMES | st.text(max_size=4), min_size=1, max_size=4).map("/".join)


@pytest.fixture(scope="module")
def server() -> Iterator[Any]:
    """A fake S3 on this machine."""
    with fake_s3.serving() as url:
        yield url


@pytest.fixture
def s3(server: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A client, and an empty bucket."""
    for name, value in KEYS.items():
        monkeypatch.setenv(name, value)
    client = boto3.client("s3", endpoint_url=server)
    client.create_bucket(Bucket="bucket")
    yield client
    for page in client.get_paginator("list_objects_v2").paginate(Bucket="bucket"):
        for found in page.get("Contents", ()):
            client.delete_object(Bucket="bucket", Key=found["Key"])


def asked(server: Any, folder: Any, prefix: str = "", **more: Any) -> Any:
    """What one host that stages for itself is asked for."""
    request = request_of(f"s3://bucket/{prefix}", str(folder), endpoint=server, environment=KEYS)
    return {**vars(request), "part": (0, 1), **more}


def staged(server: Any, folder: Any, prefix: str = "", **more: Any) -> Any:
    return onhost.Staging(asked(server, folder, prefix, **more)).move_all()


def tree(folder: Any) -> Any:
    return sorted(str(p.relative_to(folder)) for p in Path(folder).rglob("*") if not p.is_dir())


@given(st.lists(PATHS, max_size=8, unique=True), st.booleans())
@example(["x.tar", "x.tgz", "x/y"], True)
@example(["..tar", "...tar"], True)
def test_no_two_keys_meet_and_none_leaves_the_folder(keys: Any, untar: Any) -> None:
    """Every key has a place of its own below the folder, or a reason; nothing has two."""
    found, refused = places(keys, "", untar=untar)

    assert {k for k in keys if not k.endswith("/")} == {*found, *refused}
    assert not found.keys() & refused.keys()
    everything = [Path(p) for p in found.values()]
    assert len(set(everything)) == len(everything)
    for path in everything:
        assert not {".", ".."} & set(path.parts)
        assert str(path) in found.values(), "the file system takes it for no other"
        assert not any(above in everything for above in path.parents), "a file is no folder"
    parts = {part_of(str(p)) for p in everything}
    assert len(parts) == len(everything)
    assert not parts & set(found.values())
    assert all(len(os.fsencode(name)) <= 255 for p in parts for name in p.split("/"))


@given(
    st.lists(
        st.text(min_size=1, max_size=300).filter(lambda n: "/" not in n and "\0" not in n), unique=True, max_size=5
    )
)
def test_every_name_has_a_part_of_its_own(names: Any) -> None:
    """However long, and in whatever script; a part is known by its name."""
    names = [n for n in names if len(n.encode(errors="surrogateescape")) <= 255] if all(map(_is_text, names)) else []
    parts = {part_of(f"/d/{name}") for name in names}

    assert len(names) == len(parts)
    assert all(is_part(Path(p).name) and len(Path(p).name.encode()) <= 255 for p in parts)


def _is_text(name: Any) -> Any:
    try:
        return bool(name.encode())
    except UnicodeEncodeError:
        return False


def test_one_writer_per_part(tmp_path: Path) -> None:
    """A second one is refused; the part that it had opened while the first one finished is no longer a part."""
    first = open_part(str(tmp_path / "f"))
    with pytest.raises(OSError, match="another copy writes it now"):
        open_part(str(tmp_path / "f"))
    os.replace(part_of(str(tmp_path / "f")), tmp_path / "f")  # noqa: PTH105
    os.close(first)
    again = open_part(str(tmp_path / "f"))

    assert os.fstat(again).st_ino != (tmp_path / "f").stat().st_ino
    os.close(again)


def test_a_prefix_that_matches_nothing_is_an_error_that_says_what_is_there(
    s3: Any, server: Any, tmp_path: Path
) -> None:
    """A typo is not "0 moved"; a backslash is a letter like others."""
    s3.put_object(Bucket="bucket", Key="data/train/1", Body=b"x")
    s3.put_object(Bucket="bucket", Key=r"back\nslash/1", Body=b"y")
    with pytest.raises(LookupError, match=r"no object is called s3://bucket/data/trian; s3://bucket/data/ has train/$"):
        staged(server, tmp_path / "d", "data/trian")
    staged(server, tmp_path / "d", r"back\nslash")

    assert "y" == (tmp_path / "d/1").read_text()
    with pytest.raises(LookupError, match="there is no such folder"):
        staged(server, tmp_path / "nowhere", upload=True)


def test_a_key_that_cannot_be_a_file_refuses_only_itself(s3: Any, server: Any, tmp_path: Path) -> None:
    """Each with its reason; the others arrive, a name of 254 bytes and one of another script too."""
    fine = ["k/" + "n" * 254, "k/" + "é" * 127, "k/x", "k/sub/x"]
    for key in [*fine, "k/../../outside", "k//x", "k/./x", "k/.x.dlami-part", "k/sub"]:
        s3.put_object(Bucket="bucket", Key=key, Body=key.encode())
    result = staged(server, tmp_path / "d", "k")

    assert sorted(k[2:] for k in fine) == tree(tmp_path / "d")
    assert "k/sub/x" == (tmp_path / "d/sub/x").read_text()
    assert {"k/../../outside", "k//x", "k/./x", "k/.x.dlami-part", "k/sub"} == set(result["failed"])
    assert not (tmp_path / "outside").exists()
    assert result == {**result, "num_failed": 5, "objects": 9, "files": 4}


def test_nothing_is_written_through_a_link(s3: Any, server: Any, tmp_path: Path) -> None:
    """A folder that is a link, a part that is one, a file that is one: what they lead to stays as it was."""
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "kept").write_text("kept")
    folder = tmp_path / "d"
    folder.mkdir()
    (folder / "sub").symlink_to(outside)
    (folder / "file").symlink_to(outside / "kept")
    (folder / ".part.dlami-part").symlink_to(outside / "kept")
    for key in ("k/sub/x", "k/file", "k/part", "k/fine"):
        s3.put_object(Bucket="bucket", Key=key, Body=b"new")
    result = staged(server, folder, "k/")

    assert ["kept"] == tree(outside)
    assert "kept" == (outside / "kept").read_text()
    assert {"k/sub/x", "k/part"} == set(result["failed"])
    assert "is a link here, and nothing is written through it" in result["failed"]["k/sub/x"]
    assert not (folder / "file").is_symlink()


def test_what_arrives_damaged_never_has_the_name(
    s3: Any, server: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The checksum finds one changed byte, and the time an object that was replaced meanwhile."""
    s3.put_object(Bucket="bucket", Key="k/x", Body=b"whole and well")
    s3.put_object(Bucket="bucket", Key="k/y", Body=b"whole and well")
    staging = onhost.Staging(asked(server, tmp_path, "k/"))
    fetch = staging._s3.download_fileobj

    def damage(bucket: Any, key: Any, file: Any, **more: Any) -> None:
        fetch(bucket, key, file, **more)
        if key == "k/x":
            file.seek(3)
            file.write(b"X")

    monkeypatch.setattr(staging._s3, "download_fileobj", damage)
    result = staging.move_all()
    with pytest.raises(OSError, match="replaced in S3"):
        staging._check(onhost.S3Object("k/y", "y", 14, 1e9), io.BytesIO(b"whole and well"))

    assert ["y"] == tree(tmp_path)
    assert "what arrived is not what is there" in result["failed"]["k/x"]


def test_hosts_that_share_a_folder_must_have_seen_the_same(s3: Any, server: Any, tmp_path: Path) -> None:
    """One host sees an object that the other one, a moment before, did not: what is nobody's is not said to be moved."""
    keys = [f"k/{n:02}" for n in range(20)]
    for key in keys:
        s3.put_object(Bucket="bucket", Key=key, Body=b"x")
    first = staged(server, tmp_path / "0", "k", part=(0, 2))
    equal = staged(server, tmp_path / "1", "k", part=(1, 2))
    s3.put_object(Bucket="bucket", Key="k/000", Body=b"late")
    late = staged(server, tmp_path / "2", "k", part=(1, 2))

    assert sorted(key[2:] for key in keys) == sorted([*tree(tmp_path / "0"), *tree(tmp_path / "1")])
    assert {"01"} <= {key[2:] for key in keys} - {*tree(tmp_path / "0"), *tree(tmp_path / "2")}, "nobody's"
    hosts = [Host(rank=n, address=f"10.0.0.{n + 1}", slots=1) for n in range(2)]

    def errors(*results: Any) -> list[Any]:
        said = [Staged(host, None, result) for host, result in zip(hosts, results, strict=True)]
        return [one.error for one in of_one_list(said)]

    assert [None, None] == errors(first, equal)
    told = errors(first, late)
    assert "it saw 20 names, and another host 21" in str(told[0])
    assert told[1] is None
    assert "seen" not in staged(server, tmp_path / "3", "k"), "whoever moves all of it needs nobody's agreement"


@pytest.fixture
def nobody_s_folder() -> Iterator[Path]:
    """A folder of a user who may not read everything."""
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        if os.geteuid() == 0:
            os.chown(folder, NOBODY, NOBODY)
        yield Path(folder)
        for left in Path(folder).iterdir():
            left.chmod(0o700)


@contextlib.contextmanager
def as_nobody() -> Iterator[None]:
    """What a process of root's may not read it may not read meanwhile."""
    user = os.geteuid()
    os.seteuid(user or NOBODY)
    try:
        yield
    finally:
        os.seteuid(user)


@pytest.mark.parametrize(("mode", "named"), [(0o300, "private"), (0o600, "private/x")])
def test_a_folder_that_cannot_be_read_is_no_empty_one(nobody_s_folder: Path, mode: int, named: str) -> None:
    """Neither to an upload nor to whoever asks what is there, whether its names are hidden or what they are."""
    with as_nobody():
        (nobody_s_folder / "private").mkdir()
        (nobody_s_folder / "private/x").write_text("x")
        (nobody_s_folder / "private").chmod(mode)

    for read in (files_below, summarize):
        with as_nobody(), pytest.raises(PermissionError) as error:
            read(str(nobody_s_folder))
        assert str(nobody_s_folder / named) == error.value.filename


def test_a_folder_that_goes_while_it_is_looked_at_has_no_files(tmp_path: Path) -> None:
    """As a file that goes; the folder that is asked for must be there."""
    (tmp_path / "going").mkdir()
    (tmp_path / "file").touch()

    def go() -> None:
        if (tmp_path / "going").exists():
            (tmp_path / "going").rmdir()

    assert {"file": 0} == files_below(str(tmp_path), go)
    with pytest.raises(FileNotFoundError):
        files_below(str(tmp_path / "going"))


def test_all_files_below_a_folder_are_found_and_nothing_else(tmp_path: Path) -> None:
    """What a link leads to counts if it is a file; a link that leads nowhere or to a folder, a pipe and a part do not."""
    for name in ("b/c", "a", "b/.x.dlami-part", ".tar.dlami-part/y"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(name)
    for name, target in (("link", "a"), ("dead", "nowhere"), ("round", "round"), ("folder", "b")):
        (tmp_path / name).symlink_to(target)
    os.mkfifo(tmp_path / "pipe")
    heard: list[None] = []
    found = files_below(str(tmp_path), lambda: heard.append(None))

    assert {"b/.x.dlami-part", ".tar.dlami-part/y"} == found.keys() - finished(found).keys()
    assert [("a", 1), ("b/c", 3), ("link", 1)] == list(finished(found).items())
    assert 11 == len(heard), "every name"
    assert 0 == summarize(str(tmp_path / "none"))["files"]


@pytest.fixture
def kms(s3: Any) -> Iterator[Any]:
    """The bucket encrypts with a key of KMS, so that no object's ETag says what is in it."""
    rule = {"ApplyServerSideEncryptionByDefault": {"SSEAlgorithm": "aws:kms"}}
    s3.put_bucket_encryption(Bucket="bucket", ServerSideEncryptionConfiguration={"Rules": [rule]})
    yield s3
    s3.delete_bucket_encryption(Bucket="bucket")


def test_without_a_checksum_in_s3_a_changed_file_of_equal_size_is_sent(kms: Any, server: Any, tmp_path: Path) -> None:
    """And nothing twice; an object of somebody else's, of which nothing is known, is no copy of the file."""
    file, folder = tmp_path / "up/step.npz", tmp_path / "up"
    folder.mkdir()
    file.write_text("old")
    kms.put_object(Bucket="bucket", Key="k/step.npz", Body=b"???")
    first, second = (staged(server, folder, "k", upload=True) for _ in range(2))
    file.write_text("new")
    third, fourth = (staged(server, folder, "k", upload=True) for _ in range(2))
    back = staged(server, tmp_path / "down", "k")

    assert "aws:kms" == kms.head_object(Bucket="bucket", Key="k/step.npz")["ServerSideEncryption"]
    assert [(1, 0), (0, 1)] * 2 == [(r["files"], r["skipped"]) for r in (first, second, third, fourth)]
    assert (1, "new") == (back["files"], (tmp_path / "down/step.npz").read_text())


def archive(*members: Any, gz: bool = True) -> Any:
    """A tar of (name, kind or contents) pairs."""
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w:gz" if gz else "w") as tar:
        for name, what in members:
            member = tarfile.TarInfo(name)
            if isinstance(what, bytes):
                member.size = len(what)
                tar.addfile(member, io.BytesIO(what))
            else:
                member.type, member.linkname = what
                tar.addfile(member)
    return made.getvalue()


@pytest.mark.parametrize(
    ("members", "expected"),
    [
        ([("link", (tarfile.SYMTYPE, "sub")), ("link/x", b"x")], "through a link of its own"),
        ([("link", (tarfile.SYMTYPE, "x")), ("./link", b"x")], "through a link of its own"),
        ([("link", (tarfile.SYMTYPE, "/etc"))], "absolute"),
        ([("../x", b"x")], "outside"),
    ],
)
def test_an_archive_s_links_lead_nowhere(tmp_path: Path, members: Any, expected: Any) -> None:
    """Neither out of its folder nor to another of its members that is then written."""
    data = archive(("sub/y", b"y"), *members)
    with pytest.raises((OSError, tarfile.TarError), match=expected):
        unpack(io.BytesIO(data), len(data), str(tmp_path))


@pytest.mark.parametrize("kind", ["large", "many"])
def test_an_archive_has_a_bound(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: Any) -> None:
    """A small one that becomes gigabytes, or a million files, is refused; nothing of it has the name."""
    monkeypatch.setattr(archives, "_SMALL", 1 << 20)
    data = archive(*([("zeros", bytes(9 << 20))] if kind == "large" else [(f"{n}", b"") for n in range(1100)]))
    assert len(data) < 1 << 14
    with pytest.raises(OSError, match="it becomes more than 1,048,576 bytes from"):
        DestinationFolder(str(tmp_path)).write_folder(
            "big", 1.0, lambda part: unpack(io.BytesIO(data), len(data), part)
        )

    assert [] == list(tmp_path.iterdir())


def test_tars_that_would_be_one_folder_are_both_refused(s3: Any, server: Any, tmp_path: Path) -> None:
    """And everything else arrives."""
    for name in ("x.tar", "x.tar.gz", "y.tar"):
        s3.put_object(Bucket="bucket", Key=f"t/{name}", Body=archive(("in", name.encode()), gz=name.endswith("gz")))
    s3.put_object(Bucket="bucket", Key="t/broken.tgz", Body=gzip.compress(b"no tar at all" * 100))
    result = staged(server, tmp_path, "t/", untar=True)

    assert ["y/in"] == tree(tmp_path)
    assert {"t/x.tar", "t/x.tar.gz", "t/broken.tgz"} == set(result["failed"])
    assert "same place as t/x.tar.gz" in result["failed"]["t/x.tar"]


def test_an_s3_that_takes_connections_and_never_answers_is_given_up() -> None:
    """With its address, and what to look at."""
    with socket.create_server(("127.0.0.1", 0)) as deaf:
        url = "http://{}:{}".format(*deaf.getsockname())
        sent = program(
            "cluster.stage.onhost.s3",
            asked(url, "/tmp/nothing", silence_s=2),
            python=sys.executable,
            is_isolated=False,
        )
        done = subprocess.run(["sh", "-c", sent.command({})], input=sent.stdin, capture_output=True, timeout=PATIENCE_S)

    assert f"nothing has come from {url} for 2 s" in Frames().feed(done.stdout)[-1]["error"]


def swallowing(door: socket.socket, server: str) -> None:
    """Says nothing to the first that comes; for all others it is the server."""
    with door.accept()[0]:
        while True:
            try:
                caller = door.accept()[0]
            except OSError:
                return
            there = socket.create_connection(("127.0.0.1", int(server.rpartition(":")[2])))
            for source, target in ((caller, there), (there, caller)):
                threading.Thread(target=passed_on, args=(source, target), daemon=True).start()


def passed_on(source: socket.socket, target: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(65536):
            target.sendall(data)
        target.shutdown(socket.SHUT_WR)


def test_a_request_that_is_lost_is_put_again_before_s3_is_given_up(
    s3: Any, server: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One whose answer never comes is no silent S3."""
    assert SILENCE_S > client.CONNECT_S + client.ANSWER_S
    monkeypatch.setattr(client, "ANSWER_S", 0.5)
    given_up: list[onhost.Staging] = []
    monkeypatch.setattr(onhost.Staging, "_end_in_silence", lambda staging: given_up.append(staging))
    s3.put_object(Bucket="bucket", Key="lost/x", Body=b"1")
    with socket.create_server(("127.0.0.1", 0)) as door:
        threading.Thread(target=swallowing, args=(door, server), daemon=True).start()
        moved = onhost.Staging(asked("http://{}:{}".format(*door.getsockname()), tmp_path, "lost/")).move_all()
        door.shutdown(socket.SHUT_RDWR)

    assert [] == given_up
    assert (1, {}) == (moved["files"], moved["failed"])
    assert ["x"] == tree(tmp_path)


def test_silence_after_the_end_is_nobody_s_business() -> None:
    """What watches for silence ends with what it watches; within it, silence is acted on."""
    acted = threading.Event()
    events = SimpleNamespace(register=lambda name, listener: None)
    client = SimpleNamespace(meta=SimpleNamespace(events=events))

    with Silence(0.2, acted.set).watched(client):
        assert acted.wait(60)
    acted.clear()
    before = threading.active_count()
    with Silence(3600, acted.set).watched(client):
        pass
    wait_for(lambda: threading.active_count() <= before, 60, "its thread has ended")

    assert not acted.is_set()


def test_a_disk_that_does_not_answer_is_not_said_to_be_s3(
    s3: Any, server: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of what it is asked is told, and S3 is only suspected when the disk has answered."""
    s3.put_object(Bucket="bucket", Key="k/x", Body=b"1")
    staging = onhost.Staging(asked(server, tmp_path, "k", silence_s=7))
    said = []

    def has(*_: Any) -> bool:
        said.append(staging._why_silent())
        return True

    monkeypatch.setattr(staging._folder, "has", has)
    staging.move_all()
    said.append(staging._why_silent())

    assert said[0].startswith(f"{tmp_path}/x: the file system here has not told for 7 s what is there")
    assert said[1].startswith(f"nothing has come from {server} for 7 s: is there a way to it")


@pytest.mark.seconds
def test_an_s3_that_stops_in_the_middle_is_given_up_and_leaves_no_part(tmp_path: Path) -> None:
    """The part of an object that was on its way is removed."""
    listing = (
        b"<?xml version='1.0'?><ListBucketResult><IsTruncated>false</IsTruncated><Contents><Key>k/x</Key><Size>900000</Size>"
        b"<LastModified>2026-01-01T00:00:00.000Z</LastModified></Contents></ListBucketResult>"
    )
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            while True:
                try:
                    connection, _ = server.accept()
                except OSError:
                    return
                request = connection.recv(65536)
                head = b'HTTP/1.1 200 OK\r\nETag: "x"\r\nLast-Modified: Thu, 01 Jan 2026 00:00:00 GMT\r\nContent-Length: %d\r\n'
                if b"list-type" in request:
                    connection.sendall(head % len(listing) + b"Connection: close\r\n\r\n" + listing)
                    connection.close()
                elif request.startswith(b"HEAD"):
                    connection.sendall(head % 900000 + b"Connection: close\r\n\r\n")
                    connection.close()
                else:
                    connection.sendall(head % 900000 + b"\r\n" + bytes(300000))  # and not a byte more
                    kept.append(connection)

        kept = []
        threading.Thread(target=serve, daemon=True).start()
        url = "http://{}:{}".format(*server.getsockname())
        given = asked(url, tmp_path / "d", "k/", silence_s=3)
        sent = program("cluster.stage.onhost.s3", given, python=sys.executable, is_isolated=False)
        done = subprocess.run(["sh", "-c", sent.command({})], input=sent.stdin, capture_output=True, timeout=PATIENCE_S)

    assert "for 3 s: is there a way to it from here" in Frames().feed(done.stdout)[-1]["error"]
    assert [] == tree(tmp_path / "d")


def test_no_credentials_says_what_to_do_next(s3: Any, server: Any, tmp_path: Path) -> None:
    """Which the fake AWS of a lab, and a role without access, need."""
    given = {**asked(server, tmp_path), "environment": {"AWS_EC2_METADATA_DISABLED": "true", "HOME": str(tmp_path)}}
    sent = program("cluster.stage.onhost.s3", given, python=sys.executable, is_isolated=False)
    done = subprocess.run(
        ["sh", "-c", sent.command({})], input=sent.stdin, capture_output=True, env={"PATH": os.environ["PATH"]}
    )

    said = Frames().feed(done.stdout)[-1]["error"]
    assert "--env AWS_ACCESS_KEY_ID --env AWS_SECRET_ACCESS_KEY" in said
    assert b"testing" not in sent.command({}).encode()


def test_the_environment_is_taken_from_here_and_no_secret_is_on_a_command_line() -> None:
    """NAME alone has its value here; a secret with a value on our command line is refused with what to write."""
    here = {"AWS_SECRET_ACCESS_KEY": "s", "X": "1"}

    assert {"AWS_SECRET_ACCESS_KEY": "s", "X": "2", "EMPTY": ""} == environment_of(
        ["AWS_SECRET_ACCESS_KEY", "X=2", "EMPTY="], here
    )
    for word, expected in (
        ("AWS_SECRET_ACCESS_KEY=s", "give --env AWS_SECRET_ACCESS_KEY alone"),
        ("NOWHERE", "it has no value here"),
        ("A-B=1", "neither NAME=VALUE nor NAME"),
    ):
        with pytest.raises(ConfigError, match=expected):
            environment_of([word], here)
