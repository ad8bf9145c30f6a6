"""Code in a host's store and a host's project: what is kept, what is replaced, and what is left alone. No host."""

import hashlib
import io
import json
import os
import tarfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from cluster.code.onhost import store, working_copy
from cluster.code.onhost.content import FILE, LINK, PROGRAM, digest_of, link_digest
from cluster.code.onhost.unpack import Damaged, unpack
from cluster.setup.onhost import project
from cluster.ssh.onhost.frame import Frames

DAY_S = 86400


def row(name: str, data: bytes, kind: str = FILE) -> Any:
    return [name, kind, len(data), hashlib.sha256(data).hexdigest()]


def link(name: str, target: str) -> Any:
    return [name, LINK, 0, link_digest(target)]


def archived(path: Path, files: Mapping[str, bytes | str], programs: str = "") -> None:
    """A tar of these files; text is a link's target."""
    with tarfile.open(path, "w") as archive:
        for name, data in files.items():
            member = tarfile.TarInfo(name)
            member.mode = 0o755 if name == programs else 0o644
            if isinstance(data, str):
                member.type, member.linkname = tarfile.SYMTYPE, data
                archive.addfile(member)
            else:
                member.size = len(data)
                archive.addfile(member, io.BytesIO(data))


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


ROWS = [row("a.py", b"print()"), link("l", "a.py")]
FILES: dict[str, bytes | str] = {"a.py": b"print()", "l": "a.py"}
ABOUT = {"content": digest_of(ROWS), "revision": "r"}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A host's store."""
    made = tmp_path / "cache/code"
    made.mkdir(parents=True, mode=0o700)
    monkeypatch.setattr(store, "FOLDER", str(made))
    return made


def test_code_is_kept_once_it_has_arrived_whole(folder: Path) -> None:
    """Under its content's digest, for this user alone, and it is said that it is there; nothing unfinished stays."""
    folder.rmdir()
    assert {"folder": str(folder), "is_there": False} == store.answer("d", ABOUT, ROWS)
    assert 0o700 == folder.stat().st_mode & 0o7777
    archived(folder / "x.part", FILES)
    assert {"folder": str(folder), "is_there": True} == store.answer("d", ABOUT, ROWS, "x.part")
    assert sorted([f"{ABOUT['content']}.tar", "d.json"]) == names(folder)
    assert ABOUT == json.loads((folder / "d.json").read_text())
    assert 0o600 == (folder / "d.json").stat().st_mode & 0o777
    assert 0o400 == (folder / f"{ABOUT['content']}.tar").stat().st_mode & 0o777
    os.utime(folder / f"{ABOUT['content']}.tar", (0, 0))
    assert store.answer("e", ABOUT, ROWS, is_read=True)["is_there"]
    assert b"print()" == (folder / str(ABOUT["content"]) / "a.py").read_bytes()
    assert time.time() - (folder / f"{ABOUT['content']}.tar").stat().st_mtime < DAY_S, "it was asked for"


@pytest.mark.parametrize(
    ("files", "rows", "error"),
    [
        (FILES, [row("a.py", b"other")], "what it consists of did not arrive as it was sent"),
        ({**FILES, "a.py": b"prunt()"}, ROWS, "'a.py' did not arrive as it was sent"),
        ({**FILES, "a.py": b"print( )"}, ROWS, "'a.py' did not arrive as it was sent"),
        ({**FILES, "l": "b.py"}, ROWS, "'l' did not arrive as it was sent"),
        ({**FILES, "l": b""}, ROWS, "'l' did not arrive as it was sent"),
        ({**FILES, "a.py": "print()"}, ROWS, "'a.py' did not arrive as it was sent"),
        ({**FILES, "more": b""}, ROWS, "'more' did not arrive as it was sent"),
        ({"a.py": b"print()"}, ROWS, "1 of 2 files did not arrive"),
    ],
)
def test_code_that_did_not_arrive_as_it_was_sent_is_not_kept(
    folder: Path, files: dict[str, bytes | str], rows: Any, error: str
) -> None:
    """Nor is what was sent of it."""
    archived(folder / "x.part", files)
    assert {"error": error} == store.answer("d", ABOUT, rows, "x.part")
    assert [] == names(folder)
    (folder / "y.part").write_bytes(b"no archive")
    said = store.answer("d", ABOUT, ROWS, "y.part")
    assert said["error"].startswith("the archive did not arrive whole: ")


