"""The kinds of objects that the simulated API serves, and their discovery documents for kubectl."""

from dataclasses import dataclass

from eks.document import Document

VERBS = ("create", "delete", "deletecollection", "get", "list", "patch", "update", "watch")


@dataclass(frozen=True)
class Kind:
    """Kind of object: its paths in the API and its names in kubectl."""

    group: str  # "" is the core group
    version: str
    name: str  # as in `kind:`
    plural: str
    short: tuple[str, ...] = ()
    namespaced: bool = True
    parts: tuple[str, ...] = ()  # subresources besides the object itself

    @property
    def api_version(self) -> str:
        """The value of its `apiVersion:`."""
        return f"{self.group}/{self.version}" if self.group else self.version

    @property
    def path(self) -> str:
        """The path of its group's version, without a leading slash."""
        return f"apis/{self.api_version}" if self.group else f"api/{self.version}"


_STATUS = ("status",)
_RBAC, _STORAGE, _NETWORK = "rbac.authorization.k8s.io", "storage.k8s.io", "networking.k8s.io"
KINDS = (
    Kind("", "v1", "Namespace", "namespaces", ("ns",), namespaced=False),
    Kind("", "v1", "Node", "nodes", ("no",), namespaced=False, parts=_STATUS),
    Kind("", "v1", "PersistentVolume", "persistentvolumes", ("pv",), namespaced=False, parts=_STATUS),
    Kind("", "v1", "PersistentVolumeClaim", "persistentvolumeclaims", ("pvc",), parts=_STATUS),
    Kind("", "v1", "Pod", "pods", ("po",), parts=("status", "log", "portforward")),
    Kind("", "v1", "Service", "services", ("svc",), parts=_STATUS),
    Kind("", "v1", "ConfigMap", "configmaps", ("cm",)),
    Kind("", "v1", "Secret", "secrets"),
    Kind("", "v1", "ServiceAccount", "serviceaccounts", ("sa",)),
    Kind("", "v1", "Event", "events", ("ev",)),
    Kind("", "v1", "LimitRange", "limitranges", ("limits",)),
    Kind("", "v1", "ResourceQuota", "resourcequotas", ("quota",), parts=_STATUS),
    Kind("apps", "v1", "Deployment", "deployments", ("deploy",), parts=_STATUS),
    Kind("apps", "v1", "DaemonSet", "daemonsets", ("ds",), parts=_STATUS),
    Kind("apps", "v1", "StatefulSet", "statefulsets", ("sts",), parts=_STATUS),
    Kind("batch", "v1", "Job", "jobs", parts=_STATUS),
    Kind("batch", "v1", "CronJob", "cronjobs", ("cj",), parts=_STATUS),
    Kind("kubeflow.org", "v2beta1", "MPIJob", "mpijobs", parts=_STATUS),
    Kind(_STORAGE, "v1", "StorageClass", "storageclasses", ("sc",), namespaced=False),
    Kind(_STORAGE, "v1", "CSIDriver", "csidrivers", namespaced=False),
    Kind(_RBAC, "v1", "Role", "roles"),
    Kind(_RBAC, "v1", "RoleBinding", "rolebindings"),
    Kind(_RBAC, "v1", "ClusterRole", "clusterroles", namespaced=False),
    Kind(_RBAC, "v1", "ClusterRoleBinding", "clusterrolebindings", namespaced=False),
    Kind(_NETWORK, "v1", "NetworkPolicy", "networkpolicies", ("netpol",)),
    Kind(_NETWORK, "v1", "Ingress", "ingresses", ("ing",), parts=_STATUS),
    Kind("scheduling.k8s.io", "v1", "PriorityClass", "priorityclasses", ("pc",), namespaced=False),
    Kind("policy", "v1", "PodDisruptionBudget", "poddisruptionbudgets", ("pdb",), parts=_STATUS),
)
_ALL = ("Pod", "Service", "Deployment", "DaemonSet", "StatefulSet", "Job", "CronJob")  # what `kubectl get all` lists
BY_PATH = {(k.path, k.plural): k for k in KINDS}


def kind(name: str) -> Kind:
    """Return the kind with this name. Every name is in one group only."""
    return next(k for k in KINDS if k.name == name)


def discovery(path: str) -> Document | None:
    """Return the API's discovery document at this path, or None."""
    if path == "api":
        return {"kind": "APIVersions", "versions": ["v1"], "serverAddressByClientCIDRs": []}
    if path == "apis":
        return {"kind": "APIGroupList", "apiVersion": "v1", "groups": [_group(g) for g in _groups()]}
    if path == "version":
        return {"major": "1", "minor": "37", "gitVersion": "v1.37.0-dlami.lab", "platform": "linux/amd64"}
    if path == "openapi/v3":
        paths = sorted({k.path for k in KINDS})
        return {"paths": {p: {"serverRelativeURL": f"/openapi/v3/{p}?hash=lab"} for p in paths}}
    if path.startswith("openapi/v3/"):
        return _openapi(path.removeprefix("openapi/v3/"))
    served = [k for k in KINDS if k.path == path]
    if served:
        return {
            "kind": "APIResourceList",
            "apiVersion": "v1",
            "groupVersion": served[0].api_version,
            "resources": [r for k in served for r in _resources(k)],
        }
    return None


def _groups() -> list[tuple[str, str]]:
    return sorted({(k.group, k.version) for k in KINDS if k.group})


def _group(named: tuple[str, str]) -> Document:
    version = {"groupVersion": "/".join(named), "version": named[1]}
    return {"name": named[0], "versions": [version], "preferredVersion": version}


def _resources(one: Kind) -> list[Document]:
    whole = {
        "name": one.plural,
        "singularName": one.name.lower(),
        "namespaced": one.namespaced,
        "kind": one.name,
        "verbs": list(VERBS),
        "shortNames": list(one.short),
        "categories": ["all"] if one.name in _ALL else [],
    }
    parts = [
        {
            "name": f"{one.plural}/{p}",
            "singularName": "",
            "namespaced": one.namespaced,
            "kind": one.name,
            "verbs": ["get"],
        }
        for p in one.parts
    ]
    return [whole, *parts]


def _openapi(path: str) -> Document | None:
    """Return the part of the schema that kubectl needs: the server validates fields of patches."""
    served = [k for k in KINDS if k.path == path]
    if not served:
        return None
    paths = {}
    for one in served:
        space = "namespaces/{namespace}/" if one.namespaced else ""
        what = {"group": one.group, "version": one.version, "kind": one.name}
        words = {"name": "fieldValidation", "in": "query", "schema": {"type": "string"}}
        patch = {"x-kubernetes-group-version-kind": what, "parameters": [words], "responses": {}}
        paths[f"/{path}/{space}{one.plural}/{{name}}"] = {"patch": patch}
    return {"openapi": "3.0.0", "info": {"title": "lab", "version": "v1.37.0"}, "paths": paths}
