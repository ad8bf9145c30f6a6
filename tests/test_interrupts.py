"""Ctrl-C while the command line only starts."""

import signal
import subprocess
import sys

import pytest

from cluster.inventory import ROOT
from tests.conftest import PATIENCE_S

# An import hook stands for the person: Ctrl-C comes when this module is about to be imported.
_INTERRUPTED = """
import importlib.abc, os, signal, sys
class Person(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name == {module!r}:
            sys.meta_path.remove(self)
            os.kill(os.getpid(), signal.SIGINT)
signal.signal(signal.SIGINT, {before})
sys.meta_path.insert(0, Person())
sys.argv = [{command!r}, "--list"]
{start}
"""
_START = {
    "inv": "from invoke.main import program; sys.exit(program.run())",
    "dlami": "from dlami.program import main; sys.exit(main())",
}


def _listed(command: str, module: str, before: str = "signal.default_int_handler") -> subprocess.CompletedProcess[str]:
    code = _INTERRUPTED.format(module=module, before=before, command=command, start=_START[command])
    return subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE_S)


@pytest.mark.parametrize("command", _START)
@pytest.mark.parametrize("module", ["dlami.collection", "dlami.tasks.jobs", "dlami.output"])
def test_ctrl_c_at_the_start_is_a_word_and_no_traceback(command: str, module: str) -> None:
    """While the tasks are imported."""
    done = _listed(command, module)

    assert (130, "", "interrupted\n") == (done.returncode, done.stdout, done.stderr)


def test_where_ctrl_c_is_ignored_it_stays_so() -> None:
    """As for what a shell has started in the background."""
    done = _listed("inv", "dlami.collection", before="signal.SIG_IGN")

    assert 0 == done.returncode, done.stderr
    assert "jobs.list" in done.stdout


_TASK = """
import os, signal, sys
from invoke import Context
from dlami.tasks.command import command
signal.signal({number}, {before})
@command
def one(c):
    os.kill(os.getpid(), {number})
    print("went on")
one(Context())
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_task_is_ended_by_what_it_was_not_told_to_ignore(number: signal.Signals) -> None:
    """`nohup inv eks.create` goes on when its terminal is closed, and so does a deletion that nothing shall stop."""

    def ended(before: str) -> str:
        code = _TASK.format(number=int(number), before=before)
        return subprocess.run(
            [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE_S
        ).stdout

    assert ("", "went on\n") == (ended("signal.SIG_DFL"), ended("signal.SIG_IGN"))


_PUT_OFF = """
import os, signal
from cluster.interrupts import put_off
signal.signal(signal.{name}, signal.{before})
with put_off("wait"):
    os.kill(os.getpid(), signal.{name})
    print("done", flush=True)
print("after")
"""


@pytest.mark.parametrize(
    ("name", "before", "code", "said"),
    [
        ("SIGINT", "default_int_handler", -signal.SIGINT, "done\n"),
        ("SIGTERM", "SIG_DFL", -signal.SIGTERM, "done\n"),
        ("SIGHUP", "SIG_IGN", 0, "done\nafter\n"),
    ],
)
def test_a_signal_that_is_put_off_is_what_it_would_have_been(name: str, before: str, code: int, said: str) -> None:
    """After what must not be left in its middle; one that is ignored stays so, and nobody is told to wait."""
    program = _PUT_OFF.format(name=name, before=before)
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE_S)

    assert (code, said) == (done.returncode, done.stdout)
    assert (before != "SIG_IGN") == done.stderr.startswith("wait\n")
