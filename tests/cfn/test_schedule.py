"""Scheduled actions on the fake: a rule of Auto Scaling's, and what the fake does."""

import datetime
import inspect
import json
import re
from collections.abc import Callable
from typing import Any

import boto3
import pytest
from botocore.exceptions import ClientError
from fake_groups import create, group, status, wait

from cluster.lab.aws import FakeAws, schedule
from cluster.lab.aws.schedule import Schedules, next_time
from cluster.lab.aws.wire import AwsFault, model

Scene = Callable[..., Any]
ZERO = {"MinSize": 0, "MaxSize": 0, "DesiredCapacity": 0}


def in_s(seconds: float) -> datetime.datetime:
    return datetime.datetime.now(datetime.UTC) + datetime.timedelta(seconds=seconds)


def put(name: str = "end", seconds: float = 3600, **more: Any) -> None:
    boto3.client("autoscaling").put_scheduled_update_group_action(
        AutoScalingGroupName="a", ScheduledActionName=name, **{"StartTime": in_s(seconds), **ZERO, **more}
    )


def listed(**more: Any) -> list[dict[str, Any]]:
    pages = boto3.client("autoscaling").get_paginator("describe_scheduled_actions").paginate(**more)
    return [one for page in pages for one in page["ScheduledUpdateGroupActions"]]


def sizes(fake: FakeAws) -> tuple[int, int, int, int]:
    one = fake.world.groups["us-east-1", "a"]
    return one.settings["min"], one.settings["max"], one.settings["desired"], len(one.members)


def test_what_is_due_is_done_by_its_clock_once(fake: FakeAws, scene: Scene) -> None:
    """A time that was put off is the later one; when it has come, nothing runs, and the action is gone."""
    group()
    wait(fake, lambda: sizes(fake) == (0, 5, 2, 2))
    put(seconds=1800)
    put(seconds=3600)
    scene("clock", {"forward_s": 1900})
    for before in (fake.world.rounds, fake.world.rounds + 1):  # the group is looked at again, and left as it is
        fake.world.touch()
        wait(fake, lambda before=before: fake.world.rounds > before)
    assert (0, 5, 2, 2) == sizes(fake)
    scene("clock", {"forward_s": 1800})
    wait(fake, lambda: sizes(fake) == (0, 0, 0, 0))
    assert [] == listed()


def test_what_recurs_is_done_again(fake: FakeAws, scene: Scene) -> None:
    """Once an hour, at a minute that is half an hour away: none comes while the test looks."""
    group()
    minute = in_s(1800).minute
    put("hourly", 0, StartTime=in_s(60), Recurrence=f"{minute} * * * *", DesiredCapacity=1, MaxSize=1)
    scene("clock", {"forward_s": 120})
    wait(fake, lambda: sizes(fake) == (0, 1, 1, 1))
    (one,) = listed()
    assert (one["Recurrence"], one["StartTime"].minute) == (f"{minute} * * * *", minute)
    boto3.client("autoscaling").set_desired_capacity(AutoScalingGroupName="a", DesiredCapacity=0)
    wait(fake, lambda: sizes(fake) == (0, 1, 0, 0))
    scene("clock", {"forward_s": 3600})
    wait(fake, lambda: sizes(fake) == (0, 1, 1, 1))


def test_what_is_suspended_is_passed_over(fake: FakeAws, scene: Scene) -> None:
    group()
    wait(fake, lambda: sizes(fake) == (0, 5, 2, 2))
    put()
    boto3.client("autoscaling").suspend_processes(AutoScalingGroupName="a", ScalingProcesses=["ScheduledActions"])
    scene("clock", {"forward_s": 3700})
    wait(fake, lambda: not fake.world.groups["us-east-1", "a"].schedule)
    assert (0, 5, 2, 2) == sizes(fake)


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"seconds": -60}, "Given start time is in the past"),
        ({"MinSize": 2}, "Max bound, 0, must be greater than or equal to min bound, 2"),
        ({"Recurrence": "61 * * * *"}, "Given recurrence string: 61 .* is invalid"),
        ({"AutoScalingGroupName": "b"}, "AutoScalingGroup b not found"),
    ],
)
def test_what_aws_refuses_is_refused(fake: FakeAws, asked: dict[str, Any], said: str) -> None:
    group()
    with pytest.raises(ClientError, match=said):
        put(**asked) if "AutoScalingGroupName" not in asked else boto3.client(
            "autoscaling"
        ).put_scheduled_update_group_action(ScheduledActionName="x", StartTime=in_s(60), **ZERO, **asked)
    assert [] == listed()


