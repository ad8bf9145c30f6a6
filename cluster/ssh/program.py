"""The relay as one stream of bytes that any python3 can run: modules and instructions, nothing on a command line."""

import marshal
import shlex
import sys
import zlib
from importlib.util import find_spec
from pathlib import Path
from typing import Any

_MODULES = (
    "cluster",
    "cluster.copying",
    "cluster.copying.onhost",
    *(f"cluster.copying.onhost.{name}" for name in ("tree", "parts", "store", "wire", "relay")),
)
# Reads modules and instructions; stands for `import cluster.copying.onhost.relay` on a host without us. The very same
# build of Python takes the modules compiled, which is a third of its start.
_BOOT = """\
import sys,marshal,types,zlib
given=marshal.loads(zlib.decompress(sys.stdin.buffer.read()))
def module(name,source,compiled):
    made=types.ModuleType(name);made.__path__=[];sys.modules[name]=made
    parent,_,own=name.rpartition('.')
    if parent:setattr(sys.modules[parent],own,made)
    same=given['python']==sys.version
    exec(marshal.loads(compiled) if same else compile(source,name,'exec'),made.__dict__)
    return made
for words in given['modules']:last=module(*words)
last.main(given['spec'],int(sys.argv[1]))"""
_EVERY_PYTHON_READS = 2  # marshal's format of strings, numbers, lists and tables; only compiled code needs its own


def command(python: str, me: int) -> str:
    """The shell command that runs the program it is given on stdin, as the chain's host number `me`."""
    return f"p={shlex.quote(python)}; [ -x $p ] || p=python3; exec $p -I -S -c {shlex.quote(_BOOT)} {me}"


def program(spec: dict[str, Any]) -> bytes:
    """The program and its instructions, the transfer's secret among them."""
    given = {"python": sys.version, "modules": [_module(name) for name in _MODULES], "spec": spec}
    return zlib.compress(marshal.dumps(given, _EVERY_PYTHON_READS), 1)


def _module(name: str) -> tuple[str, str, bytes]:
    """Its name, its source, and its compiled code as this Python keeps it."""
    found = find_spec(name)
    assert found and found.origin
    return name, Path(found.origin).read_text(), marshal.dumps(found.loader.get_code(name))  # type: ignore[union-attr]
