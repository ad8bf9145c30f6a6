"""Tasks of pages that the master serves: TensorBoard, Jupyter, and the list of open pages."""

import dataclasses
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING

from invoke import Context

from cluster.errors import ConfigError
from cluster.inventory import Cluster, load_cluster
from cluster.terminal import print_json
from dlami.tasks.command import command, option

if TYPE_CHECKING:
    from cluster.tunnels.service import ServiceRequest

_NOTEBOOK_STAYS_S = 12 * 3600.0  # while nobody looks: a kernel's work is worth a night


@dataclass(frozen=True, kw_only=True)
class PageOptions:
    """Options of every page that the master serves."""

    no_browser: bool = option(False, "only print the address")
    json: bool = option(False, "the address as one line of JSON")
    tls: bool = option(False, "serve it on the master's address by TLS, instead of through SSH")
    allow: str = option("", "with --tls: the network that is let in, as 203.0.113.7/32")
    port: int = option(8443, "with --tls: the port there")
    password: bool = option(False, "with --tls: ask for the password that it will want")
    password_file: str = option("", "with --tls: take it from the first line of this file")


@dataclass(frozen=True, kw_only=True)
class TensorBoardOptions(PageOptions):
    """The options of `inv tensorboard`."""

    job: str = option("last", "its id, a part of it, last, or all; --job may be left out")


@command
def tensorboard(c: Context, given: TensorBoardOptions) -> None:
    """Look at a job's numbers in TensorBoard, which the master serves to you alone until Ctrl-C."""
    from cluster.tunnels.service import ServiceRequest

    cluster = load_cluster()
    _serve(cluster, ServiceRequest(kind="tensorboard", shared=cluster.shared, job=given.job), given)


@command
def jupyter(c: Context, given: PageOptions) -> None:
    """Work in a notebook on the master, with the trainers' runtime as its kernel, until Ctrl-C."""
    from cluster.ssh.fanout import Executor
    from cluster.tunnels.client import Services
    from cluster.tunnels.service import ServiceRequest

    cluster = load_cluster()
    wanted = _by_tls(cluster, ServiceRequest(kind="jupyter", shared=cluster.shared, stays_s=_NOTEBOOK_STAYS_S), given)
    with Executor(cluster) as reach:
        services = Services(reach, cluster)
        if not services.has_jupyter():
            print(
                f"JupyterLab is not on {cluster.master} yet: it is installed now, for you alone, beside the trainers' "
                "environment (210 MB, some minutes, once)",
                file=sys.stderr,
            )
            services.install_jupyter()
    _serve(cluster, wanted, given)


def _serve(cluster: Cluster, wanted: "ServiceRequest", given: PageOptions) -> None:
    from cluster.tunnels.client import Looking, asked_by, look_at, where_it_is_shown

    def show(page: Looking) -> None:
        one = page.service
        if given.json:
            print_json({"id": one.id, "url": page.url, "fingerprint": one.fingerprint}, one_line=True)
            return
        print(page.url, flush=True)
        if one.public:
            print(
                f"the certificate is its own, SHA-256 {one.fingerprint}\nthe master's security group must let "
                f"{given.allow} in to port {given.port}: a stack's own lets nobody in; Ctrl-C ends it",
                file=sys.stderr,
            )
            return
        print(where_it_is_shown(page.url, in_browser=not given.no_browser), file=sys.stderr)

    wanted = _by_tls(cluster, wanted, given) if not wanted.allow else wanted
    look_at(cluster, dataclasses.replace(wanted, asked_by=asked_by(), cluster=str(cluster.folder)), show)


def _by_tls(cluster: Cluster, wanted: "ServiceRequest", given: PageOptions) -> "ServiceRequest":
    """Return the request with TLS, if --tls is given. Raises ConfigError if the page would be open to everybody."""
    from cluster.tunnels.password import asked_for, read_from
    from cluster.tunnels.tls_proxy import hashed, network

    if not given.tls:
        if given.allow or given.password or given.password_file:
            raise ConfigError("--allow, --password and --password-file go with --tls; without it SSH guards the page")
        return wanted
    if not given.allow:
        raise ConfigError("--tls lets nobody in: say who with --allow, as in --allow 203.0.113.7/32")
    network(given.allow)
    if not (given.password or given.password_file):
        raise ConfigError("--tls wants a password: --password asks for it, --password-file FILE reads it")
    secret = read_from(given.password_file) if given.password_file else asked_for()
    return dataclasses.replace(
        wanted, address=cluster.master.address, port=given.port, allow=given.allow, password=hashed(secret)
    )


@command(
    name="tunnels",
    help={"id": "one of them; all of yours without it", "end": "end it, or all of yours", "json": "as JSON"},
)
def tunnels(c: Context, id: str = "", end: bool = False, json: bool = False) -> None:
    """Show the pages that the master serves to you, or end them with --end."""
    from cluster.ssh.fanout import Executor
    from cluster.tunnels.client import Services, table

    if id and not end:
        raise ConfigError("a name goes with --end; without both all are shown")
    cluster = load_cluster()
    with Executor(cluster) as reach:
        services = Services(reach, cluster)
        if end:
            ended = services.end(*([id] if id else []))
            print_json(list(ended)) if json else print("\n".join(f"{one}: ended" for one in ended) or "nothing to end")
            return
        found = services.list()
    if json:
        print_json([{k: v for k, v in vars(one).items() if k not in ("path", "folder", "public")} for one in found])
    else:
        print(table(found))
