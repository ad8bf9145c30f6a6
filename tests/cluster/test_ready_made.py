"""What another user left where our own will be looked for: notebooks, recipes, shards, event files, beats. Never used."""

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from cluster.errors import ClusterError
from cluster.hang_detection.onhost.ranks import beats
from cluster.packages import recipes
from cluster.packages.recipe import Recipe
from cluster.ssh.onhost import shared_tree
from cluster.tunnels.events import ALL, Runs
from cluster.tunnels.jupyter_page import notebooks
from cluster.tunnels.service import ServiceRequest
from tests.cluster.made_job import made_job
from trainer.common.files.errors import TrainerError
from trainer.resnet50 import cache

EVE = 12001
pytestmark = pytest.mark.skipif(os.getuid() != 0, reason="files of several users need root")


@pytest.fixture
def shared(tmp_path: Path) -> Path:
    """A shared folder as first boot makes it."""
    shared_tree.make(str(tmp_path))
    return tmp_path


def of_eve(path: Path) -> Path:
    os.chown(path, EVE, EVE, follow_symlinks=False)
    return path


def ready_made(path: Path) -> None:
    """A folder of eve's with a module of hers, which anybody may read."""
    path.mkdir(mode=0o755)
    (path / "horovod.py").write_text("x = 1")
    of_eve(path / "horovod.py")
    of_eve(path)


def linked_folder(path: Path) -> None:
    elsewhere = path.parent.parent / "of-eve"
    ready_made(elsewhere)
    path.symlink_to(elsewhere)
    of_eve(path)


def linked_to_ours(path: Path) -> None:
    """A link of eve's to a folder that is ours, but not for this."""
    elsewhere = path.parent.parent / "ours"
    elsewhere.mkdir()
    path.symlink_to(elsewhere)
    of_eve(path)


def open_to_all(path: Path) -> None:
    path.mkdir()
    path.chmod(0o777)


def a_file(path: Path) -> None:
    path.write_text("x")
    of_eve(path)


@pytest.mark.parametrize("make", [ready_made, linked_folder, linked_to_ours, open_to_all, a_file])
def test_notebooks_are_in_a_folder_of_one_s_own(shared: Path, make: Callable[[Path], None]) -> None:
    """Kernels import what lies there. Of a name that another has taken, a folder beside it; one's own, open one is named."""
    folder = shared / "notebooks" / str(os.getuid())
    make(folder)
    if make is open_to_all:
        with pytest.raises(ClusterError, match=f"^notebooks.*{folder}"):
            notebooks(ServiceRequest(kind="jupyter", shared=str(shared)))
        folder.chmod(0o700)

    made = notebooks(ServiceRequest(kind="jupyter", shared=str(shared)))
    assert (made / "train.ipynb").exists()
    assert (made == folder) is (make is open_to_all)
    assert (os.getuid(), 0o700) == ((found := made.lstat()).st_uid, found.st_mode & 0o7777)
    assert made == notebooks(ServiceRequest(kind="jupyter", shared=str(shared)))


@pytest.mark.parametrize("name", ["notebooks", "environments"])
@pytest.mark.parametrize("kind", ["owned", "link", "no sticky bit"])
def test_whose_folder_it_is_all_in_is_looked_at_too(shared: Path, name: str, kind: str) -> None:
    """Who owns the folder above, or everybody without a sticky bit, could replace ours at any time."""
    above = shared / name
    if kind == "owned":
        of_eve(above)
    elif kind == "link":
        above.rename(shared / "elsewhere")
        of_eve(shared / "elsewhere")
        above.symlink_to(shared / "elsewhere")
    if kind == "no sticky bit":
        of_eve(above).chmod(0o777)
    with pytest.raises(ClusterError, match=f"{above} "):
        if name == "notebooks":
            notebooks(ServiceRequest(kind="jupyter", shared=str(shared)))
        else:
            recipes.keep(str(shared), "x", Recipe(main="m", files={}))


def test_a_recipe_is_its_user_s_own(shared: Path) -> None:
    """Eve's list of packages is not what our next attempt is made of, and its name does not keep us from ours."""
    evil = {"main": "--extra-index-url http://evil", "files": {}}
    for name in ("x.json", "x.txt"):
        path = shared / "environments" / name
        path.write_text(json.dumps(evil) if name.endswith("json") else "torch==6.6.6\n")
        of_eve(path).chmod(0o644)

    assert [] == recipes.kept_ids(str(shared))
    assert "" == recipes.kept_installed(str(shared), "x")
    with pytest.raises(ClusterError, match=r"environments/.*x\.json.*cannot be read"):
        recipes.kept_recipe(str(shared), "x")
    recipes.keep(str(shared), "x", Recipe(main="m", files={}))
    recipes.keep_installed(str(shared), "x", "torch==2.0\n")
    assert ("m", "torch==2.0\n") == (
        recipes.kept_recipe(str(shared), "x").main,
        recipes.kept_installed(str(shared), "x"),
    )
    assert ["x"] == recipes.kept_ids(str(shared))
    recipes.forget(str(shared), "x")
    assert [] == recipes.kept_ids(str(shared))
    assert (shared / "environments/x.json").exists()


