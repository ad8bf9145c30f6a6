"""The scripts for a real account, whole: on a terminal, by the AWS CLI and kubectl, against the fake AWS and the lab's API."""

import base64
import hashlib
import hmac
import json
import os
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, quote, urlencode, urlsplit

import boto3
import pytest

from cluster.inventory import ROOT
from lab.aws import FakeAws
from lab.kube.kinds import kind
from lab.kube.server import ApiServer
from lab.kube.store import Store
from tests.cfn.terminal import CTRL_C, ENTER, Terminal
from tests.eks.few_pods import FewPods
from tests.eks.strict import TOOLS, KubeTools

EKS, BARE = "smoke-eks.sh", "smoke-aws.sh"
QUESTION = " to spend it: "
SECRET = "fake"
READS = re.compile(r"(Describe|Get|List|Search).*|GET /.*")
REFUSED = {"service": "cloudformation", "code": "AccessDenied", "status": 403}
READY = {"conditions": [{"type": "Ready", "status": "True"}]}
Scene = Callable[..., Any]


class EksApi(ApiServer):
    """An API that lets in as EKS does: by a question to STS that the AWS CLI has signed for a cluster that is there."""

    def __init__(self, fake: FakeAws, folder: Path) -> None:
        self.fake = fake
        super().__init__(Store(), FewPods(folder / "log"), folder, "eks")
        own = json.loads(self.kubeconfig.read_text())["clusters"][0]["cluster"]
        fake.world.kubernetes_api = {"endpoint": own["server"], "authority": own["certificate-authority-data"]}

    def lets_in(self, token: str) -> bool:
        asked = token.removeprefix("k8s-aws-v1.")
        url = base64.urlsafe_b64decode(asked + "=" * (-len(asked) % 4)).decode()
        return any(is_signed(url, name) for _, name in self.fake.world.kubernetes)

    def joined(self) -> None:
        """A node, and a pod of an add-on on it."""
        self.store.create(kind("Node"), "", {"metadata": {"name": "ip-10-20-1-7"}, "spec": {}, "status": READY})
        pod = {"metadata": {"name": "coredns-1"}, "spec": {"containers": [{"name": "c", "image": "i"}]}}
        self.store.create(kind("Pod"), "kube-system", {**pod, "status": {"phase": "Running", **READY}})


def is_signed(url: str, cluster: str) -> bool:
    """Whether it asks STS who it is, and names this cluster in what is signed. Signature Version 4, in the query."""
    split = urlsplit(url)
    query = dict(parse_qsl(split.query))
    given = query.pop("X-Amz-Signature")
    scope = query["X-Amz-Credential"].partition("/")[2]
    said = (
        *("GET", split.path, urlencode(sorted(query.items()), quote_via=quote, safe="-_.~")),
        *(f"host:{split.netloc}", f"x-k8s-aws-id:{cluster}", "", query["X-Amz-SignedHeaders"]),
        hashlib.sha256(b"").hexdigest(),
    )
    whole = hashlib.sha256("\n".join(said).encode()).hexdigest()
    key = f"AWS4{SECRET}".encode()
    for word in (*scope.split("/"), f"AWS4-HMAC-SHA256\n{query['X-Amz-Date']}\n{scope}\n{whole}"):
        key = hmac.digest(key, word.encode(), "sha256")
    return query["Action"] == "GetCallerIdentity" and hmac.compare_digest(key.hex(), given)


class Person:
    """Who has an account, both programs, and an address; their temporary files are in `tmp`."""

    def __init__(self, fake: FakeAws, folder: Path) -> None:
        self.fake, self.folder, self.tmp = fake, folder, folder / "tmp"
        self.tmp.mkdir()
        (folder / "bin").mkdir()
        (folder / "bin/kubectl").symlink_to(KubeTools(TOOLS).kubectl)
        (folder / "config").write_text(f"[default]\nendpoint_url = {fake.url}\n")
        own = {k: v for k, v in os.environ.items() if not k.startswith(("AWS_", "KUBE"))}
        self.env = {
            **own,
            "AWS_ACCESS_KEY_ID": "fake",
            "AWS_SECRET_ACCESS_KEY": SECRET,
            "AWS_CONFIG_FILE": str(folder / "config"),
            "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
            "DLAMI_SMOKE_AWS": "yes",
            "SMOKE_STEPS": "identity create status unchanged guard tags",  # the simulated nodes take no ssh
            "SMOKE_SOURCE": "",
            "PATH": f"{folder / 'bin'}:{os.environ['PATH']}",
            "TMPDIR": str(self.tmp),
        }

    def begins(self, script: str) -> Terminal:
        return Terminal(ROOT / "scripts" / script, "203.0.113.7/32", folder=self.folder, env=self.env)

    def agrees(self, terminal: Terminal) -> str:
        """Types the name that is asked for; it."""
        name = terminal.until(QUESTION).rpartition(QUESTION)[0].split()[-1]
        terminal.enter(name + ENTER)
        return name

    def left(self) -> list[str]:
        """All that costs, and files."""
        ec2, kms = boto3.client("ec2"), boto3.client("kms")
        running = [{"Name": "instance-state-name", "Values": ["pending", "running", "stopping", "stopped"]}]
        instances = [
            i["InstanceId"] for r in ec2.describe_instances(Filters=running)["Reservations"] for i in r["Instances"]
        ]
        gateways = [n["NatGatewayId"] for n in ec2.describe_nat_gateways()["NatGateways"] if n["State"] != "deleted"]
        keys = [kms.describe_key(KeyId=k["KeyId"])["KeyMetadata"] for k in kms.list_keys()["Keys"]]
        return [
            *(s.name for s in self.fake.world.stacks.values() if s.status != "DELETE_COMPLETE"),
            *instances,
            *gateways,
            *(a["AllocationId"] for a in ec2.describe_addresses()["Addresses"]),
            *(v["VolumeId"] for v in ec2.describe_volumes()["Volumes"]),
            *(f["FileSystemId"] for f in boto3.client("efs").describe_file_systems()["FileSystems"]),
            *boto3.client("eks").list_clusters()["clusters"],
            *(k["KeyId"] for k in keys if k["KeyManager"] == "CUSTOMER" and k["KeyState"] != "PendingDeletion"),
            *(path.name for path in self.tmp.iterdir()),
        ]


