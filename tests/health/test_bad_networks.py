"""Networks that lose packets, or only large ones: found, and told from hosts that are dead."""

import json
import os
import subprocess
import sys
from typing import Any

import pytest

from cluster.health import routes
from cluster.health.onhost import peers
from cluster.health.verdict import Severity
from cluster.hosts import Host
from cluster.inventory import ROOT
from tests.conftest import PATIENCE_S

A, B, C = (Host(rank=n, address=f"10.0.0.{n + 1}", slots=1) for n in range(3))


def said(**again: int) -> dict[Host, str]:
    """What three hosts tell of their connections, `ab=2` of those from A to B."""
    by_letter = {"a": A, "b": B, "c": C}
    ways: dict[Host, dict[str, Any]] = {h: {} for h in (A, B, C)}
    for x in by_letter:
        for y in by_letter:
            if x != y:
                how = {"state": "answers", "why": "", "again": again.get(x + y, 0)}
                ways[by_letter[x]][by_letter[y].address] = how
    return {h: json.dumps(w) for h, w in ways.items()}


@pytest.mark.parametrize(
    ("again", "named"),
    [
        ({}, {}),
        ({"ab": 1}, {}),
        ({"ab": 1, "ca": 1}, {}),
        ({"ab": 2, "cb": 1}, {B: "10.0.0.1, 10.0.0.3"}),
        ({"ba": 2, "ac": 2}, {A: "10.0.0.2, 10.0.0.3"}),
        ({"bc": 5}, {C: "10.0.0.2"}),
    ],
)
def test_a_host_whose_packets_get_lost_is_watched(again: dict[str, int], named: dict[Host, str]) -> None:
    """Not one for a packet or two, and not those at the other ends."""
    found = routes.link_problems(said(**again))

    assert list(named) == list(found)
    for host, others in named.items():
        (problem,) = found[host]
        assert (Severity.WATCH, False) == (problem.verdict, problem.unfit)
        assert f"packets between it and {others} get lost" in problem.what


def test_what_the_kernel_sends_again_is_counted() -> None:
    """Nothing on this machine's own network."""
    told = peers.links(["127.0.0.1"], times=4)["127.0.0.1"]

    assert ("answers", 0) == (told["state"], told["again"])
    assert "again" not in peers.links(["127.0.0.1"])["127.0.0.1"]
    assert not peers.loses_large_frames("127.0.0.1")


TWO_HOSTS = """
ip link set lo up
unshare --net sleep 60 & there=$!
trap 'kill $there' EXIT
until [ "$(readlink /proc/$there/ns/net)" != "$(readlink /proc/self/ns/net)" ]; do sleep 0.05; done
on() { nsenter --net --target $there "$@"; }
ip link add near type veth peer name far && ip link set far netns $there
ip addr add 10.9.9.1/24 dev near && ip link set near up
on ip addr add 10.9.9.2/24 dev far && on ip link set far up && on ip link set lo up
ask() { "$python" -c "from cluster.health.onhost import peers; import json; print(json.dumps($1))"; }
"""


def asked(script: str) -> list[Any]:
    """What the readings say, in networks of two hosts that are made for this alone."""
    words = ["unshare", "--net", "bash", "-ec", f"{TWO_HOSTS}{script}"]
    done = subprocess.run(
        words,
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        env={**os.environ, "python": sys.executable},
    )
    assert 0 == done.returncode, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_a_hole_for_large_frames_is_told_from_a_host_that_is_away(lab_allowed: None) -> None:
    """Small packets get there, full-size ones do not, and nobody says so; a host that is away answers neither."""
    ask = "ask \"peers.loses_large_frames('10.9.9.2')\""

    assert [False, True, False] == asked(f"{ask}; on ip link set far mtu 1400; {ask}; on ip link set far down; {ask}")


def test_packets_that_get_lost_are_counted(lab_allowed: None) -> None:
    """Those of the connections' own beginning, which the kernel sends again after a second: no time is measured."""
    told = asked(
        "mac=$(on ip -o link show far | sed 's/.*ether \\([^ ]*\\).*/\\1/'); ip neigh replace 10.9.9.2 lladdr $mac dev near nud permanent\n"
        "on ip addr del 10.9.9.2/24 dev far; (sleep 0.5; on ip addr add 10.9.9.2/24 dev far) &\n"
        "ask \"peers.links(['10.9.9.2'], 30.0, 4)\""
    )

    assert "answers" == told[0]["10.9.9.2"]["state"]
    assert told[0]["10.9.9.2"]["again"] >= 4
