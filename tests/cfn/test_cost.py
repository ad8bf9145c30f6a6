"""What a cluster has cost: from a group's history, purely; and on the fake."""

import datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cfn import cost, create, plan, prices, stop
from cfn.aws import Aws
from cluster.clusterfile.model import ClusterFile
from cluster.guard.onhost.history import Span, past, spans
from lab.aws import FakeAws
from tests.cfn.conftest import cluster

T = datetime.datetime(2027, 1, 1, tzinfo=datetime.UTC)
HOUR = datetime.timedelta(hours=1)


def launched(name: str, start: float, status: str = "Successful") -> dict[str, Any]:
    return _activity(f"Launching a new EC2 instance: {name}", start, status)


def ended(name: str, start: float, status: str = "Successful") -> dict[str, Any]:
    return _activity(f"Terminating EC2 instance: {name}", start, status)


def _activity(text: str, start: float, status: str) -> dict[str, Any]:
    end = {} if status == "InProgress" else {"EndTime": T + start * HOUR + datetime.timedelta(minutes=1)}
    return {"Description": text, "StartTime": T + start * HOUR, "StatusCode": status, **end}


@pytest.mark.parametrize(
    ("activities", "alive", "hours"),
    [
        ([launched("i-1", 0)], {"i-1": T + HOUR}, {"i-1": 10.0}),  # since its launch was begun
        ([launched("i-1", 0, "InProgress")], {"i-1": T}, {"i-1": 10.0}),
        ([launched("i-1", 0), ended("i-1", 2)], {}, {"i-1": 2 + 1 / 60}),  # to the end of its end
        ([ended("i-1", 2), launched("i-1", 0)], {}, {"i-1": 2 + 1 / 60}),
        ([launched("i-1", 0), ended("i-1", 2, "InProgress")], {}, {"i-1": 2.0}),
        ([launched("i-1", 0), ended("i-1", 2, "Failed")], {"i-1": T}, {"i-1": 10.0}),  # it would not go
        ([launched("i-1", 0), ended("i-1", 2), ended("i-1", 3)], {}, {"i-1": 2 + 1 / 60}),  # told twice
        ([{**launched("i-1", 0, "Failed")}], {}, {}),
        ([{"Description": "Launching a new EC2 instance", "StartTime": T, "StatusCode": "Failed"}], {}, {}),
        ([], {"i-1": T + 4 * HOUR}, {"i-1": 6.0}),  # its launch is out of the history
        ([ended("i-1", 2)], {}, {}),  # so is this one's, and nothing tells when it was
        ([launched("i-1", 0)], {}, {"i-1": 1 / 60}),  # it left the group; last heard of at its launch
        ([launched("i-1", 0), ended("i-1", 1), launched("i-2", 1)], {"i-2": T}, {"i-1": 1 + 1 / 60, "i-2": 10.0}),
    ],
)
def test_each_instance_counts_from_its_launch_to_its_end(
    activities: list[dict[str, Any]], alive: dict[str, datetime.datetime], hours: dict[str, float]
) -> None:
    found = spans(activities, alive)
    assert hours == pytest.approx({s.instance_id: s.seconds(T + 10 * HOUR) / 3600 for s in found})


TO_ZERO = "an instance was taken out of service in response to a difference between desired and actual capacity, "


@pytest.mark.parametrize(
    ("cause", "began"),
    [
        ("an instance was taken out of service in response to an EC2 instance status checks failure.", 0),
        (TO_ZERO + "shrinking the capacity from 1 to 0.  At 2027-01-01T02:00:00Z instance i-1 was selected.", 3),
    ],
)
def test_a_cluster_that_was_at_zero_began_anew_and_one_whose_master_was_replaced_goes_on(
    cause: str, began: float
) -> None:
    """As the master's group tells it in Auto Scaling's words; the hours are those of all in every run."""
    masters = [launched("i-1", 0), {**ended("i-1", 2), "Cause": cause}, launched("i-2", 3)]
    workers = [launched("i-3", 3), {**ended("i-3", 4), "Cause": TO_ZERO + "shrinking the capacity from 2 to 1."}]
    found = past(masters, workers, (["i-2"], []), T + 10 * HOUR)
    assert (T + began * HOUR).timestamp() == found.began
    assert (10 + 2 / 60, 9 + 1 / 60) == (pytest.approx(found.hours), pytest.approx(found.master_hours))


