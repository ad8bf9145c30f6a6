"""What a copy promises of the bytes: none but the source's, nobody reads them on the wire, nobody gets in between."""

import json
import os
import socket
import struct
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cluster.broadcast import copy as copying
from cluster.broadcast.copy import copy, lines, transfer
from cluster.broadcast.onhost import file_tree, pipeline, protocol, relay, target
from cluster.broadcast.onhost.errors import Changed, Over, WireError
from cluster.broadcast.onhost.file_tree import FileEntry, scan
from cluster.broadcast.onhost.pipeline import Flow
from cluster.broadcast.onhost.store import CHUNK, CopySource, CopyStore, Stream, make_folders, settle
from cluster.hosts import Host
from cluster.inventory import Cluster
from cluster.ssh.fanout import Executor
from cluster.ssh.limits import Limits
from lab import lab as labs
from lab.record import Lab
from tests.conftest import PATIENCE_S, wait_for


def stream_of(folder: Any) -> Any:
    entries, _ = scan(str(folder))
    return Stream(entries, [n for n, e in enumerate(entries) if e.kind == "f"]), entries


@given(
    st.lists(st.sampled_from([0, 1, 100, 8191, 8192, CHUNK - 1, CHUNK, CHUNK + 1, 3 * CHUNK]), min_size=1, max_size=80)
)
def test_no_chunk_makes_a_host_write_many_files(sizes: Any) -> None:
    """However small they are: nobody waits for a host while it makes a thousand, and every byte comes once."""
    stream = Stream([FileEntry(str(n), "f", 0, 0, 0, 0, size) for n, size in enumerate(sizes)], range(len(sizes)))
    chunks = [list(stream.parts(n)) for n in range(stream.num_chunks)]

    assert sum(sizes) == sum(length for chunk in chunks for *_, length in chunk)
    assert all(len(chunk) <= 33 and sum(length for *_, length in chunk) <= CHUNK for chunk in chunks)
    assert set(range(len(sizes))) == {number for chunk in chunks for number, *_ in chunk}
    ends = [n for chunk in chunks for n, entry, offset, length in chunk if offset + length == entry.size]
    assert sorted(ends) == list(range(len(sizes))), "every file is finished, and once"


@pytest.mark.seconds
@given(
    st.dictionaries(
        st.text(min_size=1, max_size=40).filter(lambda n: "/" not in n and "\0" not in n and n not in (".", "..")),
        st.binary(max_size=50),
        max_size=6,
    )
)
def test_a_folder_of_any_names_is_the_same_after_its_stream(
    tmp_path_factory: pytest.TempPathFactory, contents: Any
) -> None:
    """Names in any script and of any length, written from chunks."""
    top = tmp_path_factory.mktemp("tree")
    source = top / "src"
    source.mkdir()
    for name, data in contents.items():
        try:
            (source / name).write_bytes(data)
        except (OSError, UnicodeEncodeError):  # too long, or no text for this file system
            continue
    stream, entries = stream_of(source)
    make_folders(entries, str(top / "dst"))
    store, reader = CopyStore(stream, str(top / "dst"), set(range(len(entries)))), CopySource(stream, str(source))
    for n in range(stream.num_chunks):
        store.write(n, reader.read(n))
    settle(entries, str(top / "dst"))

    assert {p.name: p.read_bytes() for p in source.iterdir()} == {
        p.name: p.read_bytes() for p in (top / "dst").iterdir()
    }


def rewrite_in_secret(path: Any) -> None:
    """Other contents, the old size and time."""
    was = path.stat()
    with path.open("r+b") as file:
        file.write(b"new")
    os.utime(path, ns=(was.st_atime_ns, was.st_mtime_ns))


