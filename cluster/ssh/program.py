"""Programs of ours on hosts: the modules of an `onhost` package and arguments, sent over stdin.

Nothing of this project needs to be installed on the host. Only each host's own arguments are on a command line. A
program has a function `main`, which prints its answers in frames (`onhost/frame.py`). It uses the standard library only
and runs on Python 3.9. It may read what follows it on stdin.
"""

import dataclasses
import json
import marshal
import pkgutil
import re
import shlex
import zlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from importlib import import_module
from importlib.util import MAGIC_NUMBER, find_spec
from pathlib import Path
from typing import Any

from cluster.errors import ClusterError
from cluster.hosts import Host
from cluster.ssh import onhost
from cluster.ssh.failure import Failure, Reason
from cluster.ssh.fanout import Executor, FanoutProgress
from cluster.ssh.limits import Limits
from cluster.ssh.onhost.frame import Frames
from cluster.ssh.result import FanOut, Result

SYSTEM_PYTHON = "/usr/bin/python3"  # is on no shared folder, so nothing can keep it from starting
# Imports what it was given. A Python with the same code for its compiled modules takes them so, a third of their start.
_BOOT = """\
import sys
if sys.version_info<(3,9):sys.exit('Python 3.9 or newer is needed here, this is '+sys.version.split()[0])
import json,marshal,zlib,_frozen_importlib_external
try:given=marshal.loads(zlib.decompress(sys.stdin.buffer.read(int(sys.stdin.buffer.readline(12)))))
except Exception:sys.exit('the program did not arrive whole: does a start-up file of the shell here read its input?')
same=given['magic']==_frozen_importlib_external.MAGIC_NUMBER
class Given:
    def find_spec(name,path=None,target=None):
        if name in given['modules']:return type(sys.__spec__)(name,Given,is_package=True)
    def create_module(spec):return None
    def exec_module(module):
        name=module.__name__;source,compiled=given['modules'][name]
        exec(marshal.loads(compiled) if same else compile(source,name,'exec'),module.__dict__)
sys.meta_path.insert(0,Given)
sys.exit(__import__(sys.argv[1],fromlist=['main']).main(*given['arguments'],*json.loads(sys.argv[2])))"""
_FROM_ONHOST = re.compile(r"^from (cluster\.\w+\.onhost)\b", re.M)
_EVERY_PYTHON_READS = 2  # marshal's format of strings, numbers, lists and tables; only compiled code needs its own


class NoAnswer(ClusterError):
    """Error: a host's program failed, or its answer is not complete."""


@dataclass(frozen=True)
class HostProgram:
    """Program for hosts: what they read on stdin, and the shell command that runs it."""

    name: str
    stdin: bytes
    _module: str
    _python: str
    _is_isolated: bool

    def command(self, *own: Any) -> str:
        """Return the shell command for a host.

        own: the last arguments of `main`, as JSON accepts them. They must hold no secret.
        """
        flags = "-I -S " if self._is_isolated else ""
        words = shlex.join(["-c", _BOOT, self._module, json.dumps(own)])
        return f'p={shlex.quote(self._python)}; [ -x "$p" ] || p=python3; exec "$p" {flags}{words}'


def program(module: str, *arguments: Any, python: str = SYSTEM_PYTHON, is_isolated: bool = True) -> HostProgram:
    """Return the program that calls `main` of this module of an `onhost` package with these arguments.

    Args:
        arguments: values that JSON could hold, or bytes. They do not show in the list of processes.
        python: the interpreter. If it is missing, the first python3 on PATH is used.
        is_isolated: ignore site-packages and the environment's Python variables, which starts faster.
    """
    packages = _needed_by((onhost.__name__, module.rpartition(".")[0]))
    modules = {name: code for package in packages for name, code in _modules_of(package).items()}
    given = {"magic": MAGIC_NUMBER, "modules": modules, "arguments": arguments}
    body = zlib.compress(marshal.dumps(given, _EVERY_PYTHON_READS), 1)
    stdin = b"%d\n%b" % (len(body), body)
    return HostProgram(module.rpartition(".")[2], stdin, module, python, is_isolated)


def ask(
    reach: Executor,
    hosts: Iterable[Host],
    asked: HostProgram,
    own: Callable[[Host], Sequence[Any]] = lambda host: (),
    *,
    environment: dict[str, str] | None = None,
    limits: Limits = Limits(),
    sudo: bool = False,
    on_progress: Callable[[FanoutProgress], None] | None = None,
) -> tuple[FanOut, dict[Host, Any]]:
    """Run the program on hosts. Return every host's result, and the answers of the hosts that sent one.

    A host without a complete answer has failed. own: returns a host's own arguments, which follow those for all hosts.
    """
    results = reach.run(
        hosts,
        lambda host: asked.command(*own(host)),
        stdin=asked.stdin,
        environment=environment,
        limits=limits,
        sudo=sudo,
        on_progress=on_progress,
    )
    answers, checked = {}, dict(results)
    for host, result in results.items():
        if result.ok:
            try:
                answers[host] = answer_of(result)
            except NoAnswer as e:
                failure = Failure(reason=Reason.NO_ANSWER, detail=str(e))
                checked[host] = dataclasses.replace(result, exit_code=None, failure=failure)
    return FanOut(asked.name, checked), answers


def answer_of(result: Result) -> Any:
    """Return the last answer that a program sent in a frame. Raises NoAnswer if it failed or sent none."""
    if not result.ok:
        raise NoAnswer(result.problem)
    frames = Frames()
    said = frames.feed(result.whole_stdout)
    if not said or frames.is_cut:
        raise NoAnswer("its answer did not arrive whole" if frames.is_cut else "it ended without an answer")
    return said[-1]


@lru_cache
def _needed_by(packages: tuple[str, ...]) -> tuple[str, ...]:
    """Return these packages, and the other `onhost` packages that their modules import from."""
    sources = "".join(source for package in packages for source, _ in _modules_of(package).values())
    others = {*_FROM_ONHOST.findall(sources)} - {*packages}
    return _needed_by((*packages, *sorted(others))) if others else packages


@lru_cache
def _modules_of(package: str) -> dict[str, tuple[str, bytes]]:
    """Return a package, its parents and its modules by name: source, and the code as this Python compiles it."""
    parts = package.split(".")
    above = {".".join(parts[: n + 1]): ("", marshal.dumps(compile("", "", "exec"))) for n in range(len(parts))}
    names = (f"{package}.{found.name}" for found in pkgutil.iter_modules(import_module(package).__path__))
    return {**above, **{name: _module(name) for name in names}}


def _module(name: str) -> tuple[str, bytes]:
    """Return a module's source, and its code as this Python compiles it."""
    found = find_spec(name)
    assert found and found.origin
    return Path(found.origin).read_text(), marshal.dumps(found.loader.get_code(name))  # type: ignore[union-attr]
