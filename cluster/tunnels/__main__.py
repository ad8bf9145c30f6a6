"""Service commands that the master runs for an operator anywhere: `python -m cluster.tunnels VERB`.

Answers are JSON in frames on stdout. Errors are a sentence on stderr and an exit code.
"""

import dataclasses
import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import time
from typing import Any

from cluster.errors import ClusterError, ConfigError
from cluster.inventory import ROOT
from cluster.ssh.connections import TAGS
from cluster.ssh.onhost.frame import say
from cluster.tunnels.service import (
    FOLDER_TAG,
    TAG,
    Service,
    ServicePaths,
    ServiceRequest,
    end_service,
    new_service,
    read_services,
    services_folder,
)
from cluster.typed import from_json

_START_S = 120.0  # until it serves; TensorBoard and Jupyter load for seconds, longer on a busy machine
_LAST_LINES = 3


def main(argv: list[str]) -> int:
    """Run one verb and return the exit code."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # the client was interrupted: leave nothing behind
    try:
        say(_answer(argv[0], argv[1:]))
        return 0
    except ClusterError as e:
        print(e, file=sys.stderr)
        return e.exit_code
    except OSError as e:
        print(f"{e.filename or services_folder()}: {e.strerror or e}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130


def _answer(verb: str, words: list[str]) -> Any:
    if verb == "start":
        return dataclasses.asdict(start(from_json(ServiceRequest, json.load(sys.stdin))))
    if verb == "install":
        from cluster.tunnels import jupyter_packages

        return str(jupyter_packages.install() if words else jupyter_packages.python() or "")
    if verb == "end":
        return [end_one(name) for name in words or [one.id for one in read_services()]]
    assert verb == "list"
    return [dataclasses.asdict(one) for one in read_services()]


def start(wanted: ServiceRequest) -> Service:
    """Start a keeper process and wait until its page answers.

    Raises ClusterError with its last output if it does not.
    """
    check(wanted)
    paths = new_service(wanted)
    environment = {k: v for k, v in os.environ.items() if k not in TAGS}
    try:
        with paths.log.open("wb") as log:
            keeper = subprocess.Popen(
                [sys.executable, "-m", "cluster.tunnels.service_process", str(paths.folder)],
                cwd=ROOT,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                env={**environment, TAG: paths.folder.name, FOLDER_TAG: str(paths.folder)},
            )
        return _once_it_serves(paths, keeper)
    except BaseException:
        end_service(paths, grace_s=2.0)
        raise


def check(wanted: ServiceRequest) -> None:
    """Raise ConfigError if the request cannot be served."""
    from cluster.tunnels.events import require_job

    if wanted.kind == "tensorboard":
        require_job(wanted)
    if wanted.allow:
        with socket.socket() as tried:
            tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                tried.bind((wanted.address, wanted.port))
            except OSError as e:
                at = f"{wanted.address}:{wanted.port}"
                raise ConfigError(f"{at} cannot be served on the master: {e.strerror}; choose another --port") from None


def _once_it_serves(paths: ServicePaths, keeper: "subprocess.Popen[bytes]") -> Service:
    deadline = time.monotonic() + _START_S
    while time.monotonic() < deadline:
        if keeper.poll() is not None:
            raise ClusterError(f"it ended before it served a page: {_last_words(paths)}")
        if paths.ready.exists():
            service = from_json(Service, json.loads(paths.ready.read_bytes()))
            if _serves(service):
                return service
        time.sleep(0.03)
    raise ClusterError(f"it served no page within {_START_S:g} s: {_last_words(paths)}")


def _serves(service: Service) -> bool:
    """Return True if the service's page answers, also with a redirect or a password prompt."""
    page = http.client.HTTPConnection("127.0.0.1", service.port, timeout=5)
    try:
        page.request("GET", service.path)
        return page.getresponse().status in (200, 302, 401)
    except (OSError, http.client.HTTPException):
        return False
    finally:
        page.close()


def _last_words(paths: ServicePaths) -> str:
    lines = paths.log.read_text(errors="replace").strip().splitlines()
    return " / ".join(line.strip() for line in lines[-_LAST_LINES:]) or "it said nothing"


def end_one(name: str) -> str:
    """End one of this user's services by its id. Raises ConfigError for an unknown id."""
    paths = ServicePaths(services_folder() / name)
    if "/" in name or name.startswith(".") or not paths.wanted.exists():
        raise ConfigError(f"there is no {name} of yours here: inv tunnels lists them")
    end_service(paths)
    return name


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
