"""`inv top` on a lab's hosts: faults while one looks, what hosts answer, and a terminal with its keys."""

import fcntl
import json
import os
import pty
import re
import select
import shlex
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from cluster.hosts import Host
from cluster.inventory import ROOT, Cluster
from cluster.ssh import connections
from cluster.ssh.fanout import Executor
from cluster.ssh.options import way_to
from lab import lab as labs
from lab.record import Lab
from tests.cluster.garbage import garbage_for_python
from tests.conftest import PATIENCE_S, Inv, wait_for

LONG_S = PATIENCE_S  # for anything; a busy machine is slow
GPU = (Path(__file__).parents[1] / "recorded/gpu-now/p4d.24xlarge-535.183.01-training.csv").read_text()


def command_line(*words: str) -> list[str]:
    return [sys.executable, "-m", "invoke", "top", *words]


def environment(lab: Lab) -> dict[str, str]:
    """With the size of another terminal, as a shell that exports it leaves it behind."""
    stale = {"COLUMNS": "200", "LINES": "70"}
    return {**os.environ, **stale, "CLUSTER": f"lab:{lab.name}", "TERM": "xterm-256color", "NO_COLOR": "1"}


class Frames:
    """Frames as JSON, from an `inv top` that goes on."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self._process = process

    def next(self) -> dict[str, Any]:
        assert self._process.stdout
        line = self._process.stdout.readline()
        assert line, "it has ended"
        return dict(json.loads(line))

    def until(self, what: str, is_so: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        """The first frame of which this holds."""
        deadline = time.monotonic() + LONG_S
        frame: dict[str, Any] = {}
        while time.monotonic() < deadline:
            if is_so(frame := self.next()):
                return frame
        raise AssertionError(f"not within {LONG_S:g} s: {what}; last seen: {frame}")

    def answers_of(self, rank: int, number: int) -> list[dict[str, Any]]:
        """The next frames in which this host has said something new, however busy the machine is."""
        found: list[dict[str, Any]] = []
        known = [None, self.next()["hosts"][rank]["rates"]]
        while len(found) < number:
            found.append(self.until("it answers", lambda f: f["hosts"][rank]["rates"] not in known))
            known.append(found[-1]["hosts"][rank]["rates"])
        return found


def sights(frame: dict[str, Any]) -> list[str]:
    return [h["sight"] for h in frame["hosts"]]


@contextmanager
def frames(lab: Lab) -> Iterator[Frames]:
    """Frames every half second."""
    process = subprocess.Popen(
        command_line("--json", "--watch", "0.5"), cwd=ROOT, stdout=subprocess.PIPE, text=True, env=environment(lab)
    )
    try:
        yield Frames(process)
        process.send_signal(signal.SIGINT)
        assert 0 == process.wait(LONG_S), "Ctrl-C is how one leaves it"
    finally:
        process.kill()
        process.wait()


def programs_left(reach: Executor, cluster: Cluster) -> list[str]:
    """Hosts on which our program still runs; the shell that looks has its name in two parts."""
    look = (
        "for p in /proc/[0-9]*; do tr '\\0' ' ' <$p/cmdline 2>/dev/null; echo; done | grep -c 'cluster[.]top[.]onhost'"
    )
    found = reach.run(cluster.hosts, look + "; true")
    return [h.address for h, r in found.items() if r.stdout.strip() != b"0"]


def test_faults_while_one_looks(lab: Lab, cluster: Cluster, reach: Executor) -> None:
    """A slow host is marked within two frames, a lost connection is made again, a dead host holds up nobody."""
    with frames(lab) as shown:
        shown.until("all are seen", lambda f: sights(f) == ["seen"] * 4 and all(h["rates"] for h in f["hosts"]))

        with traffic(cluster.hosts[2], cluster.hosts[0], reach):
            labs.slow(lab, lab.hosts[2], mbit=4, delay_ms=None)
            two = shown.answers_of(2, 2)
            labs.heal(lab, [lab.hosts[2]])
        assert {2} == {h["rank"] for f in two for h in f["hosts"] for o in h["odd"] if o["what"] == "ping"}
        shown.until("it is like the others again", lambda f: "ping" not in {o["what"] for o in f["hosts"][2]["odd"]})

        connections.disconnect([way_to(cluster.hosts[1], cluster.access)])
        lost = shown.until("its connection is lost", lambda f: sights(f)[1] == "gone")
        assert "the connection was lost" == lost["hosts"][1]["why"]
        shown.until("it is made again", lambda f: sights(f)[1] == "seen")

        labs.crash(lab, lab.hosts[3])
        for _ in range(3):
            shown.until(
                "it is not seen, the others are",
                lambda f: sights(f) in (["seen"] * 3 + [s] for s in ("silent", "gone")),
            )
        labs.heal(lab, [lab.hosts[3]])
        shown.until("it is back", lambda f: sights(f)[3] == "seen")
    wait_for(lambda: not programs_left(reach, cluster), LONG_S, "no program of ours is left on a host")


@pytest.mark.promise("top")
def test_what_hosts_answer_is_shown_or_said(lab: Lab, cluster: Cluster, reach: Executor, inv: Inv) -> None:
    """GPUs as nvidia-smi tells them; a host that answers with garbage is said to, and no other suffers."""
    tool = f"#!/bin/sh\nwhile :; do cat <<E\n{GPU}E\nsleep 1; done\n"
    hosts = cluster.hosts
    reach.run([hosts[1]], "cat >/usr/local/bin/nvidia-smi; chmod 755 /usr/local/bin/nvidia-smi", stdin=tool.encode())
    busy = "(exec sh -c 'while :; do :; done') >/dev/null 2>&1 & echo $! >/tmp/busy"
    reach.run([hosts[0]], busy).check()
    try:
        with garbage_for_python(reach, hosts[2]):
            done = inv("top", "--once", "--json")
        table = inv("top", "--once", "--hosts", "0,1")
    finally:
        reach.run([hosts[0]], "kill $(cat /tmp/busy); rm /tmp/busy")
        reach.run([hosts[1]], "rm /usr/local/bin/nvidia-smi")
    seen = json.loads(done.stdout)["hosts"]

    assert (1, "") == (done.returncode, done.stderr)
    assert ["seen", "seen", "nonsense", "seen"] == [h["sight"] for h in seen]
    assert "what it says is no answer: garbage" in seen[2]["why"]
    assert [0.12, 83] == [seen[1]["gpus"][4][name] for name in ("use", "celsius")]
    assert 0.5 / (os.cpu_count() or 1) < seen[0]["rates"]["cpu"] <= 1, "of all cores, one is busy at least"
    assert (0, "") == (table.returncode, table.stderr)
    assert "GPU%" in table.stdout
    assert "\x1b" not in table.stdout


@contextmanager
def traffic(sender: Host, receiver: Host, reach: Executor) -> Iterator[None]:
    """As in a training: more than a slow link takes, 2 MB/s, for as long as it lasts."""
    code = "import socket,sys,time\ns=socket.socket(2,2)\nend=time.time()+600\nwhile time.time()<end:\n"
    code += "    s.sendto(bytes(1400),(sys.argv[1],9)); time.sleep(0.0007)"
    command = shlex.join(["python3", "-c", code, receiver.address])
    reach.run([sender], f"{command} >/dev/null 2>&1 & echo $! >/tmp/traffic", run_id=None).check()
    try:
        yield
    finally:
        reach.run([sender], "kill $(cat /tmp/traffic); rm /tmp/traffic")


class Terminal:
    """A terminal on which `inv top` runs."""

    def __init__(self, lab: Lab, columns: int, rows: int) -> None:
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            os.chdir(ROOT)
            os.execve(sys.executable, command_line(), environment(lab))
        self.resize(columns, rows)

    def resize(self, columns: int, rows: int) -> None:
        fcntl.ioctl(self.fd, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def press(self, keys: str) -> None:
        os.write(self.fd, keys.encode())

    def screen(self) -> str:
        """What comes until nothing has come for a moment."""
        said = b""
        while select.select([self.fd], [], [], 0.2)[0]:
            try:
                data = os.read(self.fd, 65536)
            except OSError:  # it has ended
                break
            if not data:
                break
            said += data
        return said.decode(errors="replace")

    def wait_for(self, what: str) -> str:
        deadline = time.monotonic() + LONG_S
        said = ""
        while what not in said:
            assert time.monotonic() < deadline, f"{what!r} is not on the screen: {said[-2000:]!r}"
            said += self.screen()
        return said

    def picture_of(self, columns: int) -> list[str]:
        """The first picture with its table's head that is no wider than this."""
        deadline = time.monotonic() + LONG_S
        said = ""
        while time.monotonic() < deadline:
            said += self.screen()
            for lines in pictures(said):
                if max(map(len, lines)) <= columns and "HOST" in "".join(lines):
                    return lines
        raise AssertionError(f"no picture of {columns} columns: {said[-2000:]!r}")

    def end(self) -> int:
        ended, status = 0, 0
        deadline = time.monotonic() + LONG_S
        while not ended and time.monotonic() < deadline:
            self.screen()
            ended, status = os.waitpid(self.pid, os.WNOHANG)
        os.close(self.fd)
        if not ended:
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
        return os.waitstatus_to_exitcode(status) if ended else -1


