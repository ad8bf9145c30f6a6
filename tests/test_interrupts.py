"""Ctrl-C while the command line only starts."""

import subprocess
import sys

import pytest

from cluster.inventory import ROOT

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
    return subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=300)


@pytest.mark.parametrize("command", _START)
@pytest.mark.parametrize("module", ["dlami.collection", "cluster.commandline.jobs", "dlami.output"])
def test_ctrl_c_at_the_start_is_a_word_and_no_traceback(command: str, module: str) -> None:
    """While the tasks are imported."""
    done = _listed(command, module)

    assert (130, "", "interrupted\n") == (done.returncode, done.stdout, done.stderr)


def test_where_ctrl_c_is_ignored_it_stays_so() -> None:
    """As for what a shell has started in the background."""
    done = _listed("inv", "dlami.collection", before="signal.SIG_IGN")

    assert 0 == done.returncode, done.stderr
    assert "jobs.list" in done.stdout
