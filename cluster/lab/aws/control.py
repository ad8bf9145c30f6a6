"""The fake's own doors: `/_fake/...` to set the scene and to look behind it, and an instance metadata service
per instance.
"""

import dataclasses
import json
import urllib.parse
from typing import Any

from moto.core.base_backend import BackendDict
from moto.core.model_instances import reset_model_data

from cluster.lab.aws import groups
from cluster.lab.aws.autoscaling import instances
from cluster.lab.aws.inner import client
from cluster.lab.aws.wire import Answer, AwsFault
from cluster.lab.aws.world import FaultRule, World


class Control:
    """GET reads, POST sets; everything is JSON."""

    def __init__(self, world: World) -> None:
        self.world = world

    def handle(self, method: str, path: str, query: dict[str, str], body: bytes) -> Answer:
        what, _, rest = path.removeprefix("/_fake/").partition("/")
        if what == "imds":
            return self._imds(rest)
        said = json.loads(body or b"{}") if method == "POST" else {}
        handler = getattr(self, f"{method.lower()}_{what}", None)
        if handler is None:
            raise AwsFault("InvalidAction", f"no {method} {path} here")
        return 200, {"Content-Type": "application/json"}, json.dumps(handler(rest, query, said), default=str).encode()

    def get_log(self, rest: str, query: dict[str, str], said: Any) -> Any:
        """Every API call so far."""
        return self.world.log

    def post_capacity(self, rest: str, query: dict[str, str], said: dict[str, int]) -> Any:
        """How many more instances of a type can be had."""
        self.world.capacity.update(said)
        self.world.touch()
        return self.world.capacity

    def post_quotas(self, rest: str, query: dict[str, str], said: dict[str, float]) -> Any:
        self.world.quotas.update(said)
        return self.world.quotas

    def post_prices(self, rest: str, query: dict[str, str], said: dict[str, float]) -> Any:
        self.world.prices.update(said)
        return self.world.prices

    def post_faults(self, rest: str, query: dict[str, str], said: dict[str, Any]) -> Any:
        """The next matching calls fail as said."""
        rule = FaultRule(**said)
        self.world.faults.append(rule)
        return dataclasses.asdict(rule)

    def post_settings(self, rest: str, query: dict[str, str], said: dict[str, Any]) -> Any:
        """scale, resource_seconds, page_size, nodes."""
        for name, value in said.items():
            if name not in ("scale", "resource_seconds", "page_size", "nodes"):
                raise AwsFault("ValidationError", f"no setting {name}")
            setattr(self.world, name, value)
        self.world.touch()
        return said

    def post_delete_failures(self, rest: str, query: dict[str, str], said: dict[str, str]) -> Any:
        """The next deletion of these logical resources fails for this reason."""
        self.world.delete_failures.update(said)
        return said

    def post_reservations(self, rest: str, query: dict[str, str], said: dict[str, Any]) -> Any:
        self.world.reservations[said["CapacityReservationId"]] = said
        return said

    def post_nodes(self, rest: str, query: dict[str, str], said: dict[str, Any]) -> Any:
        """What the next simulated nodes of a role do: {"role": "worker", "do": "fail"|"silent", "step": ...,
        "times": 1}.
        """
        self.world.node_rules.append({"times": 1, "step": "mount-shared", **said})
        return said

    def post_reset(self, rest: str, query: dict[str, str], said: Any) -> Any:
        """Forget everything, moto's part too."""
        self.world.clear()
        BackendDict.reset()
        reset_model_data()
        return {}

    def get_instances(self, rest: str, query: dict[str, str], said: Any) -> Any:
        """All instances of all groups; with `after` waits until something changed since that version, at most
        `timeout` seconds.
        """
        after, timeout = int(query.get("after", -1)), min(60.0, float(query.get("timeout", 0)))
        with self.world.changed:
            self.world.changed.wait_for(lambda: self.world.version > after or self.world.closed, timeout=timeout)
            return {"version": self.world.version, "instances": instances(self.world)}

    def post_instances(self, rest: str, query: dict[str, str], said: dict[str, Any]) -> Any:
        """`/_fake/instances/<id>`: {"health": "Unhealthy"} is what EC2's status checks find when a machine is dead."""
        for (region, _), group in self.world.groups.items():
            for one in group.members:
                if one.id == rest:
                    groups.member(self.world, region, rest)[1].health = said["health"]
                    self.world.touch()
                    return said
        raise AwsFault("ValidationError", f"no instance {rest} in any group")

    def _imds(self, rest: str) -> Answer:
        """Metadata of one instance: what the node's script asks when AWS_EC2_METADATA_SERVICE_ENDPOINT points here."""
        instance, _, path = rest.partition("/")
        text = self._metadata(instance, path.removeprefix("latest/"))
        return (404, {}, b"") if text is None else (200, {"Content-Type": "text/plain"}, text.encode())

    def _metadata(self, instance: str, path: str) -> str | None:
        if path == "api/token":
            return "fake-token"
        if path.startswith("meta-data/iam/security-credentials/"):
            name = urllib.parse.unquote(path.rsplit("/", 1)[1])
            secret = {
                "AccessKeyId": "fake",
                "SecretAccessKey": "fake",
                "Token": "fake",
                "Expiration": "2099-01-01T00:00:00Z",
            }
            return json.dumps(secret) if name else "node"
        found = next((i for i in instances(self.world) if i["id"] == instance), None)
        if found is None:
            return None
        if path == "user-data":
            return user_data(found["region"], instance)
        return {
            "meta-data/instance-id": instance,
            "meta-data/local-ipv4": found["private_ip"],
            "meta-data/instance-type": found["type"],
            "meta-data/placement/region": found["region"],
        }.get(path)


def user_data(region: str, instance: str) -> str:
    """An instance's user data as it was written."""
    import base64

    said = client("ec2", region).describe_instance_attribute(InstanceId=instance, Attribute="userData")["UserData"]
    return base64.b64decode(said.get("Value", "")).decode()
