"""Every document that is rendered: known to Kubernetes field by field, closed, found by its labels, losing no data."""

from collections.abc import Iterator
from typing import Any

import pytest

from cluster.errors import ConfigError
from cluster.stage.stage import request_of
from eks.document import Document
from eks.plugins import efa_image
from eks.render import rendered
from eks.services import JUPYTER, TENSORBOARD, page_documents
from eks.staging import staging_job
from tests.eks import crd
from tests.eks.clusters import LOCAL, OPEN, VARIANTS, cluster
from tests.eks.rendered import documents
from tests.eks.strict import KubeTools

EVERYBODY = ("0.0.0.0/0", "::/0")


ALL = {
    (name, f"{one['kind']} {one['metadata']['name']}"): one for name, of in VARIANTS.items() for one in documents(of)
}


def wrong_in(kube: KubeTools, one: Document) -> list[str]:
    """What the strict schema of its kind has against it."""
    return crd.errors(one) if one["kind"] == "MPIJob" else kube.errors(one)


def pods(one: Document) -> Iterator[dict[str, Any]]:
    """The spec of its pods, if it makes some; those of trainings are looked at in test_mpijob.py."""
    template = one.get("spec", {}).get("template")
    if template:
        yield template["spec"]


@pytest.mark.parametrize("name", VARIANTS)
def test_kubernetes_knows_every_field(kube: KubeTools, name: str) -> None:
    """0 errors against the strict schemas of 1.37, on all documents of each variant."""
    found = documents(VARIANTS[name])
    assert len(found) >= 17
    assert {} == {
        f"{one['kind']} {one['metadata']['name']}": errors for one in found if (errors := wrong_in(kube, one))
    }


# checkov's rules on pods that mean something here, by their ids: its own environment is too large for each run of the tests.
# tests/cfn/test_checkov.py runs it, where it is installed ('make checkov'); checkov.toml there waives what stays.
def _all_containers(pod: dict[str, Any]) -> list[dict[str, Any]]:
    return [*pod["containers"], *pod.get("initContainers", [])]


RULES = {
    "CKV_K8S_6 runAsNonRoot": lambda pod: all({**pod["securityContext"], **c["securityContext"]}.get("runAsNonRoot") is True for c in _all_containers(pod)),
    "CKV_K8S_17-19 none of the node's namespaces": lambda pod: not {"hostPID", "hostIPC", "hostNetwork"} & {k for k, v in pod.items() if v},
    "CKV_K8S_20 no escalation": lambda pod: all(c["securityContext"]["allowPrivilegeEscalation"] is False for c in _all_containers(pod)),
    "CKV_K8S_16 not privileged": lambda pod: not any(c["securityContext"].get("privileged") for c in _all_containers(pod)),
    "CKV_K8S_22 root cannot be written": lambda pod: all(c["securityContext"].get("readOnlyRootFilesystem") for c in _all_containers(pod)),
    "CKV_K8S_25 no capability": lambda pod: not any(c["securityContext"]["capabilities"].get("add") for c in _all_containers(pod)),
    "CKV_K8S_37 all capabilities dropped": lambda pod: all(c["securityContext"]["capabilities"]["drop"] == ["ALL"] for c in _all_containers(pod)),
    "CKV_K8S_31 seccomp": lambda pod: pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"},
    "CKV_K8S_38 no token": lambda pod: pod["automountServiceAccountToken"] is False,
    "CKV_K8S_41 not the default account": lambda pod: pod.get("serviceAccountName", "default") != "default",
    "CKV_K8S_10-13 requests and limits": lambda pod: all({"cpu", "memory"} <= c["resources"][way].keys() for c in _all_containers(pod) for way in ("requests", "limits")),
    "CKV_K8S_14 image pinned": lambda pod: all(c["image"].rpartition("/")[2].count(":") == 1 and not c["image"].endswith(":latest") for c in _all_containers(pod)),
    "CKV_K8S_35 no secret in the environment": lambda pod: not any("envFrom" in c for c in _all_containers(pod)),
    "CKV_K8S_27 nothing of the node": lambda pod: not any("hostPath" in volume for volume in pod["volumes"]),
}  # fmt: skip
# What does not keep a rule, and why: kind and the end of its name, or of a variant of it.
WAIVERS = {
    ("Job", "-folders"): {
        "CKV_K8S_6 runAsNonRoot": "a new file system belongs to root, who alone can give a folder to another",
        "CKV_K8S_25 no capability": "for that: CHOWN, DAC_OVERRIDE, FOWNER; nothing else, for one command",
    },
    ("DaemonSet", "-plugin"): {
        "CKV_K8S_6 runAsNonRoot": "the kubelet's folder of plugins is root's",
        "CKV_K8S_22 root cannot be written": "as its maker ships it",
        "CKV_K8S_27 nothing of the node": "the kubelet's folder of plugins, and EFA's the cards; nothing else",
        "CKV_K8S_41 not the default account": "in kube-system, without a token",
    },
    ("DaemonSet", "efa-device-plugin"): {
        "CKV_K8S_17-19 none of the node's namespaces": "it looks for the cards of the node's own network",
    },
    ("Job", "-stage"): {
        "CKV_K8S_6 runAsNonRoot": "to a node's own folder, which is root's at first: one container before the other",
        "CKV_K8S_25 no capability": "that one's, to give the folder away: CHOWN, DAC_OVERRIDE, FOWNER",
        "CKV_K8S_35 no secret in the environment": "where boto3 looks for what --env hands on; usually there is none",
    },
}
LOCAL_WAIVER = {"CKV_K8S_27 nothing of the node": "eks.local says which folder, and the operator set it"}


