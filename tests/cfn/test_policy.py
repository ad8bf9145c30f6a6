"""What the nodes' roles allow is what their work asks for: all of it, and nothing besides.

The work is done with each node's own credentials, by the programs that do it on a node; the fake writes down every
request as it came, and each is judged by IAM's rules against the policies that the stack has made.
"""

import os
import re
import subprocess
import threading
import time
from pathlib import Path
from typing import Any

import boto3
import pytest

from cfn import create, hosts, in_stack, plan, provider, replace_instance, stack, status, update
from cfn.aws import Aws
from cfn.prices import PriceList
from cluster.clusterfile.model import ClusterFile
from cluster.errors import ClusterError
from cluster.guard.onhost.api import Api
from cluster.inventory import ROOT
from cluster.notify import Message, NotifyEvent, deliver
from lab.aws import FakeAws
from lab.aws.state import ACCOUNT
from tests.cfn.conftest import cluster
from tests.cfn.policies import Request, Statement, grants, listed
from tests.conftest import PATIENCE_S

HOST_KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIAfakefakefakefakefakefakefakefakefakefakefake"
EC2 = f"arn:aws:ec2:us-east-1:{ACCOUNT}"


def policies(role: str) -> list[Statement]:
    """The statements of a role of the stack, as IAM has them."""
    iam = boto3.client("iam")
    name = next(r["RoleName"] for r in iam.list_roles()["Roles"] if r["RoleName"].startswith(f"demo-{role}Role"))
    names = iam.list_role_policies(RoleName=name)["PolicyNames"]
    documents = [iam.get_role_policy(RoleName=name, PolicyName=n)["PolicyDocument"] for n in names]
    return [s for d in documents for s in d["Statement"]]


def requests(entry: dict[str, Any]) -> list[Request]:
    """What a call asks of IAM: an action on each of its resources."""
    p, action = entry["parameters"], f"{entry['service']}:{entry['operation']}"
    own = f"{EC2}:instance/{entry['key'].removeprefix('NODE')}"
    if entry["service"] == "s3":
        return [Request({"GET": "s3:GetObject"}[entry["operation"]], f"arn:aws:s3:::{p['path'].lstrip('/')}")]
    if action == "ec2:CreateTags":
        keys = [t["Key"] for t in p["Tags"]]
        return [
            Request(
                action,
                f"{EC2}:instance/{name}",
                {
                    "aws:TagKeys": keys,
                    "ec2:InstanceID": name,
                    "ec2:SourceInstanceARN": own,
                    **{f"aws:ResourceTag/{k}": v for k, v in entry["tags"].get(name, {}).items()},
                },
            )
            for name in p["Resources"]
        ]
    if entry["service"] == "cloudformation":
        name = p["StackName"]
        arn = f"arn:aws:cloudformation:us-east-1:{ACCOUNT}:stack/{name}/id"
        return [Request(action, name if name.startswith("arn:") else arn)]
    if entry["service"] == "sns":
        return [Request(action, p["TopicArn"])]
    if action in ("autoscaling:TerminateInstanceInAutoScalingGroup", "autoscaling:PutScheduledUpdateGroupAction"):
        group = p.get("AutoScalingGroupName") or entry["tags"][p["InstanceId"]]["aws:autoscaling:groupName"]
        arn = f"arn:aws:autoscaling:us-east-1:{ACCOUNT}:autoScalingGroup:fake:autoScalingGroupName/{group}"
        return [Request(action, arn, {"autoscaling:MaxSize": p["MaxSize"]} if "MaxSize" in p else {})]
    return [Request(action, "*")]


