"""IAM roles of master and workers: exactly what first boot and the tasks need.

Root and the login user of a node can assume its role, and so can the programs that they run. So neither role lets a
node write what another node or the operator trusts: another's host key, or the archive that first boot runs. Only the
master may end instances.
"""

from collections.abc import Mapping
from typing import Any

from troposphere import GetAtt, Ref, Sub, Template, iam

from cfn.template.design import TAG, Design, bucket_and_prefix
from cfn.template.network import tags
from cluster.clusterfile.model import ClusterFile

Statement = dict[str, Any]


def add_roles(t: Template, design: Design) -> Mapping[str, iam.InstanceProfile]:
    """Add the instance profiles of the master and the workers. Return them by role."""
    everyone = [_signal(design), _mark_itself(design), *_s3(design)]
    return {
        "Master": _profile(
            t,
            design,
            "Master",
            [
                *everyone,
                _look(),
                _read_stack(design),
                _rank(design),
                _replace(design),
                *_guard(design),
                *_tell(design),
                *_keep_results(design),
            ],
        ),
        "Worker": _profile(t, design, "Worker", everyone),
    }


def _profile(t: Template, design: Design, name: str, statements: list[Statement]) -> iam.InstanceProfile:
    managed = (
        [Sub("arn:${AWS::Partition}:iam::aws:policy/AmazonSSMManagedInstanceCore")]
        if design.file.access.mode == "ssm"
        else []
    )
    statements = statements + (_fetch(design) if name == "Master" else []) + _spare_source(design)
    role = t.add_resource(
        iam.Role(
            f"{name}Role",
            AssumeRolePolicyDocument={
                "Version": "2012-10-17",
                "Statement": [
                    {"Effect": "Allow", "Principal": {"Service": "ec2.amazonaws.com"}, "Action": "sts:AssumeRole"}
                ],
            },
            Policies=[iam.Policy(PolicyName="node", PolicyDocument={"Version": "2012-10-17", "Statement": statements})],
            Tags=tags(design, name.lower()),
            **bounds(design.file),
            **({"ManagedPolicyArns": managed} if managed else {}),
        )
    )
    return t.add_resource(iam.InstanceProfile(f"{name}Profile", Roles=[Ref(role)], **_path(design.file)))


def bounds(file: ClusterFile) -> dict[str, str]:
    """Return the settings that the file gives every role of a cluster: permissions boundary and path."""
    boundary = file.access.permissions_boundary
    return {**({"PermissionsBoundary": boundary} if boundary else {}), **_path(file)}


def _path(file: ClusterFile) -> dict[str, str]:
    return {"Path": file.access.role_path} if file.access.role_path != "/" else {}


def _look() -> Statement:
    # These actions have no resource-level permissions, so IAM allows only the star.
    return {
        "Sid": "Look",
        "Effect": "Allow",
        "Resource": "*",
        "Action": [
            "autoscaling:DescribeAutoScalingGroups",
            "autoscaling:DescribeScalingActivities",
            "autoscaling:DescribeScheduledActions",
            "ec2:DescribeInstances",
            "ec2:DescribeSpotPriceHistory",  # for the cost of jobs
            "pricing:GetProducts",
        ],
    }


def _own_stack(design: Design) -> Sub:
    return Sub("arn:${AWS::Partition}:cloudformation:${AWS::Region}:${AWS::AccountId}:stack/" + design.file.name + "/*")


def _signal(design: Design) -> Statement:
    return {
        "Sid": "Signal",
        "Effect": "Allow",
        "Resource": _own_stack(design),
        "Action": "cloudformation:SignalResource",
    }


def _read_stack(design: Design) -> Statement:
    return {
        "Sid": "ReadStack",
        "Effect": "Allow",
        "Resource": _own_stack(design),
        "Action": [
            "cloudformation:DescribeStackEvents",
            "cloudformation:DescribeStacks",
            "cloudformation:GetTemplate",
        ],
    }


def _mark(sid: str, conditions: dict[str, dict[str, Any]], names: list[str]) -> Statement:
    return {
        "Sid": sid,
        "Effect": "Allow",
        "Action": "ec2:CreateTags",
        "Resource": Sub("arn:${AWS::Partition}:ec2:${AWS::Region}:${AWS::AccountId}:instance/*"),
        "Condition": {
            **conditions,
            "ForAllValues:StringEquals": {"aws:TagKeys": [TAG + name for name in names]},
        },
    }


