"""Instance metadata service of each instance, as IMDSv2: a GET needs a token that was requested with PUT."""

import json
import urllib.parse
from collections.abc import Mapping

from lab.aws.autoscaling import instances
from lab.aws.moto_client import client
from lab.aws.protocol import Answer
from lab.aws.state import FakeState

NODE = "NODE"  # prefix of an instance's access key; its id follows
OPERATOR = "OPERATOR"  # access key of a user whose requests are logged with their parameters, like a node's
_TAGS = "meta-data/tags/instance/"
_NOT_THERE: Answer = (404, {}, b"")


class Imds:
    """Stand-in for 169.254.169.254, for clients whose AWS_EC2_METADATA_SERVICE_ENDPOINT is `/_fake/imds/ID`."""

    def __init__(self, world: FakeState) -> None:
        self.world = world

    def answer(self, method: str, rest: str, headers: Mapping[str, str]) -> Answer:
        """Return the answer to a request for `ID/latest/...`."""
        instance, _, path = rest.partition("/")
        path = path.removeprefix("latest/")
        token = f"token-{self.world.imds_tokens}"
        if path == "api/token":
            asked = method == "PUT" and headers.get("X-aws-ec2-metadata-token-ttl-seconds", "").isdigit()
            return (200, {"Content-Type": "text/plain"}, token.encode()) if asked else (400, {}, b"")
        if headers.get("X-aws-ec2-metadata-token") != token:
            return 401, {}, b""
        text = self._told(instance, path)
        return _NOT_THERE if text is None else (200, {"Content-Type": "text/plain"}, text.encode())

    def _told(self, instance: str, path: str) -> str | None:
        if path.startswith("meta-data/iam/security-credentials/"):
            is_named = urllib.parse.unquote(path.rsplit("/", 1)[1])
            return json.dumps({**_CREDENTIALS, "AccessKeyId": f"{NODE}{instance}"}) if is_named else "node"
        if said := self.world.metadata.get(instance, {}).get(path):
            return said
        found = next(iter(instances(self.world, instance)), None)
        if found is None:
            return None
        if path == "user-data":
            return user_data(found["region"], instance)
        if path.startswith(_TAGS):
            return _tags(found["region"], instance).get(path.removeprefix(_TAGS))
        return {
            "meta-data/instance-id": instance,
            "meta-data/local-ipv4": found["private_ip"],
            "meta-data/instance-type": found["type"],
            "meta-data/placement/region": found["region"],
        }.get(path)


_CREDENTIALS = {
    "SecretAccessKey": "fake",
    "Token": "fake",
    "Expiration": "2099-01-01T00:00:00Z",
}


def user_data(region: str, instance: str) -> str:
    """Return an instance's user data, decoded."""
    import base64

    said = client("ec2", region).describe_instance_attribute(InstanceId=instance, Attribute="userData")["UserData"]
    return base64.b64decode(said.get("Value", "")).decode()


def _tags(region: str, instance: str) -> dict[str, str]:
    """Return an instance's tags, as the instance sees them if its launch template allows that."""
    asked = [{"Name": "resource-id", "Values": [instance]}]
    return {t["Key"]: t["Value"] for t in client("ec2", region).describe_tags(Filters=asked)["Tags"]}