@given(st.lists(st.tuples(st.floats(0, 90), st.floats(0, 9)), max_size=12), st.floats(0, 100), st.randoms())
def test_the_hours_of_parts_are_the_hours_of_the_whole(
    lives: list[tuple[float, float]], cut: float, random: Any
) -> None:
    """However the history is ordered and wherever it is cut in two, no hour is counted twice or lost."""
    told = [
        a for n, (start, for_h) in enumerate(lives) for a in (launched(f"i-{n}", start), ended(f"i-{n}", start + for_h))
    ]
    random.shuffle(told)
    found, end, at = spans(told, {}), T + 200 * HOUR, T + cut * HOUR

    whole = sum(for_h * 3600 + 60 for _, for_h in lives)
    assert whole == pytest.approx(sum(s.within(T, at) + s.within(at, end) for s in found), abs=1e-3)


def test_an_instance_is_billed_for_a_minute_at_least() -> None:
    assert 60 == Span(instance_id="i-1", begins=T, ends=T + HOUR / 3600).seconds(T + HOUR)


def test_the_bill_by_host_with_those_that_are_gone_and_both_markets(fake: FakeAws, account: Aws, scene: Any) -> None:
    """1 + 2 hosts at 10 USD on demand, 4 on spot; one replaced: four bills, three of them go on."""
    scene("prices", {"g5.12xlarge": 10.0})
    scene("spot_prices", {"g5.12xlarge": 4.0})
    file = cluster(workers=2)
    hosts = create.create(account, plan.make(account, file), lambda _: None)
    account.client("autoscaling").terminate_instance_in_auto_scaling_group(
        InstanceId=hosts[2].instance_id, ShouldDecrementDesiredCapacity=False
    )
    group = fake.world.groups["us-east-1", "demo-workers"]
    assert fake.world.wait_until(lambda: len(group.in_service) == 2, 300 / fake.world.scale)

    later = datetime.datetime.now(datetime.UTC) + 2 * HOUR
    found = cost.cluster_cost(account, file, until=later)

    assert [0, 1, 2, None] == [h.rank for h in found.hosts]
    gone = found.hosts[-1]
    assert (hosts[2].instance_id, "", True) == (gone.instance_id, gone.address, gone.hours < 0.1)
    assert [pytest.approx(2.0, abs=0.1)] * 3 == [h.hours for h in found.hosts[:3]]
    assert found.hours * 10 == pytest.approx(found.usd)
    assert found.hours * 4 == pytest.approx(found.other_usd)
    assert 30 == found.usd_per_hour
    assert (found.usd or 0) + 60 == pytest.approx(found.until("job", 7200).usd)
    assert 1.32 == pytest.approx(found.as_json()["usd_per_day_besides"])
    assert "spot" in str(found) and "30.00 USD per hour now" in str(found)


def test_no_price_is_no_sum_and_says_how_to_give_one(fake: FakeAws, file: ClusterFile, account: Aws) -> None:
    create.create(account, plan.make(account, file), lambda _: None)
    stop.stop(account, file, lambda _: None)
    found = cost.cluster_cost(account, file)

    assert (None, None, 4) == (found.usd, found.until("job", 60).usd, len(found.hosts))
    assert all(h.span.ends for h in found.hosts)
    assert "set nodes.usd_per_hour" in str(found)


@pytest.mark.parametrize(
    ("usd", "said"), [(0.16, "0.16"), (98.317, "98.32"), (12345.6, "12,346"), (None, "unknown"), (0, "0.00")]
)
def test_a_sum_is_read_by_people(usd: float | None, said: str) -> None:
    assert said == prices.dollars(usd)


def test_the_price_list_is_no_reason_to_stop(fake: FakeAws, account: Aws, scene: Any) -> None:
    """Nobody has to be allowed to ask it."""
    scene("faults", {"service": "pricing", "action": "GetProducts", "code": "AccessDeniedException"})
    scene("faults", {"service": "ec2", "action": "DescribeSpotPriceHistory", "code": "UnauthorizedOperation"})
    price_list = prices.PriceList(account)
    assert (None, None) == (price_list.on_demand("g5.12xlarge"), price_list.spot("g5.12xlarge", "us-east-1a"))


def test_the_examples_of_the_price_lists() -> None:
    """AWS's own arithmetic: 100 GB of gp3 are 8 USD a month of 730 hours."""
    month = 730 / 24
    assert 8.0 == pytest.approx(month * (prices.volume({"VolumeType": "gp3", "Size": 100}) or 0))
    assert 30.0 == pytest.approx(month * prices.efs({"SizeInBytes": {"Value": 100 * 2**30}}))
    lustre = {"StorageCapacity": 1200, "LustreConfiguration": {"PerUnitStorageThroughput": 250}}
    assert 252.0 == pytest.approx(month * (prices.fsx(lustre) or 0))
    assert prices.volume({"VolumeType": "new", "Size": 1}) is None
