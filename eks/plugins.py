"""The two device plugins, pinned. Without them Kubernetes does not see a node's GPUs and EFA cards."""

from typing import Any

from eks.cluster import EksCluster
from eks.document import Document, document, labels, object_name

NVIDIA_IMAGE = "nvcr.io/nvidia/k8s-device-plugin:v0.20.0"
# p6-b200 needs 0.5.6 or later: an older plugin registers no EFA there, and pods that ask for some stay pending.
EFA_TAG = "v0.5.20"
GPU, EFA = "nvidia.com/gpu", "vpc.amazonaws.com/efa"  # the resources that pods ask for
# AWS keeps its images in a separate account in most regions.
# Source: docs.aws.amazon.com/eks/latest/userguide/add-ons-images.html
_ACCOUNT = "602401143452"
_ACCOUNTS = {
    "af-south-1": "877085696533",
    "ap-east-1": "800184023465",
    "ap-east-2": "533267051163",
    "ap-southeast-3": "296578399912",
    "ap-southeast-4": "491585149902",
    "ap-southeast-5": "151610086707",
    "ap-southeast-6": "333609536671",
    "ap-southeast-7": "121268973566",
    "ap-south-2": "900889452093",
    "ca-west-1": "761377655185",
    "cn-north-1": "918309763551",
    "cn-northwest-1": "961992271922",
    "eu-central-2": "900612956339",
    "eu-south-1": "590381155156",
    "eu-south-2": "455263428931",
    "il-central-1": "066635153087",
    "me-central-1": "759879836304",
    "me-south-1": "558608220178",
    "us-gov-east-1": "151742754352",
    "us-gov-west-1": "013241004608",
}
_TAINTS = (GPU, "aws.amazon.com/efa")  # of nodes that only pods with cards are to use
_KUBELET = "/var/lib/kubelet/device-plugins"
_CARDS = "/dev/infiniband"  # where EFA's plugin looks for cards since 0.5.1. Source: aws/eks-charts#1069
_SMALL = {"requests": {"cpu": "10m", "memory": "64Mi"}, "limits": {"cpu": "500m", "memory": "512Mi"}}


def plugins(cluster: EksCluster) -> list[Document]:
    """Return the device plugins that nodes of this type need; [] for a type without GPUs and EFA."""
    found = [_plugin(cluster, "nvidia-device-plugin", NVIDIA_IMAGE, GPU)] if cluster.gpus else []
    return found + ([_plugin(cluster, "efa-device-plugin", efa_image(cluster.region), EFA)] if cluster.efa else [])


def efa_image(region: str) -> str:
    """Return AWS's image of the EFA plugin in the region's own registry."""
    domain = "amazonaws.com.cn" if region.startswith("cn-") else "amazonaws.com"
    account = _ACCOUNTS.get(region, _ACCOUNT)
    return f"{account}.dkr.ecr.{region}.{domain}/eks/aws-efa-k8s-device-plugin:{EFA_TAG}"


def _plugin(cluster: EksCluster, name: str, image: str, resource: str) -> Document:
    """Return a plugin's DaemonSet for nodes of this type. It runs as root, who owns the kubelet's folder."""
    own = labels(cluster.name, app=name)
    seen = {"kubelet": _KUBELET, **({"cards": _CARDS} if resource == EFA else {})}
    container: dict[str, Any] = {
        "name": name,
        "image": image,
        "imagePullPolicy": "IfNotPresent",
        "resources": _SMALL,
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
        },
        "volumeMounts": [{"name": volume, "mountPath": path} for volume, path in seen.items()],
    }
    spec = {
        "priorityClassName": "system-node-critical",
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "hostNetwork": resource == EFA,  # it searches for the cards of the node's own network
        "nodeSelector": {"node.kubernetes.io/instance-type": cluster.instance_type},
        "tolerations": [
            {"key": "CriticalAddonsOnly", "operator": "Exists"},
            *({"key": key, "operator": "Exists", "effect": "NoSchedule"} for key in _TAINTS),
        ],
        "securityContext": {"seccompProfile": {"type": "RuntimeDefault"}},
        "containers": [container],
        "volumes": [{"name": volume, "hostPath": {"path": path, "type": "Directory"}} for volume, path in seen.items()],
    }
    return document(
        "apps/v1",
        "DaemonSet",
        object_name(cluster.name, name),
        cluster.name,
        namespace="kube-system",
        spec={
            "selector": {"matchLabels": own},
            "updateStrategy": {"type": "RollingUpdate"},
            "template": {"metadata": {"labels": own}, "spec": spec},
        },
    )
