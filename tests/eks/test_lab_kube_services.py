"""Data and pages on the lab's Kubernetes, by the tasks as they are typed: brought, looked at, and gone with Ctrl-C."""

import base64
import json
import os
import re
import signal
import ssl
import subprocess
import sys
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cluster.inventory import ROOT
from cluster.tunnels.tls_proxy import fingerprint
from eks import image
from eks.services import TLS_PORT
from lab import lab as labs
from lab.kube.kinds import KINDS, kind
from tests.conftest import wait_for
from tests.eks.objects import KEYS, five_objects
from tests.eks.operators import CLUSTER_FILE, Operator, operator_of_pods
from tests.eks.pods import DEADLINE_S, IMAGE_VARIABLE, NAMESPACE


@pytest.fixture(scope="module")
def operator(lab_allowed: None, kube: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Operator]:
    name = f"s{os.getpid() % 10_000_000}"
    with operator_of_pods(kube.kubectl, tmp_path_factory.mktemp("eks"), name) as made:
        yield made
    assert not labs.is_anything_left(name)


@pytest.fixture(scope="module")
def s3(operator: Operator) -> Iterator[str]:
    """The address of one that pods reach, with five objects."""
    with five_objects(operator.pods.kube.lab.bridge_address) as url:
        yield url


def left_of(operator: Operator, app: str) -> list[str]:
    """What Kubernetes still has of a staging or a page."""
    named = {f"{k.name} {d['metadata']['name']}" for k in KINDS for d in operator.pods.kube.store.listed(k)}
    return sorted(one for one in named if f"lab-{app}" in one)


def files(folder: Path) -> dict[str, bytes]:
    return {p.name: p.read_bytes() for p in folder.iterdir()}


