"""Folders that other accounts of this machine may enter."""

import shlex
import stat
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from cluster.inventory import ROOT, Cluster
from cluster.ssh.fanout import Executor

ACCOUNT = """\
useradd --create-home --shell /bin/bash {0} && usermod -p '*' {0} && install -d -m 700 -o {0} ~{0}/.ssh &&
install -m 600 -o {0} ~root/.ssh/authorized_keys ~{0}/.ssh/"""


def closed_folders() -> list[str]:
    """Those above the project and its interpreter that other users may not pass, as root's home is."""
    parents = {p for path in (ROOT, Path(sys.executable).resolve()) for p in path.parents}
    return [shlex.quote(str(p)) for p in sorted(parents) if not p.stat().st_mode & stat.S_IXOTH]


@contextmanager
def opened_to_all(reach: Executor, cluster: Cluster) -> Iterator[None]:
    """While it lasts the master lets everybody pass to the project, as a cluster's does."""
    folders = " ".join(closed_folders())
    if not folders:
        yield
        return
    reach.run([cluster.master], f"chmod o+x {folders}").check()
    try:
        yield
    finally:
        reach.run([cluster.master], f"chmod o-x {folders}")
