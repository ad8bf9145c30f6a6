"""Code on its way from here to a job's folder, step by step: what is taken, remembered, sent, passed on and unpacked."""

import dataclasses
import hashlib
import json
import os
import shutil
import subprocess
import tarfile
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from cluster import secret_scan
from cluster.broadcast.copy import Copied, CopyResult
from cluster.code import git, job_code, scan_cache, snapshot, working_copy
from cluster.code.archive import compressed, is_worth_compressing
from cluster.code.deliver import deliver, description
from cluster.code.onhost import store
from cluster.code.onhost.content import FILE, LINK, PROGRAM, TIME, digest_of, link_digest
from cluster.code.onhost.unpack import unpack
from cluster.code.scan_cache import Remembered
from cluster.code.snapshot import File, Snapshot
from cluster.code.working_copy import NotBrought, Wanted, provide
from cluster.errors import ClusterError, ConfigError
from cluster.hosts import Host
from cluster.inventory import Cluster
from cluster.setup import project
from cluster.setup.project import Synced
from tests.cluster.reach_here import ReachHere

A, B, C = (Host(rank=n, address=a, slots=1) for n, a in enumerate("abc"))


def cluster_of(shared: Path, *hosts: Host) -> Cluster:
    return Cluster(name="c", hosts=hosts or (A,), folder=Path(), shared=str(shared), project="/p")


def a_snapshot(root: Path, files: dict[str, bytes], **more: Any) -> Snapshot:
    """A folder's files; a name that begins with `run` is a program."""
    taken = []
    for name, data in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(data)
        kind = PROGRAM if name.startswith("run") else FILE
        taken.append(File(path=name, kind=kind, size=len(data), digest=hashlib.sha256(data).hexdigest()))
    return Snapshot(root=root, files=tuple(taken), **more)


def delivered(tmp_path: Path, files: dict[str, bytes], reach: ReachHere | None = None, **more: Any) -> Any:
    taken = a_snapshot(tmp_path / "code", files, **more)
    return deliver(reach or ReachHere(tmp_path / "homes"), cluster_of(tmp_path / "shared"), taken)


CODE = {"a/b.py": b"print()\n", "run": b"#!/bin/sh\n"}


@pytest.mark.parametrize("noise", [b"", os.urandom(5000)])
def test_code_comes_to_the_master_once(tmp_path: Path, noise: bytes) -> None:
    """Compressed where that is worth it; the second time nothing is sent, and nothing is left here."""
    files = {**CODE, "noise": noise} if noise else CODE
    first, second = (delivered(tmp_path, files) for _ in range(2))

    assert (True, 0) == (first.sent_bytes > 0, second.sent_bytes)
    assert dataclasses.replace(first, sent_bytes=0) == second
    with tarfile.open(first.archive) as archive:
        assert sorted(files) == sorted(archive.getnames())
    assert {f"{first.content}.tar", f"{first.digest}.json"} == {p.name for p in Path(first.folder).iterdir()}


def test_code_that_does_not_arrive_whole_is_no_code(tmp_path: Path) -> None:
    """Nothing of it stays; a master that cannot be reached or has no room says so."""

    class Cut(ReachHere):
        def run(self, hosts: Any, command: Any, *, stdin: Any = b"", **more: Any) -> Any:
            cut = stdin.read_bytes()[:-30] if isinstance(stdin, Path) else stdin
            return super().run(hosts, command, stdin=cut, **more)

    with pytest.raises(ClusterError, match=r"^the master a: the code could not be sent: exited 1 .*not arrive whole"):
        delivered(tmp_path, CODE, Cut(tmp_path / "homes"))
    assert not [p for p in (tmp_path / "homes").rglob("*") if p.is_file()]
    with pytest.raises(ClusterError, match="no way to it"):
        delivered(tmp_path, CODE, ReachHere(tmp_path / "homes", {"a": "no way to it"}))
    shutil.rmtree(tmp_path / "homes/a/.cache")
    (tmp_path / "homes/a/.cache").touch()
    with pytest.raises(ClusterError, match=r"^the master a: the code is not there: .*/a/.cache.*: not a directory"):
        delivered(tmp_path, CODE)


