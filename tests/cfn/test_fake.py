"""The fake itself: a rule of AWS's, and what the fake does. So that it can be reviewed against AWS's documentation."""

import json
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import boto3
import pytest
from botocore.exceptions import ClientError
from fake_groups import create, group, status, wait

from cluster.lab.aws import FakeAws
from cluster.lab.aws.inner import client
from tests.conftest import PATIENCE_S
from tests.processes import begun

VPC = {"Type": "AWS::EC2::VPC", "Properties": {"CidrBlock": "10.0.0.0/16"}}


@pytest.mark.parametrize(
    ("resources", "said"),
    [
        ({"X": {"Type": "AWS::Nope::Nope"}}, "Unrecognized resource types: .AWS::Nope::Nope"),
        (
            {"X": {"Type": "AWS::Lambda::Function", "Properties": {"Code": {}, "Role": "r"}}},
            "does not model the resource type AWS::Lambda::Function",
        ),
        (
            {"X": {**VPC, "Properties": {"CidrBlock": "10.0.0.0/16", "Colour": "red"}}},
            r"extraneous key \[Colour\] is not permitted",
        ),
        (
            {"X": {**VPC, "Properties": {"CidrBlock": "10.0.0.0/16", "InstanceTenancy": "default"}}},
            "does not model AWS::EC2::VPC.InstanceTenancy",
        ),
        (
            {"X": {"Type": "AWS::EC2::Subnet", "Properties": {"CidrBlock": "10.0.0.0/24"}}},
            r"required key \[VpcId\] not found",
        ),
        (
            {"X": {"Type": "AWS::EC2::Subnet", "Properties": {"VpcId": {"Ref": "Y"}}}},
            "Unresolved resource dependencies",
        ),
        ({"X": {**VPC, "DependsOn": "X"}}, "Circular dependency"),
        ({"X": {"Type": "AWS::IAM::Role", "Properties": {"AssumeRolePolicyDocument": {}}}}, "Requires capabilities"),
    ],
)
def test_what_it_does_not_know_is_an_error(fake: FakeAws, resources: dict[str, Any], said: str) -> None:
    """moto would create all of these without a word."""
    with pytest.raises(ClientError, match=said):
        create({"Resources": resources})


def test_a_deleted_stack_is_known_by_id_only(fake: FakeAws) -> None:
    """DescribeStacks: by name only what lives."""
    stack = create({"Resources": {"Vpc": VPC}})
    assert "CREATE_COMPLETE" == status(fake, stack)
    cloudformation = boto3.client("cloudformation")
    cloudformation.delete_stack(StackName=stack)
    assert "DELETE_COMPLETE" == status(fake, stack)
    assert "DELETE_COMPLETE" == cloudformation.describe_stacks(StackName=stack)["Stacks"][0]["StackStatus"]
    with pytest.raises(ClientError, match="Stack with id s does not exist"):
        cloudformation.describe_stacks(StackName="s")


def test_a_failed_create_is_rolled_back_in_reverse(fake: FakeAws) -> None:
    stack = create(
        {
            "Resources": {
                "Vpc": VPC,
                "Bad": {
                    "Type": "AWS::EC2::Subnet",
                    "Properties": {"VpcId": {"Ref": "Vpc"}, "CidrBlock": "192.168.0.0/24"},
                },
            }
        }
    )
    assert "ROLLBACK_COMPLETE" == status(fake, stack)
    reasons = [
        e["ResourceStatusReason"]
        for e in boto3.client("cloudformation").describe_stack_events(StackName=stack)["StackEvents"]
        if e["ResourceStatus"] == "CREATE_FAILED"
    ]
    assert any("InvalidSubnet" in r for r in reasons)
    assert [] == [v for v in boto3.client("ec2").describe_vpcs()["Vpcs"] if v["CidrBlock"] == "10.0.0.0/16"]


def test_a_stack_that_was_forgotten_is_not_worked_on(fake: FakeAws) -> None:
    """What one test began is not rolled back in the next one's account."""
    fake.world.resource_seconds = 3600 / fake.world.scale
    stack = fake.world.stacks[create({"Resources": {"Vpc": VPC, "Other": {**VPC, "DependsOn": "Vpc"}}})]
    [work] = [t for t in threading.enumerate() if t.name == f"stack {stack.name}"]
    fake.reset()
    work.join(PATIENCE_S)

    assert (False, "CREATE_IN_PROGRESS") == (work.is_alive(), stack.status)


