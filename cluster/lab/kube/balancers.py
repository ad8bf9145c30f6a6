"""What AWS does with a Service that wants a load balancer, as far as the lab goes: it is known by its pods' addresses.

Nothing forwards to their ports here, nor looks at `loadBalancerSourceRanges`: who comes, comes to a pod itself.
"""

from cluster.lab.kube.kinds import Document, kind
from cluster.lab.kube.names import addresses
from cluster.lab.kube.store import Store

_SERVICE = kind("Service")


def sync(store: Store) -> None:
    """Tell each such Service where it is reached; nowhere while no pod of it is ready."""
    for service in store.listed(_SERVICE):
        if service["spec"].get("type") == "LoadBalancer":
            _tell(store, service)


def _tell(store: Store, service: Document) -> None:
    meta = service["metadata"]
    ingress = [{"ip": one} for one in addresses(store, f"{meta['name']}.{meta['namespace']}.svc") or ()]
    status = {"loadBalancer": {"ingress": ingress} if ingress else {}}
    store.change(_SERVICE, meta["namespace"], meta["name"], lambda now: {**now, "status": status})
