"""kubectl's complaints as sentences, its answers as documents; and the real program where there is one."""

import shutil
from pathlib import Path

import pytest

from cluster.errors import ConfigError
from eks.kubectl import BINARY_VARIABLE, Kubectl, KubectlError, sentence
from tests.conftest import wait_for
from tests.processes import SHEBANG

# What kubectl 1.32 and 1.37 print on stderr, and what has to be in our sentence.
COMPLAINTS = (
    (
        'E1123 07:45:26 8438 memcache.go:265] "Unhandled Error" err="couldn\'t get current server API group list"\n'
        "The connection to the server 127.0.0.1:1 was refused - did you specify the right host or port?\n",
        ("127.0.0.1:1 was refused", "kubectl --context blue cluster-info"),
    ),
    (
        "Unable to connect to the server: dial tcp: lookup eks.invalid on 10.0.0.2:53: no such host\n",
        ("no such host", "does not answer"),
    ),
    ("Error in configuration: context was not found for specified context: blue\n", ("eks.context", "get-contexts")),
    ('error: context "blue" does not exist\n', ("eks.context",)),
    ("error: You must be logged in to the server (Unauthorized)\n", ("log in to AWS again",)),
    (
        'Error from server (Forbidden): mpijobs.kubeflow.org is forbidden: User "x" cannot list resource\n',
        ("mpijobs.kubeflow.org is forbidden", "access entry"),
    ),
    (
        'error: the server doesn\'t have a resource type "mpijobs"\n',
        ("mpi-operator", "kubectl apply --server-side", "b10758da23ce5d9b9efa6f42f7b050dc8605f5f5"),
    ),
    (
        'error: resource mapping not found for name: "a" namespace: "dlami" from "STDIN": no matches for kind "MPIJob" '
        'in version "kubeflow.org/v2beta1"\nensure CRDs are installed first\n',
        ("mpi-operator",),
    ),
    ('Error from server (NotFound): namespaces "dlami" not found\n', ("kubectl create namespace dlami",)),
    (
        "Unable to connect to the server: getting credentials: exec: executable aws not found\n",
        ("install the AWS CLI",),
    ),
    (
        'Error from server (AlreadyExists): mpijobs.kubeflow.org "a" already exists\n',
        ('mpijobs.kubeflow.org "a" already exists',),
    ),
    ("", ("it said nothing",)),
)


@pytest.mark.parametrize(("complaint", "parts"), COMPLAINTS)
def test_a_complaint_is_one_sentence_with_what_to_do(complaint: str, parts: tuple[str, ...]) -> None:
    said = sentence(complaint, ["get", "mpijobs"], "blue", "dlami")
    assert said.startswith("kubectl get: ")
    assert all(part in said for part in parts), said
    assert "\n" not in said and "memcache" not in said


def test_without_kubectl_a_sentence_says_where_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(BINARY_VARIABLE, "/nowhere/kubectl")
    with pytest.raises(ConfigError, match=r"/nowhere/kubectl cannot be started .*kubernetes\.io"):
        Kubectl("blue", "dlami").get("pods")


def test_a_port_that_does_not_open_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What kubectl said is told; nothing waits for a line that will not come."""
    script = tmp_path / "kubectl"
    script.write_text(f"{SHEBANG}raise SystemExit('error: services \"board\" not found')\n")
    script.chmod(0o755)
    monkeypatch.setenv(BINARY_VARIABLE, str(script))
    wanted = r'no port leads to service/board: .*services "board" not found'
    with pytest.raises(KubectlError, match=wanted), Kubectl().forward("service/board", 6006):
        pass


def test_a_port_stays_open_however_much_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """kubectl prints a line for each connection: more of them than a pipe holds must not stop it."""
    script, done = tmp_path / "kubectl", tmp_path / "done"
    script.write_text(
        f"{SHEBANG}import pathlib, time\nprint('Forwarding from 127.0.0.1:6006 -> 6006', flush=True)\n"
        "for _ in range(10_000):\n    print('Handling connection for 6006', flush=True)\n"
        f"pathlib.Path({str(done)!r}).touch()\ntime.sleep(600)\n"
    )
    script.chmod(0o755)
    monkeypatch.setenv(BINARY_VARIABLE, str(script))
    with Kubectl().forward("service/board", 6006) as port:
        assert 6006 == port
        wait_for(done.exists, 120, "all its lines")


@pytest.mark.skipif(not shutil.which("kubectl"), reason="needs kubectl")
def test_a_cluster_that_is_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The real kubectl's complaint is recognised."""
    config = tmp_path / "config"
    config.write_text(
        'apiVersion: v1\nkind: Config\ncurrent-context: a\nclusters: [{name: a, cluster: {server: "http://127.0.0.1:1"}}]'
        "\ncontexts: [{name: a, context: {cluster: a, user: a}}]\nusers: [{name: a, user: {token: x}}]\n"
    )
    monkeypatch.setenv("KUBECONFIG", str(config))
    with pytest.raises(KubectlError, match=r"127.0.0.1:1 was refused.*does not answer"):
        Kubectl("a", "dlami").get("pods")
