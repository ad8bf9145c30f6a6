"""Live view of a stack being created, as a tree in a terminal: its parts, open resources, and nodes' first boots."""

import contextlib
import json
import os
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from cfn.progress import STACK, StackWatch
from cluster.files import write_json
from cluster.printable import printable
from cluster.terminal import counted, unfiltered
from cluster.user_folders import cache_folder

if TYPE_CHECKING:
    from rich.tree import Tree

_PER_S = 4  # frames per second
_MOST = 8  # nodes listed by name; further ones are only counted


@dataclass(frozen=True, kw_only=True)
class LastTime:
    """Durations of the last create, in seconds."""

    total_s: float = 0.0
    to_ready_s: Mapping[str, float] = field(default_factory=dict)  # from a step of first boot until the node was ready


@dataclass
class BootTimes:
    """Times at which each node was first seen at each step of first boot and when ready, in seconds since 1970."""

    steps: dict[str, dict[str, float]] = field(default_factory=dict)
    ready: dict[str, float] = field(default_factory=dict)

    def look(self, nodes: Mapping[str, str], now: float) -> None:
        """Record the current step of each booting node."""
        for node, step in nodes.items():
            self.steps.setdefault(node, {}).setdefault(step, now)
            self.ready.pop(node, None)
        for node in self.steps.keys() - nodes.keys():
            self.ready.setdefault(node, now)

    def to_ready_s(self) -> dict[str, float]:
        """Return the longest time of all nodes from each step to ready."""
        longest: dict[str, float] = {}
        for node, at in self.ready.items():
            for step, began in self.steps[node].items():
                longest[step] = max(longest.get(step, 0.0), round(at - began, 1))
        return longest


class LiveTree:
    """Renderable tree of a `StackWatch`, rebuilt for each frame."""

    def __init__(self, watch: StackWatch, parts: Mapping[str, str], last: LastTime) -> None:
        self._watch, self._parts, self._last = watch, dict(parts), last
        self._began = time.time()
        self.clock = BootTimes()

    def __rich__(self) -> "Tree":
        """Return the tree at the current time."""
        return self.tree(time.time())

    def keep(self) -> None:
        """Save how long the create took, for the next estimate."""
        story = self._watch.story
        if story:
            total_s = round(story[-1].time.timestamp() - story[0].time.timestamp(), 1)
            keep(self._watch.stack.name, LastTime(total_s=total_s, to_ready_s=self.clock.to_ready_s()))

    def tree(self, now: float) -> "Tree":
        """Return the tree at this time."""
        from rich.tree import Tree

        root = Tree(f"{self._watch.stack.name}  {self._left(now)}")
        state = {e.resource: e for e in self._watch.story if e.kind != STACK}
        for part in dict.fromkeys(self._parts.values()):
            mine = [r for r, p in self._parts.items() if p == part]
            done = [r for r in mine if r in state and state[r].status == "CREATE_COMPLETE"]
            is_done = len(done) == len(mine)
            colour = "green" if is_done else "default"
            branch = root.add(f"[{colour}]{part}  {len(done)} of {counted(len(mine), 'resource')}[/]")
            for resource in mine if not is_done else ():
                if resource in state and resource not in done:
                    event = state[resource]
                    words = event.status.lower().replace("_", " ")
                    text = f"{resource}  {words}, {clock(now - event.time.timestamp())}"
                    branch.add(f"[red]{text}[/]" if event.is_failure else text)
            if part == "nodes":
                self._add_nodes(branch, now)
        return root

    def _left(self, now: float) -> str:
        story = self._watch.story
        took = now - (story[0].time.timestamp() if story else self._began)
        if not self._last.total_s:
            return clock(took)
        left = self._last.total_s - took
        return f"{clock(took)}, " + (
            f"about {clock(left)} left" if left > 0 else f"{clock(-left)} more than the last time"
        )

    def _add_nodes(self, branch: "Tree", now: float) -> None:
        from rich.markup import escape

        nodes = sorted(self._watch.nodes.items())
        for node, step in nodes[:_MOST]:
            began = self.clock.steps.get(node, {}).get(step, now)
            left = self._last.to_ready_s.get(step, 0.0) - (now - began)
            branch.add(
                f"{escape(node)}  {escape(printable(step))}, {clock(now - began)}"
                + (f", about {clock(left)} left" if left > 0 else "")
            )
        if len(nodes) > _MOST:
            branch.add(f"and {counted(len(nodes) - _MOST, 'more node')}")
        if self.clock.ready:
            branch.add(f"[green]{counted(len(self.clock.ready), 'node')} ready[/]")
        for node, why in self._watch.boots.items():
            branch.add(f"[red]{escape(node)}  {escape(printable(why))}[/]")


def clock(seconds: float) -> str:
    """Return minutes and seconds as 0:07 or 12:30."""
    whole = max(0, int(seconds))
    return f"{whole // 60}:{whole % 60:02}"


@contextlib.contextmanager
def shown(watch: StackWatch, parts: Mapping[str, str]) -> Iterator[LiveTree]:
    """Show the tree below the lines that `watch` prints, while the block runs.

    Without a terminal, show only the lines.
    """
    tree = LiveTree(watch, parts, read_last(watch.stack.name))
    watch.on_nodes = lambda: tree.clock.look(watch.nodes, time.time())
    if not (sys.stdout.isatty() and os.environ.get("TERM") != "dumb"):
        yield tree
    else:
        from rich.console import Console
        from rich.live import Live

        # `watch` prints to stdout, which rich captures, so its lines appear above the tree.
        screen = Console(file=unfiltered(sys.stdout), highlight=False)
        with Live(tree, console=screen, refresh_per_second=_PER_S, transient=True):
            yield tree


def read_last(name: str) -> LastTime:
    """Return the durations of the last create; empty if they cannot be read."""
    try:
        found = json.loads(_file(name).read_text())
        steps = {str(step): float(s) for step, s in found["to_ready_s"].items()}
        return LastTime(total_s=float(found["total_s"]), to_ready_s=steps)
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return LastTime()


def keep(name: str, took: LastTime) -> None:
    """Save the durations of a create. A failed write is ignored: the next create then has no estimate."""
    with contextlib.suppress(OSError):
        _file(name).parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_json(_file(name), vars(took), mode=0o600)


def _file(name: str) -> Path:
    return cache_folder() / "stack-times" / f"{name}.json"