class _Forgetting(list[dict[str, Any]]):
    """What CloudFormation asks of other services, of which the first call finds everything forgotten."""

    def __init__(self, forget: Callable[[], None]) -> None:
        super().__init__()
        self.forget = forget

    def append(self, call: dict[str, Any]) -> None:
        if not self:
            super().append(call)
            self.forget()


@pytest.mark.parametrize("operation", ["create", "update", "delete"])
def test_what_is_forgotten_between_two_resources_leaves_the_second_alone(fake: FakeAws, operation: str) -> None:
    """They have the names of the next test's: it would find one there already, or another than its own, or lose one."""
    iam, cloudformation = client("iam", "us-east-1"), fake.app.cloudformation  # inside: the lock is held meanwhile

    def asked(*policies: str) -> dict[str, Any]:
        """Of a stack of two roles."""
        may = {"Version": "2012-10-17", "Statement": {"Effect": "Allow", "Action": "ec2:*", "Resource": "*"}}
        have = [{"PolicyName": name, "PolicyDocument": may} for name in policies]
        role = {"Type": "AWS::IAM::Role", "Properties": {"AssumeRolePolicyDocument": {}, "Policies": have}}
        body = json.dumps({"Resources": {"A": role, "B": role}})
        return {"StackName": "s", "TemplateBody": body, "Capabilities": ["CAPABILITY_IAM"]}

    def roles() -> dict[str, int]:
        """With how many policies each has."""
        names = [r["RoleName"] for r in iam.list_roles()["Roles"]]
        return {name: len(iam.list_role_policies(RoleName=name)["PolicyNames"]) for name in names}

    def forget() -> None:
        names = roles()
        fake.reset()
        for name in names:
            iam.create_role(RoleName=name, AssumeRolePolicyDocument="{}")

    with fake.world.lock:  # before its first resource
        made = cloudformation.create_stack("us-east-1", asked())
        stack = fake.world.stacks[made["StackId"]]
        if operation == "create":
            fake.world.calls = _Forgetting(forget)
    if operation != "create":
        assert "CREATE_COMPLETE" == status(fake, stack.id)
        with fake.world.lock:
            fake.world.calls = _Forgetting(forget)
            (cloudformation.delete_stack if operation == "delete" else cloudformation.update_stack)(
                "us-east-1", asked("p")
            )
    assert stack.worker
    stack.worker.join(PATIENCE_S)

    left = {"create": [0], "update": [0, 1], "delete": [0]}[operation]  # only what was under way came through
    assert (False, left) == (stack.worker.is_alive(), sorted(roles().values()))


def test_a_deletion_ends_the_creation_that_is_under_way(fake: FakeAws) -> None:
    """Of which nothing is heard or made afterwards: neither CREATE_COMPLETE nor another resource."""
    fake.world.resource_seconds = 3600 / fake.world.scale
    stack = fake.world.stacks[create({"Resources": {"Vpc": VPC, "Other": {**VPC, "DependsOn": "Vpc"}}})]
    creation = stack.worker
    assert creation and fake.world.wait_until(lambda: "Vpc" in stack.resources, 300 / fake.world.scale)
    fake.world.resource_seconds = 0.0  # from here on
    boto3.client("cloudformation").delete_stack(StackName=stack.id)

    assert "DELETE_COMPLETE" == status(fake, stack.id)
    creation.join(PATIENCE_S)
    assert not creation.is_alive()
    said = [(e["LogicalResourceId"], e["ResourceStatus"]) for e in reversed(stack.events)]
    assert [("s", "CREATE_IN_PROGRESS"), *[("Vpc", "CREATE_IN_PROGRESS")] * 2, ("s", "DELETE_IN_PROGRESS"),
            ("Vpc", "DELETE_IN_PROGRESS"), ("Vpc", "DELETE_COMPLETE"), ("s", "DELETE_COMPLETE")] == said  # fmt: skip


def test_protection_holds(fake: FakeAws) -> None:
    stack = create({"Resources": {"Vpc": VPC}}, EnableTerminationProtection=True)
    status(fake, stack)
    with pytest.raises(ClientError, match="TerminationProtection is enabled"):
        boto3.client("cloudformation").delete_stack(StackName="s")


