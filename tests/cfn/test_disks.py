"""The nodes' root disk before it is paid for: at least as large as the image's, encrypted by a key that works."""

import json
from typing import Any

import pytest
from designs import design

from cfn import disks, image
from cluster.clusterfile.model import Access, ClusterFile, Nodes
from cluster.errors import ConfigError
from tests.cfn.answers import account, refused

AMI = "ami-0123456789abcdef0"
KEY = "arn:aws:kms:us-east-1:123456789012:key/1"
FILE = ClusterFile(name="demo", nodes=Nodes(ami=AMI, root_gib=100), access=Access(ssh_from="203.0.113.7/32"))
ROLE = f"arn:aws:iam::123456789012:role/{disks.ROLE}"


def said(manager: str = "CUSTOMER", state: str = "Enabled", grants: Any = (), principal: Any = "") -> dict[str, Any]:
    """What AWS answers of the key."""
    allow = {"Effect": "Allow", "Action": "kms:*", "Resource": "*", "Principal": principal}
    return {
        "get_ebs_default_kms_key_id": {"KmsKeyId": KEY},
        "describe_key": {"KeyMetadata": {"Arn": KEY, "KeyManager": manager, "KeyState": state}},
        "list_grants": {"Grants": [{"GranteePrincipal": g} for g in grants]},
        "get_key_policy": {"Policy": json.dumps({"Statement": [allow]})},
    }


ROOT_ALONE = {"AWS": "arn:aws:iam::123456789012:root"}


@pytest.mark.parametrize(
    ("answers", "text"),
    [
        (said(manager="AWS"), ""),
        ({"get_ebs_default_kms_key_id": {"KmsKeyId": "arn:aws:kms:us-east-1:1:alias/aws/ebs"}}, ""),
        (said(principal=ROOT_ALONE), f"aws kms create-grant --region us-east-1 --key-id {KEY}"),
        (said(grants=[f"{ROLE}_of_another"], principal=ROOT_ALONE), "create-grant"),
        (said(grants=[ROLE], principal=ROOT_ALONE), ""),
        (said(principal={"AWS": [ROOT_ALONE["AWS"], ROLE]}), ""),
        (said(principal={"AWS": "*"}), ""),
        (said(principal="*"), ""),
        (said(grants=[ROLE], state="PendingDeletion"), "which is PendingDeletion"),
        ({"get_ebs_default_kms_key_id": refused("UnauthorizedOperation")}, ""),
        ({**said(), "describe_key": refused("NotFoundException")}, ""),
        ({**said(), "list_grants": refused("AccessDeniedException")}, ""),
    ],
)
def test_a_key_that_nobody_gave_to_auto_scaling_is_refused_with_the_grant_to_make(
    answers: dict[str, Any], text: str
) -> None:
    """What cannot be looked at passes: it may be another account's, and a failed launch tells."""
    if not text:
        disks.check_default_key(account(**answers), FILE)
        return
    with pytest.raises(ConfigError) as error:
        disks.check_default_key(account(**answers), FILE)
    assert text in str(error.value)


def described(**ebs: Any) -> dict[str, Any]:
    """An image with one disk beside its root."""
    others = {"DeviceName": "/dev/sdb", "Ebs": {"VolumeSize": 5000}}
    return {"RootDeviceName": "/dev/sda1", "BlockDeviceMappings": [others, {"DeviceName": "/dev/sda1", "Ebs": ebs}]}


def test_a_disk_smaller_than_the_images_is_refused() -> None:
    """EC2 would refuse each launch; the image's other disks do not count."""
    kind = design("g5.12xlarge").instance
    fits = account(describe_images={"Images": [described(VolumeSize=100)]})
    assert (AMI, "/dev/sda1") == image.image(fits, FILE, kind, "")
    with pytest.raises(ConfigError, match=r"nodes.root_gib: is 100, and ami-0.* has 125 GiB .* 125 or more"):
        image.image(account(describe_images={"Images": [described(VolumeSize=125)]}), FILE, kind, "")


def test_an_image_that_is_encrypted_itself_brings_its_key() -> None:
    """The snapshot's key is used then, not the account's default."""
    ours = described(VolumeSize=8, Encrypted=True, SnapshotId="snap-1")
    of_it = {"Snapshots": [{"KmsKeyId": KEY}]}
    with pytest.raises(ConfigError, match="create-grant"):
        disks.check_root(account(describe_snapshots=of_it, **said(principal=ROOT_ALONE)), FILE, AMI, ours)
    disks.check_root(account(describe_snapshots=of_it, **said(grants=[ROLE])), FILE, AMI, ours)
    disks.check_root(account(describe_snapshots=refused("InvalidSnapshot.NotFound")), FILE, AMI, ours)
