"""Which hosts are about to go, asked of the hosts themselves: no next attempt begins on one of them."""

import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from cluster.healing.departure import Departure, due
from cluster.healing.onhost.notice import FILE
from cluster.hosts import Host
from cluster.inventory import Cluster
from cluster.ssh.fanout import Reach
from cluster.ssh.limits import Limits


def leaving_hosts(hosts: Sequence[Host]) -> tuple[Departure, ...]:
    """The notices of those hosts that go within minutes; silence is another's care."""
    if not hosts:
        return ()
    with Reach(Cluster(name="hosts", hosts=tuple(hosts), folder=Path(), shared="", project="")) as reach:
        results = reach.run(hosts, f"cat {FILE} 2>/dev/null || true", limits=Limits(connect_s=3, total_s=5))
    notices = {h.address: _read(r.text) for h, r in results.items() if r.ok}
    return due(notices, time.time())


def _read(text: str) -> Any:
    """The notice, which is one line; a shell's start-up file may have printed others before it."""
    try:
        return json.loads(text.rpartition("\n")[2])
    except ValueError:
        return None
