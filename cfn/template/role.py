"""The template's one role: what first boot and the tasks on the master need, and no more."""

from typing import Any

from troposphere import GetAtt, Ref, Sub, Template, iam

from cfn.template.design import OWNED_TAGS, TAG, Design, bucket_and_prefix
from cfn.template.network import tags


def add_role(t: Template, design: Design) -> iam.InstanceProfile:
    """The instance profile of all nodes: what first boot and the tasks need on the master, and no more."""
    statements = [_look(), _signal(design), _mark(design), _replace(design), *_s3(design)]
    managed = (
        [Sub("arn:${AWS::Partition}:iam::aws:policy/AmazonSSMManagedInstanceCore")]
        if design.file.access.mode == "ssm"
        else []
    )
    role = t.add_resource(
        iam.Role(
            "NodeRole",
            AssumeRolePolicyDocument={
                "Version": "2012-10-17",
                "Statement": [
                    {"Effect": "Allow", "Principal": {"Service": "ec2.amazonaws.com"}, "Action": "sts:AssumeRole"}
                ],
            },
            Policies=[iam.Policy(PolicyName="node", PolicyDocument={"Version": "2012-10-17", "Statement": statements})],
            Tags=tags(design, "node"),
            **({"ManagedPolicyArns": managed} if managed else {}),
        )
    )
    return t.add_resource(iam.InstanceProfile("NodeProfile", Roles=[Ref(role)]))


def _look() -> dict[str, Any]:
    # These have no resource-level permissions: the star is all that IAM offers.
    return {
        "Sid": "Look",
        "Effect": "Allow",
        "Resource": "*",
        "Action": [
            "autoscaling:DescribeAutoScalingGroups",
            "autoscaling:DescribeScalingActivities",
            "ec2:DescribeInstances",
            "ec2:DescribeInstanceTypes",
            "ec2:DescribeTags",
        ],
    }


def _signal(design: Design) -> dict[str, Any]:
    own = Sub("arn:${AWS::Partition}:cloudformation:${AWS::Region}:${AWS::AccountId}:stack/" + design.file.name + "/*")
    return {
        "Sid": "Signal",
        "Effect": "Allow",
        "Resource": own,
        "Action": [
            "cloudformation:DescribeStackEvents",
            "cloudformation:DescribeStacks",
            "cloudformation:GetTemplate",
            "cloudformation:SignalResource",
        ],
    }


def _mark(design: Design) -> dict[str, Any]:
    return {
        "Sid": "Mark",
        "Effect": "Allow",
        "Action": "ec2:CreateTags",
        "Resource": Sub("arn:${AWS::Partition}:ec2:${AWS::Region}:${AWS::AccountId}:instance/*"),
        "Condition": {
            "StringEquals": {f"aws:ResourceTag/{TAG}cluster": design.file.name},
            "ForAllValues:StringEquals": {"aws:TagKeys": [TAG + name for name in OWNED_TAGS]},
        },
    }


def _replace(design: Design) -> dict[str, Any]:
    groups = [
        Sub(
            "arn:${AWS::Partition}:autoscaling:${AWS::Region}:${AWS::AccountId}:autoScalingGroup:*:autoScalingGroupName/"
            + f"{design.file.name}-{role}"
        )
        for role in ("master", "workers")
    ]
    return {
        "Sid": "Replace",
        "Effect": "Allow",
        "Resource": groups,
        "Action": "autoscaling:TerminateInstanceInAutoScalingGroup",
    }


def _s3(design: Design) -> list[dict[str, Any]]:
    if not design.file.storage.s3:
        return []
    bucket, prefix = bucket_and_prefix(design.file.storage.s3)
    arn = "arn:${AWS::Partition}:s3:::" + bucket
    return [
        {
            "Sid": "ListPrefix",
            "Effect": "Allow",
            "Action": "s3:ListBucket",
            "Resource": Sub(arn),
            "Condition": {"StringLike": {"s3:prefix": [prefix, f"{prefix}/*"]}},
        },
        {
            "Sid": "UsePrefix",
            "Effect": "Allow",
            "Resource": Sub(f"{arn}/{prefix}/*"),
            "Action": ["s3:AbortMultipartUpload", "s3:DeleteObject", "s3:GetObject", "s3:PutObject"],
        },
    ]


def profile_arn(profile: iam.InstanceProfile) -> Any:
    return GetAtt(profile, "Arn")
