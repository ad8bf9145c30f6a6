"""Capacity blocks: listed with prices and dates, bought after two questions; and the fake's answers are EC2's."""

import datetime
import json
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from cfn import capacity_blocks, failover, plan, stop
from cfn import named_resources as account_of_aws
from cfn.aws import Aws, AwsError
from cluster.clusterfile import text
from cluster.errors import ConfigError
from lab.aws import FakeAws
from tests.cfn.command_line import inv
from tests.cfn.conftest import cluster
from tests.cfn.reservations import reservation

Scene = Callable[[str, dict[str, Any]], Any]
T = datetime.datetime(2027, 1, 15, 11, 30, tzinfo=datetime.UTC)
KIND = "p5.48xlarge"


def offer(number: int, **changed: Any) -> dict[str, Any]:
    """An offer as EC2 describes it: 2 instances for a day, from a day on."""
    hours = changed.get("CapacityBlockDurationHours", 24)
    begins = changed.get("StartDate", T + datetime.timedelta(days=number))
    return {
        "CapacityBlockOfferingId": f"cb-{number:017x}",
        "InstanceType": KIND,
        "AvailabilityZone": "us-east-1a",
        "InstanceCount": 2,
        "StartDate": begins,
        "EndDate": begins + datetime.timedelta(hours=hours),
        "CapacityBlockDurationHours": hours,
        "UpfrontFee": f"{2000 - number}.5000",
        "CurrencyCode": "USD",
        "Tenancy": "default",
        **changed,
    }


def test_a_bought_block_is_what_the_cluster_runs_in(fake: FakeAws, account: Aws) -> None:
    """Tagged as ours; the fields that the task prints are those that a plan takes; nobody buys it again."""
    fake.world.block_offers = [offer(1)]
    found = capacity_blocks.offers(account, [KIND], 2, 1)
    name = capacity_blocks.buy(account, found[0], "demo")

    block = account.client("ec2").describe_capacity_reservations(CapacityReservationIds=[name])["CapacityReservations"][
        0
    ]
    assert {"Key": "dlami-cluster:cluster", "Value": "demo"} in block["Tags"]
    made = plan.make(account, cluster(instance_type=KIND, workers=1, capacity="capacity-block", reservation=name))
    assert ("us-east-1a", "2027-01-17T11:30:00Z") == (made.design.zone, made.design.block_ends)
    with pytest.raises(AwsError, match=r"buying cb-\w+: PurchaseCapacityBlock was refused"):
        capacity_blocks.buy(account, found[0], "demo")
    with pytest.raises(ConfigError, match="not among today's 0 offers"):
        capacity_blocks.pick(capacity_blocks.offers(account, [KIND], 2, 1), found[0].id)


def test_what_a_cluster_has_of_its_reservation_is_its_own(fake: FakeAws, account: Aws, scene: Scene) -> None:
    """An update needs no second place for a node that is there; a block that has not begun has none available yet."""
    states = {"i-1": "running", "i-2": "pending", "i-3": "terminated", "i-4": "running"}
    others = {"i-4": "cr-other"}
    instances = [
        {"InstanceId": i, "State": {"Name": state}, "CapacityReservationId": others.get(i, "cr-1")}
        for i, state in states.items()
    ]
    assert 2 == account_of_aws.in_it([*instances, {"InstanceId": "i-5", "State": {"Name": "running"}}], "cr-1")

    waits = reservation(scene, State="scheduled", AvailableInstanceCount=0)
    assert plan.make(account, cluster(instance_type=KIND, capacity="capacity-block", reservation=waits))


def test_a_block_that_has_not_begun_starts_nothing(
    fake: FakeAws, account: Aws, scene: Scene, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Refused with the time before anybody is asked; with a long enough --wait it is waited for."""
    begins = datetime.datetime.now(datetime.UTC) + datetime.timedelta(hours=5, minutes=1)
    block = reservation(scene, State="scheduled", AvailableInstanceCount=0)
    fake.world.reservations[block] |= {"StartDate": begins, "EndDate": begins + datetime.timedelta(days=1)}
    file = cluster(instance_type=KIND, workers=1, capacity="capacity-block", reservation=block, usd_per_hour=1.0)
    made = plan.make(account, file)
    assert any(f"{block} begins at {begins:%Y-%m-%dT%H:%M:%SZ}" in w for w in made.warnings)
    values: dict[str, Any] = {
        "nodes.instance_type": KIND,
        "nodes.capacity": "capacity-block",
        "nodes.reservation": block,
    }
    values |= {"name": "demo", "nodes.workers": 1, "access.ssh_from": "203.0.113.7/32"}
    text.write(tmp_path / "cluster.toml", text.render(values))
    refused = inv(tmp_path, "stack.create", "--wait", "4h")
    assert 2 == refused.returncode and not fake.world.stacks
    assert f"{block} begins at {begins:%Y-%m-%d %H:%M} UTC" in refused.stderr and "--wait 6h" in refused.stderr

    slept: list[float] = []

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        scene("clock", {"forward_s": seconds})

    with monkeypatch.context() as patched:
        patched.setattr(failover, "time", SimpleNamespace(sleep=sleep, monotonic=time.monotonic))
        hosts = failover.create_where_there_is_room(account, made, lambda _: None, wait_s=6 * 3600.0)
    assert 2 == len(hosts) and 5 * 3600 < slept[0] <= 5 * 3600 + 60

    stop.stop(account, file, lambda _: None)
    fake.world.reservations[block] |= {"State": "expired"}
    with pytest.raises(ConfigError, match=f"{block} is expired"):
        stop.start(account, file, lambda _: None)


def test_a_reservation_in_a_placement_group_is_used_from_within_it(fake: FakeAws, account: Aws, scene: Scene) -> None:
    """EC2 gives its places to no instance outside."""
    group = "arn:aws:ec2:us-east-1:123456789012:placement-group/close-together"
    made_in = reservation(scene, ReservationType="default", PlacementGroupArn=group)
    made = plan.make(account, cluster(instance_type=KIND, capacity="reservation", reservation=made_in))
    resources = json.loads(made.body)["Resources"]

    assert "Placement" not in resources
    for role in ("Master", "Worker"):
        data = resources[f"{role}Template"]["Properties"]["LaunchTemplateData"]
        assert {"GroupName": "close-together"} == data["Placement"]