@pytest.mark.parametrize("rule", RULES)
def test_pods_are_closed(rule: str) -> None:
    """Every pod of every document keeps the rule, or is named above with its reason; a waiver that is not needed goes."""
    broken, needed = set(), set()
    for (variant, name), one in ALL.items():
        for pod in pods(one):
            if RULES[rule](pod):
                continue
            waived = [
                key for key, rules in WAIVERS.items() if one["kind"] == key[0] and key[1] in name and rule in rules
            ]
            is_local = rule in LOCAL_WAIVER and VARIANTS[variant].settings.local
            needed |= set(waived)
            if not (waived or is_local):
                broken.add((variant, name))
    assert set() == broken
    assert {key for key, rules in WAIVERS.items() if rule in rules} == needed


@pytest.mark.parametrize("name", VARIANTS)
def test_what_serves_says_whether_it_does(name: str) -> None:
    """Every Deployment's containers have the three probes."""
    for one in documents(VARIANTS[name]):
        if one["kind"] == "Deployment":
            for container in one["spec"]["template"]["spec"]["containers"]:
                assert {"startupProbe", "readinessProbe", "livenessProbe"} <= container.keys()


@pytest.mark.parametrize("name", VARIANTS)
def test_all_is_labelled_and_in_its_place(name: str) -> None:
    """Each object has the cluster's labels and no other's name; what can be in a namespace is in the file's own."""
    of, found = VARIANTS[name], documents(VARIANTS[name])
    everywhere = {"Namespace", "PriorityClass", "PersistentVolume"}
    for one in found:
        assert of.labels.items() <= one["metadata"]["labels"].items()
        space = one["metadata"].get("namespace")
        expected = {"DaemonSet": "kube-system"}.get(one["kind"], of.settings.namespace)
        assert space == (None if one["kind"] in everywhere else expected)
        for pod in pods(one):
            assert of.labels.items() <= one["spec"]["template"]["metadata"]["labels"].items(), pod
    names = [(one["kind"], one["metadata"]["name"]) for one in found]
    assert len(set(names)) == len(names)


def test_the_data_outlives_every_object() -> None:
    """Volumes are kept, for one claim only, seen by all nodes at once; EFS is spoken to by TLS."""
    volumes = {
        one["metadata"]["name"]: one["spec"]
        for one in documents(VARIANTS["lustre"])
        if one["kind"] == "PersistentVolume"
    }
    assert {"dlami-team-a-shared", "dlami-team-a-data"} == volumes.keys()
    for spec in volumes.values():
        assert ("Retain", ["ReadWriteMany"]) == (spec["persistentVolumeReclaimPolicy"], spec["accessModes"])
        assert "dlami" == spec["claimRef"]["namespace"] and spec["storageClassName"] == ""
    efs, lustre = volumes["dlami-team-a-shared"]["csi"], volumes["dlami-team-a-data"]["csi"]
    assert ("fs-0123456789abcdef0", {"encryptInTransit": "true"}) == (efs["volumeHandle"], efs["volumeAttributes"])
    assert {"dnsname": "fs-0fedcba9876543210.fsx.us-east-1.amazonaws.com", "mountname": "abcdefgh"} == lustre[
        "volumeAttributes"
    ]
    claims = {
        one["metadata"]["name"]: one["spec"]["volumeName"]
        for one in documents(VARIANTS["lustre"])
        if one["kind"] == "PersistentVolumeClaim"
    }
    assert {"team-a-shared": "dlami-team-a-shared", "team-a-data": "dlami-team-a-data"} == claims


def test_pods_see_the_folders_where_the_bare_cluster_has_them() -> None:
    """The same paths in flags and in jobs, on both."""
    (deployment,) = (one for one in page_documents(VARIANTS["lustre"], JUPYTER) if one["kind"] == "Deployment")
    mounts = {
        m["name"]: m["mountPath"] for m in deployment["spec"]["template"]["spec"]["containers"][0]["volumeMounts"]
    }
    assert {"shared": "/shared", "data": "/lustre"}.items() <= mounts.items()