def test_a_job_s_folder_says_what_its_code_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its archive, what is known of it, how it differs from its commit, and the files themselves."""
    monkeypatch.setattr(store, "FOLDER", str(tmp_path / "homes/a" / store.FOLDER.removeprefix("~/")))
    job, other = tmp_path / "job", tmp_path / "other"
    job.mkdir()
    other.mkdir()
    told = delivered(tmp_path, CODE, revision="abc+changes", difference=b"+x", below="a", untracked=("u",))
    job_code.put_code(job, told.digest)

    assert ("code", "code.diff", "code.json", "code.tar") == tuple(sorted(p.name for p in job.iterdir()))
    assert (b"print()\n", b"+x") == ((job / "code/a/b.py").read_bytes(), (job / "code.diff").read_bytes())
    assert (0o755, 0o644, 0o600) == tuple(
        (job / n).stat().st_mode & 0o777 for n in ("code/run", "code/a/b.py", "code.diff")
    )
    assert TIME == (job / "code/run").stat().st_mtime
    own = job_code.read_code(job)
    assert own and (f"abc+changes, content {told.content[:12]}", told.content) == (str(own), own.content)
    about = json.loads((job / "code.json").read_text())
    assert ("a", 2, 18, ["u"]) == tuple(about[n] for n in ("below", "files", "bytes", "untracked"))
    assert (job / "code.tar", told.content) == job_code.archived(job)
    assert str(dataclasses.replace(own, revision="")).startswith("of no commit, content ")
    assert job_code.read_code(other) is None
    (other / "code.json").write_text("[")
    assert job_code.read_code(other) is None

    Path(told.archive).chmod(0o600)
    Path(told.archive).write_bytes(b"x")
    with pytest.raises(ClusterError, match=r"tar is damaged: .*start it again, which sends the code again"):
        job_code.put_code(other, told.digest)
    assert not (other / "code").exists()
    with pytest.raises(ClusterError, match=r"not in the master's store any more \(.*tar\): start it again"):
        job_code.put_code(other, told.digest)


def test_a_trainer_s_code_becomes_an_archive_where_hosts_need_one(tmp_path: Path) -> None:
    """Once: it is the same for a later attempt, whatever has been written beside it."""
    a_snapshot(tmp_path / "code", {"trainer/x.py": b"x", "trainer/__pycache__/x.pyc": b"y"})
    archive, content = job_code.archived(tmp_path)
    with tarfile.open(archive) as made:
        assert ["trainer/x.py"] == made.getnames()
    (tmp_path / "code/out").touch()
    assert (archive, content) == job_code.archived(tmp_path)
    unpack(str(archive), content, str(tmp_path / "there"))
    assert b"x" == (tmp_path / "there/trainer/x.py").read_bytes()


def test_an_archive_that_cannot_be_linked_is_copied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """For this user alone; one that is not there is none."""
    (tmp_path / "a").write_text("x")
    (tmp_path / "b").write_text("old")
    job_code._link(str(tmp_path / "a"), tmp_path / "b")
    assert (tmp_path / "a").samefile(tmp_path / "b")

    def refuses(*_: Any) -> None:
        raise OSError(31, "Too many links")

    monkeypatch.setattr(os, "link", refuses)
    job_code._link(str(tmp_path / "a"), tmp_path / "b")
    assert ("x", 0o600) == ((tmp_path / "b").read_text(), (tmp_path / "b").stat().st_mode & 0o777)
    assert not (tmp_path / "a").samefile(tmp_path / "b")
    monkeypatch.undo()
    with pytest.raises(FileNotFoundError):
        job_code._link(str(tmp_path / "none"), tmp_path / "b")


@pytest.mark.parametrize("more", [0, 40])
def test_a_file_that_cannot_be_written_is_no_success(tmp_path: Path, more: int) -> None:
    """Whether few or many come after it; links are made as links, and nothing half is left."""
    for names, fails in ((["a", "a"], True), (["a", "b"], False)):
        all_names = (*names, *(f"m{n}" for n in range(more)))
        with tarfile.open(tmp_path / "x.tar", "w") as archive:
            for name in all_names:
                archive.addfile(tarfile.TarInfo(name))
            link = tarfile.TarInfo("l")
            link.type, link.linkname = tarfile.SYMTYPE, "a"
            archive.addfile(link)
        empty = hashlib.sha256().hexdigest()
        content = digest_of([["l", LINK, 0, "-> a"], *([name, FILE, 0, empty] for name in all_names)])
        if fails:
            with pytest.raises(FileExistsError):
                unpack(str(tmp_path / "x.tar"), content, str(tmp_path / "made"))
            assert ["x.tar"] == [p.name for p in tmp_path.iterdir()]
        else:
            unpack(str(tmp_path / "x.tar"), content, str(tmp_path / "made"))
            assert (more + 3, "a") == (len([*(tmp_path / "made").iterdir()]), str((tmp_path / "made/l").readlink()))
            assert 0o700 == (tmp_path / "made").stat().st_mode & 0o777


@pytest.fixture
def sends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Has hosts provided with code of which `a` has the archive; what is broadcast to whom, and what is not."""
    sent = list[str]()
    told = delivered(tmp_path, CODE)
    (tmp_path / "homes/a").mkdir(parents=True, exist_ok=True)
    shutil.copy(told.archive, tmp_path / "homes/a/code.tar")

    def provides(folder: str, hosts: Any = (A, B, C), lost: str = "", away: dict[str, str] | None = None) -> list[str]:
        def copies(_: Any, cluster: Any, group: Any, asked: Any) -> Copied:
            for host in group:
                sent.append(host.address)
                if host.address != lost:
                    shutil.copy(tmp_path / "homes" / cluster.master.address / asked.src, asked.dst)
            return Copied(tuple(CopyResult(h, "it broke off" if h.address == lost else None) for h in group))

        monkeypatch.setattr(working_copy, "copy", copies)
        sent.clear()
        wanted = Wanted(archive="code.tar", content=told.content, folder=folder)
        number = provide(ReachHere(tmp_path / "homes", away), cluster_of(tmp_path, A, B, C), hosts, wanted)
        assert len(sent) == number
        return sent

    return provides