@pytest.mark.parametrize(
    "change",
    [
        lambda path: path.write_bytes(b"n" * 3 * CHUNK),
        lambda path: os.utime(path, (1, 1)),
        rewrite_in_secret,
        lambda path: os.truncate(path, 10),
        lambda path: os.truncate(path, 9 * CHUNK),
    ],
    ids=["rewritten", "touched", "rewritten with its time set back", "shorter", "longer"],
)
def test_a_source_that_changes_while_it_is_read_is_noticed(tmp_path: Path, change: Any) -> None:
    """Before its last byte is given to anybody, so that nobody gives it its name."""
    (tmp_path / "f").write_bytes(bytes(3 * CHUNK))
    stream, _ = stream_of(tmp_path)
    reader = CopySource(stream, str(tmp_path))
    reader.read(0)
    change(tmp_path / "f")
    with pytest.raises(Changed, match="f: changed while it was copied: copy again"):
        for n in range(1, stream.num_chunks):
            reader.read(n)


def test_the_head_sends_no_chunk_in_two_versions(tmp_path: Path) -> None:
    """Even where size and times tell nothing: its digest must be the one that was sent before."""
    (tmp_path / "f").write_bytes(bytes(10))
    stream, _ = stream_of(tmp_path)
    head = Flow(bytes(32), is_head=True)
    head.begin(stream, CopySource(stream, str(tmp_path)), {}, is_whole=True)
    data, digest = head.chunk(0)

    assert head.check(0, data) == digest
    with pytest.raises(Changed):
        head.check(0, b"another   ")


def test_a_source_rewritten_during_the_copy_is_never_reported_done(lab: Lab, cluster: Cluster, reach: Executor) -> None:
    """No host gives a mixture its name, all say why, and the next copy is whole."""
    reach.run([cluster.master], "mkdir -p /root/src && head -c 30000000 /dev/zero | tr '\\0' a >/root/src/f").check()
    for host in lab.hosts[1:]:
        labs.slow(lab, host, mbit=60, delay_ms=None)
    part = lab.host_folder(lab.hosts[1]) / "upper/root/copy/.f.dlami-part"

    def rewrite() -> None:
        wait_for(lambda: part.exists() and part.stat().st_blocks * 512 > 2_000_000, 120, "it receives")
        reach.run([cluster.master], "tr a b </root/src/f | dd of=/root/src/f conv=notrunc bs=1M 2>/dev/null").check()

    thread = threading.Thread(target=rewrite)
    thread.start()
    try:
        done = copy(reach, cluster, cluster.hosts, transfer("/root/src", "/root/copy"))
        thread.join(PATIENCE_S)
        labs.heal(lab, lab.hosts)
        left = reach.run(cluster.hosts, "ls -A /root/copy").check()
        again = copy(reach, cluster, cluster.hosts, transfer("/root/src", "/root/copy"))
        sums = reach.run(cluster.hosts, "md5sum </root/copy/f").check()
    finally:
        thread.join(PATIENCE_S)
        labs.heal(lab, lab.hosts)
        reach.run(cluster.hosts, "rm -rf /root/src /root/copy", limits=Limits(connect_s=60)).check()

    assert set(cluster.hosts) == {o.host for o in done.failed}, done
    assert all("changed while it was copied: copy again" in str(o.error) for o in done.failed), done
    assert {"", "f\n"} >= {r.text for r in left.values()}, "no part is left"
    assert {""} == {r.text for h, r in left.items() if h != cluster.master}, "nobody has a mixture"
    assert not again.failed
    assert 1 == len(sums.groups())


def test_on_a_folder_that_hosts_share_one_of_them_writes(cluster: Cluster, reach: Executor) -> None:
    """The others say with whom, have it, and nobody is called a failure; one that has a folder of its own writes too."""
    reach.run(
        [cluster.master], "mkdir -p /root/src/sub && seq 50 | while read n; do echo $n >/root/src/sub/$n; done"
    ).check()
    odd = cluster.hosts[2]
    try:
        reach.run([odd], "mkdir -p /root/own && mount --bind /root/own /shared").check()
        done = copy(reach, cluster, cluster.hosts, transfer("/root/src", "/shared/new/copy"))
        there = reach.run(cluster.hosts, "cat /shared/new/copy/sub/* | md5sum; ls -A /shared/new").check()
        gone = copy(reach, cluster, cluster.hosts, transfer("/root/src", "/dev/null/copy"))
    finally:
        reach.run([odd], "umount /shared; rm -rf /root/own")
        reach.run(cluster.hosts, "rm -rf /root/src /shared/new").check()

    assert not done.failed, done
    assert [50, 0, 50, 0] == [o.files for o in done.outcomes]
    assert [None, str(cluster.master), None, str(cluster.master)] == [o.shared_with for o in done.outcomes]
    assert f"one folder with {cluster.master}'s" in lines(done)
    assert 1 == len(there.groups())
    assert 4 == len(gone.failed)


