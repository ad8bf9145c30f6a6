"""`python -m cluster.tunnels.service_process FOLDER`: serves a page until it is ended or no longer viewed.

The request and every secret are in files of its folder, which only its user can read.
"""

import dataclasses
import os
import signal
import sys
import threading
import time
from pathlib import Path
from types import FrameType
from typing import Protocol

from cluster.errors import ClusterError
from cluster.files import write_json
from cluster.tunnels.service import Service, ServicePaths, ServiceRequest, read_wanted, remove, unattended_s

_NEVER_SEEN_S = 180.0  # time limit until the first viewer
_LOOK_S = 1.0


class ServedPage(Protocol):
    """Page that the process serves."""

    port: int  # port on loopback
    path: str  # path with the secret in it

    def has_ended(self) -> bool:
        """Return True if it no longer serves."""

    def end(self) -> None:
        """Stop serving, and leave nothing behind."""


def main(folder: str) -> None:
    """Serve the page that is requested in this folder, until its end."""
    paths = ServicePaths(Path(folder))
    wanted = read_wanted(paths)
    told_to_end = threading.Event()

    def end(number: int, frame: FrameType | None) -> None:
        told_to_end.set()

    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, end)
    page = page_of(wanted, paths)
    try:
        public, fingerprint = _served_by_tls(wanted, paths, page)
        _announce(paths, wanted, page, public, fingerprint)
        while not (told_to_end.wait(_LOOK_S) or page.has_ended() or _is_over(paths, wanted)):
            pass
    finally:
        page.end()
        remove(paths)


def page_of(wanted: ServiceRequest, paths: ServicePaths) -> ServedPage:
    """Start the requested page on loopback, and return it."""
    if wanted.kind == "jupyter":
        from cluster.tunnels.jupyter_page import JupyterPage

        return JupyterPage(wanted, paths)
    from cluster.tunnels.tensorboard_page import TensorBoardPage

    return TensorBoardPage(wanted, paths)


def _served_by_tls(wanted: ServiceRequest, paths: ServicePaths, page: ServedPage) -> tuple[str, str]:
    """Return the TLS address and the certificate's fingerprint; "" and "" if the page is not served by TLS."""
    if not wanted.allow:
        return "", ""
    from cluster.tunnels.tls_proxy import Front

    front = Front(wanted.address, wanted.port, wanted.allow, page.port, paths.folder)
    return f"https://{wanted.address}:{front.port}{page.path}", front.fingerprint


def _announce(paths: ServicePaths, wanted: ServiceRequest, page: ServedPage, public: str, fingerprint: str) -> None:
    service = Service(
        id=paths.folder.name,
        kind=wanted.kind,
        job=wanted.job,
        asked_by=wanted.asked_by,
        pid=os.getpid(),
        started=round(time.time(), 1),
        port=page.port,
        path=page.path,
        public=public,
        fingerprint=fingerprint,
        folder=str(paths.folder),
    )
    write_json(paths.ready, dataclasses.asdict(service), mode=0o600)


def _is_over(paths: ServicePaths, wanted: ServiceRequest) -> bool:
    """Return True if the page has had no viewer for its time limit, or its folder is gone."""
    try:
        return unattended_s(paths) > (wanted.stays_s if paths.seen.exists() else min(wanted.stays_s, _NEVER_SEEN_S))
    except OSError:
        return True  # its folder is gone


if __name__ == "__main__":
    try:
        main(sys.argv[1])
    except ClusterError as e:
        sys.exit(str(e))