def test_a_host_is_sent_code_once(tmp_path: Path, sends: Any) -> None:
    """Into its store, from which the next job's working copy is made; one that is there stays as its job left it."""
    assert ["b", "c"] == sends("~/1-x")
    for host in "abc":
        assert b"print()\n" == (tmp_path / f"homes/{host}/1-x/a/b.py").read_bytes()
    (tmp_path / "homes/b/1-x/out").touch()
    assert [] == sends("~/2-x")
    assert [] == sends("~/1-x")
    assert (True, False) == tuple((tmp_path / f"homes/b/{n}-x/out").exists() for n in "12")
    store = tmp_path / "homes/c/.cache/dlami-cluster/code"
    (archive,) = store.iterdir()
    archive.chmod(0o600)
    archive.write_bytes(archive.read_bytes()[:700])
    assert ["c"] == sends("~/3-x"), "what is damaged is sent again"


def test_hosts_that_cannot_have_code_are_named_with_why(tmp_path: Path, sends: Any) -> None:
    """The others have it all the same."""
    with pytest.raises(NotBrought, match=r"^the code is not on c: exited 255   \| down$") as error:
        sends("~/1-x", away={"c": "down"})
    assert {"c": "exited 255   | down"} == error.value.why
    assert (tmp_path / "homes/b/1-x/run").exists()
    (tmp_path / "homes/b/2-x").touch()
    with pytest.raises(
        NotBrought, match=r"the code is not on b: .*2-x: .*could not be made\nthe code is not on c: it broke off"
    ):
        sends("~/2-x", lost="c")
    assert (tmp_path / "homes/a/2-x/run").exists()


def test_a_snapshot_is_named_by_all_that_it_is(tmp_path: Path) -> None:
    """Its files, where the operator stood, its commit, the difference from it, and what was left out."""
    one = a_snapshot(tmp_path, CODE, revision="r")
    others = [
        dataclasses.replace(one, **change)
        for change in ({"below": "a"}, {"revision": "s"}, {"difference": b"x"}, {"untracked": ("u",)})
    ]
    assert {one.content} == {o.content for o in others}
    assert 5 == len({one.digest, *(o.digest for o in others)})
    assert (40, 40) == (len(one.digest), len(one.content))
    assert one.content != a_snapshot(tmp_path, {**CODE, "run": b"x"}).content
    assert 1000 == len(description(dataclasses.replace(one, untracked=("u",) * 1001))["untracked"])


def test_what_is_taken_and_what_is_not_are_two_lines(tmp_path: Path) -> None:
    """The second where something is left out, with five names at most."""
    one = dataclasses.replace(a_snapshot(tmp_path, {"a": b"x" * 1_250_000}), root=Path("/r"))
    assert "code: 1 file, 1.2 MB of /r" == one.described()
    assert "code: 1 file, 1.2 MB of /r, abc" == dataclasses.replace(one, revision="abc").described()
    for names, said in (("abcde", "a, b, c, d, e ("), ("abcdef", "a, b, c, d, e … (")):
        left = dataclasses.replace(one, untracked=tuple(names)).described().splitlines()[1]
        assert left.startswith(f"untracked, not taken: {said}--include NAME takes one")


