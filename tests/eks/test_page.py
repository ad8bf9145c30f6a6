"""The pages of pods, as processes: closed by a token on loopback, or by TLS, networks and a password; never open."""

import base64
import contextlib
import json
import os
import signal
import socket
import ssl
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from cluster.broadcast.certificate import certificate
from cluster.inventory import ROOT
from cluster.tunnels.tls_proxy import fingerprint, hashed
from eks.services import TENSORBOARD
from tests.conftest import PATIENCE_S, unused_port, wait_for

pytestmark = pytest.mark.slow
DEADLINE_S = 240.0


@pytest.fixture
def shared(tmp_path: Path) -> Path:
    """A shared folder with one job's numbers."""
    job = tmp_path / "shared/jobs/one"
    job.mkdir(parents=True)
    record = {"kind": "train", "step": 1, "time": 1.0, "loss": 2.5}
    (job / "metrics.jsonl").write_text(json.dumps(record) + "\n")
    return tmp_path / "shared"


@contextlib.contextmanager
def served(*words: str, secrets: Path, shared: Path) -> Iterator["subprocess.Popen[str]"]:
    """The program of a page's pod; it is told to end as Kubernetes does, and ends well."""
    command = [
        sys.executable,
        "-m",
        "eks.page",
        "tensorboard",
        "--shared",
        str(shared),
        "--secrets",
        str(secrets),
    ]
    environment = {**os.environ, "POD_IP": "127.0.0.1"}
    with subprocess.Popen(
        [*command, *words], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment
    ) as process:
        try:
            yield process
            process.send_signal(signal.SIGTERM)
            assert 0 == process.wait(DEADLINE_S)
        finally:
            process.kill()


def secret(folder: Path, **content: str) -> Path:
    """What a Secret looks like in a pod."""
    folder.mkdir()
    for name, text in content.items():
        (folder / name.replace("_", ".")).write_text(text)
    return folder


def status(url: str, password: str = "", trust: str = "") -> int:
    """What the page answers; 0 while nobody does."""
    given = {"Authorization": "Basic " + base64.b64encode(f"me:{password}".encode()).decode()} if password else {}
    context = None
    if trust:
        context = ssl.create_default_context(cadata=trust)
        context.check_hostname = False
    try:
        with urllib.request.urlopen(
            urllib.request.Request(url, headers=given), timeout=PATIENCE_S, context=context
        ) as got:
            return int(got.status)
    except urllib.error.HTTPError as e:
        return e.code
    except OSError:
        return 0


def in_use() -> bool:
    with socket.socket() as tried:
        return tried.connect_ex(("127.0.0.1", TENSORBOARD.port)) == 0


def test_a_token_leads_to_a_page_on_loopback(tmp_path: Path, shared: Path) -> None:
    """At the port that the Service and the probes name; without the token there is nothing."""
    if in_use():
        pytest.skip(f"port {TENSORBOARD.port} of this machine is somebody else's")
    with served(secrets=secret(tmp_path / "s", token="t" * 24), shared=shared):
        page = f"http://127.0.0.1:{TENSORBOARD.port}"
        wait_for(lambda: status(f"{page}/{'t' * 24}/") == 200, DEADLINE_S, "the page")
        assert 404 == status(f"{page}/")
        with urllib.request.urlopen(f"{page}/{'t' * 24}/data/runs", timeout=PATIENCE_S) as runs:
            assert ["one"] == json.loads(runs.read())


def test_tls_and_a_password_lead_to_it_from_outside(tmp_path: Path, shared: Path) -> None:
    """With the certificate of the Secret, for who knows the password; the key is no other's."""
    if in_use():
        pytest.skip(f"port {TENSORBOARD.port} of this machine is somebody else's")
    pem, key = certificate("page", 2)
    content = secret(tmp_path / "s", password=hashed("correct horse"), tls_crt=pem, tls_key=key)
    port = unused_port()
    with served("--allow=192.0.2.0/24,127.0.0.0/8", f"--tls-port={port}", secrets=content, shared=shared):
        page = f"https://127.0.0.1:{port}/"
        wait_for(lambda: status(page, "correct horse", pem) == 200, DEADLINE_S, "the page by TLS")
        assert fingerprint(pem) == fingerprint(ssl.get_server_certificate(("127.0.0.1", port), timeout=PATIENCE_S))
        assert 401 == status(page, "", pem)
        assert 401 == status(page, "wrong", pem)


@pytest.mark.parametrize(("words", "missing"), [((), "token"), (("--allow=127.0.0.0/8",), "password")])
def test_it_is_never_served_open(tmp_path: Path, shared: Path, words: tuple[str, ...], missing: str) -> None:
    """Without what closes it nothing is served, and the log says what to do."""
    command = [
        sys.executable,
        "-m",
        "eks.page",
        "tensorboard",
        "--shared",
        shared,
        "--secrets",
        tmp_path,
        *words,
    ]
    done = subprocess.run([*map(str, command)], cwd=ROOT, capture_output=True, text=True, timeout=DEADLINE_S)
    assert 1 == done.returncode and f"has no {missing}" in done.stderr and "inv eks.tensorboard" in done.stderr