def boots(fake: FakeAws, instance: str, group: str, role: str, source: str, folder: Path) -> None:
    """What first boot asks of AWS, by its own functions with the credentials that the metadata service gives."""
    script = (ROOT / "scripts/first-boot.sh").read_text()
    functions = re.search(r"^aws_call\(\).*?^PYTHON\n\}\n", script, re.S | re.M)
    tag, signal = re.search(r"^tag\(\) .*?^\}\n", script, re.S | re.M), re.search(r"^signal\(\) .*$", script, re.M)
    assert functions and tag and signal
    fetch = (
        f"aws_call s3 {source.replace('s3://', '').replace('/', ' ', 1)} {folder}/source"
        if role == "master"
        else "true"
    )
    body = f"tag boot 'running project'; tag host-key '{HOST_KEY}'; {fetch}; tag boot ready; signal SUCCESS"
    subprocess.run(
        ["bash", "-ec", "\n".join([functions[0], tag[0], signal[0], body])],
        env={
            "PATH": os.environ["PATH"],
            "IMDS": f"{fake.url}/_fake/imds/{instance}",
            "AWS_ENDPOINT_URL": fake.url,
            "REGION": "us-east-1",
            "DOMAIN": "amazonaws.com",
            "STACK": "demo",
            "RESOURCE": group,
            "INSTANCE": instance,
            "SOURCE_VERSION": "",
        },
        check=True,
        timeout=PATIENCE_S,
    )


@pytest.fixture
def file(fake: FakeAws) -> ClusterFile:
    """1 + 2 hosts, a source in S3, a topic that is told of jobs."""
    boto3.client("s3").create_bucket(Bucket="ours")
    boto3.client("s3").put_object(Bucket="ours", Key="code/project.tar.gz", Body=b"x")
    topic = boto3.client("sns").create_topic(Name="trainings")["TopicArn"]
    plain = cluster(workers=2, source="s3://ours/code/project.tar.gz")
    return ClusterFile(name="demo", nodes=plain.nodes, access=plain.access, notify=topic)


def works_as_master(
    outputs: dict[str, str], file: ClusterFile, monkeypatch: pytest.MonkeyPatch, master: str, scene: Any
) -> None:
    """What tasks and the supervisor on the master do by its role."""
    key = f"NODE{master}"
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", key)
    refused = {"service": "cloudformation", "action": "ListStackResources", "code": "AccessDenied", "status": 403}
    scene("faults", {**refused, "times": 99, "who": key})  # as IAM would: what was deleted by hand is not missed there
    own = Aws("us-east-1")
    assert status.read_status(own, file).members
    found = hosts.hosts(own, outputs)
    assert in_stack.file_of(own, "demo").name == "demo"
    assert 0 == replace_instance.main(["us-east-1", "demo", "hosts"])
    assert 2 == provider.provider().end("us-east-1/demo", found[2].address, 2)
    monkeypatch.setattr(update, "wait_for", lambda condition, seconds, look: look())
    with pytest.raises(ClusterError, match="no successor"):
        update.replace(own, file, "1", lambda _: None)
    api = Api("us-east-1", "demo")
    assert api.past(api.groups()).hours > 0
    api.put(time.time() + 7200)
    assert (5.0, 2.0) == (PriceList(own).on_demand("g5.12xlarge"), PriceList(own).spot("g5.12xlarge", "us-east-1a"))
    deliver(file.notify, Message(event=NotifyEvent.TEST, job="j", text="t"))