@pytest.mark.parametrize(
    ("change", "replacement"),
    [
        ({"Tags": [{"Key": "a", "Value": "b"}]}, "False"),
        ({"CidrBlock": "10.1.0.0/16"}, "True"),
    ],
)
def test_a_change_set_tells_what_is_replaced(fake: FakeAws, change: dict[str, Any], replacement: str) -> None:
    """From the schema's create-only properties; executing it does what it said."""
    stack = create({"Resources": {"Vpc": VPC}})
    status(fake, stack)
    old = fake.world.stacks[stack].resources["Vpc"].physical
    cloudformation = boto3.client("cloudformation")
    new = {"Resources": {"Vpc": {**VPC, "Properties": {**VPC["Properties"], **change}}}}  # type: ignore[dict-item]
    cloudformation.create_change_set(StackName="s", ChangeSetName="c", TemplateBody=json.dumps(new))
    found = cloudformation.describe_change_set(StackName="s", ChangeSetName="c")["Changes"][0]["ResourceChange"]
    assert ("Vpc", replacement) == (found["LogicalResourceId"], found["Replacement"])
    cloudformation.execute_change_set(StackName="s", ChangeSetName="c")
    assert "UPDATE_COMPLETE" == status(fake, stack)
    assert (replacement == "True") == (old != fake.world.stacks[stack].resources["Vpc"].physical)


def states(fake: FakeAws) -> list[str]:
    return sorted(m.state for m in fake.world.groups["us-east-1", "a"].members)


def test_an_unhealthy_instance_is_replaced_unless_that_is_suspended(fake: FakeAws) -> None:
    group()
    scaling = boto3.client("autoscaling")
    wait(fake, lambda: states(fake) == ["InService"] * 2)
    first = fake.world.groups["us-east-1", "a"].members[0].id
    scaling.suspend_processes(AutoScalingGroupName="a", ScalingProcesses=["ReplaceUnhealthy"])
    scaling.set_instance_health(InstanceId=first, HealthStatus="Unhealthy")
    for before in (fake.world.rounds, fake.world.rounds + 1):  # the group is looked at again, and left as it is
        fake.world.touch()
        wait(fake, lambda before=before: fake.world.rounds > before)
    described = scaling.describe_auto_scaling_groups()["AutoScalingGroups"][0]
    assert (first, "Unhealthy") in [(i["InstanceId"], i["HealthStatus"]) for i in described["Instances"]]
    scaling.resume_processes(AutoScalingGroupName="a", ScalingProcesses=["ReplaceUnhealthy"])
    wait(
        fake,
        lambda: (
            first not in {m.id for m in fake.world.groups["us-east-1", "a"].members}
            and states(fake) == ["InService"] * 2
        ),
    )


@pytest.mark.parametrize("operation", ["terminate_instances", "stop_instances"])
def test_an_instance_that_ends_outside_of_its_group_is_replaced(fake: FakeAws, operation: str) -> None:
    """As EC2's health check finds it."""
    group()
    wait(fake, lambda: states(fake) == ["InService"] * 2)
    gone, stays = (m.id for m in fake.world.groups["us-east-1", "a"].members)
    getattr(boto3.client("ec2"), operation)(InstanceIds=[gone])
    wait(fake, lambda: gone not in {m.id for m in fake.world.groups["us-east-1", "a"].members})
    wait(fake, lambda: states(fake) == ["InService"] * 2)
    assert stays in {m.id for m in fake.world.groups["us-east-1", "a"].members}


def test_more_than_the_maximum_is_refused(fake: FakeAws) -> None:
    group()
    with pytest.raises(ClientError, match="outside the group's min and max size"):
        boto3.client("autoscaling").set_desired_capacity(AutoScalingGroupName="a", DesiredCapacity=500)


