"""`inv top`: frames on the terminal until the user quits, one frame, or frames as JSON."""

import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from cluster.errors import ConfigError
from cluster.hosts import Host
from cluster.inventory import Cluster
from cluster.ssh.fanout import Executor
from cluster.terminal import print_json, terminal_size, unfiltered
from cluster.top.collector import FRAME_S, SPREAD_S, Gatherer, one_frame
from cluster.top.keys import Keys
from cluster.top.snapshot import ClusterSnapshot
from cluster.top.table import SORTS, View, lines, scrolled

if TYPE_CHECKING:
    from rich.console import Console

LEAST_S = 0.5  # shortest interval between two frames
_LOOK_S = 0.05  # interval of checks for keys and the terminal's size
_PIPED_COLUMNS = 220
_PAGE = 10


@dataclass(frozen=True, kw_only=True)
class TopRequest:
    """Options of `inv top`."""

    once: bool = False
    as_json: bool = False
    every_s: float = 1.0
    view: View


def show_top(cluster: Cluster, hosts: Sequence[Host], request: TopRequest) -> int:
    """Show the hosts and return the exit code: 1 if a single frame was requested and a host is missing from it."""
    check(request)
    with Executor(cluster, fanout=max(64, len(hosts))) as reach:
        if request.once:
            frame = one_frame(reach, cluster, hosts)
            _tell(frame, request)
            return 0 if all(h.is_seen for h in frame.hosts) else 1
        with Gatherer(reach, cluster, hosts) as gatherer:
            try:
                if request.as_json or not sys.stdout.isatty():
                    for frame in _frames(gatherer, request.every_s, lambda: False):
                        _tell(frame, request)
                else:
                    _on_terminal(gatherer, request)
            except KeyboardInterrupt:
                pass  # the usual way to quit
    return 0


def check(request: TopRequest) -> None:
    """Raise ConfigError if an option's value is not possible."""
    if request.every_s < LEAST_S:
        raise ConfigError(f"--watch {request.every_s:g}: hosts are asked every {LEAST_S:g} s at most")
    if request.view.sort not in SORTS:
        raise ConfigError(f"--sort: choose one of {', '.join(name for name, _ in SORTS.values())}")


def sort_named(name: str) -> str:
    """Return the key that selects a sort order by name; the name itself if it is unknown."""
    return next((key for key, (known, _) in SORTS.items() if known == name), name)


def _frames(gatherer: Gatherer, every_s: float, look: Callable[[], bool]) -> Iterator[ClusterSnapshot]:
    """Yield a frame every `every_s` seconds until `look`, which is called continuously, returns True."""
    gatherer.first_answers(FRAME_S)
    due = time.monotonic()
    while True:
        gatherer.ask()
        gatherer.listen_until_answered(FRAME_S - SPREAD_S)
        yield gatherer.frame()
        due = max(due + every_s, time.monotonic())
        while time.monotonic() < due:
            gatherer.listen(min(_LOOK_S, due - time.monotonic()))
            if look():
                return


def _tell(frame: ClusterSnapshot, request: TopRequest) -> None:
    """Print one frame, for a pipe or a file."""
    if request.as_json:
        print_json(frame.to_json(), one_line=not request.once)
        return
    from rich.console import Console

    width = terminal_size((_PIPED_COLUMNS, 0)).columns if sys.stdout.isatty() else _PIPED_COLUMNS
    console = Console(width=width, highlight=False)
    with console.capture() as written:
        for line in lines(frame, request.view, width, None):
            line.rstrip()
            console.print(line, soft_wrap=True, end="\n")
    _write(written.get() + ("" if request.once else "\n"))


def _write(text: str) -> None:
    """Write to the terminal; characters that its encoding lacks are replaced."""
    encoding = sys.stdout.encoding or "ascii"
    screen = unfiltered(sys.stdout)
    screen.write(text.encode(encoding, "replace").decode(encoding))
    screen.flush()


class Screen:
    """Full-screen display of frames, which its keys control."""

    def __init__(self, console: "Console", view: View) -> None:
        self._console, self._view = console, view
        self._frame: ClusterSnapshot | None = None
        self._size = terminal_size()

    def show(self, frame: ClusterSnapshot) -> None:
        """Show this frame from now on."""
        self._frame = frame
        self.draw()

    def draw(self) -> None:
        """Draw the current frame at the terminal's current size."""
        self._size = terminal_size()
        if self._frame is None:
            return
        width, height = self._size
        shown = lines(self._frame, self._view, width, height)
        self._console.size = self._size
        with self._console.capture() as written:
            for line in shown:
                self._console.print(line, no_wrap=True, overflow="crop", crop=False, end="\x1b[K\n", soft_wrap=True)
        _write("\x1b[H" + written.get().rstrip("\n") + "\x1b[J")

    def look(self, keys: Keys) -> bool:
        """Handle pressed keys and redraw if they or the terminal's size require it. Return True to quit."""
        pressed = keys.pressed()
        if "q" in pressed:
            return True
        view = self._view
        for key in pressed:
            view = self._after(key, view)
        if view != self._view or terminal_size() != self._size:
            self._view = view
            self.draw()
        return False

    def _after(self, key: str, view: View) -> View:
        if key in SORTS:
            return replace(view, sort=key, offset=0)
        if key == "r":
            return replace(view, by_rank=not view.by_rank)
        step = {"up": -1, "k": -1, "down": 1, "j": 1, "page up": -_PAGE, "page down": _PAGE}.get(key, 0)
        return replace(view, offset=scrolled(view, step, self._frame)) if step and self._frame else view


@contextmanager
def _own_screen() -> Iterator[None]:
    """Switch to the terminal's alternate screen without a cursor, and back at the end, also after SIGTERM."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    _write("\x1b[?1049h\x1b[?25l\x1b[2J")
    try:
        yield
    finally:
        _write("\x1b[?25h\x1b[?1049l")
        signal.signal(signal.SIGTERM, before)


def _on_terminal(gatherer: Gatherer, request: TopRequest) -> None:
    from rich.console import Console

    screen = Screen(Console(highlight=False), request.view)
    with Keys() as keys, _own_screen():
        for frame in _frames(gatherer, request.every_s, lambda: screen.look(keys)):
            screen.show(frame)