def test_an_update_leaves_what_it_does_not_name(fake: FakeAws) -> None:
    """By name: sizes stay, the time moves."""
    group()
    put()
    later = in_s(7200).replace(microsecond=0)
    boto3.client("autoscaling").put_scheduled_update_group_action(
        AutoScalingGroupName="a", ScheduledActionName="end", StartTime=later
    )
    (one,) = listed()
    assert (later, ZERO) == (one["StartTime"], {name: one[name] for name in ZERO})


def test_no_two_actions_of_a_group_at_one_time(fake: FakeAws) -> None:
    group()
    at = in_s(600).replace(microsecond=0)
    put("one", StartTime=at)
    with pytest.raises(ClientError, match="AlreadyExists"):
        put("other", StartTime=at)


def test_the_list_comes_in_pages_and_by_name(fake: FakeAws, scene: Scene) -> None:
    group()
    for n in range(5):
        put(f"n{n}", 600 + n)
    scene("settings", {"page_size": 2})
    assert ["n0", "n1", "n2", "n3", "n4"] == [one["ScheduledActionName"] for one in listed(AutoScalingGroupName="a")]
    assert ["n3"] == [one["ScheduledActionName"] for one in listed(ScheduledActionNames=["n3"])]
    boto3.client("autoscaling").delete_scheduled_action(AutoScalingGroupName="a", ScheduledActionName="n3")
    assert [] == listed(ScheduledActionNames=["n3"])
    with pytest.raises(ClientError, match="Scheduled action name not found"):
        boto3.client("autoscaling").delete_scheduled_action(AutoScalingGroupName="a", ScheduledActionName="n3")


def test_it_goes_with_its_group(fake: FakeAws) -> None:
    group(size=0)
    put()
    boto3.client("autoscaling").delete_auto_scaling_group(AutoScalingGroupName="a")
    wait(fake, lambda: not fake.world.groups)
    assert [] == listed()


@pytest.mark.parametrize(
    ("recurrence", "zone", "after", "then"),
    [
        ("30 18 * * 1-5", "Etc/UTC", "2026-11-20T18:30", "2026-11-23T18:30"),  # Friday evening: Monday's
        ("*/15 * * * *", "Etc/UTC", "2026-11-20T10:16", "2026-11-20T10:30"),
        ("0 2 29 2 *", "Etc/UTC", "2026-11-20T00:00", "2028-02-29T02:00"),
        ("0 9 * * *", "America/New_York", "2026-11-20T13:59", "2026-11-20T14:00"),
        ("0 0 1 * 0", "Etc/UTC", "2026-11-20T00:00", "2026-11-22T00:00"),  # day or weekday, as cron has it
        ("0 12 * * 7", "Etc/UTC", "2026-11-20T00:00", "2026-11-22T12:00"),
    ],
)
def test_the_next_time_of_a_recurrence(recurrence: str, zone: str, after: str, then: str) -> None:
    def at(text: str) -> datetime.datetime:
        return datetime.datetime.fromisoformat(text).replace(tzinfo=datetime.UTC)

    assert at(then) == next_time(recurrence, zone, at(after))


@pytest.mark.parametrize("bad", ["", "* * * *", "60 * * * *", "* * 0 * *", "a * * * *", "* * 31 2 *", "5-1 * * * *"])
def test_what_is_no_recurrence_is_refused(bad: str) -> None:
    with pytest.raises(AwsFault, match="is invalid"):
        next_time(bad, "Etc/UTC", in_s(0))


