"""Client for services on the operator's machine: starts them on the master, opens a local port, and ends them."""

import contextlib
import dataclasses
import getpass
import json
import os
import shlex
import socket
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from cluster.errors import ClusterError, ConfigError
from cluster.files import write_atomically
from cluster.inventory import Cluster
from cluster.ssh.fanout import Executor, Interrupted
from cluster.ssh.limits import Limits
from cluster.ssh.noise_filter import complaint, marked, trouble
from cluster.ssh.options import way_to
from cluster.ssh.program import NoAnswer, answer_of
from cluster.ssh.terminate import undisturbed
from cluster.tunnels.local_port import LocalPort
from cluster.tunnels.service import Service, ServiceRequest
from cluster.typed import from_json

_START_S = 150.0
_INSTALL_S = 1000.0
_ANSWER_S = 30.0
_LOOK_S = 8.0  # interval of checks that the service is alive, which also mark it as in use


@dataclass(frozen=True)
class Looking:
    """Page that can be opened now."""

    service: Service
    url: str


class Services:
    """Services of a cluster's master."""

    def __init__(self, reach: Executor, cluster: Cluster) -> None:
        self._reach, self._cluster = reach, cluster

    def start(self, wanted: ServiceRequest) -> Service:
        """Start a service and return it once it serves. Raises ConfigError, ClusterError."""
        words = json.dumps(dataclasses.asdict(wanted)).encode()
        return from_json(Service, self._call("start", stdin=words, total_s=_START_S))

    def has_jupyter(self) -> bool:
        """Return True if the master has Jupyter for this user."""
        return bool(self._call("install"))

    def install_jupyter(self) -> None:
        """Install Jupyter on the master, beside the runtime. Raises ClusterError with pip's last output."""
        self._call("install", "now", total_s=_INSTALL_S)

    def list(self) -> tuple[Service, ...]:
        """Return this user's services, the oldest first."""
        return tuple(from_json(Service, one) for one in self._call("list"))

    def end(self, *ids: str) -> tuple[str, ...]:
        """End these services, or all of this user's, and return their ids. Raises ConfigError if one does not exist."""
        return tuple(self._call("end", *ids))

    def is_there(self, service: Service) -> bool | None:
        """Return True if the service still serves, and mark it as in use. None: the master does not answer."""
        seen = shlex.quote(f"{service.folder}/seen")
        look = f"[ -e {shlex.quote(service.folder)}/service.json ] || exit 1; touch {seen}"
        limits = Limits(total_s=_ANSWER_S)
        result = self._reach.run([self._cluster.master], look, limits=limits)[self._cluster.master]
        return None if result.exit_code is None else result.exit_code == 0

    def _call(self, verb: str, *words: str, stdin: bytes = b"", total_s: float = _ANSWER_S) -> Any:
        asked = shlex.join([self._cluster.python, "-m", "cluster.tunnels", verb, *words])
        command = marked(f"cd {shlex.quote(self._cluster.project)} && exec {asked}")
        master, limits = self._cluster.master, Limits(total_s=total_s)
        result = self._reach.run([master], command, stdin=stdin, limits=limits)[master]
        if not result.ok:
            why = complaint(result)
            if result.exit_code in (1, 2) and why and "Traceback" not in why:
                raise (ConfigError if result.exit_code == 2 else ClusterError)(why)
            raise ClusterError(f"the master ({result.host}) could not do it: {result.error or why or trouble(result)}")
        try:
            return answer_of(result)
        except NoAnswer as e:
            raise ClusterError(f"the master ({result.host}): {e}") from e


def asked_by() -> str:
    """Return user and machine, by which others on the same account recognize the requester."""
    return f"{getpass.getuser()}@{socket.gethostname()}"


def look_at(cluster: Cluster, wanted: ServiceRequest, show: Callable[[Looking], None]) -> None:
    """Start a service, show its address, and stay until Ctrl-C or its end. Nothing of it is left afterwards.

    Raises ClusterError if it ends by itself, or is ended on the master.
    """
    with Executor(cluster) as reach:
        services = Services(reach, cluster)
        service = services.start(wanted)
        try:
            with _way_in(cluster, service) if not service.public else contextlib.nullcontext(service.public) as url:
                show(Looking(service, url))
                _stay(services, service)
        except (KeyboardInterrupt, Interrupted):
            with undisturbed(), contextlib.suppress(ConfigError):  # the service has already ended
                services.end(service.id)
            print(f"\n{service.kind} has ended, nothing of it is left on {cluster.master}", file=sys.stderr)
        except BaseException:
            with undisturbed(), contextlib.suppress(ClusterError):
                services.end(service.id)
            raise


@contextlib.contextmanager
def _way_in(cluster: Cluster, service: Service) -> Iterator[str]:
    """Yield the page's address on this machine. The port is open until the context ends."""
    if cluster.master.is_local:
        yield f"http://127.0.0.1:{service.port}{service.path}"
        return
    with LocalPort(way_to(cluster.master, cluster.access).socket, service.port) as port:
        yield f"http://127.0.0.1:{port.number}{service.path}"


def _stay(services: Services, service: Service) -> None:
    """Wait until the service has ended. The next check reopens a lost connection. Raises ClusterError at the end."""
    was_there = True
    while (is_there := services.is_there(service)) is not False:
        if is_there is None and was_there:
            print("the connection is lost; it is tried again until Ctrl-C", file=sys.stderr)
        if is_there and not was_there:
            print("the connection is back; the page is where it was", file=sys.stderr)
        was_there = bool(is_there)
        time.sleep(_LOOK_S if was_there else 1.0)
    raise ClusterError(f"{service.kind} was ended on the master: by inv tunnels --end, inv kill, or a reboot")


def table(services: Sequence[Service]) -> str:
    """Format a line per service, without its secrets."""
    from cluster.jobs.client.show import duration

    if not services:
        return "nothing is served: inv tensorboard and inv jupyter begin it"
    rows = [
        (
            one.id,
            one.job,
            duration(time.time() - one.started),
            f"{one.asked_by} looks" if one.attended else f"nobody looks; asked by {one.asked_by}",
            one.public,
        )
        for one in services
    ]
    widths = [max(len(row[i]) for row in rows) for i in range(5)]
    return "\n".join("  ".join(c.ljust(w) for c, w in zip(row, widths, strict=True)).rstrip() for row in rows)


def where_it_is_shown(url: str, *, in_browser: bool) -> str:
    """Open the page in a browser, if requested and possible, and return a sentence on where to see it."""
    opened = in_browser and open_browser(url)
    return f"{'opened in your browser' if opened else 'open it in a browser on this machine'}; Ctrl-C ends it"


def open_browser(url: str) -> bool:
    """Open a page in the desktop's browser. Return True if there is one.

    The browser gets a file that redirects there. Everybody can read a process's arguments, so they hold no secret.
    """
    import webbrowser

    from cluster.ssh.options import sockets_folder

    if not any(os.environ.get(name) for name in ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER")) and sys.platform != "darwin":
        return False
    path = sockets_folder() / f"page-{os.getpid()}.html"
    leads = f'<!doctype html><meta http-equiv="refresh" content="0; url={url}"><a href="{url}">the page</a>\n'
    write_atomically(path, leads, mode=0o600)
    with contextlib.suppress(webbrowser.Error):
        return webbrowser.open(f"file://{path}")
    return False