@pytest.mark.parametrize(
    ("exclude", "left"),
    [
        ((), ["a.py", "d/a.py", "d/e/b.txt"]), (("a.py",), ["d/e/b.txt"]), (("d",), ["a.py"]), (("d/",), ["a.py"]),
        (("./d/a.py",), ["a.py", "d/e/b.txt"]), (("*.txt",), ["a.py", "d/a.py"]), (("d/e",), ["a.py", "d/a.py"]),
        (("e",), ["a.py", "d/a.py"]), (("d/*",), ["a.py"]), (("x", "*.py"), ["d/e/b.txt"]), (("A.py",), ["a.py", "d/a.py", "d/e/b.txt"]),
    ],
)  # fmt: skip
def test_what_is_left_out_is_meant_whole_or_by_a_part(exclude: tuple[str, ...], left: list[str]) -> None:
    """A name, a path, a pattern of either, a folder with all that is in it."""
    assert left == snapshot._without(["a.py", "d/a.py", "d/e/b.txt"], exclude)


def test_what_is_untracked_is_told_unless_it_was_taken() -> None:
    """A folder is taken as soon as one of its files is."""
    taken = {"a", "d/b"}
    assert [True, False, True, False] == [snapshot._is_taken(n, taken) for n in ("a", "b", "d/", "e/")]


def test_files_of_a_folder_are_looked_at_one_by_one(tmp_path: Path) -> None:
    """What is gone, behind a link, or neither file nor link is none; all that must not leave are named at once."""
    taken = a_snapshot(tmp_path, {**CODE, "d/x": b"x"})
    (tmp_path / "l").symlink_to("run")
    (tmp_path / "e").symlink_to("d")
    (tmp_path / "run").chmod(0o755)
    os.mkfifo(tmp_path / "pipe")
    found = snapshot._looked_at(tmp_path, ["a/b.py", "run", "l", "e/x", "pipe", "gone", "run/x", "d/x"])
    assert (*taken.files[:2], File(path="l", kind=LINK, size=0, digest=link_digest("run")), taken.files[2]) == found
    (tmp_path / "big").touch()
    os.truncate(tmp_path / "big", secret_scan.LARGEST + 1)
    with pytest.raises(ConfigError) as error:
        snapshot._looked_at(tmp_path, ["big", "run"])
    assert f"1 file of {tmp_path} must not leave this machine; nothing was sent:\n  big: 50 MB" in str(error.value)
    (tmp_path / ".env").touch()
    with pytest.raises(ConfigError, match=r"2 files of .* must not leave") as error:
        snapshot._looked_at(tmp_path, ["big", ".env"])
    assert "  .env: an environment file\nleave one out with --exclude NAME" in str(error.value)


def test_a_folder_without_code_and_one_that_is_not_tracked_are_told(tmp_path: Path) -> None:
    """Where one stands must be among what is taken; outside git all is taken but caches."""
    with pytest.raises(ConfigError, match="is in no git repository, which would say"):
        snapshot.take(tmp_path)
    with pytest.raises(ConfigError, match="there is no code in "):
        snapshot.take(tmp_path, ["."])
    a_snapshot(tmp_path, {**CODE, "__pycache__/x": b"", "sub/c": b"1"})
    (tmp_path / "l").symlink_to("sub")
    taken = snapshot.take(tmp_path, ["."], ["run"])
    assert (["a/b.py", "l", "sub/c"], "", "") == ([f.path for f in taken.files], taken.below, taken.revision)
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)
    subprocess.run(["git", "-C", str(tmp_path), "add", "sub"], check=True)
    with pytest.raises(ConfigError, match=r"git tracks no file in .*/a, where you stand"):
        snapshot.take(tmp_path / "a")
    taken = snapshot.take(tmp_path / "sub")
    assert (["sub/c"], "sub", "", b"", ("__pycache__/", "a/", "l", "run")) == (
        [f.path for f in taken.files], taken.below, taken.revision, taken.difference, taken.untracked
    )  # fmt: skip
    with pytest.raises(ConfigError, match="--include nix: there is no such file"):
        snapshot.take(tmp_path, ["nix"])


