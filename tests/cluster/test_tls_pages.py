"""Pages by TLS: who is let in, with what password, and what is refused before anything is opened."""

import base64
import http.server
import socket
import ssl
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cluster.errors import ConfigError
from cluster.tunnels import jupyter_packages, jupyter_page, password, tensorboard_page
from cluster.tunnels.service import ServicePaths, ServiceRequest
from cluster.tunnels.tls_proxy import Front, fingerprint, hashed, is_right, network
from tests.conftest import PATIENCE_S

PAGE = b"a page " * 100_000


class OnePage(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(PAGE)

    def log_message(self, *words: Any) -> None:
        pass


@pytest.fixture
def page() -> Iterator[int]:
    """The port of a page on loopback."""
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), OnePage)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield int(server.server_address[1])
    server.shutdown()
    server.server_close()


def test_who_is_allowed_gets_the_page_by_tls(page: int, tmp_path: Path) -> None:
    """Whole, with the certificate whose fingerprint was said; its key is for its user alone."""
    front = Front("127.0.0.1", 0, "127.0.0.0/8", page, tmp_path)
    try:
        pem = ssl.get_server_certificate(("127.0.0.1", front.port), timeout=PATIENCE_S)
        trusting = ssl.create_default_context(cadata=pem)
        trusting.check_hostname = False
        with urllib.request.urlopen(f"https://127.0.0.1:{front.port}/", context=trusting, timeout=PATIENCE_S) as got:
            assert got.read() == PAGE
        assert front.fingerprint == fingerprint(pem)
        assert 0o600 == (tmp_path / "key.pem").stat().st_mode & 0o777
    finally:
        front.close()
    with pytest.raises(OSError):
        socket.create_connection(("127.0.0.1", front.port), timeout=60)


def test_nobody_else_sees_as_much_as_a_certificate(page: int, tmp_path: Path) -> None:
    """The connection is closed without a word."""
    front = Front("127.0.0.1", 0, "192.0.2.7/32", page, tmp_path)
    try:
        with socket.create_connection(("127.0.0.1", front.port), timeout=60) as tried:
            assert b"" == tried.recv(1)
    finally:
        front.close()


@pytest.mark.parametrize("allow", ["0.0.0.0/0", "::/0", "everybody", "10.0.0.1/8", ""])
def test_a_network_that_is_none_or_everybody_is_refused(allow: str) -> None:
    """In a sentence that says how one is written."""
    with pytest.raises(ConfigError, match=r"as in 203\.0\.113\.7/32"):
        network(allow)


def test_a_password_is_kept_as_a_digest_that_only_it_fits() -> None:
    """Two of the same differ, as each has its salt."""
    kept = hashed("correct horse")

    assert is_right("correct horse", kept) and not is_right("correct horsf", kept)
    assert "horse" not in kept and kept != hashed("correct horse")


def test_tensorboard_asks_who_does_not_know_the_password(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing of the page is seen before."""
    monkeypatch.setattr(tensorboard_page, "_GUESS_S", 0.0)
    app = tensorboard_page._with_password(lambda asked, answer: [b"numbers"], hashed("correct horse"))
    answers: list[str] = []

    def got(said: str = "") -> bytes:
        headers = {"HTTP_AUTHORIZATION": said} if said else {}
        return b"".join(app(headers, lambda status, fields: answers.append(status)))

    def basic(word: str) -> str:
        return "Basic " + base64.b64encode(f"tensorboard:{word}".encode()).decode()

    for wrong in ("", basic("wrong one"), "Basic !!!", "Basic /w==", "Bearer correct horse"):
        assert b"numbers" not in got(wrong)
    assert ["401 Unauthorized"] * 5 == answers
    assert b"numbers" == got(basic("correct horse")) == got(basic("correct horse"))


def test_a_password_file_is_read_if_it_is_its_users_alone(tmp_path: Path) -> None:
    """Its first line, long enough."""
    file = tmp_path / "password"
    file.write_text("correct horse\nsecond line\n")
    file.chmod(0o600)
    assert "correct horse" == password.read_from(str(file))
    file.chmod(0o640)
    with pytest.raises(ConfigError, match="can be read by others"):
        password.read_from(str(file))
    file.chmod(0o600)
    file.write_text("short")
    with pytest.raises(ConfigError, match="has 5 characters, at least 8"):
        password.read_from(str(file))
    with pytest.raises(ConfigError, match="cannot be read"):
        password.read_from(str(tmp_path / "none"))


@pytest.mark.seconds
@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--tls"], "lets nobody in"),
        (["--tls", "--allow", "203.0.113.7/32"], "wants a password"),
        (["--tls", "--allow", "0.0.0.0/0", "--password"], "is everybody"),
        (["--allow", "203.0.113.7/32"], "go with --tls"),
        (["--tls", "--allow", "203.0.113.7/32", "--password"], "no terminal"),
    ],
)
def test_what_would_be_open_is_refused_before_a_host_is_asked(words: list[str], says: str, tmp_path: Path) -> None:
    """Closed by default."""
    (tmp_path / "hosts").write_text("192.0.2.1 slots=1\n")
    task = [sys.executable, "-m", "dlami.program", "tensorboard", *words]
    done = subprocess.run(
        task, cwd=tmp_path, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=PATIENCE_S, check=False,
        env={"PYTHONPATH": str(Path(jupyter_page.ROOT)), "PATH": "/usr/bin:/bin", "HOME": str(tmp_path)},
    )  # fmt: skip

    assert 2 == done.returncode
    assert says in done.stderr


def test_jupyters_secret_stands_in_its_private_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its argument list names a file, its kernel is the runtime; an own notebook stays as it is."""
    called = tmp_path / "jupyter"
    called.write_text('#!/bin/sh\necho "$@"; sleep 60\n')
    called.chmod(0o755)
    monkeypatch.setattr(jupyter_packages, "python", lambda: called)
    shared, folder = tmp_path / "shared", tmp_path / "service"
    own = shared / "notebooks" / str(tmp_path.stat().st_uid) / "watch.ipynb"
    own.parent.mkdir(parents=True)
    folder.mkdir()
    own.write_text("mine")
    started = jupyter_page.JupyterPage(ServiceRequest(kind="jupyter", shared=str(shared)), ServicePaths(folder))
    try:
        token = started.path.partition("token=")[2]
        settings = folder / "jupyter_server_config.py"
        assert len(token) >= 32 and token in settings.read_text()
        assert 0o600 == settings.stat().st_mode & 0o777
        assert token not in Path(f"/proc/{started._process.pid}/cmdline").read_text()
        assert "mine" == own.read_text()
        assert {"train.ipynb", "watch.ipynb", "predict.ipynb"} == {p.name for p in own.parent.iterdir()}
        assert str(called) in (folder / "data/kernels/dlami/kernel.json").read_text()
        assert not started.has_ended()
    finally:
        started.end()
    assert started.has_ended()