@pytest.mark.parametrize("encrypt", [False, True], ids=["plain", "encrypted"])
def test_encrypted_is_not_readable_on_the_wire(cluster: Cluster, reach: Executor, encrypt: Any) -> None:
    """Every packet of the lab is looked at: without --encrypt the contents are found in them, with it they are not."""
    marker = os.urandom(16).hex().encode()
    reach.run([cluster.master], f"mkdir -p /root/src && yes {marker.decode()} | head -c 400000 >/root/src/f").check()
    seen, ended = bytearray(), threading.Event()
    with socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.ntohs(3)) as spy:
        spy.settimeout(0.2)
        spy.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 64 << 20)

        def listen() -> None:
            while True:  # to the last packet that waits to be looked at
                try:
                    seen.extend(spy.recv(70_000))
                except TimeoutError:
                    if ended.is_set():
                        return

        thread = threading.Thread(target=listen)
        thread.start()
        done = copy(reach, cluster, cluster.hosts[1:], transfer("/root/src", "/root/copy", encrypt=encrypt))
        ended.set()
        thread.join(PATIENCE_S)
    sums = reach.run(cluster.hosts, "cat /root/[sc]*/f | md5sum").check()
    reach.run(cluster.hosts, "rm -rf /root/src /root/copy").check()

    assert not done.failed
    assert 1 == len(sums.groups())
    assert encrypt == (marker not in seen)


def test_a_chunk_s_digest_needs_the_secret() -> None:
    """Who only hears what is sent cannot make one; place and length are in it."""
    secret, other = bytes(32), bytes(31) + b"\1"
    digests = {
        protocol.chunk_digest(secret, 1, b"data"),
        protocol.chunk_digest(other, 1, b"data"),
        protocol.chunk_digest(secret, 2, b"data"),
        protocol.chunk_digest(secret, 1, b"data\0"),
        protocol.chunk_digest(secret, 1, b"data", b"J"),
    }

    assert 5 == len(digests)


def as_sent(*, secret: bytes = bytes(32), **message: Any) -> bytes:
    """A message as it is on the wire."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        protocol.Wire(ours, secret, 5).say(**message)
        return theirs.recv(65536)


def heard(*packets: bytes) -> dict[str, Any]:
    """The message in bytes that come in these pieces, after which the other side hangs up."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        with ours:
            for packet in packets:
                ours.send(packet)
        return protocol.Wire(theirs, bytes(32), 5).hear_message()


def test_a_message_is_heard_however_it_is_cut() -> None:
    """Byte by byte; one that says only that the other side is busy is passed over."""
    sent = as_sent(kind="begin", files=3)
    pieces = [sent[n : n + 1] for n in range(len(sent))]

    assert {"kind": "begin", "files": 3} == heard(*pieces)
    header, digest, body = (as_sent(kind="wait")[cut] for cut in (slice(13), slice(13, 45), slice(45, None)))
    assert {"kind": "begin", "files": 3} == heard(header, digest, body, *pieces)
    with pytest.raises(WireError, match="hung up"):
        heard(*pieces[:-1])


@pytest.mark.parametrize(
    ("sent", "says"),
    [
        (struct.pack(">cIQ", b"J", (64 << 20) + 1, 0), "impossible length"),
        (as_sent(kind="begin", secret=bytes(31) + b"x"), "not what was sent"),
        (as_sent(kind="begin")[:-2] + b"x}", "not what was sent"),
        (b"C" + as_sent(kind="begin")[1:], "not what was sent"),
        (struct.pack(">cIQ", b"C", 1, 7) + protocol.chunk_digest(bytes(32), 7, b"x") + b"x", "a chunk out of turn"),
    ],
    ids=["long", "secret", "changed", "kind", "chunk"],
)
def test_what_is_no_message_of_ours_is_refused(sent: bytes, says: str) -> None:
    """Too long, of another secret, changed on its way, of another kind than its digest is of; a chunk where none is due."""
    with pytest.raises(WireError, match=says):
        heard(sent[:13], sent[13:45], sent[45:])


