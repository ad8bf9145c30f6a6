"""Tasks that make, check and show data on the cluster."""

from invoke import Context, Exit

from cluster.inventory import load_cluster
from cluster.terminal import print_json
from dlami.tasks.command import HOSTS_HELP, command, rest
from dlami.tasks.start_options import TrainOptions
from dlami.tasks.starting import on_master, train

DRY_RUN_HELP = "only say what would be done, or what is wrong with it"


@command(name="status", positional=["folder"], help={"folder": "on every host", "hosts": HOSTS_HELP, "json": "as JSON"})
def data_status(c: Context, folder: str, hosts: str = "", json: bool = False) -> None:
    """Show what data each host has, so that a short copy is found before training starts."""
    from cluster import hostset
    from cluster.ssh.fanout import Executor
    from cluster.stage import status

    cluster = load_cluster()
    with Executor(cluster) as reach:
        chosen = hostset.select(cluster.hosts, hosts or None, for_ranks=True)
        results, found = status.status(reach, cluster, chosen, folder)
    text, is_fine = status.status_lines(results, found)
    if json:
        hosts_found = ((h, r.problem or None, found.get(h, {})) for h, r in results.items())
        print_json([{"host": h.address, "rank": h.rank, "error": why, **has} for h, why, has in hosts_found])
    else:
        print(text)
    raise Exit(code=0 if is_fine else 1)


@command(
    name="sample",
    help={
        "out": "new folder on the cluster's shared file system",
        "coco": "shapes with boxes and masks, for Mask R-CNN, in COCO's layout",
        "dry_run": DRY_RUN_HELP,
    },
)
def data_sample(c: Context, out: str = "", coco: bool = False, dry_run: bool = False) -> None:
    """Draw a small set of images on the master: inv data.sample [--coco] [-- flags of the program that draws]."""
    cluster = load_cluster()
    module, name = ("trainer.coco.sample", "shapes") if coco else ("trainer.sample", "sample")
    on_master(cluster, module, ["--out", out or f"{cluster.shared}/data/{name}", *_check_flag(dry_run), *rest()])


@command(
    name="imagenet",
    help={
        "raw": "folder with the official archives, or with train/<synset>/ and val/",
        "out": "folder for the shards",
        "hosts": "share the work among these hosts, as a job; the master alone without it",
        "dry_run": f"{DRY_RUN_HELP}; with --hosts: only print the mpirun command",
    },
)
def data_imagenet(c: Context, raw: str, out: str, hosts: str = "", dry_run: bool = False) -> None:
    """Make TFRecord shards from ImageNet's archives or folders: inv data.imagenet --raw DIR --out DIR [-- flags]."""
    words = ["--raw", raw, "--out", out, *rest()]
    if hosts:
        # Each rank looks for all files first: that is once per host, and its processes take all cores.
        options = TrainOptions(hosts=hosts, unchecked=True, dry_run=dry_run)
        train("trainer.imagenet", "imagenet", options, words, one_per_host=True)
    else:
        on_master(load_cluster(), "trainer.imagenet", [*words, *_check_flag(dry_run)])


@command(
    name="verify",
    help={
        "folder": "the shards and their manifest.json",
        "decode": "decode every image, too",
        "json": "as JSON",
    },
    positional=["folder"],
)
def data_verify(c: Context, folder: str, decode: bool = False, json: bool = False) -> None:
    """Check TFRecord shards against their manifest on the master: counts, sizes, checksums."""
    flags = [*(["--decode"] if decode else []), *(["--json"] if json else [])]
    on_master(load_cluster(), "trainer.verify", [folder, *flags])


@command(
    name="coco",
    help={
        "out": "folder for COCO's layout; zips in OUT/archives are used, the others downloaded",
        "dry_run": DRY_RUN_HELP,
    },
)
def data_coco(c: Context, out: str, dry_run: bool = False) -> None:
    """Fetch, unpack and verify COCO 2017 on the master: inv data.coco --out DIR [-- --no-download]."""
    on_master(load_cluster(), "trainer.coco.archives", [out, *_check_flag(dry_run), *rest()])


@command(
    name="bundle",
    help={"folder": "a folder in COCO's layout", "out": "the tar to write", "dry_run": DRY_RUN_HELP},
)
def data_bundle(c: Context, folder: str, out: str, dry_run: bool = False) -> None:
    """Make one tar of COCO with a manifest of checksums, to be staged to the nodes."""
    on_master(load_cluster(), "trainer.coco.bundle", [folder, "--out", out, *_check_flag(dry_run)])


def _check_flag(is_dry_run: bool) -> list[str]:
    """Return the trainer's flags for a dry run."""
    return ["--check"] if is_dry_run else []
