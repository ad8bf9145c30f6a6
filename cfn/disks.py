"""Checks of the nodes' root disk: its size against the image, and the key that encrypts it."""

import json
from typing import Any

from botocore.exceptions import ClientError

from cfn.aws import Aws, pages
from cluster.clusterfile.checks import FieldError
from cluster.clusterfile.model import ClusterFile
from cluster.errors import ConfigError

# Auto Scaling launches the nodes as this role. Without a right to the disk's key EC2 ends each instance as it starts.
# Source: EC2 Auto Scaling User Guide, "Required AWS KMS key policy for use with encrypted volumes".
ROLE = "aws-service-role/autoscaling.amazonaws.com/AWSServiceRoleForAutoScaling"
OPERATIONS = (
    "Encrypt", "Decrypt", "ReEncryptFrom", "ReEncryptTo", "GenerateDataKey", "GenerateDataKeyWithoutPlaintext",
    "DescribeKey", "CreateGrant",
)  # fmt: skip


def check_root(aws: Aws, file: ClusterFile, ami: str, described: dict[str, Any]) -> None:
    """Check the root disk. Raises FieldError if it is smaller than the image's.

    Args:
        described: the image as EC2 describes it.
    Raises ConfigError if Auto Scaling may not use the key that encrypts the image.
    """
    device = described.get("RootDeviceName")
    disks = [d.get("Ebs", {}) for d in described.get("BlockDeviceMappings", []) if d.get("DeviceName") == device]
    root = disks[0] if disks else {}
    if root.get("VolumeSize", 0) > file.nodes.root_gib:
        raise FieldError(
            "nodes.root_gib",
            f"is {file.nodes.root_gib}, and {ami} has {root['VolumeSize']} GiB on its own disk",
            f"give {root['VolumeSize']} or more",
        )
    if root.get("Encrypted") and (snapshot := root.get("SnapshotId")):
        try:
            found = aws.client("ec2").describe_snapshots(SnapshotIds=[snapshot])["Snapshots"]
        except ClientError:  # a snapshot of another account, which EC2 does not describe
            return
        if found and found[0].get("KmsKeyId"):
            check_key(aws, file, str(found[0]["KmsKeyId"]))


def check_default_key(aws: Aws, file: ClusterFile) -> None:
    """Raise ConfigError if Auto Scaling may not use the KMS key that encrypts the account's disks by default."""
    try:
        key = str(aws.client("ec2").get_ebs_default_kms_key_id()["KmsKeyId"])
    except ClientError:  # no permission to query it: a failed launch will show a problem
        return
    check_key(aws, file, key)


def check_key(aws: Aws, file: ClusterFile, key: str) -> None:
    """Raise ConfigError if Auto Scaling may not use a customer-managed KMS key.

    The key must be enabled, and a grant or its policy must admit Auto Scaling's role. Keys that cannot be described are
    accepted: they may be in another account.
    """
    if key.endswith("alias/aws/ebs"):
        return
    kms = aws.client("kms")
    try:
        known = kms.describe_key(KeyId=key)["KeyMetadata"]
        if known["KeyManager"] == "AWS":
            return
        is_usable = known["KeyState"] == "Enabled" and _is_given(kms, known["Arn"])
    except ClientError:
        return
    if known["KeyState"] != "Enabled":
        raise ConfigError(
            f"the nodes' disks are encrypted with {known['Arn']}, which is {known['KeyState']}: enable it, or choose "
            f"another with 'aws ec2 modify-ebs-default-kms-key-id --region {file.region} --kms-key-id KEY'"
        )
    if not is_usable:
        partition, account = known["Arn"].split(":")[1], known["Arn"].split(":")[4]
        raise ConfigError(
            f"the nodes' disks are encrypted with {known['Arn']}, which Auto Scaling may not use: EC2 would end every "
            f"instance as it starts. Grant it: 'aws kms create-grant --region {file.region} --key-id {known['Arn']} "
            f"--grantee-principal arn:{partition}:iam::{account}:role/{ROLE} --operations {' '.join(OPERATIONS)}'"
        )


def _is_given(kms: Any, key: str) -> bool:
    """Return True if Auto Scaling's role has a grant on the key, or the key's policy names it or everybody."""
    grants = pages(kms, "list_grants", "Grants", KeyId=key)
    if any(str(g.get("GranteePrincipal", "")).endswith(ROLE) for g in grants):
        return True
    policy = json.loads(kms.get_key_policy(KeyId=key, PolicyName="default")["Policy"])
    statements = policy["Statement"] if isinstance(policy["Statement"], list) else [policy["Statement"]]
    allowed = [s.get("Principal", {}) for s in statements if s.get("Effect") == "Allow"]
    named = [p if isinstance(p, str) else p.get("AWS", []) for p in allowed]
    principals = [one for p in named for one in ([p] if isinstance(p, str) else p)]
    return any(p == "*" or p.endswith(ROLE) for p in principals)
