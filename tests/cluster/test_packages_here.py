"""What hosts say of their environments, each a folder of this machine: who has one, who lacks it, who does not say."""

from pathlib import Path
from types import SimpleNamespace

import pytest

from cluster.hosts import Host
from cluster.inventory import Cluster
from cluster.packages import distribute as bringing
from cluster.packages.build import EnvironmentPaths
from cluster.packages.distribute import bring, environments_on, lacking, removed, without_folder
from cluster.packages.onhost import env_registry
from tests.cluster.reach_here import ReachHere

A, B, AWAY = HOSTS = tuple(Host(rank=n, address=a, slots=1) for n, a in enumerate(("a", "b", "away")))
WHERE = EnvironmentPaths(place=Path("~/kept"), id="e1")  # on each host in its own home


@pytest.fixture
def reach(tmp_path: Path) -> ReachHere:
    """Two hosts that answer and one that does not; the first has an environment, of an image."""
    reach = ReachHere(tmp_path / "homes", {"away": "no route to it"})
    made = reach.home(A) / "kept" / "e1"
    made.mkdir(parents=True)
    (made / env_registry.IMAGE).write_text("name")
    env_registry.write_record(str(made.parent), "e1", {"build": "", "whole": True})
    return reach


def test_who_lacks_an_environment_is_told_from_who_does_not_say(reach: ReachHere) -> None:
    """Room is made only where something may be changed."""
    missing, silent = lacking(reach, HOSTS, WHERE, changes=False)
    assert ((B,), ["away"]) == (missing, [*silent])
    assert "no route to it" in silent["away"]
    assert not (reach.home(B) / "kept").exists()
    assert (B,) == lacking(reach, HOSTS, WHERE, changes=True)[0]
    assert (reach.home(B) / "kept/e1").is_dir()


def test_every_host_lists_what_it_has(reach: ReachHere) -> None:
    """A host without environments has an empty list; one that does not answer has none."""
    found, silent = environments_on(reach, HOSTS, "~/kept")
    assert {A: ["e1"], B: []} == {host: [e["id"] for e in listed] for host, listed in found.items()}
    assert ["away"] == [*silent]


def test_an_operator_s_own_folder_is_asked_for_on_each_host(reach: ReachHere) -> None:
    """Named are the hosts without it and those that do not answer."""
    failed = without_folder(reach, HOSTS, "~/kept/e1")
    assert ["away", "b"] == sorted(failed)
    assert failed["b"].endswith("kept/e1 is not here")


def test_what_is_removed_is_gone_where_a_host_answers(reach: ReachHere) -> None:
    """The silent host is named; nothing is said of one that never had it."""
    assert ["away"] == [*removed(reach, HOSTS, "~/kept", ["e1"])]
    assert not list((reach.home(A) / "kept").iterdir())


@pytest.mark.parametrize("comes", [True, False])
def test_a_host_has_an_environment_once_it_has_come_and_runs(
    reach: ReachHere, monkeypatch: pytest.MonkeyPatch, comes: bool
) -> None:
    """To whom it could not be copied, who does not answer then and where it does not run: each with why."""

    def copied(_reach: ReachHere, _cluster: Cluster, hosts: tuple[Host, ...], transfer: object) -> SimpleNamespace:
        if comes:
            (reach.home(B) / "kept/e1").mkdir(parents=True)
            (reach.home(B) / "kept/e1" / env_registry.IMAGE).write_text("name")
        outcomes = [SimpleNamespace(host=h, error="its disk is full" if h is A else None) for h in hosts]
        return SimpleNamespace(outcomes=outcomes, failed=[o for o in outcomes if o.error])

    monkeypatch.setattr(bringing, "copy", copied)
    (reach.home(B) / "kept").mkdir()
    failed = bring(reach, Cluster(name="c", hosts=HOSTS, folder=Path(), shared="/s", project="/p"), HOSTS, WHERE)

    assert ["a", "away"] == sorted(h for h in failed if h != "b")
    assert "its disk is full" == failed["a"]
    assert ("b" not in failed) is comes
    assert comes or failed["b"].endswith("kept/e1 is not here")
    assert comes is bool(env_registry.read_record(str(reach.home(B) / "kept"), "e1").get("whole"))
