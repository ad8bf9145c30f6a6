"""Copying on this machine alone: relays in threads, hosts that are folders, and what is said of how it went."""

import contextlib
import dataclasses
import os
import socket
import stat
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cluster.broadcast import copy as copying
from cluster.broadcast import task
from cluster.broadcast.copy import Copied, CopyResult, copy, transfer
from cluster.broadcast.onhost import file_tree, relay, store
from cluster.broadcast.onhost.file_tree import FileEntry, scan
from cluster.broadcast.onhost.store import CHUNK, CopyStore, Stream
from cluster.broadcast.to_master import listed, place_problem
from cluster.errors import ClusterError, ConfigError
from cluster.hosts import Host
from cluster.inventory import Cluster
from cluster.ssh.fanout import Executor
from cluster.ssh.onhost.partial_file import is_part, open_part, part_of
from tests.conftest import PATIENCE_S

CHAIN = [Host(rank=n, address=f"127.0.0.{n + 1}", slots=1) for n in range(3)]
MIB = 1 << 20


def relayed(
    top: Path, numbers: tuple[int, ...] = (0, 1, 2), *, plan: bool = False, **options: Any
) -> dict[int, dict[str, Any]]:
    """What the relays with these numbers say of a copy of `src` to `0/copy`, `1/copy`, `2/copy`: each is a host's own."""
    spec = copying._spec(transfer(str(top / "src"), "/copy", **options), CHAIN, head_keeps=True, plan=plan)
    said: dict[int, dict[str, Any]] = {}

    def take_part(n: int) -> None:
        said[n] = relay.Relay({**spec, "dst": str(top / f"{n}/copy")}, n).take_part()

    threads = [threading.Thread(target=take_part, args=(n,), daemon=True) for n in reversed(numbers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_S)
    return said


@pytest.fixture
def top(tmp_path: Path) -> Path:
    """A folder with a source: of two chunks and of none, with a hole, with a link, with modes and times of its own."""
    (tmp_path / "src/sub").mkdir(parents=True)
    (tmp_path / "src/sub/large").write_bytes(os.urandom(CHUNK + 5) + bytes(CHUNK) + b"end")
    (tmp_path / "src/empty").touch()
    (tmp_path / "src/link").symlink_to("sub/large")
    (tmp_path / "src/empty").chmod(0o640)
    (tmp_path / "src/sub").chmod(0o750)
    os.utime(tmp_path / "src/empty", ns=(1, 1_000_000_000_123_456_789))
    os.utime(tmp_path / "src/sub", ns=(1, 1_000_000_000_000_000_001))
    return tmp_path


def look(folder: Path) -> dict[str, Any]:
    """All of a folder that a copy keeps."""
    return {
        str(p.relative_to(folder)): (
            p.lstat().st_mode,
            p.lstat().st_mtime_ns,
            str(p.readlink()) if p.is_symlink() else p.read_bytes() if p.is_file() else "",
        )
        for p in sorted(folder.rglob("*"))
    }


@pytest.mark.parametrize("encrypt", [False, True], ids=["plain", "encrypted"])
def test_each_relay_has_the_source_and_says_what_it_wrote(top: Path, encrypt: bool) -> None:
    """Contents, modes, times and links are the source's on three hosts; a second copy writes nothing."""
    said = relayed(top, encrypt=encrypt)
    size = 2 * CHUNK + 8

    assert [(None, 2, size, {}, None, None)] * 3 == [
        tuple(said[n][name] for name in ("error", "files", "bytes", "lost", "shared_with", "plan")) for n in range(3)
    ]
    assert [look(top / "src")] * 3 == [look(top / f"{n}/copy") for n in range(3)]
    assert [] == [p for p in top.rglob("*") if p.name.endswith(".dlami-part")], "neither parts nor marks stay"
    again = relayed(top, encrypt=encrypt)
    assert [(None, 0, 0)] * 3 == [(again[n]["error"], again[n]["files"], again[n]["bytes"]) for n in range(3)]


def test_a_relay_that_is_not_there_is_passed_over(top: Path) -> None:
    """It is named with why; the host after it has everything from the host before it."""
    said = relayed(top, (0, 2), patience_s=2.0)

    assert {0, 2} == set(said)
    assert {"127.0.0.2": "cannot be connected to: Connection refused"} == said[0]["lost"]
    assert [None, None] == [said[n]["error"] for n in (0, 2)]
    assert look(top / "src") == look(top / "2/copy") == look(top / "0/copy")


def test_a_master_whose_own_copy_fails_passes_it_on(top: Path) -> None:
    """Its trouble is its own, by name; the others have everything."""
    (top / "0").mkdir()
    (top / "0/copy").write_text("a file")
    said = relayed(top)

    assert str(top / "0/copy") in said[0]["error"]
    assert [None, None] == [said[n]["error"] for n in (1, 2)]
    assert look(top / "src") == look(top / "1/copy") == look(top / "2/copy")
    assert "a file" == (top / "0/copy").read_text()


def test_a_copy_goes_on_where_each_host_has_a_beginning(top: Path) -> None:
    """Only what follows the shortest of three beginnings is written; the bytes are the source's."""
    data = os.urandom(3 * MIB)
    (top / "src/sub/large").write_bytes(data)
    for n, length in enumerate((2 * MIB + 5, 2 * MIB + 100_000, 2 * MIB + 5)):
        (top / f"{n}/copy/sub").mkdir(parents=True)
        Path(part_of(str(top / f"{n}/copy/sub/large"))).write_bytes(data[:length])
    said = relayed(top)

    begins = 2 * MIB - (64 << 10)
    assert [(None, 2, 3 * MIB - begins)] * 3 == [(s["error"], s["files"], s["bytes"]) for _, s in sorted(said.items())]
    assert [data] * 3 == [(top / f"{n}/copy/sub/large").read_bytes() for n in range(3)]


def stored(top: Path, sizes: list[int], wanted: set[int] | None = None) -> tuple[CopyStore, Stream]:
    entries = [FileEntry(f"f{n}", "f", 0o600, os.getuid(), os.getgid(), 5, size) for n, size in enumerate(sizes)]
    stream = Stream(entries, range(len(sizes)))
    return CopyStore(stream, str(top), set(range(len(sizes))) if wanted is None else wanted), stream


def test_a_file_has_its_name_once_it_is_whole(tmp_path: Path) -> None:
    """What is not is removed, or kept for the next copy; what nobody wants here is not written."""
    copied, stream = stored(tmp_path, [CHUNK + 9, 3], {0})
    copied.write(0, b"a" * CHUNK)
    assert [".f0.dlami-part"] == [p.name for p in tmp_path.iterdir()]
    assert part_of(str(tmp_path / "f0")) == copied.path_of(stream.files[0][1])
    assert str(tmp_path / "f1") == copied.path_of(stream.files[1][1])
    assert b"a" * CHUNK == copied.read(0), "it is read again for the next host"
    copied.abandon(keep=True)
    assert CHUNK + 9 == (tmp_path / ".f0.dlami-part").stat().st_size
    copied.write(0, b"b" * CHUNK)
    copied.abandon()
    assert [] == list(tmp_path.iterdir())
    copied.write(0, b"c" * CHUNK)
    copied.write(1, b"d" * 9 + b"e" * 3)
    copied.close()
    assert {"f0": b"c" * CHUNK + b"d" * 9} == {p.name: p.read_bytes() for p in tmp_path.iterdir()}
    assert (1, CHUNK * 3 + 9) == (copied.num_files, copied.num_bytes)
    assert (0o600, 5) == (stat.S_IMODE((tmp_path / "f0").stat().st_mode), (tmp_path / "f0").stat().st_mtime_ns)


def test_a_file_takes_the_place_of_a_link_and_never_of_a_folder(tmp_path: Path) -> None:
    """The link's folder is left alone; a folder in the file's place is named."""
    (tmp_path / "folder").mkdir()
    (tmp_path / "f0").symlink_to("folder")
    (tmp_path / "f1").mkdir()
    copied, _ = stored(tmp_path, [3, 3])
    with pytest.raises(OSError, match="is a folder here and a file there") as refused:
        copied.write(0, b"onetwo")
    copied.abandon()

    assert str(tmp_path / "f1") == refused.value.filename
    assert not (tmp_path / "f0").is_symlink()
    assert b"one" == (tmp_path / "f0").read_bytes()
    assert {"f0", "f1", "folder"} == {p.name for p in tmp_path.iterdir()}


def test_folders_are_made_where_there_are_none(tmp_path: Path) -> None:
    """Those above the copy too, each for its owner alone until it is whole; a link to a folder is none."""
    entries = [
        FileEntry("", "d", 0o755, 0, 0, 0),
        FileEntry("sub", "d", 0o755, 0, 0, 0),
        FileEntry("f", "f", 0, 0, 0, 0),
    ]
    folder = tmp_path / "above/copy"
    store.make_folders(entries, str(folder))
    store.make_folders(entries, str(folder))
    assert ["sub"] == [p.name for p in folder.iterdir()]
    assert 0o700 == stat.S_IMODE((folder / "sub").stat().st_mode)
    (folder / "sub").rmdir()
    (folder / "sub").symlink_to(tmp_path)
    with pytest.raises(OSError, match="is no folder here, but one there") as refused:
        store.make_folders(entries, str(folder))

    assert str(folder / "sub") == refused.value.filename


@pytest.mark.parametrize(
    ("patterns", "expected"),
    [
        (["sub"], ["sub"]),
        (["sub/a*"], ["sub/a.py"]),
        (["*.py"], ["a.py", "sub/a.py"]),
        (["a.py", "dee?"], ["a.py", "sub/a.py", "sub/deep"]),
        (["a"], []),
    ],
)
def test_a_pattern_is_one_name_or_a_path(tmp_path: Path, patterns: list[str], expected: list[str]) -> None:
    """With shell wildcards; what is in a folder that is left out is not told by itself."""
    (tmp_path / "sub/deep").mkdir(parents=True)
    for name in ("a.py", "sub/a.py", "sub/deep/x"):
        (tmp_path / name).touch()
    entries, left_out = scan(str(tmp_path), patterns)
    there = ["", "a.py", "sub", "sub/a.py", "sub/deep", "sub/deep/x"]

    assert expected == left_out
    assert [p for p in there if not any(p == x or p.startswith(f"{x}/") for x in expected)] == [e.path for e in entries]


def test_what_is_neither_file_folder_nor_link_is_left_out(tmp_path: Path) -> None:
    """A pipe below the top is named; as the top it is refused."""
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "f").write_text("123")
    (tmp_path / "link").symlink_to("f")
    entries, left_out = scan(str(tmp_path))

    assert ["pipe"] == left_out
    assert [("d", 0, ""), ("f", 3, ""), ("l", 0, "f")] == [(e.kind, e.size, e.target) for e in entries]
    with pytest.raises(OSError, match="is neither a file nor a folder"):
        scan(str(tmp_path / "pipe"))
    rows, out = listed(tmp_path, ["f"])
    assert ["f", "pipe"] == out
    assert ["", "link"] == [row[0] for row in rows]
    with pytest.raises(ConfigError, match=r"pipe: is neither a file nor a folder$"):
        listed(tmp_path / "pipe", [])
    assert [entries[1]] == file_tree.listed([entries[1].row()], "/nowhere", (), foreseen=True)[0]


