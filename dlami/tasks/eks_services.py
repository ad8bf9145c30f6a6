"""Tasks of services beside trainings on Kubernetes: render manifests, stage data, serve TensorBoard and Jupyter."""

import dataclasses
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from invoke import Context, Exit

from cluster.errors import ConfigError
from cluster.terminal import print_json
from dlami.tasks.command import command, option

if TYPE_CHECKING:
    from eks.page_client import PageAddress
    from eks.services import PageManifest


@command(
    name="render",
    positional=["folder"],
    help={
        "folder": "where the files go; one that was edited there is not overwritten",
        "chart": "a Helm chart of the same documents instead",
        "eksctl": "eksctl's form of the cluster itself instead",
        "second_zone": "with --eksctl and a new network: another zone, for EKS's own interfaces",
        "force": "overwrite what was edited, too",
        "dry_run": "only say which files would be written",
        "json": "the files as JSON",
    },
)
def eks_render(
    c: Context,
    folder: str,
    chart: bool = False,
    eksctl: bool = False,
    second_zone: str = "",
    force: bool = False,
    dry_run: bool = False,
    json: bool = False,
) -> None:
    """Write every document of the cluster on Kubernetes as YAML files: inv eks.render DIR."""
    from pathlib import Path

    from eks.cluster import load_eks
    from eks.outputs import completed
    from eks.render import files, targets, write_files

    if second_zone and not eksctl:
        raise ConfigError("--second-zone is for --eksctl; `inv eks.create` finds one by itself")
    own, place = load_eks(), Path(folder)
    cluster = own if eksctl else completed(own)
    if eksctl:
        from eks.document import text
        from eks.eksctl import cluster_config

        found = files(place, {"eksctl.yaml": text([cluster_config(cluster, second_zone)])})
    elif chart:
        from eks.chart import chart as chart_of

        found = files(place, chart_of(cluster))
    else:
        found = targets(cluster, place)
    written = [str(one.path) for one in found if not one.is_so_already]
    said = "" if dry_run or (json and not written) else write_files(found, force=force)
    if json:
        print_json({"written": [] if dry_run else written, "would_write": written if dry_run else [], "said": said})
        return
    print("".join(f"{'would write ' if dry_run else ''}{path}\n" for path in written) + said, end="\n" if said else "")
    if not dry_run:
        how = f"helm install NAME {folder}" if chart else f"kubectl apply -f {folder}"
        how = f"eksctl create cluster -f {folder}/eksctl.yaml" if eksctl else how
        print(f"make them so with '{how}'", file=sys.stderr)


@command(
    name="stage",
    positional=["source", "target"],
    iterable=["env"],
    help={
        "source": "s3://BUCKET/PREFIX, a folder, or with * at its end the beginning of names; with --upload a folder",
        "target": "a folder of the pods: the shared one, Lustre, or /local of each node; or S3",
        "pods": "how many share the work on a folder that all see; one per node without it",
        "untar": "each tar becomes a folder of its name",
        "upload": "the other way",
        "endpoint": "URL of an S3 that is not AWS's",
        "env": "NAME=VALUE for boto3 in the pods, or NAME for its value here; may be repeated",
        "dry_run": "print the Job as YAML, start nothing",
        "json": "one JSON record per pod",
    },
)
def eks_stage(
    c: Context,
    source: str,
    target: str,
    pods: int = 0,
    untar: bool = False,
    upload: bool = False,
    endpoint: str = "",
    env: Any = None,
    dry_run: bool = False,
    json: bool = False,
) -> None:
    """Bring data from S3 to the pods' folders: a Job with a pod per node, each with a part or all of it."""
    from cluster.stage.stage import environment_of, request_of
    from eks.cluster import load_eks
    from eks.document import text
    from eks.outputs import with_type
    from eks.staging import staging_job

    if pods < 0:
        raise ConfigError(f"--pods {pods}: at least one")
    request = request_of(
        source,
        target,
        upload=upload,
        untar=untar,
        endpoint=endpoint or None,
        environment=environment_of(env or ()),
    )
    cluster = with_type(load_eks())
    job = staging_job(cluster, request, pods=pods)
    if dry_run:
        print(text(job.documents), end="")
        return
    from eks.staging_client import run_staging

    raise Exit(code=run_staging(cluster, job, as_json=json))


@dataclass(frozen=True, kw_only=True)
class EksPageOptions:
    """Options of a page (TensorBoard or Jupyter) on Kubernetes."""

    no_browser: bool = option(False, "only print the address")
    json: bool = option(False, "the address as one line of JSON")
    dry_run: bool = option(False, "print its documents as YAML, make nothing")
    end: bool = option(False, "end one that was left")
    password: bool = option(False, "with eks.allow_cidrs: ask for the password that it will want")
    password_file: str = option("", "with eks.allow_cidrs: take it from the first line of this file")


@dataclass(frozen=True, kw_only=True)
class EksTensorBoardOptions(EksPageOptions):
    """The options of `inv eks.tensorboard`."""

    job: str = option("all", "a job's id or a part of it; all without it")


@command(name="tensorboard")
def eks_tensorboard(c: Context, given: EksTensorBoardOptions) -> None:
    """Look at jobs' numbers in a TensorBoard in Kubernetes, through a port-forward, until Ctrl-C."""
    from eks.services import TENSORBOARD

    _page(TENSORBOARD, given, given.job)


@command(name="jupyter")
def eks_jupyter(c: Context, given: EksPageOptions) -> None:
    """Work in a notebook in Kubernetes, through a port-forward, until Ctrl-C."""
    from eks.services import JUPYTER

    _page(JUPYTER, given)


def _page(page: "PageManifest", given: EksPageOptions, job: str = "all") -> None:
    from eks.cluster import load_eks
    from eks.document import text
    from eks.page_client import PodPage
    from eks.services import page_documents

    cluster = load_eks()
    if given.dry_run:
        print(text(page_documents(cluster, page, job)), end="")
        return
    pod_page = PodPage(cluster, page, job)
    if given.end:
        gone = pod_page.end()
        print_json(gone) if given.json else print(f"ended: {', '.join(gone)}" if gone else "nothing to end")
        return
    if not cluster.settings.allow_cidrs:
        if given.password or given.password_file:
            raise ConfigError("a password is for eks.allow_cidrs; without it a port-forward alone leads to the page")
        pod_page.look(lambda shown: _show(shown, given))
        return
    _show(pod_page.open(_hashed_password(given)), given, f"inv eks.{page.kind} --end")


def _hashed_password(given: EksPageOptions) -> str:
    """Return the salted hash of the page's password. Raises ConfigError if none was given."""
    from cluster.tunnels.password import asked_for, read_from
    from cluster.tunnels.tls_proxy import hashed

    if not (given.password or given.password_file):
        raise ConfigError(
            "eks.allow_cidrs opens the page to networks, and that wants a password: --password asks for it, "
            "--password-file FILE reads it"
        )
    return hashed(read_from(given.password_file) if given.password_file else asked_for())


def _show(shown: "PageAddress", given: EksPageOptions, end: str = "") -> None:
    if given.json:
        print_json(dataclasses.asdict(shown), one_line=True)
        return
    from cluster.tunnels.client import where_it_is_shown

    print(shown.url, flush=True)
    if shown.fingerprint:
        print(
            f"the certificate is its own, SHA-256 {shown.fingerprint}\nits name is known in a minute or two; the load "
            f"balancer costs money until '{end}'",
            file=sys.stderr,
        )
        return
    print(where_it_is_shown(shown.url, in_browser=not given.no_browser), file=sys.stderr)
