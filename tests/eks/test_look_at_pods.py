"""The look before a training, from a launcher: by the job's own ssh settings, at what can be seen from inside of pods."""

from collections.abc import Callable
from pathlib import Path

import pytest

from cluster.health.questions import Question, quick_questions
from cluster.hosts import Host
from cluster.inventory import Cluster, load_cluster
from cluster.ssh.launcher import CONFIG_VARIABLE


@pytest.fixture
def asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], dict[str, Question]]:
    """The questions to the master of three hosts by their names."""
    monkeypatch.delenv(CONFIG_VARIABLE, raising=False)
    (tmp_path / "hosts").write_text("localhost slots=0\njob-worker-0 slots=1\njob-worker-1 slots=1\n")
    (tmp_path / "cluster.toml").write_text('name = "job"\nshared = "/shared"\n')
    cluster: Cluster = load_cluster(str(tmp_path))
    master: Host = cluster.master
    return lambda: {q.name: q for chain in quick_questions(cluster, master) for q in chain}


def test_hosts_of_ones_own_are_asked_by_ones_own_settings(asked: Callable[[], dict[str, Question]]) -> None:
    """Also whether their root takes a file: one that became read-only is a disk to mend."""
    assert "-F" not in asked()["ssh"].arguments[1]
    assert "place:/" in asked()


def test_pods_are_asked_by_their_jobs_settings(
    asked: Callable[[], dict[str, Question]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The settings are written after this program has begun; a pod's root is read-only, and meant to be."""
    monkeypatch.setenv(CONFIG_VARIABLE, "/shared/eks/job/ssh_config")

    options = asked()["ssh"].arguments[1]
    assert ["-F", "/shared/eks/job/ssh_config"] == list(options[:2])
    assert "place:/" not in asked() and "place:/tmp" in asked()


def test_what_only_the_node_can_answer_is_not_asked_of_pods(
    asked: Callable[[], dict[str, Question]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pod's user may not read the kernel's log, which would make every training one to watch."""
    of_the_node = {"kernel-log", "fabric-manager", "time", "instance"}
    of_hosts = asked()
    assert of_the_node <= set(of_hosts)

    monkeypatch.setenv(CONFIG_VARIABLE, "/shared/eks/job/ssh_config")
    assert set(of_hosts) - of_the_node - {"place:/"} == set(asked())
    assert "smi" in asked(), "the driver is asked though no log was read before it"
