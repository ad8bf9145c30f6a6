"""Query for preemption notices, sent to the hosts themselves. No attempt starts on a host that is about to go."""

import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from cluster.hosts import Host
from cluster.inventory import Cluster
from cluster.recovery.onhost.notice import FILE
from cluster.recovery.preemption import PreemptionNotice, due
from cluster.ssh.fanout import Executor
from cluster.ssh.limits import Limits


def leaving_hosts(hosts: Sequence[Host]) -> tuple[PreemptionNotice, ...]:
    """Return the notices of hosts that go within minutes. Unreachable hosts are ignored here."""
    if not hosts:
        return ()
    with Executor(Cluster(name="hosts", hosts=tuple(hosts), folder=Path(), shared="", project="")) as reach:
        results = reach.run(hosts, f"cat {FILE} 2>/dev/null || true", limits=Limits(connect_s=3, total_s=5))
    notices = {h.address: _read(r.text) for h, r in results.items() if r.ok}
    return due(notices, time.time())


def _read(text: str) -> Any:
    """Return the notice in the last line. A shell's start-up file may have printed other lines before it."""
    try:
        return json.loads(text.rpartition("\n")[2])
    except ValueError:
        return None
