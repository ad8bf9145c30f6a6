"""What a terminal shows while a stack is made: parts, what is under way in them, nodes, the time that is left."""

import datetime
import io
import re
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from cfn import create, plan, tree
from cfn.aws import Aws
from cfn.progress import Watch
from cfn.stack import Event, Stack
from cfn.tree import Clock, LastTime, Shown
from cluster.clusterfile.model import ClusterFile
from cluster.lab.aws import FakeAws

PARTS = {"Vpc": "network", "Subnet": "network", "Files": "storage", "Workers": "nodes"}
BEGAN = 1_700_000_000.0
NEVER = LastTime()


def event(at: float, resource: str, status: str, kind: str = "AWS::EC2::VPC", reason: str = "") -> Event:
    time = datetime.datetime.fromtimestamp(BEGAN + at, datetime.UTC)
    return Event(id=f"{at}", time=time, resource=resource, kind=kind, status=status, reason=reason)


def watched(*story: Event, **nodes: str) -> Any:
    watch = Watch(None, Stack(id="s", name="training", status="CREATE_IN_PROGRESS"), print)
    watch.story = list(story)
    watch.nodes = {name.replace("_", "-"): step for name, step in nodes.items()}
    return watch


def seen(watch: Any, at: float, last: LastTime = NEVER) -> list[str]:
    """The tree's lines, without its branches' signs."""
    shown = Shown(watch, PARTS, last)
    shown.clock.look(watch.nodes, BEGAN + at - 5)
    page = Console(file=io.StringIO(), width=100)
    page.print(shown.tree(BEGAN + at))
    return [line.strip(" │├└─") for line in page.file.getvalue().splitlines()]  # type: ignore[attr-defined]


def test_parts_and_what_is_under_way_in_them() -> None:
    """A part that is done is one line; of another each resource that has begun, with its time; failures too."""
    watch = watched(
        event(0, "training", "CREATE_IN_PROGRESS", "AWS::CloudFormation::Stack"),
        event(1, "Vpc", "CREATE_COMPLETE"),
        event(1, "Subnet", "CREATE_COMPLETE"),
        event(2, "Files", "CREATE_IN_PROGRESS"),
        event(3, "Workers", "CREATE_FAILED"),
    )

    assert [
        "training  1:10",
        "network  2 of 2 resources",
        "storage  0 of 1 resource",
        "Files  create in progress, 1:08",
        "nodes  0 of 1 resource",
        "Workers  create failed, 1:07",
    ] == seen(watch, 70)


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
    clock = Clock()
    for at, nodes in ((0, {"a": "mount"}), (10, {"a": "drivers", "b": "mount"}), (30, {"b": "drivers"}), (50, {})):
        clock.look(nodes, float(at))
    watch = watched(event(0, "x", "CREATE_IN_PROGRESS"), event(60, "x", "CREATE_COMPLETE"))
    shown = Shown(watch, PARTS, LastTime())
    shown.clock = clock
    shown.keep()

    assert LastTime(total_s=60.0, to_ready_s={"mount": 40.0, "drivers": 20.0}) == tree.read_last("training")
    (tmp_path / "dlami-cluster/stack-times/training.json").write_text("[]")
    assert LastTime() == tree.read_last("training")


def test_without_a_terminal_there_are_lines_alone(capsys: pytest.CaptureFixture[str]) -> None:
    """Nothing is drawn, and what the watch says goes where it went."""
    watch = watched()
    with tree.shown(watch, PARTS):
        watch.show("12:00:00 network ready")

    assert "12:00:00 network ready\n" == capsys.readouterr().out


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
    tree.keep(file.name, LastTime(total_s=3600.0))
    create.create(account, plan.make(account, file), lambda _: None)
    seen_there = terminal.getvalue()

    assert re.search(r"demo  \d+:\d\d, about \d\d:\d\d left", seen_there)
    assert re.search(r"network  \d+ of \d+ resources", seen_there)
    assert 0 < tree.read_last(file.name).total_s < 3600


def test_a_node_that_boots_anew_is_not_ready() -> None:
    """It is again when it is seen at no step any more; the longest way from a step counts."""
    clock = Clock()
    clock.look({"a": "nfs", "b": "nfs"}, 0.0)
    clock.look({"b": "nfs"}, 4.0)
    clock.look({"a": "nfs", "b": "apt"}, 6.0)
    assert clock.ready == {}

    clock.look({}, 10.04)
    clock.look({}, 99.0)

    assert clock.ready == {"a": 10.04, "b": 10.04}
    assert clock.to_ready_s() == {"nfs": 10.0, "apt": 4.0}


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


@pytest.mark.parametrize(
    ("at", "said"),
    [
        (30, "training  0:30, about 0:30 left"),
        (59, "training  0:59, about 0:01 left"),
        (60, "training  1:00, 0:00 more than the last time"),
        (95, "training  1:35, 0:35 more than the last time"),
    ],
)
def test_the_time_left_is_that_of_the_last_time(at: float, said: str) -> None:
    """Until it is over; then how much longer it takes."""
    assert seen(watched(event(0, "Vpc", "CREATE_COMPLETE")), at, LastTime(total_s=60.0))[0] == said


def test_before_the_first_event_time_goes_from_the_begin() -> None:
    """Nothing of the stack is told yet."""
    shown = Shown(watched(), PARTS, NEVER)
    shown._began = BEGAN

    assert shown.tree(BEGAN + 7).label == "training  0:07"


def test_nodes_that_are_ready_or_failed_are_below_those_that_boot() -> None:
    """How many are ready, and why a first boot failed; a node seen for the first time has just begun."""
    watch = watched(i_1="nfs")
    watch.boots = {"i-9": "failed apt: [no] network"}
    shown = Shown(watch, {"Workers": "nodes"}, LastTime(to_ready_s={"nfs": 90.0}))
    shown.clock.look({"i-7": "nfs"}, BEGAN)
    shown.clock.look({}, BEGAN + 1)
    page = Console(file=io.StringIO(), width=100)
    page.print(shown.tree(BEGAN + 2))

    assert [line.strip(" │├└─") for line in page.file.getvalue().splitlines()][2:] == [  # type: ignore[attr-defined]
        "i-1  nfs, 0:00, about 1:30 left",
        "1 node ready",
        "i-9  failed apt: [no] network",
    ]


@pytest.mark.parametrize(
    ("seconds", "said"), [(-3, "0:00"), (7.9, "0:07"), (59.9, "0:59"), (60, "1:00"), (3605, "60:05")]
)
def test_a_time_is_minutes_and_seconds(seconds: float, said: str) -> None:
    """Never less than none."""
    assert tree.clock(seconds) == said


def test_a_story_that_is_over_is_kept_and_none_is_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From its first event to its last; what cannot be read is as if it had never been."""
    monkeypatch.setattr(tree, "cache_folder", lambda: tmp_path)
    Shown(watched(), PARTS, NEVER).keep()
    assert tree.read_last("training") == NEVER
    Shown(watched(event(3, "Vpc", "CREATE_COMPLETE"), event(10.26, "Files", "CREATE_COMPLETE")), PARTS, NEVER).keep()
    assert tree.read_last("training").total_s == 7.3
    for text in ("", "[]", "{}", '{"total_s": "x", "to_ready_s": {}}', '{"total_s": 1, "to_ready_s": []}'):
        (tmp_path / "stack-times" / "training.json").write_text(text)
        assert tree.read_last("training") == NEVER
