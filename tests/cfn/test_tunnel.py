"""The way to EFS through TLS with the real stunnel: first boot's own options against a server at NFS's port."""

import contextlib
import os
import re
import shutil
import socket
import ssl
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from cluster.inventory import ROOT
from tests.conftest import PATIENCE_S, unused_port, wait_for

FILE_SYSTEM = "fs-0123456789abcdef0"
NAME = f"{FILE_SYSTEM}.efs.us-east-1.amazonaws.com"
SERVER = "127.0.0.49"  # an address of this machine's own, where nothing else has port 2049

pytestmark = [
    pytest.mark.skipif(not shutil.which("stunnel"), reason="stunnel is not installed: apt-get install stunnel4"),
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root: stunnel binds its port to the loopback device"),
]


def certificate(folder: Path, name: str) -> Path:
    """A self-signed certificate of this name and its key, in one file."""
    path = folder / f"{name}.pem"
    words = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=efs"]
    words += ["-addext", f"subjectAltName=DNS:{name}", "-keyout", str(path), "-out", f"{path}.crt"]
    subprocess.run(words, check=True, capture_output=True, timeout=PATIENCE_S)
    path.write_text(path.read_text() + Path(f"{path}.crt").read_text())
    return path


@contextlib.contextmanager
def far_end(pem: Path, heard: list[bytes]) -> Iterator[None]:
    """Something behind TLS at NFS's port that gives back what it is sent."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pem)
    with socket.create_server((SERVER, 2049)) as server:

        def serve() -> None:
            while True:
                try:
                    raw, _ = server.accept()
                    with raw, context.wrap_socket(raw, server_side=True) as connection:
                        while data := connection.recv(1000):
                            heard.append(data)
                            connection.sendall(data)
                except ssl.SSLError:  # refused by the other side
                    continue
                except OSError:
                    if server.fileno() < 0:
                        return

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        try:
            yield
        finally:
            server.shutdown(socket.SHUT_RDWR)
    thread.join(PATIENCE_S)


@contextlib.contextmanager
def tunnel(folder: Path, trusted: Path) -> Iterator[int]:
    """stunnel as first boot starts it, but for the certificates that it trusts and its own port, which is returned."""
    script = (ROOT / "scripts/first-boot.sh").read_text()
    found = re.search(r"^tunnel\(\) \{.*?^    (printf .*?)\n +>/etc/dlami-efs\.conf", script, re.M | re.S)
    assert found, "first boot writes stunnel's options in another way"
    given = {"EFS_ADDRESS": SERVER, "EFS_ID": FILE_SYSTEM, "REGION": "us-east-1", "DOMAIN": "amazonaws.com"}
    words = ["bash", "-euc", found[1].removesuffix("\\")]
    options = subprocess.run(words, env=given, capture_output=True, text=True, check=True, timeout=PATIENCE_S).stdout
    port = unused_port()
    assert "CAfile = /etc/ssl/certs/ca-certificates.crt" in options
    assert "accept = 127.0.0.1:20049" in options
    own = options.replace("/etc/ssl/certs/ca-certificates.crt", f"{trusted}.crt").replace(":20049", f":{port}")
    (folder / "stunnel.conf").write_text(own)
    process = subprocess.Popen(["stunnel", str(folder / "stunnel.conf")], stderr=subprocess.DEVNULL)
    try:
        wait_for(lambda: listens(port), 60, "stunnel listens")
        yield port
    finally:
        process.kill()
        process.wait()


def listens(port: int) -> bool:
    """Whether somebody does, without connecting to it."""
    rows = (line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:])
    return any(row[1] == f"0100007F:{port:04X}" and row[3] == "0A" for row in rows)


def said_through(port: int) -> bytes:
    """What comes back for `hello`, nothing if the connection is closed instead."""
    with contextlib.suppress(ConnectionError), socket.create_connection(("127.0.0.1", port), timeout=60) as here:
        here.sendall(b"hello")
        return here.recv(100)
    return b""


@pytest.mark.parametrize(
    ("shown", "trusted", "gets_in"),
    [(NAME, NAME, True), ("fs-0aaaaaaaaaaaaaaaa.efs.us-east-1.amazonaws.com", None, False), (NAME, "another", False)],
    ids=["this file system", "another file system", "a certificate that nobody vouches for"],
)
def test_only_this_file_system_hears_a_word(tmp_path: Path, shown: str, trusted: str | None, gets_in: bool) -> None:
    """Name and chain of the far end are checked before the first byte of NFS, which the cluster's private key is read by."""
    heard: list[bytes] = []
    pem = certificate(tmp_path, shown)
    known = pem if trusted in (None, shown) else certificate(tmp_path, trusted)
    with far_end(pem, heard), tunnel(tmp_path, known) as port:
        assert (b"hello" if gets_in else b"") == said_through(port)
    assert ([b"hello"] if gets_in else []) == heard