def test_what_git_complains_of_is_said_in_its_words(tmp_path: Path) -> None:
    """Its first line, or its exit code; a folder in no repository is no trouble."""
    said = [subprocess.CompletedProcess([], 3, b"", e) for e in (b"fatal: bad\nmore", b"bad", b" \n")]
    assert ["bad", "bad", "it exited 3"] == [git._complaint(one) for one in said]
    assert git.repository_of(tmp_path) is None
    with pytest.raises(ConfigError, match=f"^git ls-files in {tmp_path}: not a git repository"):
        git.Repository(tmp_path).tracked()


@pytest.mark.parametrize(
    ("size", "why"), [(0, ""), (secret_scan.LARGEST, ""), (secret_scan.LARGEST + 1, "50 MB, more than 50"), (2 * 10**9, "2,000 MB, more than 50")]
)  # fmt: skip
def test_a_file_is_too_large_beyond_fifty_megabytes(size: int, why: str) -> None:
    """In so many words."""
    assert why == secret_scan.by_size(size)


def test_a_password_in_an_address_counts_where_it_is_asked_for() -> None:
    """A secret with a form comes before it, each with where it is."""
    address, token = b"x https://me:pass@h/", b" ghp_" + b"a1B2" * 9
    assert (None, None) == (secret_scan.secret_in(address), secret_scan.secret_or_password_in(b"https://me@h/ a:b"))
    assert ("a password in an address", 7) == secret_scan.secret_or_password_in(address)
    assert ("a GitHub token", len(address) + 1) == secret_scan.secret_or_password_in(address + token)
    assert ("a GitHub token", 6) == secret_scan.secret_in(b" ghp_ " + token.strip())


def test_a_difference_is_told_but_for_files_with_a_secret() -> None:
    """Of these that they are left out, and why."""
    one, other = b"diff --git a/x b/x\n+1\n", b"diff --git a/y b/y\n+ghp_" + b"a1B2" * 9 + b"\n"
    assert one + b"diff --git a/y b/y\n(left out: a GitHub token is in it)\n" + one == secret_scan.without_secrets(
        one + other + one
    )
    assert b"" == secret_scan.without_secrets(b"")


