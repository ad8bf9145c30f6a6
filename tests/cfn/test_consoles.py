"""Host keys compared with what EC2's consoles say, asked of the fake AWS."""

import base64
import hashlib

import boto3
import pytest
from moto.ec2.responses import general

from cluster.join.console import consoles
from cluster.join.keys import HostKey
from lab.aws import FakeAws

CONSOLE = "[ 14.2] booted\n-----BEGIN SSH HOST KEY KEYS-----\n{} root@h\n-----END SSH HOST KEY KEYS-----\nlogin:\n"


def test_ec2_is_asked_for_the_consoles_of_hosts_by_either_address(
    fake: FakeAws, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An instance is found by its private and by its public address; one that has ended, and other hosts, are not."""
    key = HostKey("ssh-ed25519", base64.b64encode(hashlib.sha256(b"a").digest() * 2).decode())
    monkeypatch.setattr(general, "SAMPLE_CONSOLE_OUTPUT", CONSOLE.format(key))
    ec2 = boto3.client("ec2")
    one, other = ec2.run_instances(ImageId="ami-0123456789abcdef0", MinCount=2, MaxCount=2)["Instances"]
    ec2.terminate_instances(InstanceIds=[other["InstanceId"]])
    found = ec2.describe_instances(InstanceIds=[one["InstanceId"]])["Reservations"][0]["Instances"][0]
    addresses = [found["PrivateIpAddress"], found["PublicIpAddress"], other["PrivateIpAddress"], "gpu7"]

    said = consoles(addresses)

    assert ({a: frozenset({key.fingerprint}) for a in addresses[:2]}, "") == (said.fingerprints, said.why_not)
