"""The fake itself: a rule of AWS's, and what the fake does. So that it can be reviewed against AWS's documentation."""

from typing import Any

import pytest
from botocore.exceptions import ClientError
from fake_groups import create

from lab.aws import FakeAws

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
