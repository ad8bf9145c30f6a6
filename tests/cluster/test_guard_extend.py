"""`inv keep` on a lab: the wish comes to the guard; what the guard says comes under a task's output."""

import json
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cluster.errors import ClusterError, ConfigError
from cluster.guard import line, tell
from cluster.guard.extend import Seen, keep, seconds_of, seen
from cluster.guard.onhost import renew
from cluster.hang_detection.output_watchdog import OutputWatchdog
from cluster.hang_detection.rank_state import RankSeen
from cluster.inventory import Cluster
from cluster.ssh.fanout import Executor
from lab.record import Lab
from tests.conftest import wait_for

TOLD = {"end": 1.8e9, "why": "no useful work", "useful_at": 1.7e9, "what": "a terminal on h", "hours": 2.5}


@pytest.mark.parametrize(("text", "seconds"), [("90m", 5400), ("2h", 7200), ("1d", 86400), ("1.5h", 5400)])
def test_a_time_as_people_write_it(text: str, seconds: float) -> None:
    assert seconds == seconds_of(text)


@pytest.mark.parametrize("text", ["", "2", "h", "-2h", "15d", "0h", "2 h", "two hours"])
def test_what_is_no_time_is_refused(text: str) -> None:
    with pytest.raises(ConfigError):
        seconds_of(text)


@pytest.fixture
def stacked(lab: Lab, cluster: Cluster) -> Iterator[tuple[Cluster, Path]]:
    """The lab as if a stack had made it, and the guard's folder on it."""
    folder = lab.shared / ".dlami-cluster/demo/guard"
    (folder / "keep").mkdir(parents=True, exist_ok=True)
    yield replace(cluster, stack="us-east-1/demo"), folder
    for path in (*folder.glob("keep/*"), *folder.glob("*.json")):
        path.unlink()


def test_a_wish_comes_to_the_guard_and_its_answer_back(lab: Lab, stacked: tuple[Cluster, Path]) -> None:
    cluster, folder = stacked
    with pytest.raises(ClusterError, match="has not said anything yet"):
        seen(cluster)
    keep(cluster, 7200.0)
    ((first, seconds),) = renew.wishes(renew.GuardPaths(name="demo", shared=str(lab.shared))).values()
    assert (True, 7200.0) == (bool(first), seconds)
    keep(cluster, 3600.0)
    ((again, seconds),) = renew.wishes(renew.GuardPaths(name="demo", shared=str(lab.shared))).values()
    assert (True, 3600.0) == (again != first, seconds)
    (folder / "told.json").write_text(json.dumps(TOLD))
    assert Seen.from_json(TOLD) == seen(cluster)
    assert "all nodes end at 2027-01-15 08:00 UTC" in str(seen(cluster))


def test_a_cluster_without_a_guard_says_so(stacked: tuple[Cluster, Path], cluster: Cluster) -> None:
    with pytest.raises(ConfigError, match="is no stack"):
        keep(cluster, 60)
    with pytest.raises(ClusterError, match="there is no guard on this master"):
        keep(replace(cluster, stack="us-east-1/other"), 60)


def test_the_line_comes_over_a_connection_that_is_open_and_is_not_said_too_late(
    lab: Lab, stacked: tuple[Cluster, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    """From a laptop: no new connection is made for it."""
    cluster, _ = stacked
    for name in ("hosts", "cluster.toml"):
        text = (cluster.folder / name).read_text()
        if name == "cluster.toml":
            lines = [row for row in text.splitlines() if not row.startswith(("name", "region"))]
            text = "\n".join(['name = "demo"', 'region = "us-east-1"', *lines, "[nodes]", ""])
        (tmp_path / name).write_text(text)
    monkeypatch.setenv("CLUSTER", str(tmp_path))
    monkeypatch.setattr(line, "TOLD", Path("/run/dlami-guard-of-this-test.json"))
    for end, said in ((4e9, True), (1e9, False)):
        told = json.dumps({"line": "all nodes of demo end", "end": end})
        with Executor(cluster) as reach:
            result = reach.run([cluster.master], f"cat >{line.TOLD}", stdin=told.encode())[cluster.master]
            assert result.ok, result.problem
        line.say_line()
        assert said == ("guard: all nodes of demo end" in capsys.readouterr().err)


def test_a_warning_comes_to_whom_the_cluster_file_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the master's own file; it needs no hostfile yet. Who names nobody is told nothing."""
    heard, hook = tmp_path / "heard", tmp_path / "hook"
    hook.write_text(f"#!/bin/sh\ncat >{heard}\n")
    hook.chmod(0o755)
    monkeypatch.delenv("CLUSTER", raising=False)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "cluster.toml").write_text('name = "demo"\n')
    assert (0, False) == (tell.main("in 15 minutes"), heard.exists())
    (tmp_path / "cluster.toml").write_text(f'name = "demo"\nnotify = "{hook}"\n')
    assert 0 == tell.main("in 15 minutes all nodes end")
    told = json.loads(heard.read_text())
    assert ("guard", "in 15 minutes all nodes end") == (told["event"], told["text"])


def test_every_running_job_is_stopped_as_its_owner_would(tmp_path: Path) -> None:
    """Those that wait or have ended are left alone, and those of another cluster on the same file system."""
    for name, state in (("a", "running"), ("b", "queued"), ("c", "succeeded"), ("d", "healing")):
        (tmp_path / "jobs" / name).mkdir(parents=True)
        (tmp_path / "jobs" / name / "state.json").write_text(json.dumps({"state": state}))
    (tmp_path / "jobs/e").mkdir()
    elsewhere = {"state": "running", "supervisor": {"host": "another-cluster's-master"}}
    (tmp_path / "jobs/e/state.json").write_text(json.dumps(elsewhere))
    (tmp_path / "jobs/f").mkdir()
    os.mkfifo(tmp_path / "jobs/f/state.json")
    assert {"job a", "job d"} == set(renew.signs(renew.GuardPaths(name="x", shared=str(tmp_path))))
    python = tmp_path / "project/.venv/bin/python"
    python.parent.mkdir(parents=True)
    python.write_text(f'#!/bin/sh\nid -u >{tmp_path}/by-"$6"\necho "$@" >{tmp_path}/stopped-"$6"\n')
    python.chmod(0o755)
    renew.save(str(tmp_path), str(tmp_path / "project"))
    wait_for(lambda: 2 == len([*tmp_path.glob("stopped-*")]), 60, "jobs are stopped")
    assert f"-m cluster.jobs --shared {tmp_path} stop a" == (tmp_path / "stopped-a").read_text().strip()
    assert {"stopped-a", "stopped-d"} == {p.name for p in tmp_path.glob("stopped-*")}


def rank(n: int, cpu_s: float) -> RankSeen:
    return RankSeen(rank=n, host="h", cpu_s=cpu_s, state="S")


def test_a_program_that_does_not_beat_lives_by_what_it_prints_and_by_its_processor_time() -> None:
    """Recovery's rule: output, or every rank at work; one that does nothing, while the others wait for it, is no life."""
    size = 0
    quiet = OutputWatchdog(lambda: size, None)
    alive = []
    for second in range(0, 600, 10):
        size += second < 100
        works = second < 300
        quiet.look([rank(0, second * 1.0 if works else 300.0), rank(1, second * 1.0)], float(second))
        alive += [second] if quiet.is_alive else []
    assert set(range(0, 100, 10)) <= set(alive)
    assert max(alive) in range(240, 361)