@pytest.fixture
def person(fake: FakeAws, scene: Scene, tmp_path: Path) -> Person:
    if not shutil.which("aws"):
        pytest.skip("the AWS CLI is not here: the scripts for a real account need it")
    if not TOOLS.is_dir():
        pytest.skip("kubectl is not here: scripts/install-kube.sh gets it")
    scene("prices", {"g5.xlarge": 1.006, "g6.8xlarge": 2.0144})
    return Person(fake, tmp_path)


@pytest.fixture
def api(fake: FakeAws, person: Person, tmp_path: Path) -> Iterator[EksApi]:
    """The API of each cluster that the fake makes."""
    made = EksApi(fake, tmp_path)
    yield made
    made.close()


def test_eks_from_the_cost_to_nothing_left(person: Person, api: EksApi) -> None:
    """The cost first, and nothing but questions before it is agreed to; each step says what it found; all is ended."""
    api.joined()
    with person.begins(EKS) as terminal:
        assert "cost      1.11 USD per hour: 1 node (1.006 each)" in terminal.until(QUESTION)
        assert [] == [one for one in person.fake.world.log if not READS.fullmatch(one["operation"])]
        name = person.agrees(terminal)
        said = terminal.until("in 30 minutes it is done without")
        assert {name + "-eks"} < {*person.left()}
        terminal.enter(ENTER)
        assert 0 == terminal.ended(), terminal.text
    for step in (
        f"{name}-eks is ready: 1 node", "running    1 of 1 node", "node/ip-10-20-1-7 condition met",
        "pod/coredns-1 condition met", "changes   none",
    ):  # fmt: skip
        assert step in said
    last = terminal.text.partition("deleting ")[2]
    assert f"{name}-eks is deleted; kept: SharedFileSystem fs-" in last
    assert "aws efs delete-file-system --region us-east-1" in last and f"the end of {name}-eks\n" in last
    assert [] == person.left()


@pytest.mark.long
def test_bare_hosts_from_the_cost_to_nothing_left(person: Person) -> None:
    with person.begins(BARE) as terminal:
        assert "at most 12.83 USD: 3 hours of 4.03" in terminal.until(QUESTION)
        assert [] == [one for one in person.fake.world.log if not READS.fullmatch(one["operation"])]
        name = person.agrees(terminal)
        assert 0 == terminal.ended(), terminal.text
    said = terminal.text
    evidence = person.folder / name / "evidence"
    assert f"{name} is ready: 2 hosts, master " in said and "changes   none" in said
    assert "dlami-guard" in (evidence / "05-guard.log").read_text() and (evidence / "events.json").stat().st_size
    assert "TagResource" not in (evidence / "02-create.log").read_text()
    assert f"the end of {name}\n" in terminal.text
    assert [] == person.left()


def test_a_step_that_fails_ends_in_the_deletion(person: Person, scene: Scene) -> None:
    """An add-on does not run: that is said, and nothing costs on, though AWS refuses once; the step's failure is the script's."""
    scene("faults", REFUSED | {"action": "DeleteStack"})
    person.fake.world.addon_states["aws-efs-csi-driver"] = "DEGRADED"
    with person.begins(EKS) as terminal:
        name = person.agrees(terminal)
        assert 1 == terminal.ended()
    assert "wrong      add-on aws-efs-csi-driver is DEGRADED" in terminal.text
    assert "AccessDenied" in terminal.text and "once more" in terminal.text and "look around" not in terminal.text
    assert terminal.text.endswith(f"the end of {name}-eks\n")
    assert [] == person.left()


def while_it_is_made(person: Person, scene: Scene, terminal: Terminal) -> str:
    """The name of what is agreed to, once AWS works on it; it takes its time."""
    scene("settings", {"resource_seconds": 20})
    name = person.agrees(terminal)
    terminal.until("Vpc  create in progress")
    return name


def test_ctrl_c_while_it_is_made_ends_in_a_deletion_that_ctrl_c_does_not_stop(person: Person, scene: Scene) -> None:
    """Whoever types it twice pays no more than who types it once."""
    with person.begins(EKS) as terminal:
        name = while_it_is_made(person, scene, terminal)
        terminal.enter(CTRL_C)
        terminal.until(f"deleting {name}-eks; Ctrl-C does not stop that")
        terminal.enter(CTRL_C)
        scene("settings", {"resource_seconds": 0})
        terminal.until("delete in progress")
        terminal.enter(CTRL_C)
        assert 130 == terminal.ended()
    assert terminal.text.endswith(f"the end of {name}-eks\n")
    assert [] == person.left()