def test_a_file_that_was_found_harmless_is_remembered_once_it_has_settled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For this user alone, as long as nothing about it changes; what is damaged is nothing."""
    monkeypatch.setattr(scan_cache, "cache_folder", lambda: tmp_path / "cache")
    (tmp_path / "f").touch()
    s = (tmp_path / "f").stat()
    at = max(s.st_mtime_ns, s.st_ctime_ns)
    for later, is_known in ((2_000_000_000, ""), (2_000_000_001, "d")):
        with monkeypatch.context() as patch:
            patch.setattr(time, "time_ns", lambda later=later: at + later)
            known = Remembered(tmp_path)
            known.note("f", s, "d")
        known.keep()
        assert is_known == Remembered(tmp_path).digest_of("f", s)
    assert ("", "") == (Remembered(tmp_path).digest_of("g", s), Remembered(tmp_path / "x").digest_of("f", s))
    (file,) = (tmp_path / "cache/code").iterdir()
    assert (0o600, 0o700) == (file.stat().st_mode & 0o777, file.parent.stat().st_mode & 0o777)
    Remembered(tmp_path).keep()
    assert "" == Remembered(tmp_path).digest_of("f", s), "nobody asked for it the last time"
    (tmp_path / "f").write_text("x")
    for damaged in ("[1]", "{"):
        file.write_text(damaged)
        assert {} == scan_cache._read(file)
    assert {} == scan_cache._read(tmp_path / "none")


def test_files_are_known_by_size_times_and_node(tmp_path: Path) -> None:
    """A change of any of them is one."""
    (tmp_path / "f").write_text("xyz")
    s = (tmp_path / "f").stat()
    assert [3, s.st_mtime_ns, s.st_ctime_ns, s.st_ino, s.st_dev] == scan_cache._state(s)


def test_an_archive_is_compressed_where_that_saves_a_third(tmp_path: Path) -> None:
    """Beside itself, and the same once it is opened."""
    (tmp_path / "a").write_bytes(b"x" * 10_000)
    (tmp_path / "b").write_bytes(os.urandom(10_000))
    (tmp_path / "c").write_bytes(os.urandom(8_000) + b"x" * 2_000)
    assert [True, False, False] == [is_worth_compressing(tmp_path / n) for n in "abc"]
    small = compressed(tmp_path / "a")
    assert (tmp_path / "a.gz", True) == (small, small.stat().st_size < 1000)
    assert b"x" * 10_000 == subprocess.run(["gzip", "-dc", str(small)], capture_output=True, check=True).stdout


@pytest.fixture
def syncs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """`inv sync` over hosts of which it is given how they are, before and once the code is there."""

    state = SimpleNamespace(failed=[], jobs=lambda: SimpleNamespace(jobs=()))

    def run(before: list[Synced], after: list[Synced], lacking: dict[str, str], **options: bool) -> Any:
        def asked(reach: Any, cluster: Any, hosts: Any, code: Any, *, is_there: bool = False) -> tuple[Synced, ...]:
            return tuple(one for one in (after if is_there else before) if one.host in hosts)

        def brings(*_: Any) -> None:
            if lacking:
                raise NotBrought(lacking)

        monkeypatch.setattr(project, "take", lambda root: a_snapshot(tmp_path, CODE))
        monkeypatch.setattr(project, "last_failed", lambda cluster: ())
        monkeypatch.setattr(project, "_asked", asked)
        monkeypatch.setattr(project, "provide", brings)
        monkeypatch.setattr(project, "deliver", lambda *_: type("D", (), {"archive": "x"}))
        monkeypatch.setattr(project, "remember", lambda cluster, text, hosts: state.failed.extend(hosts))
        monkeypatch.setattr(project, "JobsClient", lambda *_: type("J", (), {"list": lambda self, **_: state.jobs()})())
        state.failed.clear()
        return project.sync(cluster_of(tmp_path, A, B, C), None, **{"dry_run": False, "force": False, **options})

    state.run = run
    return state


def test_the_project_is_brought_where_anything_differs(syncs: Any) -> None:
    """How it went is told of each in its place; those that failed are remembered for `@failed`."""
    before = [Synced(A, changed=1), Synced(B), Synced(C, services="missing")]
    after = [Synced(A, changed=1, removed=1), Synced(C, error="full")]
    assert (after[0], before[1], after[1]) == syncs.run(before, after, {})
    assert [C] == syncs.failed
    assert (after[0], before[1], Synced(C, "down")) == syncs.run(before, after[:1], {"c": "down"})
    assert [C] == syncs.failed
    with pytest.raises(ClusterError, match=r"^the master a: down$"):
        syncs.run(before, after, {"a": "down"})
    assert tuple(before) == syncs.run(before, after, {"a": "down"}, dry_run=True)
    assert (before[1],) == syncs.run(before[1:2], after, {"a": "down"})


def test_the_project_is_not_changed_under_jobs_unless_forced(syncs: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only where files change; a master that has no project yet has no jobs."""
    changed, started = [Synced(A, removed=1)], [Synced(A, services="missing")]

    def a_job(name: str, holds: bool = True) -> Any:
        return type("Job", (), {"id": name, "state": type("S", (), {"holds_hosts": holds})})

    syncs.jobs = lambda: type("L", (), {"jobs": (a_job("1-x"), a_job("2-x", False))})
    with pytest.raises(ConfigError, match=r"^1-x is supervised by the code that is there: wait"):
        syncs.run(changed, changed, {})
    assert tuple(changed) == syncs.run(changed, changed, {}, force=True)
    assert tuple(started) == syncs.run(started, started, {})
    syncs.jobs = lambda: type("L", (), {"jobs": (a_job("1-x"), a_job("2-x"))})
    with pytest.raises(ConfigError, match=r"^1-x, 2-x are supervised"):
        syncs.run(changed, changed, {})

    def away() -> None:
        raise ClusterError("not there")

    syncs.jobs = away
    assert tuple(changed) == syncs.run(changed, changed, {})


def test_what_a_host_said_of_its_project_is_a_value() -> None:
    """What it did not say is nothing; so it is told as JSON, too."""
    one = project._synced(B, {"changed": 2, "removed": 1, "some": ["x"], "needs_install": True, "services": "started"})
    assert Synced(B, changed=2, removed=1, some=("x",), needs_install=True, services="started") == one
    assert Synced(B, error="down") == project._synced(B, {"error": "down"})
    assert {
        "host": "b", "rank": 1, "error": None, "changed": 2, "removed": 1, "some": ["x"], "needs_install": True,
        "services": "started",
    } == one.record()  # fmt: skip
    assert ("down", None) == tuple(Synced(B, error="down").record()[n] for n in ("error", "services"))