@pytest.mark.parametrize(
    ("name", "days", "stays"),
    [
        ("a.tar", 29.9, True), ("a.tar", 30.1, False), ("d.json", 30.1, False), ("d.json", 0, True),
        ("a.part", 0.9, True), ("a.part", 1.1, False), ("jobs", 400, True),
    ],
)  # fmt: skip
def test_what_nobody_has_asked_for_in_a_month_goes(folder: Path, name: str, days: float, stays: bool) -> None:
    """What was never finished goes after a day; copies of jobs that an older version began stay for their resumption."""
    (folder / name).touch()
    os.utime(folder / name, (time.time() - days * DAY_S,) * 2)
    store.answer("d", ABOUT, ROWS)
    assert stays is (folder / name).exists()


def test_a_folder_that_another_might_have_made_is_no_place_for_code(folder: Path, capfd: Any) -> None:
    """A link in its place; the program says so and where."""
    folder.rename(folder.with_name("elsewhere"))
    folder.symlink_to(folder.with_name("elsewhere"))
    with pytest.raises(OSError, match="is a link, not a folder"):
        store.answer("d", ABOUT, ROWS)
    assert 0 == store.main("d", ABOUT, ROWS)
    assert f"{folder}: is a link, not a folder" in capfd.readouterr().out


def provided(capfd: Any, *asked: Any) -> dict[str, Any]:
    """What a host says that was asked for a working copy."""
    assert 0 == working_copy.main(*asked)
    (said,) = Frames().feed(capfd.readouterr().out.encode())
    return dict(said)


def test_a_job_s_working_copy_is_made_once_from_the_store(folder: Path, tmp_path: Path, capfd: Any) -> None:
    """From an archive that the host can read, else it is said that it lacks one; what the job wrote since stays."""
    job, content = tmp_path / "jobs/x", ABOUT["content"]
    asked = (content, str(job / "code"), {str(job / "lib/a.py"): "1", str(job / "hosts"): "h"}, [str(job / "logs/1")])
    assert not provided(capfd, *asked, "/none")["is_there"]
    assert not (job / "code").exists()
    archived(tmp_path / "code.tar", FILES)
    said = provided(capfd, *asked, str(tmp_path / "code.tar"))
    assert {"archive": str(folder / f"{content}.tar"), "is_there": True} == said
    assert ["code", "hosts", "lib", "logs"] == names(job)
    assert ("h", "1") == ((job / "hosts").read_text(), (job / "lib/a.py").read_text())
    (job / "code/a.py").write_text("changed")
    (job / "code/out").write_text("written")
    assert provided(capfd, *asked, "/none")["is_there"]
    assert ("changed", "written") == ((job / "code/a.py").read_text(), (job / "code/out").read_text())
    other = tmp_path / "jobs/y/code"
    assert provided(capfd, content, str(other), {}, [], "/none")["is_there"]
    assert ["a.py", "l"] == names(other)
    assert "print()" == (other / "a.py").read_text()
    assert [f"{content}.tar"] == names(folder)
    assert provided(capfd, "", "", {}, [], "/none")["is_there"], "a job without code"


