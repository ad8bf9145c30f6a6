"""TensorBoard and Jupyter as Deployments: for a port-forward only, or by TLS and password for allowed networks."""

from dataclasses import dataclass
from typing import Any

from eks.base import PAGE_ACCOUNT, outside, pod, policy
from eks.cluster import EksCluster
from eks.document import Document, document, labels, object_name
from eks.image import PROJECT, PYTHON
from eks.volumes import pod_volumes

SECRETS = "/etc/dlami/page"  # mount of the Secret with the page's credentials
TLS_PORT = 8443  # in the pod; of the load balancer it is 443
_PROBE = {"timeoutSeconds": 5}
_RESOURCES = {
    "tensorboard": {"requests": {"cpu": "500m", "memory": "1Gi"}, "limits": {"cpu": "4", "memory": "8Gi"}},
    "jupyter": {"requests": {"cpu": "1", "memory": "4Gi"}, "limits": {"cpu": "8", "memory": "32Gi"}},
}


@dataclass(frozen=True)
class PageManifest:
    """Kind of page that a pod serves: TensorBoard or Jupyter, with its port."""

    kind: str  # tensorboard or jupyter
    port: int  # on the pod's loopback, where only a port-forward comes

    def name(self, cluster: EksCluster) -> str:
        """Return the name of the page's Deployment, Service, network policy and Secret."""
        return object_name(cluster.name, self.kind)


TENSORBOARD, JUPYTER = PageManifest("tensorboard", 6006), PageManifest("jupyter", 8888)
PAGES = {page.kind: page for page in (TENSORBOARD, JUPYTER)}


def page_documents(cluster: EksCluster, page: PageManifest, job: str = "all") -> list[Document]:
    """Return Deployment, Service and network policy of a page. Its pod's Secret is created when the page is started.

    Args:
        job: the job whose metrics TensorBoard shows.
    """
    name, own = page.name(cluster), labels(cluster.name, app=page.kind)
    return [
        document(
            "apps/v1",
            "Deployment",
            name,
            cluster.name,
            namespace=cluster.settings.namespace,
            spec={
                "replicas": 1,
                "strategy": {"type": "Recreate"},
                "selector": {"matchLabels": own},
                "template": {"metadata": {"labels": own}, "spec": _pod(cluster, page, job)},
            },
        ),
        _service(cluster, page, name, own),
        _policy(cluster, page, own),
    ]


def page_secret(
    cluster: EksCluster, page: PageManifest, *, token: str, password: str, certificate: tuple[str, str]
) -> Document:
    """Return the Secret with a page's credentials.

    Args:
        token: part of the page's address, for a port-forward.
        password: salted and hashed, for TLS.
        certificate: certificate and key, as PEM.
    """
    content = {"token": token, "password": password, "tls.crt": certificate[0], "tls.key": certificate[1]}
    return document(
        "v1",
        "Secret",
        page.name(cluster),
        cluster.name,
        namespace=cluster.settings.namespace,
        stringData={key: value for key, value in content.items() if value},
    )


def _pod(cluster: EksCluster, page: PageManifest, job: str) -> dict[str, Any]:
    allow = cluster.settings.allow_cidrs
    is_written = page.kind == "jupyter"
    volumes, mounts = pod_volumes(cluster, read_only=not is_written)
    environment = {"PYTHONDONTWRITEBYTECODE": "1", "PYTHONUNBUFFERED": "1"}
    if is_written:
        environment["XDG_DATA_HOME"] = f"{cluster.shared}/notebooks/.packages"  # Jupyter's own, installed once
    ports = {"page": page.port, **({"https": TLS_PORT} if allow else {})}
    listens = {"exec": {"command": ["bash", "-c", f"exec 3<>/dev/tcp/127.0.0.1/{page.port}"]}, **_PROBE}
    container = {
        "name": page.kind,
        "command": [PYTHON, "-m", "eks.page", page.kind],
        "args": ["--shared", cluster.shared, "--job", job, *([f"--allow={','.join(allow)}"] if allow else [])],
        "workingDir": PROJECT,
        "env": [
            *({"name": name, "value": value} for name, value in environment.items()),
            {"name": "POD_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}},
        ],
        "ports": [{"name": name, "containerPort": number} for name, number in ports.items()],
        "resources": _RESOURCES[page.kind],
        "startupProbe": {**listens, "periodSeconds": 5, "failureThreshold": 240},  # Jupyter is installed first
        "readinessProbe": {**listens, "periodSeconds": 10},
        "livenessProbe": {**listens, "periodSeconds": 30, "failureThreshold": 4},
    }
    secret = {"name": "opens", "secret": {"secretName": page.name(cluster), "defaultMode": 0o440}}
    return pod(
        cluster,
        container,
        volumes=[*volumes, secret],
        mounts=[*mounts, {"name": "opens", "mountPath": SECRETS, "readOnly": True}],
        account=PAGE_ACCOUNT,
        terminationGracePeriodSeconds=15,
    )


def _service(cluster: EksCluster, page: PageManifest, name: str, own: dict[str, str]) -> Document:
    """Return a Service inside the cluster for a port-forward, or a load balancer for the allowed networks only."""
    space, allow = cluster.settings.namespace, cluster.settings.allow_cidrs
    if not allow:
        port = {"name": "page", "port": page.port, "targetPort": "page"}
        spec = {"type": "ClusterIP", "selector": own, "ports": [port]}
        return document("v1", "Service", name, cluster.name, namespace=space, spec=spec)
    port = {"name": "https", "port": 443, "targetPort": "https"}
    said = {
        "type": "nlb",
        "scheme": "internet-facing",
        # Our tag, by which `inv stack.orphans` finds it when the cluster is gone without it.
        "additional-resource-tags": f"dlami-cluster:cluster={cluster.name}-eks",
    }
    annotations = {f"service.beta.kubernetes.io/aws-load-balancer-{name}": value for name, value in said.items()}
    spec = {
        "type": "LoadBalancer",
        "selector": own,
        "ports": [port],
        "loadBalancerSourceRanges": [*allow],
        "externalTrafficPolicy": "Local",  # keeps the client's address, which the pod checks as well
    }
    more = {"metadata": {"annotations": annotations}, "spec": spec}
    return document("v1", "Service", name, cluster.name, namespace=space, **more)


def _policy(cluster: EksCluster, page: PageManifest, own: dict[str, str]) -> Document:
    """Return a policy that admits only the allowed networks.

    A notebook may fetch packages; TensorBoard has no egress.
    """
    from_whom = [{"ipBlock": {"cidr": one}} for one in cluster.settings.allow_cidrs]
    ingress = [{"from": from_whom, "ports": [{"protocol": "TCP", "port": TLS_PORT}]}] if from_whom else []
    egress = [outside()] if page.kind == "jupyter" else []
    return policy(cluster, page.kind, {"matchLabels": own}, ingress=ingress, egress=egress)
