"""The guard on lab hosts that really boot: put off from first boot on, and the end comes whatever befalls the master."""

import datetime
import subprocess
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from ipaddress import IPv4Network
from pathlib import Path

import pytest

from cfn import cost, create, guard_deadline, plan
from cfn.aws import Aws
from cluster.clusterfile import text
from dlami.fake_aws import cluster_values
from lab.aws.driver import LabDriver
from tests.cfn.guard_faults import CLOCK, FAULTS, HOUR_S, One, fake, forward, late
from tests.conftest import PATIENCE_S, wait_for

IDLE_MINUTES, USD_PER_HOUR = 90, 6.0
SAVED = datetime.timedelta(minutes=4)  # before the end, when jobs have been told to save and leave
STEP = datetime.timedelta(minutes=15)  # of AWS's time from one look to the next, where the test is the timer
SECOND = datetime.timedelta(seconds=1)


@pytest.fixture
def clusters(driver: LabDriver, tmp_path: Path) -> Iterator[dict[str, One]]:
    """One for each fault, beside each other in the lab's network, ready; one has booted without the project."""
    found = {}
    for fault, part in zip(FAULTS, IPv4Network(driver.lab.network).subnets(prefixlen_diff=4), strict=False):
        public, private = part.subnets(prefixlen_diff=1)
        own = {"network.cidr": str(part), "network.public_cidr": str(public), "network.private_cidr": str(private)}
        limits = {"guard.idle_minutes": IDLE_MINUTES, "nodes.usd_per_hour": USD_PER_HOUR, "nodes.workers": 0}
        own |= {"project": "/opt/late"} if fault is late else {}
        name = fault.__name__.replace("_", "-")
        folder = tmp_path / name
        folder.mkdir()
        path = folder / "cluster.toml"
        four = {"nodes.instance_type": "g5.12xlarge"}  # four slots
        path.write_text(text.render({**cluster_values(driver.lab), **four, **own, **limits, "name": name}))
        found[name] = One(driver, folder, text.read(path))
    account = Aws("us-east-1")

    def make(one: One) -> None:
        create.create(account, plan.make(account, one.file), lambda _: None)

    with ThreadPoolExecutor(len(found)) as pool:
        list(pool.map(make, found.values()))
    yield found
    for session in [s for one in found.values() for s in one.sessions]:
        session.kill()
        session.wait()


@pytest.fixture
def clock(driver: LabDriver, tmp_path: Path) -> None:
    """The library by which a program on a host has a clock of its own, where all hosts see it."""
    (tmp_path / "clock.c").write_text(CLOCK)
    words = ["gcc", "-shared", "-fPIC", "-o", str(driver.lab.shared / "clock.so"), str(tmp_path / "clock.c"), "-ldl"]
    subprocess.run(words, check=True, timeout=PATIENCE_S)


def comes_later(one: One) -> None:
    """The project, with its guard: until then the cluster has a day."""
    left = one.end - forward(one.driver)
    assert datetime.timedelta(hours=23) < left <= datetime.timedelta(hours=24)
    one.inv("hosts.write", "--file", str(one.folder / "cluster.toml"))
    assert "; its services: started" in one.inv("sync")
    assert "nothing changed, all there\n" in one.inv("sync"), "they are there now"


def ends(account: Aws, clusters: Iterable[One]) -> list[datetime.datetime]:
    """Those that AWS has still to execute."""
    return [end for one in clusters for end in guard_deadline.ends(account, one.file).values()]


def left(account: Aws, clusters: dict[str, One]) -> list[One]:
    """Those whose end has not come. AWS's clock goes on while one is waited for, and the next may be due."""
    return [one for one in clusters.values() if not guard_deadline.is_at_zero(account, one.file)]


def pass_hours(driver: LabDriver, account: Aws, clusters: dict[str, One], until: datetime.datetime) -> None:
    """AWS's clock goes on to there, and each end is executed in its minute.

    Every guard that can looks in each of its quarters of an hour, and once more when its own jobs are to save.
    """
    then = forward(driver)
    round_at = then + STEP
    while (now := forward(driver)) < until:
        before = [e - SAVED for e in ends(account, clusters.values()) if e - SAVED > then]
        at = min([round_at, until, *before, *(e + SECOND for e in ends(account, clusters.values()))])
        now = forward(driver, max(1.0, (at - now).total_seconds()))
        wait_for(lambda now=now: all(e > now for e in ends(account, clusters.values())), 60, "AWS executes what is due")
        wait_for(lambda: len(driver.hosts) == len(left(account, clusters)), 120, "whose end has come is gone")
        awake = [one for one in left(account, clusters) if one.timer]
        is_round = now >= round_at
        all_look(
            driver, [one for one in awake if is_round or any(then < e - SAVED <= now for e in ends(account, [one]))]
        )
        then, round_at = now, now + STEP if is_round else round_at


def all_look(driver: LabDriver, clusters: list[One]) -> None:
    """AWS refuses what a wrong clock has signed meanwhile."""

    def look(one: One) -> None:
        one.host_has_looked()
        one.look()

    fake(driver, "settings", {"strict_time": True})
    with ThreadPoolExecutor(len(FAULTS)) as pool:
        list(pool.map(look, clusters))
    fake(driver, "settings", {"strict_time": False})


def test_a_forgotten_cluster_ends_in_time_whatever_befalls_its_master(
    driver: LabDriver, clusters: dict[str, One], clock: None, account: Aws
) -> None:
    """Its guard runs from root's own copy, with the node's role alone. The hosts' faults come after the first hour, in
    which a first boot counts as the cluster's own start. The bill is that of the groups' own history.
    """
    comes_later(clusters["late"])
    soon = datetime.timedelta(minutes=IDLE_MINUTES + 1)
    for name, one in clusters.items():
        wait_for(lambda one=one: one.end - forward(driver) < soon, 120, f"{name}: its guard has looked")
    forward(driver, 65 * 60)
    with ThreadPoolExecutor(len(FAULTS)) as pool:
        list(pool.map(lambda fault, one: fault(one), FAULTS, clusters.values()))
    last = max(one.forgotten_at for one in clusters.values())
    pass_hours(driver, account, clusters, last + datetime.timedelta(minutes=IDLE_MINUTES + 5))

    assert {} == {name: one.state for name, one in clusters.items() if not guard_deadline.is_at_zero(account, one.file)}
    later = forward(driver, HOUR_S)
    minutes = {}
    for name, one in clusters.items():
        bill = cost.cluster_cost(account, one.file, since=one.forgotten_at, until=later, besides=False).usd
        minutes[name] = 60 * (bill or 0.0) / USD_PER_HOUR
    assert {} == {name: m for name, m in minutes.items() if not IDLE_MINUTES - 5 <= m <= IDLE_MINUTES + 5}
    began = {name: one.state["began"] for name, one in clusters.items()}
    assert {} == {name: at for name, at in began.items() if abs(at - began["hung"]) > HOUR_S / 2}, "each began once"
