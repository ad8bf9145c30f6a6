"""Control API of the fake AWS below `/_fake/...`, by which tests set up and inspect its state."""

import dataclasses
import json
from collections.abc import Mapping
from typing import Any

from moto.core.base_backend import BackendDict
from moto.core.model_instances import reset_model_data

from lab.aws import groups
from lab.aws.autoscaling import instances
from lab.aws.imds import Imds
from lab.aws.protocol import Answer, AwsFault
from lab.aws.state import FakeState, FaultRule


class Control:
    """Handlers of the control API: GET reads, POST sets. All bodies are JSON."""

    def __init__(self, world: FakeState) -> None:
        self.world, self.imds = world, Imds(world)

    def handle(self, method: str, path: str, query: dict[str, str], body: bytes, headers: Mapping[str, str]) -> Answer:
        """Return the answer to one request."""
        what, _, rest = path.removeprefix("/_fake/").partition("/")
        if what == "imds":
            return self.imds.answer(method, rest, headers)
        said = json.loads(body or b"{}") if method == "POST" else {}
        handler = getattr(self, f"{method.lower()}_{what}", None)
        if handler is None:
            raise AwsFault("InvalidAction", f"no {method} {path} here")
        return 200, {"Content-Type": "application/json"}, json.dumps(handler(rest, query, said), default=str).encode()

    def get_log(self, rest: str, query: dict[str, str], said: Any) -> Any:
        """Return every API call so far."""
        return self.world.log

    def post_capacity(self, rest: str, query: dict[str, str], said: dict[str, int]) -> Any:
        """Set how many more instances of a type can be launched, in all zones or in one.

        {"g5.xlarge": 3} or {"g5.xlarge@us-east-1a": 0}
        """
        self.world.capacity.update(said)
        self.world.touch()
        return self.world.capacity

    def post_kills(self, rest: str, query: dict[str, str], said: dict[str, str]) -> Any:
        """Set why EC2 terminates instances of a type, or of a type in a zone, as they start. "" removes the entry.

        {"g5.xlarge": "Client.VolumeLimitExceeded: Volume limit exceeded"}
        """
        self.world.kills = {kind: why for kind, why in {**self.world.kills, **said}.items() if why}
        self.world.touch()
        return self.world.kills

    def post_quotas(self, rest: str, query: dict[str, str], said: dict[str, float]) -> Any:
        self.world.quotas.update(said)
        return self.world.quotas

    def post_prices(self, rest: str, query: dict[str, str], said: dict[str, float]) -> Any:
        self.world.prices.update(said)
        return self.world.prices

    def post_spot_prices(self, rest: str, query: dict[str, str], said: dict[str, float]) -> Any:
        self.world.spot_prices.update(said)
        return self.world.spot_prices

    def post_faults(self, rest: str, query: dict[str, str], said: dict[str, Any]) -> Any:
        """Make the next matching calls fail as described by a FaultRule."""
        rule = FaultRule(**said)
        self.world.faults.append(rule)
        return dataclasses.asdict(rule)

    def post_settings(self, rest: str, query: dict[str, str], said: dict[str, Any]) -> Any:
        """Set scale, resource_seconds, page_size, nodes or strict_time."""
        for name, value in said.items():
            if name not in ("scale", "resource_seconds", "page_size", "nodes", "strict_time"):
                raise AwsFault("ValidationError", f"no setting {name}")
            setattr(self.world, name, value)
        self.world.touch()
        return said

    def post_clock(self, rest: str, query: dict[str, str], said: dict[str, float]) -> Any:
        """Advance AWS's clock: {"forward_s": 3600}. Scheduled actions until then are executed."""
        self.world.ahead_s += said["forward_s"]
        self.world.touch()
        return {"now": self.world.now().isoformat()}

    def post_delete_failures(self, rest: str, query: dict[str, str], said: dict[str, str]) -> Any:
        """Make the next deletion of these logical resources fail with this reason."""
        self.world.delete_failures.update(said)
        return said

    def post_update_failures(self, rest: str, query: dict[str, str], said: dict[str, int]) -> Any:
        """Set how many changes of a logical resource fail, including those of a rollback: {"AdminGroup": 2}."""
        self.world.update_failures.update(said)
        return said

    def post_reservations(self, rest: str, query: dict[str, str], said: dict[str, Any]) -> Any:
        self.world.reservations[said["CapacityReservationId"]] = said
        return said

    def post_nodes(self, rest: str, query: dict[str, str], said: dict[str, Any]) -> Any:
        """Set how the next simulated nodes of a role boot.

        {"role": "worker", "do": "fail"|"silent", "step": ..., "times": 1}
        """
        self.world.node_rules.append({"times": 1, "step": "mount-shared", **said})
        return said

    def post_metadata(self, rest: str, query: dict[str, str], said: dict[str, str]) -> Any:
        """Set additional metadata of an instance, by path.

        `/_fake/metadata/<id>`, {"meta-data/spot/instance-action": ...}. Issued metadata tokens become invalid, as if
        they had expired.
        """
        self.world.metadata[rest] = said
        self.world.imds_tokens += 1
        return said

    def post_kubernetes(self, rest: str, query: dict[str, str], said: dict[str, str]) -> Any:
        """Set the API that serves every EKS cluster: {"endpoint": "https://127.0.0.1:1234", "authority": "BASE64"}."""
        self.world.kubernetes_api = {"endpoint": said["endpoint"], "authority": said["authority"]}
        return self.world.kubernetes_api

    def post_reset(self, rest: str, query: dict[str, str], said: Any) -> Any:
        """Reset the fake's state, including moto's."""
        self.world.clear()
        BackendDict.reset()
        reset_model_data()
        return {}

    def get_instances(self, rest: str, query: dict[str, str], said: Any) -> Any:
        """Return all instances of all groups.

        With `after`, wait for a newer version first, at most `timeout` seconds.
        """
        after, timeout = int(query.get("after", -1)), min(60.0, float(query.get("timeout", 0)))
        with self.world.changed:
            self.world.changed.wait_for(lambda: self.world.version > after or self.world.closed, timeout=timeout)
            return {"version": self.world.version, "instances": instances(self.world)}

    def post_instances(self, rest: str, query: dict[str, str], said: dict[str, Any]) -> Any:
        """Set an instance's health by `/_fake/instances/<id>`.

        EC2's status checks report {"health": "Unhealthy"} of a dead host.
        """
        for (region, _), group in self.world.groups.items():
            for one in group.members:
                if one.id == rest:
                    groups.member(self.world, region, rest)[1].health = said["health"]
                    self.world.touch()
                    return said
        raise AwsFault("ValidationError", f"no instance {rest} in any group")