def test_the_history_of_a_group_has_the_begin_and_the_end_of_every_activity(fake: FakeAws) -> None:
    """DescribeScalingActivities: a launch goes on until the instance is in service, newest first."""
    scaling = boto3.client("autoscaling")
    group(hook=True, size=1)
    wait(fake, lambda: states(fake) == ["Pending:Wait"])
    one = fake.world.groups["us-east-1", "a"].members[0].id
    told = scaling.describe_scaling_activities(AutoScalingGroupName="a")["Activities"]
    assert [("InProgress", False)] == [(a["StatusCode"], "EndTime" in a) for a in told]
    scaling.complete_lifecycle_action(
        AutoScalingGroupName="a", LifecycleHookName="h", InstanceId=one, LifecycleActionResult="CONTINUE"
    )
    wait(fake, lambda: states(fake) == ["InService"])
    scaling.update_auto_scaling_group(AutoScalingGroupName="a", MinSize=0, MaxSize=0)
    wait(fake, lambda: states(fake) == [])

    told = scaling.describe_scaling_activities(AutoScalingGroupName="a")["Activities"]

    assert [f"Terminating EC2 instance: {one}", f"Launching a new EC2 instance: {one}"] == [
        a["Description"] for a in told
    ]
    assert ["Successful"] * 2 == [a["StatusCode"] for a in told]
    assert told[1]["StartTime"] <= told[1]["EndTime"] <= told[0]["StartTime"] <= told[0]["EndTime"]


def test_a_group_takes_new_sizes_that_go_together_and_no_others(fake: FakeAws) -> None:
    """UpdateAutoScalingGroup: the desired size moves into the new limits unless it is given."""
    scaling = boto3.client("autoscaling")
    group(size=2)
    scaling.update_auto_scaling_group(AutoScalingGroupName="a", MinSize=3)
    assert 3 == scaling.describe_auto_scaling_groups()["AutoScalingGroups"][0]["DesiredCapacity"]
    for sizes in ({"MinSize": 6}, {"DesiredCapacity": 9}):
        with pytest.raises(ClientError, match="ValidationError"):
            scaling.update_auto_scaling_group(AutoScalingGroupName="a", **sizes)


def test_what_can_be_had_may_differ_by_zone(fake: FakeAws) -> None:
    """A part of what a group wants comes, the rest is told as failed in AWS's words."""
    fake.world.capacity = {"g5.xlarge@us-east-1d": 1, "g5.xlarge": 9}
    group(size=3)
    wait(fake, lambda: "Failed" in [a.status for a in fake.world.groups["us-east-1", "a"].activities])
    assert 1 == len(states(fake))
    told = boto3.client("autoscaling").describe_scaling_activities(AutoScalingGroupName="a")["Activities"]
    assert (
        "sufficient g5.xlarge capacity in the Availability Zone you requested (us-east-1d)" in told[0]["StatusMessage"]
    )


def test_whoever_runs_the_nodes_is_told_of_each_change(fake: FakeAws) -> None:
    """The long poll and the metadata service of an instance."""

    def get(path: str, method: str = "GET", **head: str) -> Any:
        headers = {f"X-aws-ec2-metadata-{name.replace('_', '-')}": value for name, value in head.items()}
        asked = urllib.request.Request(f"{fake.url}/_fake/{path}", method=method, headers=headers)
        with urllib.request.urlopen(asked, timeout=PATIENCE_S) as answer:
            return answer.read()

    before = json.loads(get("instances"))
    group(size=1)
    wait(fake, lambda: states(fake) == ["InService"])
    seen = json.loads(get(f"instances?after={before['version']}&timeout=10"))
    one = seen["instances"][0]
    assert seen["version"] > before["version"]
    own = f"imds/{one['id']}/latest"
    token = get(f"{own}/api/token", "PUT", token_ttl_seconds="60").decode()
    assert one["private_ip"] == get(f"{own}/meta-data/local-ipv4", token=token).decode()
    assert b"echo hi" == get(f"{own}/user-data", token=token)
    with pytest.raises(urllib.error.HTTPError, match="401"):
        get(f"{own}/user-data")


def test_it_runs_by_itself_and_ends_by_signal(tmp_path: Path) -> None:
    """`python -m cluster.lab.aws`: its address is the first line."""
    root = Path(__file__).parents[2]
    with begun(
        [sys.executable, "-m", "cluster.lab.aws", "--port", "0"], cwd=root, stdout=subprocess.PIPE, text=True
    ) as server:
        assert server.stdout is not None
        url = server.stdout.readline().strip()
        regions = boto3.client(
            "ec2", endpoint_url=url, region_name="us-east-1", aws_access_key_id="x", aws_secret_access_key="y"
        ).describe_regions()
        server.terminate()
        assert len(regions["Regions"]) > 5
        server.wait(timeout=PATIENCE_S)