def test_each_use_is_allowed_and_each_allowance_is_used(
    fake: FakeAws, file: ClusterFile, account: Aws, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, scene: Any
) -> None:
    scene("prices", {"g5.12xlarge": 5.0})
    scene("spot_prices", {"g5.12xlarge": 2.0})
    fake.world.nodes, fake.world.scale = "none", 0.5  # first boots' own programs ask here, and may take minutes
    made = plan.make(account, file)
    creating = threading.Thread(target=create.create, args=(account, made, lambda _: None), daemon=True)
    creating.start()
    groups = fake.world.groups
    assert fake.world.wait_until(lambda: sum(len(g.members) for g in groups.values()) == 3, 300 / fake.world.scale)
    members = [(m.id, g.name) for g in list(groups.values()) for m in g.members]
    master = next(i for i, name in members if name == "demo-master")
    for instance in [one for one, _ in members]:
        role = "master" if instance == master else "worker"
        boots(fake, instance, "MasterNodes" if role == "master" else "WorkerNodes", role, file.nodes.source, tmp_path)
    creating.join(PATIENCE_S)
    works_as_master(stack.outputs(account, "demo"), file, monkeypatch, master, scene)

    statements = {role: policies(role) for role in ("Master", "Worker")}
    used: dict[str, set[tuple[int, str]]] = {"Master": set(), "Worker": set()}
    asked = [e for e in fake.world.log if e.get("key", "").startswith("NODE")]
    for entry in asked:
        role = "Master" if entry["key"] == f"NODE{master}" else "Worker"
        for one in requests(entry):
            if one.action == "cloudformation:ListStackResources":
                assert not grants(statements[role], one)
                continue
            granted = grants(statements[role], one)
            assert granted, f"{role}: {one} is refused"
            used[role] |= set(granted)
    for role, own in statements.items():
        allowed = {(n, a) for n, s in enumerate(own) if s["Effect"] == "Allow" for a in listed(s["Action"])}
        assert set() == allowed - used[role], f"{role}: allowed and not used"


def test_a_node_may_not_speak_for_another(fake: FakeAws, file: ClusterFile, account: Aws) -> None:
    """Neither another's host key, nor another's rank by a worker, nor the archive that all run."""
    create.create(account, plan.make(account, file), lambda _: None)
    one = f"{EC2}:instance/i-1"
    about = {"ec2:InstanceID": "i-2", "ec2:SourceInstanceARN": one, "aws:ResourceTag/dlami-cluster:cluster": "demo"}
    worker, master = policies("Worker"), policies("Master")

    def may(statements: list[Statement], key: str, **changed: str) -> bool:
        context = {**about, **changed, "aws:TagKeys": [f"dlami-cluster:{key}"]}
        return bool(
            grants(statements, Request("ec2:CreateTags", f"{EC2}:instance/{context['ec2:InstanceID']}", context))
        )

    assert (False, False) == (may(worker, "host-key"), may(master, "host-key"))
    assert may(worker, "host-key", **{"ec2:InstanceID": "i-1"})
    assert (False, True) == (may(worker, "rank"), may(master, "rank"))
    assert not may(master, "rank", **{"aws:ResourceTag/dlami-cluster:cluster": "another"})
    archive = "arn:aws:s3:::ours/code/project.tar.gz"
    for role in (worker, master):
        for action in ("s3:PutObject", "iam:PassRole", "ec2:RunInstances", "autoscaling:UpdateAutoScalingGroup"):
            assert not grants(role, Request(action, archive if action.startswith("s3") else "*"))


def test_the_evaluator_follows_iam() -> None:
    allow: Statement = {"Effect": "Allow", "Action": "s3:Get*", "Resource": "arn:aws:s3:::b/*"}
    get = Request("s3:GetObject", "arn:aws:s3:::b/k")
    assert [(0, "s3:Get*")] == grants([allow], get)
    assert [] == grants([allow], Request("s3:PutObject", "arn:aws:s3:::b/k"))
    assert [] == grants([allow], Request("s3:GetObject", "arn:aws:s3:::c/k"))
    assert [] == grants([allow, {**allow, "Effect": "Deny", "Action": "s3:GetObject"}], get)
    like = {**allow, "Condition": {"StringLike": {"s3:prefix": ["a", "a/*"]}}}
    assert grants([like], Request(get.action, get.resource, {"s3:prefix": "a/b"}))
    assert not grants([like], get) and not grants([like], Request(get.action, get.resource, {"s3:prefix": "ab"}))
    with pytest.raises(AssertionError, match="not known to this evaluator: NumericLessThan"):
        grants([{**allow, "Condition": {"NumericLessThan": {"x": "1"}}}], get)
