"""Which cluster a command means: CLUSTER, the lab that it names, and the error for one that is not there."""

from pathlib import Path

import pytest

from cluster import locate
from cluster.errors import ConfigError
from cluster.inventory import load_cluster
from cluster.locate import chosen_lab, cluster_file, cluster_folder, no_lab


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder to stand in, beside labs of which one named walk is up."""
    monkeypatch.setattr(locate, "LABS", tmp_path / "labs")
    monkeypatch.delenv("CLUSTER", raising=False)
    (tmp_path / "labs/walk").mkdir(parents=True)
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    return tmp_path / "here"


@pytest.mark.parametrize(
    ("where", "given", "expected"),
    [
        ("lab:walk", "", "walk"),
        ("lab", "", "lab"),
        ("lab:", "", "lab"),
        ("", "", "lab"),
        ("lab:walk", "other", "other"),
        ("{labs}/walk", "", "walk"),
        ("{labs}/walk/", "", "walk"),
    ],
)
def test_a_task_of_labs_is_about_the_lab_of_CLUSTER(  # noqa: N802
    where: str, given: str, expected: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """--name wins over it."""
    monkeypatch.setenv("CLUSTER", where.format(labs=tmp_path / "labs"))

    assert expected == chosen_lab(given)


def test_a_cluster_that_is_no_lab_is_not_taken_for_the_lab_of_the_usual_name(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`lab.down` would end what nobody named."""
    monkeypatch.setenv("CLUSTER", str(folder))

    with pytest.raises(ConfigError, match="is no lab: give --name"):
        chosen_lab()


@pytest.mark.parametrize(
    ("where", "expected"),
    [
        ("lab:wlak", "there is no lab wlak; up: walk ('export CLUSTER=lab:walk')"),
        ("walk", "for the lab of that name: 'export CLUSTER=lab:walk'"),
        ("./nowhere", "CLUSTER=./nowhere: there is no folder {folder}/nowhere; up: walk"),
        ("cluster.toml", "is a file, and a cluster is the folder of its files: 'export CLUSTER={folder}'"),
        ("lab:walk", "lab walk was not made to its end: 'inv lab.up --name walk'"),
    ],
)
def test_a_wrong_cluster_is_named_with_those_that_are_up(
    where: str, expected: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It does not send somebody who mistyped a name to `hosts.write`."""
    (folder / "cluster.toml").touch()
    monkeypatch.setenv("CLUSTER", where)

    with pytest.raises(ConfigError) as error:
        load_cluster()
    assert expected.format(folder=folder) in str(error.value)


def test_a_forgotten_cluster_is_said_with_the_labs_that_are_up(folder: Path) -> None:
    """There is a cluster file here, and no hostfile."""
    (folder / "cluster.toml").touch()

    with pytest.raises(ConfigError, match=r"there is no hostfile .*; up: walk \('export CLUSTER=lab:walk'\)"):
        load_cluster()


def test_a_cluster_file_is_not_another_clusters_where_the_named_one_is_not_there(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`CLUSTER=lab:wlak inv stack.delete` would delete the stack of the folder one stands in."""
    (folder / "cluster.toml").touch()
    monkeypatch.setenv("CLUSTER", "lab:wlak")

    with pytest.raises(ConfigError, match="there is no lab wlak"):
        cluster_file("cluster.toml")


def test_a_new_clusters_folder_may_be_named_before_it_is_made(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`hosts.join` makes it."""
    monkeypatch.setenv("CLUSTER", "new")

    assert folder / "new" == cluster_folder()


def test_without_any_lab_the_first_one_is_offered(folder: Path, tmp_path: Path) -> None:
    """No list of nothing."""
    (tmp_path / "labs/walk").rmdir()

    assert "there is no lab wlak: 'inv lab.up --name wlak' makes one" == no_lab("wlak")
