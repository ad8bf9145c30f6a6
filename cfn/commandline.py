"""Tasks of the stack: its life, the hosts it gives, its master, and the fake AWS to try them on."""

from invoke import Context, Exit

from cluster.commandline.command import command

FILE = {"file": "the cluster file"}
SURE = {**FILE, "yes": "do not ask", "dry_run": "show what would be done and stop", "json": "answer as JSON on stdout"}


@command(
    name="write",
    help={
        "source": "stack, lab or lab:NAME; else the cluster file's stack or the only lab",
        "file": "the stack's cluster file, or where the lab's goes; the others are beside it",
        "force": "replace what was edited by hand, and say what that was",
        "dry_run": "show the files only",
    },
)
def hosts_write(
    c: Context, source: str = "", force: bool = False, dry_run: bool = False, file: str = "cluster.toml"
) -> None:
    """Write ./hosts and ./cluster.toml, so that every task means this cluster."""
    from cfn import tasks

    tasks.write_hosts(file, source, force, dry_run)


@command(
    name="ssh",
    help={
        "file": "the cluster file",
        "agent": "forward your ssh-agent; root there can use its keys while you are logged in",
    },
)
def ssh_master(c: Context, file: str = "cluster.toml", agent: bool = False) -> None:
    """Log in to the stack's master, host key known."""
    from cfn import tasks

    tasks.go_to_master(file, agent)


@command(
    name="init",
    help={
        **FILE,
        "name": "name of the cluster",
        "ssh_from": "network you come from, as 203.0.113.7/32",
        "region": "AWS region; the profile's without it",
        "from_stack": "what this running stack was last made from",
    },
)
def stack_init(
    c: Context, file: str = "cluster.toml", name: str = "", ssh_from: str = "", region: str = "", from_stack: str = ""
) -> None:
    """Write a cluster file with every field explained, new or that of a running stack."""
    from cfn import tasks

    tasks.write_file(file, from_stack, name=name, region=region, access__ssh_from=ssh_from)


@command(name="plan", help={**FILE, "json": SURE["json"]})
def stack_plan(c: Context, file: str = "cluster.toml", json: bool = False) -> None:
    """Check the cluster file against the account; show what would be made or changed, and its cost."""
    from cfn import tasks

    tasks.show_plan(file, json)


@command(name="create", help={**SURE, "keep_failed": "leave the nodes for a look if it fails"})
def stack_create(
    c: Context,
    file: str = "cluster.toml",
    yes: bool = False,
    dry_run: bool = False,
    keep_failed: bool = False,
    json: bool = False,
) -> None:
    """Create the cluster, showing each part and how far the nodes are, until all are ready."""
    from cfn import tasks

    tasks.make_stack(file, yes, dry_run, keep_failed, json)


@command(name="status", help={**FILE, "json": SURE["json"]})
def stack_status(c: Context, file: str = "cluster.toml", json: bool = False) -> None:
    """Show the stack, both groups, and each node's health and first boot; exit 1 if something is missing."""
    from cfn import tasks

    if not tasks.show_status(file, json):
        raise Exit(code=1)


@command(
    name="update",
    help={
        **SURE,
        "ami": "move to another image: an id, an SSM parameter, or 'latest'",
        "source": "latest: pin what nodes.source names today",
    },
)
def stack_update(
    c: Context,
    file: str = "cluster.toml",
    ami: str = "",
    source: str = "",
    yes: bool = False,
    dry_run: bool = False,
    json: bool = False,
) -> None:
    """Bring the stack to what the cluster file says: changes first, never a replaced network or storage."""
    from cfn import tasks

    tasks.change_stack(file, ami, source, yes, dry_run, json)


@command(name="replace", help={**SURE, "host": "rank, private address or instance id"}, positional=["host"])
def stack_replace(
    c: Context, host: str, file: str = "cluster.toml", yes: bool = False, dry_run: bool = False, json: bool = False
) -> None:
    """End one host and wait for its successor, which takes its place in the hostfile."""
    from cfn import tasks

    tasks.replace_host(file, host, yes, dry_run, json)


@command(name="delete", help={**SURE, "retain": "resources to leave, by comma, after a delete that failed on them"})
def stack_delete(
    c: Context,
    file: str = "cluster.toml",
    yes: bool = False,
    dry_run: bool = False,
    retain: str = "",
    json: bool = False,
) -> None:
    """Delete the cluster after a question; EFS is kept and its id is said."""
    from cfn import tasks

    tasks.remove_stack(file, yes, dry_run, retain, json)


@command(
    name="aws",
    help={
        "port": "0: a free one",
        "scale": "seconds here for one second of AWS's time-outs",
        "name": "the lab's name",
        "nodes": "lab: instances are lab hosts, the default as root; ready: they report ready by themselves; none",
    },
)
def lab_aws(c: Context, port: int = 0, scale: float = 0.0, nodes: str = "", name: str = "aws") -> None:
    """Run a fake AWS to try the stack tasks on; Ctrl-C ends it."""
    from cfn import lab_aws as fake

    fake.serve(name, port, scale, nodes)