def test_names_and_errors_are_those_of_botocores_model() -> None:
    """Each operation and each field that the fake reads or writes, each error that it gives."""
    service, source = model("autoscaling"), inspect.getsource(schedule)
    errors = set(re.findall(r'AwsFault\("(\w+)"', source)) - {"ValidationError"}  # which every operation has
    declared = set()
    for name, method in inspect.getmembers(Schedules, inspect.isfunction):
        operation = service.operation_model("".join(word.capitalize() for word in name.split("_")))
        read = set(re.findall(r'p(?:\.get\(|\[)"(\w+)"', inspect.getsource(method)))
        assert read <= set(operation.input_shape.members), name
        declared |= {shape.name.removesuffix("Fault") for shape in operation.error_shapes}
    assert errors <= declared
    put = service.operation_model("PutScheduledUpdateGroupAction").input_shape.members
    assert set(re.findall(r'p(?:\.get\(|\[)"(\w+)"', inspect.getsource(schedule._asked))) <= set(put)
    (one,) = [service.shape_for("ScheduledUpdateGroupAction").members]
    described = set(re.findall(r'^\s+(?:\*\*\(\{)?"(\w+)":', inspect.getsource(schedule._described), flags=re.M))
    assert described | set(schedule.SIZES) <= set(one)
    assert described


@pytest.mark.parametrize("ignores", [True, False])
def test_an_update_of_the_stack_leaves_sizes_that_the_template_does_not_change(
    fake: FakeAws, scene: Scene, ignores: bool
) -> None:
    """As CloudFormation has it: under AutoScalingScheduledAction; without it the template's sizes are set again."""
    group(size=0)
    template = boto3.client("ec2").describe_launch_templates()["LaunchTemplates"][0]["LaunchTemplateId"]
    subnet = boto3.client("ec2").describe_subnets(Filters=[{"Name": "cidr-block", "Values": ["10.0.0.0/24"]}])
    policy = {"AutoScalingScheduledAction": {"IgnoreUnmodifiedGroupSizeProperties": True}}

    def stack(grace: int, most: int) -> dict[str, Any]:
        properties = {
            "AutoScalingGroupName": "b",
            "MinSize": "1",
            "MaxSize": str(most),
            "DesiredCapacity": "1",
            "HealthCheckGracePeriod": grace,
            "VPCZoneIdentifier": [subnet["Subnets"][0]["SubnetId"]],
            "LaunchTemplate": {"LaunchTemplateId": template, "Version": "1"},
        }
        body = {"Type": "AWS::AutoScaling::AutoScalingGroup", "Properties": properties}
        return {"Resources": {"Nodes": {**body, **({"UpdatePolicy": policy} if ignores else {})}}}

    made = create(stack(300, 1))
    assert "CREATE_COMPLETE" == status(fake, made)
    one = fake.world.groups["us-east-1", "b"]
    boto3.client("autoscaling").put_scheduled_update_group_action(
        AutoScalingGroupName="b", ScheduledActionName="end", StartTime=in_s(600), **ZERO
    )
    scene("clock", {"forward_s": 660})
    wait(fake, lambda: not one.members)

    def update(grace: int, most: int) -> tuple[int, int, int]:
        boto3.client("cloudformation").update_stack(StackName="s", TemplateBody=json.dumps(stack(grace, most)))
        assert "UPDATE_COMPLETE" == status(fake, made)
        return one.settings["min"], one.settings["max"], one.settings["desired"]

    assert ((0, 0, 0) if ignores else (1, 1, 1)) == update(200, 1)
    if ignores:
        assert (0, 3, 0) == update(200, 3)  # what the template changes is set


def test_a_request_that_a_wrong_clock_signed_is_refused_where_that_is_asked_for(fake: FakeAws, scene: Scene) -> None:
    """And every answer tells the true time."""
    scene("settings", {"strict_time": True})
    assert [] == listed()
    scene("clock", {"forward_s": 3600})
    with pytest.raises(ClientError, match="Signature expired") as error:
        listed()
    told = error.value.response["ResponseMetadata"]["HTTPHeaders"]["date"]
    at = datetime.datetime.strptime(told, "%a, %d %b %Y %H:%M:%S GMT").replace(tzinfo=datetime.UTC)
    assert 3500 < (at - in_s(0)).total_seconds() < 3700
