"""A host whose Python prints garbage."""

from collections.abc import Iterator
from contextlib import contextmanager

from cluster.hosts import Host
from cluster.ssh.fanout import Executor


@contextmanager
def garbage_for_python(reach: Executor, host: Host) -> Iterator[None]:
    """Its Python says the same, whatever it is told."""
    python = "/usr/bin/python3"
    program = "#!/bin/sh\\nwhile read -r x; do echo garbage; done\\n"
    reach.run([host], f"mv {python} {python}.kept; printf '{program}' >{python}; chmod 755 {python}").check()
    try:
        yield
    finally:
        reach.run([host], f"mv {python}.kept {python}").check()
