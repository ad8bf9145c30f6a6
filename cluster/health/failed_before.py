"""Judge of the hosts' past: a host that failed twice in a week is left out of trainings until it is forgiven."""

import datetime
from collections.abc import Iterable

from cluster.health.compare import Found
from cluster.health.questions import Answers, value
from cluster.health.verdict import Problem, Severity
from cluster.hosts import Host
from cluster.recovery.host_failures import HostFailures, left_out, parse_memory

NAME = "failed-before"


def memory_of(masters: Answers) -> HostFailures:
    """Return the master's record of failed hosts, an empty one if the master gave no answer."""
    return parse_memory(value(masters.get("failures"), {}))


def failed_before(memory: HostFailures, hosts: Iterable[Host]) -> Found:
    """Return a problem for each host that failed too often, the worst first."""
    known = {h.address: h for h in hosts}
    out = left_out(memory.entries, datetime.datetime.now(datetime.UTC).timestamp())
    return {
        known[address]: [
            Problem(
                check=NAME,
                what=why,
                means="trainings leave it out",
                verdict=Severity.REPLACE,
                do="replace it, or once it is mended",
                command="inv hosts.forgive {addresses}",
                unfit=False,
            )
        ]
        for address, why in out.items()
        if address in known
    }
