"""Task that builds the image of all pods."""

from invoke import Context

from cluster.terminal import counted, print_json
from dlami.tasks.command import command


@command(
    name="image",
    help={
        "tag": "its name, as in eks.image of the cluster file",
        "out": "the file that the image becomes, an OCI archive",
        "variant": "cpu or gpu; the latter on a --base that has CUDA's compiler, NCCL and EFA's libraries",
        "torch": "with PyTorch, Debian's, for processors: the interpreter /opt/pytorch/bin/python",
        "base": "an image of Debian or Ubuntu from a registry, instead of one made of Debian's packages",
        "wheels": "a folder with all locked packages and Horovod's wheel: none is fetched or compiled",
        "root": "unpack its files into this folder, too: the root of a lab's pods",
        "dry_run": "say what would be built, build nothing",
        "json": "size, digest, time and commit as JSON",
    },
)
def eks_image(
    c: Context,
    tag: str = "dlami-cluster:latest",
    out: str = "dlami-cluster-image.tar",
    variant: str = "cpu",
    torch: bool = False,
    base: str = "",
    wheels: str = "",
    root: str = "",
    dry_run: bool = False,
    json: bool = False,
) -> None:
    """Build the image of all pods, without a daemon or a registry: inv eks.image --tag REGISTRY/NAME:TAG."""
    from eks.image_build import Build

    build = Build.of(tag=tag, file=out, variant=variant, torch=torch, base=base, wheels=wheels, root=root)
    if dry_run:
        print(build.described())
        return
    made = build.run()
    if json:
        print_json(made)
    else:
        print(
            f"{made['file']}: {tag}, {made['digest'][:19]}, {made['bytes'] / 1e6:.0f} MB after"
            f" {counted(round(made['seconds']), 'second')}; "
            f"push it: skopeo copy oci-archive:{made['file']} docker://{tag}"
        )
