"""The relay as one stream of bytes that any python3 can run: modules and instructions, nothing on a command line."""

import json
import shlex
from pathlib import Path
from typing import Any

_MODULES = ("tree", "parts", "store", "wire", "relay")
# Reads modules and instructions; stands for `import cluster.copying.relay` on a host without us.
_BOOT = """\
import sys,json,types
given=json.loads(sys.stdin.buffer.read())
def module(name,source):
    made=types.ModuleType(name);made.__path__=[];sys.modules[name]=made
    parent,_,own=name.rpartition('.')
    if parent:setattr(sys.modules[parent],own,made)
    exec(compile(source,name,'exec'),made.__dict__)
    return made
for name,source in given['modules']:last=module(name,source)
last.main(given['spec'],int(sys.argv[1]))"""


def command(python: str, me: int) -> str:
    """The shell command that runs the program it is given on stdin, as the chain's host number `me`."""
    return f"p={shlex.quote(python)}; [ -x $p ] || p=python3; exec $p -I -S -c {shlex.quote(_BOOT)} {me}"


def program(spec: dict[str, Any]) -> bytes:
    """The program and its instructions, the transfer's secret among them."""
    folder = Path(__file__).parent
    modules = [("cluster", ""), ("cluster.copying", ""),
               *((f"cluster.copying.{name}", (folder / f"{name}.py").read_text()) for name in _MODULES)]
    return json.dumps({"modules": modules, "spec": spec}).encode()