def _mark_itself(design: Design) -> Statement:
    """Allow a node to tag itself with its boot state and host key, from which `known_hosts` is made.

    Both keys are in the Service Authorization Reference of EC2: the instance that the credentials were given to, and
    the id of the instance that is to be tagged.
    """
    target = Sub("arn:${AWS::Partition}:ec2:${AWS::Region}:${AWS::AccountId}:instance/${!ec2:InstanceID}")
    return _mark("MarkItself", {"ArnLike": {"ec2:SourceInstanceARN": target}}, ["boot", "host-key"])


def _rank(design: Design) -> Statement:
    return _mark("Rank", {"StringEquals": {f"aws:ResourceTag/{TAG}cluster": design.file.name}}, ["rank"])


def _groups(design: Design) -> list[Sub]:
    return [
        Sub(
            "arn:${AWS::Partition}:autoscaling:${AWS::Region}:${AWS::AccountId}:autoScalingGroup:*:autoScalingGroupName/"
            + f"{design.file.name}-{role}"
        )
        for role in ("master", "workers")
    ]


def _guard(design: Design) -> list[Statement]:
    """Allow the master to postpone the scheduled end of both groups, and forbid it to schedule more nodes."""
    action = "autoscaling:PutScheduledUpdateGroupAction"
    given = {"Sid": "Guard", "Effect": "Allow", "Resource": _groups(design), "Action": action}
    # The guard schedules sizes of 0. This is a Deny, and not a condition of the Allow: if AWS omits the key in a
    # request, the master can still postpone the end.
    spared = {
        "Sid": "GrowNothing",
        "Effect": "Deny",
        "Resource": _groups(design),
        "Action": action,
        "Condition": {"NumericGreaterThan": {"autoscaling:MaxSize": "0"}},
    }
    return [given, spared] if design.file.is_guarded else []


def _replace(design: Design) -> Statement:
    return {
        "Sid": "Replace",
        "Effect": "Allow",
        "Resource": _groups(design),
        "Action": "autoscaling:TerminateInstanceInAutoScalingGroup",
    }


def of_jobs(design: Design) -> list[Statement]:
    """Return what trainings may do wherever they run: access their data, store results, send notifications."""
    return [*_s3(design), *_tell(design), *_keep_results(design)]


def _tell(design: Design) -> list[Statement]:
    """Allow publishing to the file's notification topic. The master does, because it supervises jobs."""
    topic = design.file.notify
    told = {"Sid": "Tell", "Effect": "Allow", "Action": "sns:Publish", "Resource": topic}
    return [told] if topic.startswith("arn:") else []


def _keep_results(design: Design) -> list[Statement]:
    """Allow writing job results to the file's place in S3. The master does, because it supervises jobs."""
    if not design.file.results:
        return []
    bucket, prefix = bucket_and_prefix(design.file.results)
    below = f"{prefix}/*" if prefix else "*"
    return [
        {
            "Sid": "KeepResults",
            "Effect": "Allow",
            "Resource": Sub("arn:${AWS::Partition}:s3:::" + f"{bucket}/{below}"),
            "Action": ["s3:AbortMultipartUpload", "s3:GetObject", "s3:PutObject"],
        }
    ]


def _s3(design: Design) -> list[Statement]:
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


def _source_arn(design: Design) -> Sub | None:
    source = design.file.nodes.source
    return Sub("arn:${AWS::Partition}:s3:::" + source.removeprefix("s3://")) if source.startswith("s3://") else None


def _fetch(design: Design) -> list[Statement]:
    """Allow only the master to read the archive that first boot unpacks. The workers get it from the master."""
    arn = _source_arn(design)
    return [{"Sid": "FetchSource", "Effect": "Allow", "Action": "s3:GetObject", "Resource": arn}] if arn else []


def _spare_source(design: Design) -> list[Statement]:
    """Forbid nodes to change that archive, even where it is under a prefix that they may write."""
    arn = _source_arn(design)
    actions = ["s3:DeleteObject", "s3:DeleteObjectVersion", "s3:PutObject"]
    return [{"Sid": "SpareSource", "Effect": "Deny", "Action": actions, "Resource": arn}] if arn else []


def profile_arn(profile: iam.InstanceProfile) -> Any:
    """Return the ARN by which a launch template names an instance profile."""
    return GetAtt(profile, "Arn")
