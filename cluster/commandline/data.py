"""Tasks that make, check and show data on the cluster."""

from invoke import Context, Exit

from cluster.commandline.command import HOSTS_HELP, as_json, command, rest
from cluster.commandline.starting import Options, on_master, train
from cluster.inventory import load_cluster


@command(name="status", positional=["folder"], help={"folder": "on every host", "hosts": HOSTS_HELP, "json": "as JSON"})
def data_status(c: Context, folder: str, hosts: str = "", json: bool = False) -> None:
    """Show what data each host has, so that a short copy is found before training starts."""
    from cluster import hostset
    from cluster.ssh.fanout import Reach
    from cluster.staging import status

    cluster = load_cluster()
    with Reach(cluster) as reach:
        results, found = status.status(reach, cluster, hostset.select(cluster.hosts, hosts or None), folder)
    text, is_fine = status.status_lines(results, found)
    if json:
        hosts_found = ((h, r.problem or None, found.get(h, {})) for h, r in results.items())
        as_json([{"host": h.address, "rank": h.rank, "error": why, **has} for h, why, has in hosts_found])
    else:
        print(text)
    raise Exit(code=0 if is_fine else 1)


@command(
    name="sample",
    help={
        "out": "new folder on the cluster's shared file system",
        "coco": "shapes with boxes and masks, for Mask R-CNN, in COCO's layout",
    },
)
def data_sample(c: Context, out: str = "", coco: bool = False) -> None:
    """Draw a small set of images on the master: inv data.sample [--coco] [-- flags of the program that draws]."""
    cluster = load_cluster()
    module, name = ("trainer.coco.sample", "shapes") if coco else ("trainer.sample", "sample")
    on_master(cluster, module, ["--out", out or f"{cluster.shared}/data/{name}", *rest()])


@command(
    name="imagenet",
    help={
        "raw": "folder with the official archives, or with train/<synset>/ and val/",
        "out": "folder for the shards",
        "hosts": "share the work among these hosts, as a job; the master alone without it",
    },
)
def data_imagenet(c: Context, raw: str, out: str, hosts: str = "") -> None:
    """Make TFRecord shards from ImageNet's archives or folders: inv data.imagenet --raw DIR --out DIR [-- flags]."""
    words = ["--raw", raw, "--out", out, *rest()]
    if hosts:
        train("trainer.imagenet", "imagenet", Options(hosts=hosts, unchecked=True), words)
    else:
        on_master(load_cluster(), "trainer.imagenet", words)


@command(
    name="verify",
    help={"folder": "the shards and their manifest.json", "decode": "decode every image, too"},
    positional=["folder"],
)
def data_verify(c: Context, folder: str, decode: bool = False) -> None:
    """Check TFRecord shards against their manifest on the master: counts, sizes, checksums."""
    on_master(load_cluster(), "trainer.verify", [folder, *(["--decode"] if decode else [])])


@command(name="coco", help={"out": "folder for COCO's layout; zips in OUT/archives are used, the others downloaded"})
def data_coco(c: Context, out: str) -> None:
    """Fetch, unpack and verify COCO 2017 on the master: inv data.coco --out DIR [-- --no-download]."""
    on_master(load_cluster(), "trainer.coco.archives", [out, *rest()])


@command(name="bundle", help={"folder": "a folder in COCO's layout", "out": "the tar to write"})
def data_bundle(c: Context, folder: str, out: str) -> None:
    """Make one tar of COCO with a manifest of checksums, to be staged to the nodes."""
    on_master(load_cluster(), "trainer.coco.bundle", [folder, "--out", out])
