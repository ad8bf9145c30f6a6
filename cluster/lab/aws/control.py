"""The fake's own doors: `/_fake/...` to set the scene and to look behind it."""

import dataclasses
import json
from collections.abc import Mapping
from typing import Any

from moto.core.base_backend import BackendDict
from moto.core.model_instances import reset_model_data

from cluster.lab.aws import groups
from cluster.lab.aws.autoscaling import instances
from cluster.lab.aws.imds import Imds
from cluster.lab.aws.wire import Answer, AwsFault
from cluster.lab.aws.world import FaultRule, World


class Control:
    """GET reads, POST sets; everything is JSON."""

    def __init__(self, world: World) -> None:
        self.world, self.imds = world, Imds(world)

    def handle(self, method: str, path: str, query: dict[str, str], body: bytes, headers: Mapping[str, str]) -> Answer:
        """The answer to one request."""
        what, _, rest = path.removeprefix("/_fake/").partition("/")
        if what == "imds":
            return self.imds.answer(method, rest, headers)
        said = json.loads(body or b"{}") if method == "POST" else {}
        handler = getattr(self, f"{method.lower()}_{what}", None)
        if handler is None:
            raise AwsFault("InvalidAction", f"no {method} {path} here")
        return 200, {"Content-Type": "application/json"}, json.dumps(handler(rest, query, said), default=str).encode()

    def get_log(self, rest: str, query: dict[str, str], said: Any) -> Any:
        """Every API call so far."""
        return self.world.log

    def post_capacity(self, rest: str, query: dict[str, str], said: dict[str, int]) -> Any:
        """How many more instances of a type can be had: {"g5.xlarge": 3}, in one zone {"g5.xlarge@us-east-1a": 0}."""
        self.world.capacity.update(said)
        self.world.touch()
        return self.world.capacity

    def post_kills(self, rest: str, query: dict[str, str], said: dict[str, str]) -> Any:
        """Why EC2 ends instances of a type, or of a type in a zone, as they start; "" for no more.

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
        """The next matching calls fail as said."""
        rule = FaultRule(**said)
        self.world.faults.append(rule)
        return dataclasses.asdict(rule)

    def post_settings(self, rest: str, query: dict[str, str], said: dict[str, Any]) -> Any:
        """scale, resource_seconds, page_size, nodes, strict_time."""
        for name, value in said.items():
            if name not in ("scale", "resource_seconds", "page_size", "nodes", "strict_time"):
                raise AwsFault("ValidationError", f"no setting {name}")
            setattr(self.world, name, value)
        self.world.touch()
        return said

    def post_clock(self, rest: str, query: dict[str, str], said: dict[str, float]) -> Any:
        """{"forward_s": 3600}: AWS's clock is moved on; what is scheduled until then is done."""
        self.world.ahead_s += said["forward_s"]
        self.world.touch()
        return {"now": self.world.now().isoformat()}

    def post_delete_failures(self, rest: str, query: dict[str, str], said: dict[str, str]) -> Any:
        """The next deletion of these logical resources fails for this reason."""
        self.world.delete_failures.update(said)
        return said

    def post_update_failures(self, rest: str, query: dict[str, str], said: dict[str, int]) -> Any:
        """{"AdminGroup": 2}: how many changes of a logical resource fail, those of a roll-back among them."""
        self.world.update_failures.update(said)
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

    def post_metadata(self, rest: str, query: dict[str, str], said: dict[str, str]) -> Any:
        """`/_fake/metadata/<id>`: what an instance's metadata says besides, by path ("meta-data/spot/instance-action").

        The tokens that were given out do not count any more, as after their time.
        """
        self.world.metadata[rest] = said
        self.world.imds_tokens += 1
        return said

    def post_kubernetes(self, rest: str, query: dict[str, str], said: dict[str, str]) -> Any:
        """Where an API serves each of EKS's clusters: {"endpoint": "https://127.0.0.1:1234", "authority": "BASE64"}."""
        self.world.kubernetes_api = {"endpoint": said["endpoint"], "authority": said["authority"]}
        return self.world.kubernetes_api

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
