"""Training programs that take turns, one step each: what slows the machine down slows all of them.

A program says `Turns().take(step)` around each of its steps, or `begin` and `end`, which may tell scores; the one who
compares starts the programs as `Side`s and calls `alternate`. Between its turns a program stands still, but for threads
that read its input ahead.
"""

import json
import os
import socket
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

SOCKET = "LOCKSTEP_SOCKET"
GO = b"\n"
STARTS_IN_S, STEPS_IN_S = 300, 300
T = TypeVar("T")


@dataclass(frozen=True)
class Cost:
    """What one step took: seconds of the clock and of all the program's threads."""

    wall_s: float
    cpu_s: float
    scores: Mapping[str, float] = field(default_factory=dict)
    """That the program told with it, if it was an evaluation."""


class Turns:
    """A program's end: its steps wait for their turn. Without a comparison around it nothing waits."""

    def __init__(self) -> None:
        self._line: socket.socket | None = None
        if SOCKET in os.environ:
            self._line = socket.socket(socket.AF_UNIX)
            self._line.connect(os.environ[SOCKET])

    def take(self, step: Callable[[], T]) -> T:
        """What the step gives, once it was this program's turn."""
        self.begin()
        result = step()
        self.end()
        return result

    def begin(self) -> None:
        """Returns when it is this program's turn; ends the program when there are no more."""
        if self._line and not self._line.recv(1):
            os._exit(0)
        self._began = time.perf_counter(), time.process_time()

    def end(self, scores: Mapping[str, float] | None = None) -> None:
        """Tells what the step took, and what came of it."""
        wall_s, cpu_s = time.perf_counter() - self._began[0], time.process_time() - self._began[1]
        if self._line:
            self._line.sendall(json.dumps([wall_s, cpu_s, scores or {}]).encode() + b"\n")


class Side:
    """A program that takes turns: started, and ended when the `with` is left."""

    def __init__(self, words: Sequence[str], log: Path, environment: Mapping[str, str], cwd: Path) -> None:
        self._log = log
        with tempfile.TemporaryDirectory() as folder, socket.socket(socket.AF_UNIX) as door:
            door.bind(f"{folder}/turns")
            door.listen(1)
            door.settimeout(1)
            with log.open("wb") as out:
                self._process = subprocess.Popen(
                    words, cwd=cwd, env={**environment, SOCKET: f"{folder}/turns"}, stdout=out, stderr=out
                )
            self._line = self._accepted(door)
        self._line.settimeout(STEPS_IN_S)
        self._answers = self._line.makefile("rb")

    def __enter__(self) -> "Side":
        return self

    def __exit__(self, *_: object) -> None:
        self._answers.close()
        self._line.close()
        try:
            self._process.wait(timeout=20)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def step(self) -> Cost:
        """One step of the program. Raises SystemExit with the end of its log if it ended instead."""
        try:
            self._line.sendall(GO)
            answer = self._answers.readline()
        except TimeoutError:
            raise SystemExit(f"{self._log}: a step took over {STEPS_IN_S} s") from None
        except ConnectionError:
            answer = b""
        if not answer:
            raise SystemExit(f"{self._log}: ended\n{self._log.read_text(errors='replace')[-3000:]}")
        return Cost(*json.loads(answer))

    def peak_gb(self) -> float:
        """The most memory it has had."""
        status = Path(f"/proc/{self._process.pid}/status").read_text()
        return int(status.split("VmHWM:")[1].split()[0]) / 1e6

    def _accepted(self, door: socket.socket) -> socket.socket:
        deadline = time.monotonic() + STARTS_IN_S
        while time.monotonic() < deadline and self._process.poll() is None:
            try:
                return door.accept()[0]
            except TimeoutError:
                continue
        self._process.kill()
        raise SystemExit(f"{self._log}: took no turn\n{self._log.read_text(errors='replace')[-3000:]}")


def alternate(sides: Mapping[str, Side], warm_up: int, steps: int) -> dict[str, list[Cost]]:
    """What `steps` steps of each side took, in turn, after `warm_up` that do not count."""
    costs: dict[str, list[Cost]] = {name: [] for name in sides}
    for _ in range(warm_up + steps):
        for name, side in sides.items():
            costs[name].append(side.step())
    return {name: of_side[warm_up:] for name, of_side in costs.items()}


def medians(costs: Sequence[Cost]) -> Cost:
    """The step in the middle, by the clock and by the processor."""
    return Cost(statistics.median(c.wall_s for c in costs), statistics.median(c.cpu_s for c in costs))
