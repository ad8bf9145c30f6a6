"""What a terminal shows while a stack is made: parts, what is under way in them, nodes, the time that is left."""

import datetime
import io
import re
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from cfn import create, live_view, plan
from cfn.aws import Aws
from cfn.live_view import BootTimes, LastTime, LiveTree
from cfn.progress import StackWatch
from cfn.stack import Stack, StackEvent
from cluster.clusterfile.model import ClusterFile
from lab.aws import FakeAws

PARTS = {"Vpc": "network", "Subnet": "network", "Files": "storage", "Workers": "nodes"}
BEGAN = 1_700_000_000.0
NEVER = LastTime()


def event(at: float, resource: str, status: str, kind: str = "AWS::EC2::VPC", reason: str = "") -> StackEvent:
    time = datetime.datetime.fromtimestamp(BEGAN + at, datetime.UTC)
    return StackEvent(id=f"{at}", time=time, resource=resource, kind=kind, status=status, reason=reason)


def watched(*story: StackEvent, **nodes: str) -> Any:
    watch = StackWatch(None, Stack(id="s", name="training", status="CREATE_IN_PROGRESS"), print)
    watch.story = list(story)
    watch.nodes = {name.replace("_", "-"): step for name, step in nodes.items()}
    return watch


def seen(watch: Any, at: float, last: LastTime = NEVER) -> list[str]:
    """The tree's lines, without its branches' signs."""
    shown = LiveTree(watch, PARTS, last)
    shown.clock.look(watch.nodes, BEGAN + at - 5)
    page = Console(file=io.StringIO(), width=100)
    page.print(shown.tree(BEGAN + at))
    return [line.strip(" │├└─") for line in page.file.getvalue().splitlines()]  # type: ignore[attr-defined]


def test_each_node_s_step_and_the_time_that_is_left() -> None:
    """As the last time was; what takes longer says so; names are no markup."""
    last = LastTime(total_s=100, to_ready_s={"drivers": 65.0})
    watch = watched(event(0, "x", "CREATE_COMPLETE"), i_1="drivers", i_2="[bold]mount")
    lines = seen(watch, 70, last)

    assert "training  1:10, about 0:30 left" == lines[0]
    assert ["i-1  drivers, 0:05, about 1:00 left", "i-2  [bold]mount, 0:05"] == lines[-2:]
    assert "training  2:10, 0:30 more than the last time" == seen(watch, 130, last)[0]


def test_many_nodes_are_counted() -> None:
    """64 nodes fit into a terminal."""
    lines = seen(watched(**{f"i_{n:02}": "drivers" for n in range(64)}), 10)

    assert "and 56 more nodes" == lines[-1]
    assert len(lines) < 16


def test_how_long_nodes_took_is_kept_for_the_next_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By step, the longest of all nodes; damage is no estimate and no error."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    clock = BootTimes()
    for at, nodes in ((0, {"a": "mount"}), (10, {"a": "drivers", "b": "mount"}), (30, {"b": "drivers"}), (50, {})):
        clock.look(nodes, float(at))
    watch = watched(event(0, "x", "CREATE_IN_PROGRESS"), event(60, "x", "CREATE_COMPLETE"))
    shown = LiveTree(watch, PARTS, LastTime())
    shown.clock = clock
    shown.keep()

    assert LastTime(total_s=60.0, to_ready_s={"mount": 40.0, "drivers": 20.0}) == live_view.read_last("training")
    (tmp_path / "dlami-cluster/stack-times/training.json").write_text("[]")
    assert LastTime() == live_view.read_last("training")


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_create_shows_the_time_left_from_the_last_run_and_keeps_its_own(
    fake: FakeAws, file: ClusterFile, account: Aws, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a terminal, while AWS works: parts, the last run's time less what has gone; the next run has this one's."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr("sys.stdout", terminal := Terminal())
    live_view.keep(file.name, LastTime(total_s=3600.0))
    create.create(account, plan.make(account, file), lambda _: None)
    seen_there = terminal.getvalue()

    assert re.search(r"demo  \d+:\d\d, about \d\d:\d\d left", seen_there)
    assert re.search(r"network  \d+ of \d+ resources", seen_there)
    assert 0 < live_view.read_last(file.name).total_s < 3600


def test_a_part_shows_what_of_it_is_under_way_until_it_is_done() -> None:
    """A failure among it; nothing of what is done or has not begun."""
    watch = watched(
        event(1, "Vpc", "CREATE_COMPLETE"),
        event(2, "Subnet", "CREATE_FAILED"),
        event(3, "Files", "CREATE_COMPLETE"),
        event(4, "Else", "CREATE_IN_PROGRESS"),
    )

    assert seen(watch, 62) == [
        "training  1:01",
        "network  1 of 2 resources",
        "Subnet  create failed, 1:00",
        "storage  1 of 1 resource",
        "nodes  0 of 1 resource",
    ]
