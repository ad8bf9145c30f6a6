"""A stack or a group on the fake AWS, and waiting for it: what several files of tests need."""

import contextlib
import json
from collections.abc import Callable
from typing import Any

import boto3

from lab.aws import FakeAws
from tests.conftest import NOT_YET, PATIENCE_S

IMAGE = "/aws/service/deeplearning/ami/x86_64/base-oss-nvidia-driver-gpu-ubuntu-24.04/latest/ami-id"


def wait(fake: FakeAws, condition: Callable[[], bool]) -> None:
    """Until `condition` holds; a group, an activity or a stack that is still to come does not."""

    def holds() -> bool:
        with contextlib.suppress(*NOT_YET):
            return condition()
        return False

    assert fake.world.wait_until(holds, PATIENCE_S / fake.world.scale)


def create(template: dict[str, Any], name: str = "s", **more: Any) -> str:
    return boto3.client("cloudformation").create_stack(StackName=name, TemplateBody=json.dumps(template), **more)[
        "StackId"
    ]


def status(fake: FakeAws, stack: str) -> str:
    wait(fake, lambda: not fake.world.stacks[stack].status.endswith("IN_PROGRESS"))
    return fake.world.stacks[stack].status


def group(hook: bool = False, size: int = 2) -> None:
    """An Auto Scaling group outside any stack."""
    ec2, scaling = boto3.client("ec2"), boto3.client("autoscaling")
    vpc = ec2.create_vpc(CidrBlock="10.0.0.0/16")["Vpc"]["VpcId"]
    subnet = ec2.create_subnet(VpcId=vpc, CidrBlock="10.0.0.0/24", AvailabilityZone="us-east-1d")["Subnet"]["SubnetId"]
    sg = ec2.create_security_group(GroupName="g", Description="d", VpcId=vpc)["GroupId"]
    image = boto3.client("ssm").get_parameter(Name=IMAGE)["Parameter"]["Value"]
    ec2.create_launch_template(
        LaunchTemplateName="t",
        LaunchTemplateData={
            "ImageId": image,
            "InstanceType": "g5.xlarge",
            "UserData": "ZWNobyBoaQ==",
            "NetworkInterfaces": [{"DeviceIndex": 0, "Groups": [sg]}],
        },
    )
    template = ec2.describe_launch_templates()["LaunchTemplates"][0]["LaunchTemplateId"]
    scaling.create_auto_scaling_group(
        AutoScalingGroupName="a",
        MinSize=0,
        MaxSize=5,
        DesiredCapacity=0,
        VPCZoneIdentifier=subnet,
        LaunchTemplate={"LaunchTemplateId": template, "Version": "1"},
    )
    if hook:
        scaling.put_lifecycle_hook(
            AutoScalingGroupName="a", LifecycleHookName="h", LifecycleTransition="autoscaling:EC2_INSTANCE_LAUNCHING"
        )
    scaling.set_desired_capacity(AutoScalingGroupName="a", DesiredCapacity=size)
