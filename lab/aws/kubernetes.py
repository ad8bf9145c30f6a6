"""EKS operations that moto lacks.

These are add-ons, errors for deleted clusters, node groups that end their instances, and an API that kubectl reaches.
"""

import json
import re
from typing import Any

from lab.aws import groups
from lab.aws.moto_client import client
from lab.aws.protocol import Answer, AwsFault, fault
from lab.aws.state import FakeState

_PATH = re.compile(r"/clusters/([^/]+)/(addons|node-groups)(?:/([^/]+))?")
_CLUSTER = re.compile(r"/clusters/([^/]+)")


def answer(world: FakeState, region: str, method: str, path: str) -> Answer | None:
    """Return the answer to a request about add-ons, about a missing cluster, or about one with an API beside this fake.

    Return None for all requests that moto answers.
    """
    if method == "GET" and world.kubernetes_api and (one := _CLUSTER.fullmatch(path)):
        return _reachable(world, region, one[1])
    asked = _PATH.fullmatch(path)
    if not asked or method not in ("GET", "DELETE"):
        return None
    cluster, what, addon = asked.groups()
    if method == "DELETE":
        if what == "node-groups":
            _end_group(world, region, cluster, addon)
        return None
    try:
        known = sorted(_of(world, region, cluster))
        if what == "node-groups":
            return None
        made = _addon(world, region, cluster, addon) if addon else {"addons": known}
    except AwsFault as e:
        return fault("eks", e)
    return 200, {"Content-Type": "application/json"}, json.dumps(made).encode()


def _reachable(world: FakeState, region: str, name: str) -> Answer | None:
    """Return moto's description of a cluster with the address of its API; None if there is no such cluster."""
    if (region, name) not in world.kubernetes:
        return None
    api = world.kubernetes_api
    found = client("eks", region).describe_cluster(name=name)["cluster"]
    found |= {"endpoint": api["endpoint"], "certificateAuthority": {"data": api["authority"]}}
    found["createdAt"] = found["createdAt"].timestamp()
    return 200, {"Content-Type": "application/json"}, json.dumps({"cluster": found}).encode()


def _end_group(world: FakeState, region: str, cluster: str, name: str) -> None:
    """Delete the Auto Scaling group of a node group. Moto deletes the node group itself."""
    for (where, group), made in list(world.groups.items()):
        own = {"eks:cluster-name": cluster, "eks:nodegroup-name": name}
        if where == region and own.items() <= made.own_tags.items():
            groups.remove(world, region, group)


def _of(world: FakeState, region: str, cluster: str) -> dict[str, Any]:
    found = world.kubernetes.get((region, cluster))
    if found is None:
        raise AwsFault("ResourceNotFoundException", f"No cluster found for name: {cluster}.", 404)
    addons: dict[str, Any] = found["addons"]
    return addons


def _addon(world: FakeState, region: str, cluster: str, name: str) -> dict[str, Any]:
    addons = _of(world, region, cluster)
    if name not in addons:
        raise AwsFault("ResourceNotFoundException", f"No addon: {name} found in cluster: {cluster}", 404)
    said = {"addonName": name, "clusterName": cluster, "addonVersion": "v1.0.0-eksbuild.1"}
    state = world.addon_states.get(name, "ACTIVE")
    issue = {"code": "InsufficientNumberOfReplicas", "message": "The add-on is unhealthy"}
    health = {"issues": [] if state == "ACTIVE" else [issue]}
    return {"addon": {**said, "tags": addons[name]["tags"], "status": state, "health": health}}