def test_data_is_brought_to_the_shared_folder_and_to_each_node(
    operator: Operator, s3: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A part by each pod of what all see, everything by each to its node's own; and nothing of it stays in Kubernetes."""
    for name, value in KEYS.items():
        monkeypatch.setenv(name, value)
    given = ("--endpoint", s3, *(word for name in KEYS for word in ("--env", name)))
    expected = {str(n): bytes([n]) * 1000 for n in range(5)}

    done = operator("eks.stage", "s3://bucket/in", "/shared/data/in", "--json", *given)
    assert 0 == done.returncode, done.stdout + done.stderr
    said = [json.loads(line) for line in done.stdout.splitlines()]
    assert [2, 3] == sorted(one["files"] for one in said)
    assert expected == files(operator.shared / "data/in")

    done = operator("eks.stage", "s3://bucket/in", "/local/in", *given)
    assert 0 == done.returncode, done.stdout + done.stderr
    nodes = operator.pods.kube.lab.folder / "node"
    own = sorted(nodes.glob("*/mnt/disks/lab/in"))
    assert 2 == len(own)
    assert all(expected == files(folder) for folder in own)

    wait_for(lambda: left_of(operator, "stage") == [], DEADLINE_S, f"nothing of it: {left_of(operator, 'stage')}")


def test_a_staging_that_fails_says_which_pod_and_why(
    operator: Operator, s3: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It ends with 1: what a pod's program says of a request that cannot be, and the last line of one that broke."""
    for name, value in KEYS.items():
        monkeypatch.setenv(name, value)
    keys = tuple(word for name in KEYS for word in ("--env", name))

    done = operator("eks.stage", "s3://nowhere/in", "/shared/data/no", "--endpoint", s3, *keys)
    assert 1 == done.returncode, done.stdout + done.stderr
    assert "(2)  FAILED: " in done.stdout and "The specified bucket does not exist" in done.stdout
    pod = r"lab-stage-[0-9a-f]{6}-%d-\w+"
    assert re.search(rf"^2 of 2 pods failed: {pod % 0}, {pod % 1}; run it again", done.stderr, re.MULTILINE)

    given = ("--pods", 1, "--json", "--env", "PYTHONHASHSEED=none")  # with which no Python begins
    done = operator("eks.stage", "s3://bucket/in", "/shared/data/no", *given)
    assert 1 == done.returncode, done.stdout + done.stderr
    said = json.loads(done.stdout)
    assert re.fullmatch(pod % 0, said["pod"])
    assert said["error"].startswith("its container stage ended with 1; its last line: ")
    wait_for(lambda: left_of(operator, "stage") == [], DEADLINE_S, f"nothing of it: {left_of(operator, 'stage')}")


def looked_at(operator: Operator, task: str, *words: str, answer: str) -> None:
    """A page is opened, answers through the forwarded port, and with Ctrl-C nothing of it is left."""
    command = [sys.executable, "-m", "dlami.program", task, "--json", *words]
    environment = {**operator.pods.environment, "CLUSTER": str(operator.folder), "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(
        command,
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
        start_new_session=True,  # a terminal's Ctrl-C goes to kubectl, too
    ) as process:
        try:
            assert process.stdout and process.stderr
            line = process.stdout.readline()
            assert line, process.stderr.read()
            with urllib.request.urlopen(json.loads(line)["url"], timeout=DEADLINE_S) as page:
                assert 200 == page.status and answer in page.read().decode()
            os.killpg(process.pid, signal.SIGINT)
            said = process.communicate(timeout=DEADLINE_S)[1]
            assert 0 == process.returncode, said
            assert "has ended" in said and "Traceback" not in said
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
    app = task.removeprefix("eks.")
    wait_for(lambda: left_of(operator, app) == [], DEADLINE_S, f"nothing of it: {left_of(operator, app)}")


def test_tensorboard_is_seen_through_a_forwarded_port(operator: Operator) -> None:
    """With a job's numbers in it, in a pod that only a port-forward reaches."""
    job = operator.shared / "jobs/one"
    job.mkdir(parents=True)
    (job / "metrics.jsonl").write_text(json.dumps({"kind": "train", "step": 1, "time": 1.0, "loss": 2.5}) + "\n")
    looked_at(operator, "eks.tensorboard", "--no-browser", answer="TensorBoard")
    assert [] == operator.pods.kube.store.listed(kind("Pod"), labels="app.kubernetes.io/name=tensorboard")


def answer(url: str, trust: str, password: str = "") -> int:
    """What the page answers to somebody who trusts this certificate alone."""
    given = {"Authorization": "Basic " + base64.b64encode(f"me:{password}".encode()).decode()} if password else {}
    context = ssl.create_default_context(cadata=trust)
    context.check_hostname = False
    try:
        request = urllib.request.Request(url, headers=given)
        with urllib.request.urlopen(request, timeout=DEADLINE_S, context=context) as got:
            return int(got.status)
    except urllib.error.HTTPError as e:
        return e.code


def test_an_opened_page_lets_in_the_allowed_network_by_tls_and_password(operator: Operator, tmp_path: Path) -> None:
    """In the pod itself: the certificate of the printed fingerprint, 401 without the password, nothing for other addresses."""
    me = operator.pods.kube.lab.bridge_address  # as which this machine comes to pods; they have others
    (tmp_path / "cluster.toml").write_text(f'{CLUSTER_FILE}allow_cidrs = ["{me}/32"]\n')
    (tmp_path / "password").touch(mode=0o600)
    (tmp_path / "password").write_text("correct horse\n")
    opener = Operator(operator.pods, tmp_path)
    done = opener("eks.tensorboard", "--password-file", tmp_path / "password", "--json")
    assert 0 == done.returncode, done.stdout + done.stderr
    shown = json.loads(done.stdout)
    host = urllib.parse.urlsplit(shown["url"]).hostname
    assert host and shown["url"] == f"https://{host}/", "where the Service's load balancer is"
    service = operator.pods.get("service", "lab-tensorboard")["spec"]
    assert ([f"{me}/32"], "Local") == (service["loadBalancerSourceRanges"], service["externalTrafficPolicy"])

    pem = ssl.get_server_certificate((host, TLS_PORT), timeout=DEADLINE_S)
    assert shown["fingerprint"] == fingerprint(pem)
    page = f"https://{host}:{TLS_PORT}/"
    assert [200, 401, 401] == [answer(page, pem, password) for password in ("correct horse", "wrong horse", "")]

    words = f"import ssl; print(ssl.get_server_certificate(('{host}', {TLS_PORT}), timeout=300))"
    elsewhere = {"name": "elsewhere", "image": "dlami:test", "command": [image.PYTHON, "-c", words]}
    meta = {"name": "elsewhere", "namespace": NAMESPACE}
    spec = {"restartPolicy": "Never", "containers": [elsewhere]}
    operator.pods.create({"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": spec})
    phase = "{.status.phase}"
    wait_for(
        lambda: operator.pods("get", "pod", "elsewhere", f"--output=jsonpath={phase}") in ("Succeeded", "Failed"),
        DEADLINE_S,
        "its end",
    )
    said = operator.pods("logs", "elsewhere")
    assert "CERTIFICATE" not in said and re.search("EOF|reset", said), said
    operator.pods("delete", "pod", "elsewhere")

    done = opener("eks.tensorboard", "--end", "--json")
    assert ["deployment", "service", "networkpolicy", "secret"] == json.loads(done.stdout)
    wait_for(lambda: left_of(operator, "tensorboard") == [], DEADLINE_S, f"nothing: {left_of(operator, 'tensorboard')}")


@pytest.mark.long
def test_jupyter_answers_through_a_forwarded_port(operator: Operator) -> None:
    """With its packages where another notebook has left them: a pod of the lab has no way to a package index."""
    found = list((ROOT / ".jupyter/dlami").glob("jupyter-*/bin/python"))
    if not found or os.environ.get(IMAGE_VARIABLE):
        pytest.skip("Jupyter is not installed for pods of this machine's root: 'make jupyter' gets it")
    words = "from cluster.tunnels import jupyter_packages as j; print(j._folder().name)"
    in_pod = f"import sys; sys.prefix = '{image.PROJECT}/.venv'; {words}"
    name = subprocess.run([sys.executable, "-c", in_pod], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    packages = operator.shared / "notebooks/.packages/dlami"
    packages.mkdir(parents=True)
    (packages / name.strip()).symlink_to(found[0].parent.parent)
    os.chown(packages, image.UID, image.UID)
    looked_at(operator, "eks.jupyter", "--no-browser", answer="JupyterLab")