def test_a_relay_listens_at_its_own_address_only() -> None:
    """Never at all of them: the address that the other hosts use, nothing else."""
    secret = os.urandom(32)
    listener = protocol.listening("127.0.0.3", secret)
    assert listener is not None
    with listener:
        assert "127.0.0.3" == listener.getsockname()[0]
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.2", listener.getsockname()[1]), timeout=5)


def test_the_end_of_a_head_is_heard_instead_of_any_message() -> None:
    """Whatever a relay waits for, it learns why it waits no longer."""
    ours, theirs = socket.socketpair()
    secret = os.urandom(32)
    protocol.Wire(ours, secret, 5).say(kind="over", why="the source changed")
    with pytest.raises(Over, match="the source changed"):
        protocol.Wire(theirs, secret, 5).hear_message()
    ours.close()
    theirs.close()


@pytest.mark.slow
def test_a_host_that_works_long_on_its_disk_is_not_given_up(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """Listing a large source, looking through a slow DST, and setting thousands of folders: each takes longer than the
    limit of silence, and the others hear all the while that it goes on."""
    silence_s, work_s = 3.0, 4.0

    def slow(function: Any) -> Any:
        def slowly(*words: Any, **more: Any) -> Any:
            time.sleep(work_s)  # that is the disk
            return function(*words, **more)

        return slowly

    (tmp_path / "src").mkdir()
    (tmp_path / "src/f").write_text("whole")
    monkeypatch.setattr(pipeline, "BEAT_S", 0.2)
    monkeypatch.setattr(relay, "BEAT_S", 0.2)
    monkeypatch.setattr(file_tree, "listed", slow(file_tree.listed))
    monkeypatch.setattr(target.CopyTarget, "prepare", slow(target.CopyTarget.prepare))
    monkeypatch.setattr(target.CopyTarget, "settle", slow(target.CopyTarget.settle))
    chain = [Host(rank=n, address=f"127.0.0.{n + 1}", slots=1) for n in range(3)]
    wanted = transfer(str(tmp_path / "src"), str(tmp_path / "dst"), silence_s=silence_s, patience_s=20.0)
    spec = copying._spec(wanted, chain, head_keeps=False, plan=False)
    results = {}
    threads = [
        threading.Thread(target=lambda n=n: results.update({n: relay.Relay(spec, n).take_part()})) for n in (2, 1, 0)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_S)

    assert [None] * 3 == [results[n]["error"] for n in range(3)], results
    assert [{}] * 3 == [results[n]["lost"] for n in range(3)], results
    assert "whole" == (tmp_path / "dst/f").read_text()
    shared = [results[n]["shared_with"] for n in range(3)]  # whoever comes first makes the mark
    assert shared in ([None, None, "127.0.0.2"], [None, "127.0.0.3", None])
    assert [] == [p.name for p in tmp_path.iterdir() if "part" in p.name], "the mark is gone"


def test_a_mark_is_read_once_its_maker_has_written_it(tmp_path: Path) -> None:
    """It is made before it is written; one that was taken away names nobody."""
    mark = tmp_path / "mark"
    mark.touch()
    writer = threading.Timer(0.2, mark.write_text, ("10.0.0.1",))
    writer.start()

    assert "10.0.0.1" == target._written(str(mark))
    writer.join()
    mark.unlink()
    assert target._written(str(mark)) is None


def test_the_mark_of_a_killed_relay_goes_with_the_next_copy(tmp_path: Path) -> None:
    """kill -9 leaves it; a living relay's stays, whatever its age, and so does what only has a name like it."""
    (tmp_path / "src").mkdir()
    (tmp_path / "src/f").write_text("whole")
    wanted = transfer(str(tmp_path / "src"), str(tmp_path / "dst"), silence_s=5.0, patience_s=5.0)
    chain = [Host(rank=n, address=f"127.0.0.{n + 1}", slots=1) for n in range(2)]

    def holding(number: int) -> "subprocess.Popen[str]":
        words = (
            "import json, sys, time; from cluster.broadcast.onhost import target;"
            "held = target.CopyTarget(json.loads(sys.argv[1]), 1); held._leave_mark(); print('held', flush=True); time.sleep(600)"
        )
        spec = {**copying._spec(wanted, chain, head_keeps=False, plan=False), "secret": f"{number:064x}"}
        child = subprocess.Popen([sys.executable, "-c", words, json.dumps(spec)], stdout=subprocess.PIPE, text=True)
        assert child.stdout
        assert "held\n" == child.stdout.readline()
        return child

    def age(mark: Path) -> None:
        os.utime(mark, (time.time() - 3600,) * 2)

    killed, living = holding(1), holding(2)
    try:
        both = list(tmp_path.glob(".copy-*"))
        assert 2 == len(both)
        other = tmp_path / ".copy-of-mine.dlami-part"
        other.touch()
        for mark in (*both, other):
            age(mark)
        killed.kill()
        killed.wait()
        assert {*both, other} == set(tmp_path.glob(".copy-*"))
        target.CopyTarget(copying._spec(wanted, chain, head_keeps=False, plan=False), 1).prepare([])
        left = set(tmp_path.glob(".copy-*")) & {*both, other}
        assert {other} < left
        assert 2 == len(left)
    finally:
        for child in (killed, living):
            child.kill()
            child.wait()
            assert child.stdout
            child.stdout.close()


@pytest.fixture
def mirror(tmp_path: Path) -> tuple[Path, dict[str, Any]]:
    """A copy whose source has lost a folder since, of which the copy has a cache as well; and what a relay is told."""
    for folder in ("src", "dst"):
        (tmp_path / folder / "sub").mkdir(parents=True)
    (tmp_path / "src/link").symlink_to("sub")
    (tmp_path / "src/sub").chmod(0o750)
    for name in ("old/file", "old/deep/file", "pkg/code.py", "pkg/__pycache__/code.pyc"):
        (tmp_path / "dst" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "dst" / name).touch()
    chain = [Host(rank=0, address="127.0.0.1", slots=1)]
    wanted = transfer(str(tmp_path / "src"), str(tmp_path / "dst"), excludes=("__pycache__",))
    return tmp_path, copying._spec(wanted, chain, head_keeps=True, plan=False)


def test_a_folder_that_something_left_out_is_in_stays(mirror: tuple[Path, dict[str, Any]]) -> None:
    """It is shown to nobody and not removed; what came into a folder since it was shown keeps that folder."""
    top, spec = mirror
    entries, _ = scan(spec["src"])
    shown = file_tree.surplus(entries, spec["dst"], spec["excludes"])
    (top / "dst/old/late").touch()
    (top / "dst/old/file").unlink()
    copied = target.CopyTarget({**spec, "delete": {"127.0.0.1": shown}}, 0)
    copied.prepare(entries)
    copied.settle()

    assert ["old/deep/file", "old/deep", "old/file", "pkg/code.py", "old"] == shown
    there = {str(p.relative_to(top / "dst")) for p in (top / "dst").rglob("*")}
    assert {"link", "sub", "old", "old/late", "pkg", "pkg/__pycache__", "pkg/__pycache__/code.pyc"} == there
    assert entries[0].mtime_ns == (top / "dst").stat().st_mtime_ns, "removals change a folder's time"


def test_what_cannot_be_removed_leaves_links_and_modes_as_they_are_in_the_source(
    mirror: tuple[Path, dict[str, Any]],
) -> None:
    """The host is told of it, and has everything all the same."""
    top, spec = mirror
    entries, _ = scan(spec["src"])
    copied = target.CopyTarget({**spec, "delete": {"127.0.0.1": ["old/file/below"]}}, 0)
    copied.prepare(entries)
    with pytest.raises(NotADirectoryError):
        copied.settle()

    assert "sub" == str((top / "dst/link").readlink())
    assert 0o750 == (top / "dst/sub").stat().st_mode & 0o777
