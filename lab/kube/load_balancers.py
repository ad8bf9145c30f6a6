"""Controller of load balancers, as far as the lab models them: their address is that of the Service's pods.

Nothing here forwards ports or applies `loadBalancerSourceRanges`. Clients connect to a pod directly.
"""

from lab.kube.dns import addresses
from lab.kube.kinds import Document, kind
from lab.kube.store import Store

_SERVICE = kind("Service")


def sync(store: Store) -> None:
    """Set the addresses of every LoadBalancer Service; none while no pod of it is ready."""
    for service in store.listed(_SERVICE):
        if service["spec"].get("type") == "LoadBalancer":
            _tell(store, service)


def _tell(store: Store, service: Document) -> None:
    meta = service["metadata"]
    ingress = [{"ip": one} for one in addresses(store, f"{meta['name']}.{meta['namespace']}.svc") or ()]
    status = {"loadBalancer": {"ingress": ingress} if ingress else {}}
    store.change(_SERVICE, meta["namespace"], meta["name"], lambda now: {**now, "status": status})