def pictures(said: str) -> list[list[str]]:
    """The lines of each picture that was drawn from its beginning to its end."""
    whole = re.findall(r"\x1b\[H((?:(?!\x1b\[H).)*?)\x1b\[J", said, re.DOTALL)
    return [re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", one).split("\r\n") for one in whole]


def test_a_terminal_that_is_resized_and_its_keys(lab: Lab) -> None:
    """Another size or order is drawn at once; q leaves the terminal as it was."""
    terminal = Terminal(lab, 150, 30)
    try:
        first = terminal.wait_for("q quit")
        assert "\x1b[?1049h" in first
        terminal.press("c")
        terminal.wait_for("by cpu")
        terminal.resize(60, 12)
        small = terminal.picture_of(60)
        assert len(small) <= 12
        assert "READ/s" not in "".join(small)
        terminal.press("q")
        last = terminal.wait_for("\x1b[?1049l")
        assert "\x1b[?25h" in last
        assert "Traceback" not in last
    finally:
        code = terminal.end()
    assert 0 == code


@pytest.mark.parametrize(
    ("words", "text"), [(["--watch", "0.1"], "every 0.5 s at most"), (["--sort", "height"], "host, odd, cpu")]
)
def test_what_cannot_be_shown_is_refused(inv: Inv, words: Any, text: Any) -> None:
    """Before anybody is asked."""
    done = inv("top", *words)

    assert 2 == done.returncode
    assert text in done.stderr
