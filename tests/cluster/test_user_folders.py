"""Folders that the environment names: absent, long, with blanks, of others, not writable. The work goes on elsewhere."""

import os
import stat
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from cluster import last_run
from cluster.errors import ConfigError
from cluster.hosts import Host
from cluster.inventory import Cluster, SshSettings
from cluster.ssh import connections
from cluster.ssh.options import Route
from cluster.user_folders import cache_folder, home_folder, runtime_folder

HERE = Host(rank=0, address="localhost", slots=1)


def absent(folder: Path) -> str:
    return str(folder / "gone")


def of_blanks(folder: Path) -> str:
    (folder / "a b").mkdir()
    return str(folder / "a b")


def too_long(folder: Path) -> str:
    path = folder / ("x" * 120)
    path.mkdir()
    return str(path)


def a_file(folder: Path) -> str:
    (folder / "file").touch()
    return str(folder / "file")


def of_another(folder: Path) -> str:
    if os.geteuid():
        pytest.skip("only root can make a folder of another user")
    path = folder / "other"
    path.mkdir()
    os.chown(path, 12345, 12345)
    return str(path)


def with_signs(folder: Path) -> str:
    path = folder / 'q"${HOME}'
    path.mkdir()
    return str(path)


@pytest.fixture
def short() -> Iterator[Path]:
    """A folder whose own path is no reason to pass it over."""
    with tempfile.TemporaryDirectory(prefix="dl-", dir="/tmp") as folder:
        yield Path(folder)


UNUSABLE: list[Callable[[Path], str]] = [absent, of_blanks, too_long, a_file, of_another, with_signs]


@pytest.mark.parametrize("named", [*UNUSABLE, lambda folder: "relative/one", lambda folder: "/proc"])
def test_sockets_go_elsewhere_where_the_named_folder_cannot_hold_them(
    named: Callable[[Path], str], short: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And it is still this user's alone, and short enough for ssh."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", named(short))
    monkeypatch.chdir(short)
    folder = runtime_folder()

    assert folder.parent != Path(os.environ["XDG_RUNTIME_DIR"])
    assert (os.getuid(), 0o700) == ((found := folder.stat()).st_uid, stat.S_IMODE(found.st_mode))
    assert len(str(Route("10.0.0.1", SshSettings()).socket)) + 17 <= 107
    assert folder == runtime_folder(), "the next task finds the same"


def test_a_usable_folder_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a dot, a plus or a percent sign in its name, too."""
    with tempfile.TemporaryDirectory(prefix="a.b+%-", dir="/tmp") as folder:
        monkeypatch.setenv("XDG_RUNTIME_DIR", folder)
        assert Path(folder) == runtime_folder().parent


def test_a_temporary_folder_that_cannot_be_used_is_passed_over(short: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """TMPDIR with a blank holds no socket; without any usable temporary folder /tmp is tried."""
    monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)
    for made in (of_blanks, too_long):
        monkeypatch.setattr(tempfile, "tempdir", made(short))
        assert Path("/tmp") == runtime_folder().parent

    def none() -> str:
        raise FileNotFoundError(2, "No usable temporary directory found")

    monkeypatch.setattr(tempfile, "gettempdir", none)
    assert Path("/tmp") == runtime_folder().parent


@pytest.mark.parametrize("home", ["/proc", "/nowhere/at/all", "relative", ""])
def test_what_is_remembered_finds_a_place_without_a_home(
    home: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A home that is read-only or not there: beside the sockets, and it is found again."""
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        monkeypatch.setenv("XDG_RUNTIME_DIR", folder)
        monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
        monkeypatch.setenv("HOME", home)
        cluster = Cluster(name="x", hosts=(HERE,), folder=tmp_path, shared="/s", project="/p")
        if home == "/proc" or os.geteuid():
            assert runtime_folder() / "cache" == cache_folder()
            last_run.remember(cluster, "true", [HERE])
            assert ["localhost"] == last_run.last_failed(cluster)
        assert cache_folder().is_absolute()
        assert home_folder() == (home if home.startswith("/") else home_folder())


def test_what_cannot_be_remembered_is_a_word_and_no_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The answers were shown, and the next task runs."""
    cluster = Cluster(name="x", hosts=(HERE,), folder=tmp_path, shared="/s", project="/p")

    def full(*given: object, **more: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(last_run, "write_json", full)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    last_run.remember(cluster, "true", [HERE])

    said = capsys.readouterr().err
    assert "No space left on device" in said
    assert "--failed" in said
    assert 1 == len(said.splitlines())
    assert None is last_run.last_failed(cluster)


def test_a_machine_without_ssh_is_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not that some file is not there."""
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        monkeypatch.setenv("XDG_RUNTIME_DIR", folder)
        monkeypatch.setenv("PATH", folder)
        said = connections.connect(Route("10.0.0.1", SshSettings()), 1.0)

    assert said
    assert "'ssh'" in said
    assert "install" in said


def test_no_folder_at_all_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    """What was tried, and what to set."""
    monkeypatch.setattr("cluster.user_folders._runtime_bases", lambda: [Path("/proc"), Path("/nowhere")])

    with pytest.raises(ConfigError, match=r"tried /proc.*, /nowhere: set XDG_RUNTIME_DIR"):
        runtime_folder()
