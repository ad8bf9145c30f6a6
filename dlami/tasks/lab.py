"""Tasks of the lab: a cluster on this machine, its simulated faults, and the demonstrations that run on it."""

from invoke import Context, Exit

from cluster.errors import NothingToDo
from cluster.inventory import load_cluster
from cluster.locate import chosen_lab
from cluster.terminal import agreed, counted, print_json
from dlami.tasks.command import command, rest

LAB_NAME_HELP = {"name": "which lab; by default that of CLUSTER=lab:NAME, else `lab`"}
LAB_HOST_HELP = {"host": "rank, name or address", **LAB_NAME_HELP}


@command(
    name="up",
    help={"n": "hosts", "slots": "ranks a host may hold", "spares": "hosts besides, for dead ones", **LAB_NAME_HELP},
)
def lab_up(c: Context, n: int = 4, slots: int = 2, spares: int = 0, name: str = "") -> None:
    """Start a cluster of namespaces on this machine (as root)."""
    from lab import lab

    name = chosen_lab(name)
    made = lab.up(name, n, slots, spares=spares)
    more = f" and {counted(spares, 'spare')}" if spares else ""
    print(
        f"lab {name} is up: {counted(n, 'host')} of {counted(slots, 'slot')}{more} in {made.network}, "
        f"shared folder {made.shared}\n"
        f"use it: export CLUSTER=lab:{name}   then: inv hosts.list, inv run -- hostname, inv health"
    )


@command(
    name="down",
    help={**LAB_NAME_HELP, "yes": "do not ask", "dry_run": "say what would be removed, remove nothing"},
)
def lab_down(c: Context, name: str = "", yes: bool = False, dry_run: bool = False) -> None:
    """End a lab: every process, namespace, cable and file of it."""
    from lab import lab

    name = chosen_lab(name)
    what = f"lab {name} with its processes and all files of it, also those in its shared folder"
    lab.require_something_left(name)
    if dry_run:
        print(f"this would remove {what}")
        return
    if not yes and not agreed(f"this removes {what}: go on"):
        raise NothingToDo("nothing was removed")
    lab.down(name)
    print(f"lab {name} is gone")


@command(name="status", help={**LAB_NAME_HELP, "json": "as JSON"})
def lab_status(c: Context, name: str = "", json: bool = False) -> None:
    """Show a lab's hosts: up, silent or down."""
    from lab import lab
    from lab.record import table

    states = list(lab.statuses(lab.named(chosen_lab(name))))
    if json:
        print_json([{**vars(h), "state": state} for h, state in states])
    else:
        print(table(states))


@command(name="crash", help=LAB_HOST_HELP, positional=["host"])
def lab_crash(c: Context, host: str, name: str = "") -> None:
    """A lab host loses its power."""
    from lab import lab

    made = lab.named(chosen_lab(name))
    lab.crash(made, made.find(host))


@command(name="cut", help=LAB_HOST_HELP, positional=["host"])
def lab_cut(c: Context, host: str, name: str = "") -> None:
    """A lab host's network goes silent."""
    from lab import lab

    made = lab.named(chosen_lab(name))
    lab.cut(made, made.find(host))


@command(
    name="slow",
    help={**LAB_HOST_HELP, "mbit": "Mbit/s each way", "delay_ms": "milliseconds each way"},
    positional=["host"],
)
def lab_slow(c: Context, host: str, mbit: float = 0.0, delay_ms: float = 0.0, name: str = "") -> None:
    """A lab host's network gets slow."""
    from lab import lab

    made = lab.named(chosen_lab(name))
    lab.slow(made, made.find(host), mbit=mbit or None, delay_ms=delay_ms or None)


@command(
    name="notice",
    help={
        **LAB_HOST_HELP,
        "kind": "spot, block, shutdown: it will go; rebalance, maintenance: only told; none: taken back",
        "in_s": "seconds until then",
    },
    positional=["host"],
)
def lab_notice(c: Context, host: str, kind: str = "spot", in_s: float = 120.0, name: str = "") -> None:
    """A lab host is told that it will go."""
    from lab import lab

    made = lab.named(chosen_lab(name))
    lab.notice(made, made.find(host), kind, in_s)


@command(name="heal", help={"host": "rank, name, address, or all", **LAB_NAME_HELP}, positional=["host"])
def lab_heal(c: Context, host: str, name: str = "") -> None:
    """Lab hosts as they were made: booted, connected, at full speed."""
    from lab import lab

    made = lab.named(chosen_lab(name))
    lab.heal(made, made.hosts if host == "all" else [made.find(host)])


@command(name="ssh", help=LAB_HOST_HELP, positional=["host"])
def lab_ssh(c: Context, host: str, name: str = "") -> None:
    """Log in to a lab host, or run a command there: inv lab.ssh 1 -- uptime."""
    from cluster.ssh.login import login
    from lab import lab

    made = lab.named(chosen_lab(name))
    rank = made.find(host).rank
    cluster = load_cluster(f"lab:{made.name}")
    raise Exit(code=login(cluster, cluster.hosts[rank], " ".join(rest())))


@command(
    name="kube",
    help={
        "image": "an unpacked image (inv eks.image --root), the root of all pods",
        "nodes": "how many it has, all on this machine",
        "name": "the lab's name",
    },
)
def lab_kube(c: Context, name: str = "kube", image: str = "", nodes: int = 4) -> None:
    """Run a stand-in of Kubernetes with mpi-operator to try eks.* on; Ctrl-C ends it."""
    from pathlib import Path

    from lab.kube.kube import Kube, serve

    def ready(kube: Kube) -> None:
        print(f"export KUBECONFIG={kube.kubeconfig}   then, in another shell: kubectl apply -f FILE, inv eks.*")

    serve(name, Path(image) if image else None, ready, nodes)


@command(help={"keep": "leave the lab up at the end"})
def demo(c: Context, keep: bool = False) -> None:
    """Make a cluster on this machine, draw images, train a ResNet on them over all hosts, evaluate, take it down."""
    from dlami.demo import show_resnet50

    show_resnet50(keep=keep)


@command(name="maskrcnn", help={"keep": "leave the lab up at the end"})
def demo_maskrcnn(c: Context, keep: bool = False) -> None:
    """Make a cluster on this machine, draw shapes, train a reduced Mask R-CNN over two hosts, show what it sees."""
    from dlami.demo import show_maskrcnn

    show_maskrcnn(keep_lab=keep)
