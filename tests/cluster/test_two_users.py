"""Pages of two people with accounts of their own on the master: neither reaches the other's, and nothing is left."""

import dataclasses
import shlex
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from cluster.errors import ConfigError
from cluster.inventory import ROOT, Cluster
from cluster.ssh import connections
from cluster.ssh.fanout import Executor
from cluster.ssh.options import way_to
from cluster.tunnels import jupyter_packages
from cluster.tunnels.client import Services
from cluster.tunnels.service import Service, ServiceRequest
from tests.cluster.other_accounts import ACCOUNT, opened_to_all
from tests.cluster.pages import listening

PEOPLE = ("dlami-ann", "dlami-bob")
STATUS = """\
import sys, urllib.request, urllib.error
try: print(urllib.request.urlopen(f"http://127.0.0.1:{sys.argv[1]}{sys.stdin.read()}", timeout=300).status)
except urllib.error.HTTPError as e: print(e.code)"""
ALL_THAT_CAN_BE_READ = (
    "cat /proc/*/cmdline /proc/*/environ /var/tmp/dlami-tunnels-*/*/* 2>/dev/null | tr '\\0' '\\n'; true"
)


@pytest.fixture
def people(cluster: Cluster, reach: Executor) -> Iterator[list[tuple[Executor, Cluster]]]:
    """Two people with accounts on the master: their connections, and the cluster as each of them has it."""
    master = cluster.master
    seats = [dataclasses.replace(cluster, access=dataclasses.replace(cluster.access, user=name)) for name in PEOPLE]
    with opened_to_all(reach, cluster):
        try:
            reach.run([master], " && ".join(ACCOUNT.format(name) for name in PEOPLE)).check()
            with ExitStack() as stack:
                yield [(stack.enter_context(Executor(seat)), seat) for seat in seats]
        finally:
            connections.disconnect([way_to(master, seat.access) for seat in seats])
            gone = "; ".join(f"pkill -KILL -u {name}; userdel --remove --force {name}" for name in PEOPLE)
            reach.run([master], f"{gone}; rm -rf /var/tmp/dlami-tunnels-[1-9]*")


def secret_of(page: Service) -> str:
    """The part of its address that nobody can guess."""
    return page.path.partition("token=")[2] or page.path.strip("/")


def asked(reach: Executor, seat: Cluster, port: int, path: str) -> int:
    """The status with which the master's port answers this person, from his own account there."""
    ask = shlex.join([seat.python, "-c", STATUS, str(port)])
    return int(reach.run([seat.master], ask, stdin=path.encode()).check()[seat.master].text)


def numbers(page: Service) -> str:
    """What only who knows the secret gets."""
    return f"{page.path}data/runs" if page.kind == "tensorboard" else f"/api/contents?token={secret_of(page)}"


def have_jupyter(people: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both have JupyterLab as `inv jupyter` would install it for each; it is installed once for tests."""
    monkeypatch.setenv("XDG_DATA_HOME", str(ROOT / ".jupyter"))
    installed = jupyter_packages.python()
    if installed is None:
        pytest.skip("JupyterLab is not installed: 'make jupyter' gets it from the package index (210 MB)")
    folder = shlex.quote(str(installed.parent.parent))
    for reach, seat in people:
        link = f"mkdir -p ~/.local/share/dlami && ln -s {folder} ~/.local/share/dlami/"
        reach.run([seat.master], link).check()


@pytest.mark.parametrize("kind", ["tensorboard", pytest.param("jupyter", marks=pytest.mark.long)])
def test_neither_of_two_people_reaches_the_other_s_page(
    kind: str, people: Any, cluster: Cluster, reach: Executor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not by his secret on the other's port, not by looking for it; each sees and ends his own alone.

    On no host anything listens but on loopback, and of both nothing is left.
    """
    if kind == "jupyter":
        have_jupyter(people, monkeypatch)
    before = listening(reach, cluster)
    services = [Services(theirs, seat) for theirs, seat in people]
    pages = [one.start(ServiceRequest(kind=kind, shared=cluster.shared, job="all")) for one in services]

    added = {a for h, found in listening(reach, cluster).items() for a in found - before[h]}
    assert {f"127.0.0.1:{page.port}" for page in pages} <= added
    assert all(address.startswith("127.0.0.1:") for address in added)
    for n, (theirs, seat) in enumerate(people):
        own, other = pages[n], pages[1 - n]
        assert [own.id] == [one.id for one in services[n].list()]
        assert 200 == asked(theirs, seat, own.port, numbers(own))
        assert asked(theirs, seat, other.port, numbers(own)) in (403, 404)
        assert asked(theirs, seat, other.port, "/") in (302, 403, 404, 200)  # Jupyter's way to its login is for all
        read = theirs.run([seat.master], ALL_THAT_CAN_BE_READ).check()[seat.master].text
        assert (True, False) == (secret_of(own) in read, secret_of(other) in read)
        with pytest.raises(ConfigError, match="of yours here"):
            services[n].end(other.id)

    assert (pages[0].id,) == services[0].end()
    assert 200 == asked(*people[1], port=pages[1].port, path=numbers(pages[1]))
    assert (pages[1].id,) == services[1].end()
    assert not any(now - before[host] for host, now in listening(reach, cluster).items())
    left = "find /var/tmp/dlami-tunnels-[1-9]* -mindepth 1; ps -eo args | grep '[c]luster.tunnels\\|[j]upyterlab'; true"
    assert "" == reach.run([cluster.master], left)[cluster.master].text
