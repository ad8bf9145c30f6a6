"""Program of a page's pod, `python -m eks.page tensorboard|jupyter`, protected by its Secret's credentials."""

import argparse
import os
import signal
import sys
import tempfile
import threading
from collections.abc import Sequence
from pathlib import Path

from cluster.errors import ClusterError, ConfigError
from cluster.tunnels.service import ServicePaths, ServiceRequest
from cluster.tunnels.service_process import ServedPage, page_of
from cluster.tunnels.tls_proxy import Front
from eks.services import PAGES, SECRETS, TLS_PORT

_LOOK_S = 1.0


def main(words: Sequence[str]) -> int:
    """Serve until SIGTERM or until the page's process ends. Return the exit code."""
    told_to_end = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: told_to_end.set())
    given = _given(words)
    wanted = _wanted(given)
    with tempfile.TemporaryDirectory() as folder:
        if wanted.kind == "jupyter":
            from cluster.tunnels import jupyter_packages

            jupyter_packages.install()
        page = page_of(wanted, ServicePaths(Path(folder)))
        try:
            front = _front(wanted, page, given.secrets, Path(folder))
            where = f"https port {front.port}" if front else "the pod's loopback, for a port-forward,"
            print(f"{wanted.kind} is served on {where} behind port {page.port}", flush=True)
            while not (told_to_end.wait(_LOOK_S) or page.has_ended()):
                pass
        finally:
            page.end()
    return 0 if told_to_end.is_set() else 1


def _given(words: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="eks.page")
    parser.add_argument("kind", choices=list(PAGES))
    parser.add_argument("--shared", required=True)
    parser.add_argument("--job", default="all")
    parser.add_argument("--allow", default="", help="networks, with commas between them")
    parser.add_argument("--secrets", type=Path, default=Path(SECRETS))
    parser.add_argument("--tls-port", type=int, default=TLS_PORT)
    return parser.parse_args(words)


def _wanted(given: argparse.Namespace) -> ServiceRequest:
    """Return the page's configuration with its credentials.

    Raises ConfigError without any: no page is served unprotected.
    """
    password, token = _read(given.secrets / "password"), _read(given.secrets / "token")
    if not (password if given.allow else token):
        missing = "password" if given.allow else "token"
        raise ConfigError(f"{given.secrets} has no {missing}: start the page by inv eks.{given.kind}")
    return ServiceRequest(
        kind=given.kind,
        shared=given.shared,
        job=given.job if given.kind == "tensorboard" else "",
        allow=given.allow,
        password=password if given.allow else "",
        token=token,
        page_port=PAGES[given.kind].port,
        address=os.environ.get("POD_IP", "127.0.0.1"),
        port=given.tls_port,
    )


def _front(wanted: ServiceRequest, page: ServedPage, secrets: Path, folder: Path) -> Front | None:
    """Start the TLS proxy with the Secret's certificate. Return None if no networks are allowed."""
    if not wanted.allow:
        return None
    own = (secrets / "tls.crt").read_text(), (secrets / "tls.key").read_text()
    return Front(wanted.address, wanted.port, wanted.allow, page.port, folder, own)


def _read(path: Path) -> str:
    try:
        return path.read_text().strip()
    except FileNotFoundError:
        return ""


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except ClusterError as e:
        sys.exit(str(e))