@pytest.mark.parametrize(
    "spoil", [lambda data: data[:600] + bytes(len(data) - 600), lambda data: data[:700], lambda data: b""]
)
def test_an_archive_that_is_no_longer_what_it_was_is_never_run(
    folder: Path, tmp_path: Path, capfd: Any, spoil: Any
) -> None:
    """A crash may leave zeros or a part; it goes, so that it is sent again, and there is no working copy of it."""
    archived(tmp_path / "code.tar", FILES)
    kept = folder / f"{ABOUT['content']}.tar"
    kept.write_bytes(spoil((tmp_path / "code.tar").read_bytes()))
    assert not provided(capfd, ABOUT["content"], str(tmp_path / "x/code"), {}, [], "/none")["is_there"]
    assert ([], False) == (names(folder), kept.exists())
    assert [] == names(tmp_path / "x")
    with pytest.raises(Damaged):
        (tmp_path / "other.tar").write_bytes(spoil((tmp_path / "code.tar").read_bytes()))
        unpack(str(tmp_path / "other.tar"), str(ABOUT["content"]), str(tmp_path / "y/code"))


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A host's project folder, beside what stands for its own disk and its node's files; what it says is kept."""
    monkeypatch.setattr(store, "FOLDER", str(tmp_path))
    tmp_path.chmod(0o700)
    monkeypatch.setattr(project, "_NODE", str(tmp_path / "node"))
    monkeypatch.setattr(project, "_SERVICES", str(tmp_path / "services"))
    return tmp_path / "p"


def said_by(monkeypatch: pytest.MonkeyPatch, *asked: Any) -> dict[str, Any]:
    said: list[dict[str, Any]] = []
    monkeypatch.setattr(project, "say", said.append)
    assert 0 == project.main(*asked)
    (one,) = said
    return one


def test_a_project_is_made_as_the_checkout_is_and_all_else_in_it_is_left_alone(
    host: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """First it is only said what differs; what was brought earlier goes, with folders that nothing else is in."""
    rows = [row("a/b.py", b"b"), row("run", b"x", PROGRAM), link("l", "run"), row("requirements.lock", b"1")]
    archived(tmp_path / "c.tar", {"a/b.py": b"b", "run": b"x", "l": "run", "requirements.lock": b"1"}, "run")
    asked = {
        "changed": 4, "removed": 0, "some": ["a/b.py", "run", "l", "requirements.lock"], "services": "",
        "needs_install": True,
    }  # fmt: skip
    assert asked == said_by(monkeypatch, str(host), rows)
    assert not host.exists()
    assert asked == said_by(monkeypatch, str(host), rows, "c")
    assert (b"b", b"x", "run") == (
        (host / "a/b.py").read_bytes(), (host / "run").read_bytes(), (host / "l").readlink().name
    )  # fmt: skip
    assert (0o755, 0o644) == tuple((host / n).stat().st_mode & 0o777 for n in ("run", "a/b.py"))
    assert {**asked, "changed": 0, "some": []} == said_by(monkeypatch, str(host), rows)

    (host / ".venv").mkdir()
    (host / "mine").touch()
    (host / "a/mine").touch()
    gone = said_by(monkeypatch, str(host), rows[1:], "c")
    assert {"changed": 0, "removed": 1, "some": ["a/b.py"], "services": "", "needs_install": False} == gone
    assert ["mine"] == names(host / "a")
    assert said_by(monkeypatch, str(host), rows[1:2], "c")["removed"] == 2
    assert {".synced", ".venv", "a", "mine", "run"} == set(names(host))


@pytest.mark.parametrize(
    ("spoil", "is_equal"),
    [
        (lambda f: None, True),
        (lambda f: f.write_bytes(b"y"), False),
        (lambda f: f.write_bytes(b"xx"), False),
        (lambda f: f.chmod(0o644), False),
        (lambda f: f.unlink(), False),
        (lambda f: (f.rename(f"{f}2"), f.symlink_to(f"{f}2")), False),
    ],
)
def test_a_file_is_equal_by_what_it_is_and_what_is_in_it(tmp_path: Path, spoil: Any, is_equal: bool) -> None:
    """Its kind, its size, its content, and whether it may be run."""
    file = tmp_path / "run"
    file.write_bytes(b"x")
    file.chmod(0o755)
    spoil(file)
    assert is_equal is project._is_equal(str(file), row("run", b"x", PROGRAM))


def test_what_was_brought_is_known_by_paths_below_the_project_alone(host: Path) -> None:
    """Neither a folder, nor what is the node's own, nor what is gone; no line of the list leads out of it."""
    host.mkdir()
    for name in ("a", "b", "cluster.toml", "hosts"):
        (host / name).touch()
    (host.parent / "out").touch()
    assert set() == project.known(str(host))
    lines = ["a", "./b", "c", "", "a/", "cluster.toml", "hosts", ".synced", "../out", "/etc/passwd", ".venv/x"]
    (host / ".synced").write_text("\n".join(lines))
    assert {"a", "b"} == project.known(str(host))


