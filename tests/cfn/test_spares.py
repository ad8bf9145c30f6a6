"""Spares of a stack: their cost, their lines in the hostfile, and how one takes a dead worker's place for good."""

import base64
from dataclasses import replace as with_
from pathlib import Path
from typing import Any

import pytest

from cfn import create, hostfile, plan, replace_instance, stack
from cfn.aws import Aws
from cfn.hosts import hosts, read
from cfn.progress import wait_for
from cfn.provider import Stacks
from cluster.clusterfile.model import ClusterFile
from cluster.hosts import Host, parse_hostfile
from cluster.recovery.placement import Ineligible, choose
from cluster.recovery.replacement import Replacement, with_successors
from lab.aws import FakeAws
from tests.conftest import wait_for as wait_until


@pytest.fixture
def spared(file: ClusterFile) -> ClusterFile:
    """1 master, 2 workers, 1 spare."""
    return with_(file, nodes=with_(file.nodes, workers=2, spares=1, usd_per_hour=2.0))


def made(account: Aws, file: ClusterFile) -> dict[str, str]:
    create.create(account, plan.make(account, file), lambda _: None)
    return stack.outputs(account, file.name)


def by_rank(account: Aws, outputs: dict[str, str]) -> dict[int | None, str]:
    return {m.rank: m.address for m in hosts(account, outputs)}


def test_a_spare_boots_as_a_worker_does(fake: FakeAws, spared: ClusterFile, account: Aws, tmp_path: Path) -> None:
    """From the same user data, which names the set-up script: first boot runs it on every node that it is given."""
    (tmp_path / "prepare.sh").write_text("true\n")
    own = plan.make(account, with_(spared, setup=str(tmp_path / "prepare.sh")))
    create.create(account, own, lambda _: None)
    assert own.design.setup
    ec2 = account.client("ec2")
    told = [
        base64.b64decode(
            ec2.describe_instance_attribute(InstanceId=m.instance_id, Attribute="userData")["UserData"]["Value"]
        )
        for m in hosts(account, stack.outputs(account, spared.name))
    ]
    assert 4 == len(told)
    assert 1 == len(set(told[1:]))
    assert all(f"SETUP='{own.design.setup.digest}'".encode() in text for text in told)


def test_a_spare_is_a_line_that_no_training_uses(
    fake: FakeAws, spared: ClusterFile, account: Aws, tmp_path: Path
) -> None:
    """The one with the last rank."""
    outputs = made(account, spared)
    (tmp_path / "cluster.toml").write_text('name = "demo"\n')
    text = hostfile.targets(account, tmp_path / "cluster.toml", spared)[0].text
    written = parse_hostfile(text, "hosts")
    assert [False, False, False, True] == [h.is_spare for h in written]
    assert by_rank(account, outputs)[3] == written[3].address


def test_a_spare_takes_a_dead_one_s_rank_and_the_successor_is_the_spare(
    fake: FakeAws, spared: ClusterFile, account: Aws
) -> None:
    """Everybody else keeps his; the master is never ended."""
    outputs = made(account, spared)
    before = by_rank(account, outputs)
    assert 1 == replace_instance.take(account, outputs, before[1], 1, before[3])
    assert 3 == replace_instance.end(account, outputs, before[1], 1)
    assert 0 == replace_instance.end(account, outputs, before[0], 0)  # the master: nothing is done
    assert 2 == replace_instance.end(account, outputs, "10.9.9.9", 2)  # gone already
    assert replace_instance.take(account, outputs, "10.9.9.9", 7, before[3]) is None

    def usable() -> dict[int | None, str]:
        return {m.rank: m.address for m in read(account, outputs) if m.is_usable}

    assert wait_for(lambda: len(usable()) == 4 and before[1] not in usable().values(), 300, lambda: None)
    after = by_rank(account, outputs)
    assert (before[0], before[3], before[2]) == (after[0], after[1], after[2])
    assert after[3] not in before.values()
    said = replace_instance.hosts(account, "demo", outputs)
    assert [after[3]] == [h["address"] for h in said["hosts"] if h["is_spare"]]
    # Of one whose group was quicker, the successor's rank is exchanged.
    assert 2 == replace_instance.take(account, outputs, "10.9.9.9", 2, after[3])
    assert (after[3], after[2]) == tuple(by_rank(account, outputs)[r] for r in (2, 3))


def test_without_a_spare_the_successor_has_the_dead_one_s_rank_for_the_job(
    fake: FakeAws, file: ClusterFile, account: Aws, capfd: Any
) -> None:
    """As the supervisor goes about it: told once, looked for until it is there, with_successors."""
    outputs = made(account, file)
    members = hosts(account, outputs)
    seats = tuple(Host(rank=m.rank or 0, address=m.address, slots=4) for m in members)
    dead = seats[2].address
    told: list[str] = []

    class Told(Stacks):
        def end(self, stack: str, address: str, rank: int) -> int:
            told.append("end")
            return super().end(stack, address, rank)

    stacks = Told(lambda region: account)
    replacing = Replacement("us-east-1/demo", told.append, lambda: stacks, look_s=0.1, is_silent=lambda address: True)
    try:
        chosen = choose(
            seats, (), {dead: Ineligible(why="does not answer", is_gone=True, is_silent=True)}, {}, np=16, min_np=16
        )
        for _ in range(3):
            replacing.begin(chosen, seats)
        wait_until(lambda: bool(replacing.successors(chosen.seats)), 120, "its successor is ready")
        after = with_successors(chosen.seats, replacing.successors(chosen.seats))
    finally:
        replacing.close()
    assert ["end"] == told
    assert [s.address for s in seats if s.rank != 2] == [s.address for s in after if s.rank != 2]
    assert by_rank(account, outputs)[2] == after[2].address != dead