def test_nothing_of_what_a_link_leads_to_is_surplus(tmp_path: Path) -> None:
    """Nor is anything where there is no folder; in a folder it is what the source has not, the deepest first."""
    for name in ("dst/a/b/c", "dst/a/d", "dst/e"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    (tmp_path / "link").symlink_to("dst")
    entries = [FileEntry("", "d", 0, 0, 0, 0), FileEntry("e", "f", 0, 0, 0, 0)]

    assert ["a/b/c", "a/b", "a/d", "a"] == file_tree.surplus(entries, str(tmp_path / "dst"))
    assert [[], [], []] == [file_tree.surplus([], str(tmp_path / n)) for n in ("link", "none", "dst/e")]
    assert [0] == file_tree.missing([FileEntry("dst", "f", 0, 0, 0, 0)], str(tmp_path)), "a folder is no such file"


def test_of_two_writers_of_one_file_one_is_refused(tmp_path: Path) -> None:
    """By the file's own name; a part has the same name for both, and what only looks like one is none."""
    path = str(tmp_path / "f")
    fd = open_part(path)
    with pytest.raises(OSError, match="another copy writes it now") as refused:
        open_part(path)
    os.close(fd)
    os.close(open_part(path))

    assert path == refused.value.filename
    assert [True, False, False] == [is_part(n) for n in (".f.dlami-part", "f.dlami-part", ".f")]
    assert "/a/.f.dlami-part" == part_of("/a/f")
    lengths = [len(os.path.basename(part_of("/a/" + "n" * n))) for n in (200, 201, 255)]  # noqa: PTH119
    assert [212, 219, 219] == lengths
    assert part_of("/a/" + "n" * 254 + "1") != part_of("/a/" + "n" * 254 + "2")


# How it went ---------------------------------------------------------------------------------------------------------


def outcome(n: int, error: str | None = None, **more: Any) -> CopyResult:
    return CopyResult(CHAIN[n], error, **more)


def test_a_copy_to_this_machine_alone(here: Cluster, top: Path) -> None:
    """It is the master and has its copy; to its own source nothing goes, and what is not there is the master's error."""
    src, dst = str(top / "src"), str(top / "copy")
    with Executor(here) as reach:
        done = copy(reach, here, here.hosts, transfer(src, dst, excludes=("link",)))
        none = copy(reach, here, here.hosts, transfer(src, src))
        with pytest.raises(ClusterError, match=f"the master localhost: {dst}/none: no such file or folder"):
            copy(reach, here, here.hosts, transfer(f"{dst}/none", f"{dst}2"))

    assert (None, 2, ("link",)) == (done.outcomes[0].error, done.outcomes[0].files, done.left_out)
    assert {name: what for name, what in look(top / "src").items() if name != "link"} == look(top / "copy")
    assert () == none.outcomes


# As the operator asks for it -----------------------------------------------------------------------------------------


def test_nothing_is_removed_that_was_not_agreed_on(capsys: pytest.CaptureFixture[str]) -> None:
    """The first five of each host are shown and all are counted; a no ends the copy."""
    names = [f"n{n}" for n in range(6)]
    job = transfer("/a", "/b")
    planned = Copied(
        (outcome(0, plan={"surplus": names}), outcome(1, plan={"surplus": ["x"]}), outcome(2, plan={"surplus": []}))
    )
    asked: list[str] = []

    def agree(what: str) -> bool:
        asked.append(what)
        return len(asked) == 1

    assert {"127.0.0.1": tuple(names), "127.0.0.2": ("x",)} == task._with_deletions(job, planned, agree).delete
    assert ["remove 7 files and folders below /b on 2 hosts"] == asked
    assert [
        "127.0.0.1  6 to be removed: 'n0', 'n1', 'n2', 'n3', 'n4' …",
        "127.0.0.2  1 to be removed: 'x'",
    ] == capsys.readouterr().out.splitlines()
    with pytest.raises(ConfigError, match="nothing was copied and nothing removed"):
        task._with_deletions(job, planned, agree)
    assert job is task._with_deletions(job, Copied((outcome(2, plan={"surplus": []}),)), agree)


@pytest.mark.parametrize(
    ("folder", "there", "says"),
    [
        (True, "", ""),
        (True, "de", ""),
        (True, "lde", "is a link there"),
        (True, "l", "is a link there"),
        (True, "fe", "is a file there and a folder here"),
        (True, "e", "is a device, pipe or socket there"),
        (False, "", ""),
        (False, "fe", ""),
        (False, "e", "is a device, pipe or socket there"),
        (False, "l", "is a link there"),
        (False, "lfe", "is a link there"),
        (False, "de", "is a folder there and none here"),
        (False, "lde", "is a folder there and none here"),
    ],
)
def test_a_place_on_the_master_that_cannot_take_it_is_refused(folder: bool, there: str, says: str) -> None:
    """A folder goes into no link and over no file; a file goes into no folder; nothing takes a device's place."""
    assert folder or "d" in there or there == "e" or "" == place_problem(folder, there, is_link=True)
    found = place_problem(folder, there)

    assert found.startswith(says)
    assert bool(says) == bool(found)


def fifo(path: Path) -> None:
    os.mkfifo(path)


def bound_socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as one, contextlib.chdir(path.parent):
        one.bind(path.name)


def device(path: Path) -> None:
    if os.geteuid():
        pytest.skip("only root can make a device")
    os.mknod(path, stat.S_IFCHR | 0o666, os.makedev(1, 3))


def link(path: Path) -> None:
    path.symlink_to("/nowhere")


@pytest.mark.seconds
@pytest.mark.parametrize("make", [fifo, bound_socket, device, link])
@pytest.mark.parametrize("plan", [False, True])
def test_what_a_copy_would_destroy_is_refused_before_anything_changes(
    tmp_path: Path, make: Callable[[Path], None], plan: bool
) -> None:
    """On that host by its name, and in a dry run too; the others have their copy."""
    (tmp_path / "src").write_text("data")
    (tmp_path / "1").mkdir()
    make(tmp_path / "1/copy")
    before = (tmp_path / "1/copy").lstat()
    said = relayed(tmp_path, plan=plan)

    assert [None, None] == [said[0]["error"], said[2]["error"]]
    assert f"{tmp_path}/1/copy is a " in said[1]["error"]
    assert "name" in said[1]["error"]
    assert before == (tmp_path / "1/copy").lstat()
    assert plan or "data" == (tmp_path / "2/copy").read_text()


@pytest.mark.parametrize("make", [fifo, bound_socket, device])
def test_a_device_inside_of_a_folder_is_refused_before_anything_changes(
    tmp_path: Path, make: Callable[[Path], None]
) -> None:
    """No file beside it is written, though it would come first."""
    for name in ("a", "b"):
        (tmp_path / "src").mkdir(exist_ok=True)
        (tmp_path / "src" / name).write_text("data")
    (tmp_path / "1/copy").mkdir(parents=True)
    make(tmp_path / "1/copy/b")
    said = relayed(tmp_path)

    assert f"{tmp_path}/1/copy/b is a " in said[1]["error"]
    assert ["b"] == [p.name for p in (tmp_path / "1/copy").iterdir()]


def test_each_reason_why_something_is_left_out_has_its_own_line() -> None:
    """--everything is named for what it would take, and for nothing else."""
    request = task.CopyRequest(src="x", dst="/y", excludes=("*.log",))
    names = ("a.log", ".git", "pipe", "sub/__pycache__")

    assert [
        "left out: a.log (by --exclude)",
        "left out: .git, sub/__pycache__ (--everything takes them too)",
        "left out: pipe (no files: pipes, sockets and devices are not copied)",
    ] == task.left_out_lines(names, request)
    everything = dataclasses.replace(request, everything=True)
    assert not [line for line in task.left_out_lines(("pipe",), everything) if "--everything" in line]


def test_a_copy_that_no_host_has_room_for_is_refused_before_it_is_read() -> None:
    """What the master cannot take is not sent there; what one worker cannot take goes to the others."""
    master, worker = Host(rank=0, address="m", slots=1), Host(rank=1, address="w", slots=1)
    full, well = "no room in /: 9 bytes to come, 3 free", None

    def refused(*errors: str | None) -> bool:
        outcomes = tuple(CopyResult(h, e) for h, e in zip((master, worker), errors, strict=True))
        try:
            task._refuse_hopeless(Copied(outcomes), master)
        except ClusterError as e:
            assert full in str(e)
            return True
        return False

    assert [True, True, False, False] == [refused(*e) for e in ((full, full), (full, well), (well, full), (well, well))]