def test_nobody_comes_in_by_default() -> None:
    """A page is inside the cluster, on its pod's loopback; every pod of the cluster refuses whoever knocks."""
    found = documents(VARIANTS["lustre"])
    assert {"ClusterIP"} == {one["spec"]["type"] for one in found if one["kind"] == "Service"}
    policies = {one["metadata"]["name"]: one["spec"] for one in found if one["kind"] == "NetworkPolicy"}
    assert "ingress" not in policies["team-a-closed"] and ["Ingress"] == policies["team-a-closed"]["policyTypes"]
    assert VARIANTS["lustre"].labels == policies["team-a-closed"]["podSelector"]["matchLabels"]
    for page in ("team-a-tensorboard", "team-a-jupyter"):
        assert "ingress" not in policies[page] and "Ingress" in policies[page]["policyTypes"]
    assert "egress" not in policies["team-a-tensorboard"] and "Egress" in policies["team-a-tensorboard"]["policyTypes"]
    (trainings,) = policies["team-a-trainings"]["ingress"]
    assert "dlami/job" == trainings["from"][0]["podSelector"]["matchExpressions"][0]["key"]


def test_only_the_allowed_networks_come_in() -> None:
    """By the load balancer, by the policy, and by the page itself."""
    found = page_documents(VARIANTS["open"], TENSORBOARD)
    deployment, service, policy = found
    allowed = OPEN["allow_cidrs"]
    assert ("LoadBalancer", allowed) == (service["spec"]["type"], service["spec"]["loadBalancerSourceRanges"])
    assert allowed == [one["ipBlock"]["cidr"] for one in policy["spec"]["ingress"][0]["from"]]
    assert f"--allow={','.join(allowed)}" in deployment["spec"]["template"]["spec"]["containers"][0]["args"]


@pytest.mark.parametrize("network", [*EVERYBODY, "0.0.0.0/1", "10.0.0.0/7"])
def test_the_whole_internet_is_never_allowed(network: str) -> None:
    """The cluster file is refused."""
    with pytest.raises(ConfigError, match=r"eks\.allow_cidrs"):
        cluster("a", {"allow_cidrs": [network]})


def test_no_document_lets_everybody_in() -> None:
    """Neither a policy's ingress nor a load balancer, in any variant."""
    for one in ALL.values():
        spec = one.get("spec", {})
        assert not set(EVERYBODY) & set(spec.get("loadBalancerSourceRanges", []))
        blocks = [who.get("ipBlock", {}).get("cidr") for rule in spec.get("ingress", []) for who in rule["from"]]
        assert not set(EVERYBODY) & set(blocks)
        assert all(rule["from"] for rule in spec.get("ingress", []))


def test_a_node_s_own_folder_is_seen_only_where_the_file_says_so() -> None:
    """And Kubernetes refuses pods with such folders elsewhere."""
    levels = {
        name: rendered(cluster(name, *more))["1-namespace"][0]["metadata"]["labels"][
            "pod-security.kubernetes.io/enforce"
        ]
        for name, more in {"closed": [], "disks": [LOCAL]}.items()
    }
    assert {"closed": "baseline", "disks": "privileged"} == levels


def test_plugins_are_those_of_the_instance_type() -> None:
    """GPUs and EFA, GPUs alone, neither."""
    counts = {name: len(rendered(VARIANTS[name])["6-plugins"]) for name in ("local", "least", "cpu")}
    assert {"local": 2, "least": 2, "cpu": 0} | {"least": 2 if VARIANTS["least"].efa else 1} == counts
    image = efa_image("eu-west-1")
    assert image.startswith("602401143452.dkr.ecr.eu-west-1.amazonaws.com/eks/aws-efa-k8s-device-plugin:v")
    version = tuple(int(n) for n in image.rpartition(":v")[2].split("."))
    assert version >= (0, 5, 6), "EFA of p6-b200 is known since 0.5.6"
    nvidia, efa = (one["spec"]["template"]["spec"] for one in rendered(VARIANTS["local"])["6-plugins"])
    folders = {"/var/lib/kubelet/device-plugins"}
    assert (folders, folders | {"/dev/infiniband"}) == (_of_node(nvidia), _of_node(efa)), "where it looks for cards"
    assert efa_image("cn-north-1").startswith("918309763551.dkr.ecr.cn-north-1.amazonaws.com.cn/")


def _of_node(pod: dict[str, Any]) -> set[str]:
    """The node's folders that its container sees, each where the node has it."""
    volumes = {volume["name"]: volume["hostPath"]["path"] for volume in pod["volumes"]}
    mounts = {mount["name"]: mount["mountPath"] for mount in pod["containers"][0]["volumeMounts"]}
    assert volumes == mounts
    return set(mounts.values())


@pytest.mark.parametrize(
    ("folder", "said"), [("/tmp/x", "on no volume of the pods"), ("/efsx", "no volume"), ("/local/x", r"eks\.local")]
)
def test_a_folder_that_no_pod_keeps_is_refused(folder: str, said: str) -> None:
    """Before anything is created."""
    with pytest.raises(ConfigError, match=said):
        staging_job(cluster(), request_of("s3://bucket/in", folder))
