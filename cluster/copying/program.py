"""The relay as one stream of bytes that any python3 can run: modules and instructions, nothing on a command line."""

import base64
import importlib.util
import json
import marshal
import shlex
from pathlib import Path
from typing import Any

_MODULES = ("tree", "parts", "store", "wire", "relay")
# Reads modules and instructions; stands for `import cluster.copying.relay` on a host without us. A host whose Python is
# the sender's takes the modules compiled, which is a third of its start.
_BOOT = """\
import sys,json,types,marshal,binascii
given=json.loads(sys.stdin.buffer.read())
same=given['magic']==sys.modules['_frozen_importlib_external'].MAGIC_NUMBER.hex()
def module(name,source,compiled):
    made=types.ModuleType(name);made.__path__=[];sys.modules[name]=made
    parent,_,own=name.rpartition('.')
    if parent:setattr(sys.modules[parent],own,made)
    exec(marshal.loads(binascii.a2b_base64(compiled)) if same else compile(source,name,'exec'),made.__dict__)
    return made
for one in given['modules']:last=module(*one)
last.main(given['spec'],int(sys.argv[1]))"""


def command(python: str, me: int) -> str:
    """The shell command that runs the program it is given on stdin, as the chain's host number `me`."""
    return f"p={shlex.quote(python)}; [ -x $p ] || p=python3; exec $p -I -S -c {shlex.quote(_BOOT)} {me}"


def program(spec: dict[str, Any]) -> bytes:
    """The program and its instructions, the transfer's secret among them."""
    folder = Path(__file__).parent
    sources = {"cluster": "", "cluster.copying": "",
               **{f"cluster.copying.{name}": (folder / f"{name}.py").read_text() for name in _MODULES}}
    modules = [(name, source, base64.b64encode(marshal.dumps(compile(source, name, "exec"))).decode())
               for name, source in sources.items()]
    return json.dumps({"magic": importlib.util.MAGIC_NUMBER.hex(), "modules": modules, "spec": spec}).encode()