def test_a_git_checkout_on_a_host_is_its_owner_s(host: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is refused where anything differs, and is no trouble where nothing does."""
    (host / ".git").mkdir(parents=True)
    assert f"{host} is a git checkout of its own" in said_by(monkeypatch, str(host), [row("a", b"x")], "c")["error"]
    assert 0 == said_by(monkeypatch, str(host), [], "c")["changed"]
    assert [".git"] == names(host)


def test_a_file_takes_the_place_of_an_empty_folder_and_of_what_was_left_half(
    host: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A folder with something in it stays, and it is said which; so is an archive that is damaged or not there."""
    archived(tmp_path / "c.tar", {"a": b"x"})
    (host / "a").mkdir(parents=True)
    assert 1 == said_by(monkeypatch, str(host), [row("a", b"x")], "c")["changed"]
    assert b"x" == (host / "a").read_bytes()
    (host / "a").unlink()
    (host / "a").mkdir()
    (host / "a/mine").touch()
    assert f"{host}/a: directory not empty" == said_by(monkeypatch, str(host), [row("a", b"x")], "c")["error"]
    assert (host / "a/mine").exists()
    assert "c.tar is damaged: " in said_by(monkeypatch, str(host), [row("b", b"x")], "c")["error"]
    assert "d.tar: no such file" in said_by(monkeypatch, str(host), [row("b", b"x")], "d")["error"]


def test_a_damaged_archive_changes_no_file_of_the_project(
    host: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As many zeros as a crash may leave: the archive goes, and the next sync sends it again."""
    archived(tmp_path / "c.tar", {"a": b"\0" * 5})
    host.mkdir()
    (host / "a").write_text("old")
    said = said_by(monkeypatch, str(host), [row("a", b"print")], "c")["error"]
    assert "c.tar is damaged: a is not what was sent" in said
    assert ("old", False) == ((host / "a").read_text(), (tmp_path / "c.tar").exists())


@pytest.mark.parametrize(
    ("code", "there", "said"),
    [
        (0, ["node"], {"services": "started"}),
        (0, ["node", "services"], {"services": ""}),
        (0, [], {"services": ""}),
        (3, ["node"], {"error": "the project is there, its services are not: "}),
    ],
)
def test_services_that_a_node_lacks_are_started(
    host: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int, there: list[str], said: dict[str, str]
) -> None:
    """Once its project is there; before that it is said that they are missing, and a failure is said with why."""
    (host / "scripts").mkdir(parents=True)
    (host / "scripts/services.sh").write_text(f"touch {tmp_path}/ran; echo first >&2; echo why >&2; exit {code}")
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    for name in there:
        (tmp_path / name).touch()
    before = said_by(monkeypatch, str(host), [])
    assert ("missing" if there == ["node"] else "") == before["services"]
    assert not (tmp_path / "ran").exists()
    after = said_by(monkeypatch, str(host), [], "c")
    ((key, value),) = said.items()
    assert after[key].startswith(value)
    assert key != "error" or after[key].endswith("why")
    assert (there == ["node"]) is (tmp_path / "ran").exists()


@pytest.mark.parametrize("may", [True, False])
def test_where_only_root_may_make_the_folder_root_is_asked(
    host: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, may: bool
) -> None:
    """For this user; who may not ask is told that it is refused."""
    true = os.makedirs

    def refuses(path: str, *how: Any, **more: Any) -> None:
        if path == str(host) and not host.exists():
            raise PermissionError(13, "Permission denied", path)
        true(path, *how, **more)

    sudo = tmp_path / "bin/sudo"
    sudo.parent.mkdir()
    sudo.write_text('#!/bin/sh\nshift\nexec "$@"\n' if may else "#!/bin/sh\nexit 1\n")
    sudo.chmod(0o755)
    monkeypatch.setenv("PATH", f"{sudo.parent}:/usr/bin:/bin")
    monkeypatch.setattr(os, "makedirs", refuses)
    archived(tmp_path / "c.tar", {"a": b"x"})
    said = said_by(monkeypatch, str(host), [row("a", b"x")], "c")
    assert may is (host / "a").exists()
    assert (
        (1, None) == (said.get("changed"), said.get("error")) if may else f"{host}: permission denied" == said["error"]
    )