@pytest.mark.parametrize("ending", ["json", "txt"])
def test_a_recipe_that_is_no_file_is_refused_at_once(shared: Path, ending: str) -> None:
    """A pipe, an endless file, a link to a file of ours, a hard link."""
    own = shared / "own"
    own.write_text('{"main": "m", "files": {}}')
    path = shared / "environments" / f"x.{ending}"
    for make in (
        lambda: os.mkfifo(path),
        lambda: path.symlink_to("/dev/zero"),
        lambda: path.symlink_to(own),
        lambda: path.hardlink_to(own),
    ):
        make()
        with pytest.raises(ClusterError, match=str(path)):
            recipes.kept_recipe(str(shared), "x") if ending == "json" else recipes.kept_installed(str(shared), "x")
        path.unlink()


def test_shards_are_copied_anew_or_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Others' copies of the right size and time are never read, whoever's folder they are in."""
    memory, source = tmp_path / "shm", tmp_path / "data/train-0"
    memory.mkdir()
    memory.chmod(0o1777)
    source.parent.mkdir()
    source.write_bytes(b"ours")
    monkeypatch.setattr(cache, "MEMORY_FOLDER", memory)
    folder = cache.place(cache.MEMORY, [source])

    def forged(copy: Path) -> None:
        copy.write_bytes(b"eves")
        os.utime(copy, ns=(source.stat().st_atime_ns, source.stat().st_mtime_ns))

    for kind in ("folder", "link", "file"):
        if kind == "folder":
            folder.mkdir()
            forged(folder / "train-0")
            of_eve(folder)
        elif kind == "link":
            (tmp_path / "of-eve").mkdir()
            folder.symlink_to(of_eve(tmp_path / "of-eve"))
        else:
            a_file(folder)
        with pytest.raises(TrainerError, match=r"--cache: .*shards-"):
            cache.fill(folder, [source])
        shutil.rmtree(folder) if kind == "folder" else folder.unlink()
    for kind in ("foreign", "link", "writable"):
        folder.mkdir(exist_ok=True)
        copy = folder / "train-0"
        copy.unlink(missing_ok=True)
        if kind == "link":
            forged(tmp_path / "eves")
            copy.symlink_to(of_eve(tmp_path / "eves"))
        else:
            forged(copy)
            of_eve(copy) if kind == "foreign" else copy.chmod(0o666)
        cache.fill(folder, [source])
        assert (b"ours", False, 0o700) == (copy.read_bytes(), copy.is_symlink(), folder.stat().st_mode & 0o777)
    memory.chmod(0o777)
    with pytest.raises(TrainerError, match=f"{memory}"):
        cache.fill(folder, [source])


def test_tensorboard_shows_a_job_s_own_events_alone(shared: Path, tmp_path: Path) -> None:
    """A link in eve's job to others' events, a pipe in the place of a file: her job is left out, the others are shown."""
    ours = made_job(shared, name="ours")
    (ours.folder / "tensorboard").mkdir(exist_ok=True)
    (ours.folder / "tensorboard/events.out.tfevents.1").write_bytes(b"")
    for name, make in {
        "folder": lambda job: (job / "tensorboard").symlink_to(ours.folder / "tensorboard"),
        "pipe": lambda job: ((job / "tensorboard").mkdir(), os.mkfifo(job / "tensorboard/a.tfevents.1")),
    }.items():
        job = shared / "jobs" / name
        job.mkdir()
        make(job)
        for path in (job, *job.rglob("*")):
            of_eve(path)
    (shared / "jobs/link").symlink_to(ours.folder)
    runs = Runs(ServiceRequest(kind="tensorboard", shared=str(shared), job=ALL), tmp_path / "runs")
    runs.refresh()
    assert ["ours"] == [p.name for p in (tmp_path / "runs").iterdir()]
    os.mkfifo(ours.folder / "tensorboard/b.tfevents.2")
    runs.refresh()
    assert [] == [p.name for p in (tmp_path / "runs").iterdir()]


def test_a_beat_that_is_a_pipe_stops_nobody() -> None:
    """Its name is known to all; who looks at ranks reads on at once."""
    path = Path(f"/dev/shm/dlami-beat-{os.getuid()}-of-eve-{os.getpid()}-1-0")
    os.mkfifo(path)
    try:
        assert {} == beats(f"of-eve-{os.getpid()}", "1")
    finally:
        path.unlink()
