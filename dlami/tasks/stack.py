"""Tasks of the stack: plan, create, update, delete, log in to its master, write its hosts, and run a fake AWS."""

from dataclasses import dataclass

from invoke import Context, Exit

from dlami.tasks.command import REQUIRED, command, option


@dataclass(frozen=True, kw_only=True)
class OfFile:
    """The options of every task about a stack."""

    file: str = option("cluster.toml", "the cluster file")


@dataclass(frozen=True, kw_only=True)
class Answering(OfFile):
    """The options of a task that answers a question."""

    json: bool = option(False, "answer as JSON on stdout")


@dataclass(frozen=True, kw_only=True)
class Changing(Answering):
    """The options of a task that changes something."""

    yes: bool = option(False, "do not ask")
    dry_run: bool = option(False, "show what would be done and stop")


@dataclass(frozen=True, kw_only=True)
class Writing:
    """The options of `inv hosts.write`."""

    source: str = option("", "stack, lab or lab:NAME; else the cluster file's stack or the only lab")
    force: bool = option(False, "replace what was edited by hand, and say what that was")
    dry_run: bool = option(False, "show the files only")
    file: str = option("cluster.toml", "the stack's cluster file, or where the lab's goes; the others are beside it")


@command(name="write")
def hosts_write(c: Context, given: Writing) -> None:
    """Write ./hosts and ./cluster.toml, so that every task means this cluster."""
    from dlami.tasks import stack_actions

    stack_actions.write_hosts(given.file, given.source, given.force, given.dry_run)


@dataclass(frozen=True, kw_only=True)
class LoggingIn(OfFile):
    """The options of `inv ssh`."""

    agent: bool = option(False, "forward your ssh-agent; root there can use its keys while you are logged in")


@command(name="ssh")
def ssh_master(c: Context, given: LoggingIn) -> None:
    """Log in to the stack's master, host key known."""
    from dlami.tasks import stack_actions

    stack_actions.go_to_master(given.file, given.agent)


@dataclass(frozen=True, kw_only=True)
class Beginning(OfFile):
    """The options of `inv stack.init`."""

    name: str = option("", "name of the cluster")
    ssh_from: str = option("", "network you come from, as 203.0.113.7/32")
    region: str = option("", "AWS region; the profile's without it")
    from_stack: str = option("", "what this running stack was last made from")


@command(name="init")
def stack_init(c: Context, given: Beginning) -> None:
    """Write a cluster file with every field explained, new or that of a running stack."""
    from dlami.tasks import stack_actions

    stack_actions.write_file(
        given.file, given.from_stack, name=given.name, region=given.region, access__ssh_from=given.ssh_from
    )


@command(name="plan")
def stack_plan(c: Context, given: Answering) -> None:
    """Check the cluster file against the account; show what would be made or changed, and its cost."""
    from dlami.tasks import stack_actions

    stack_actions.show_plan(given.file, given.json)


@dataclass(frozen=True, kw_only=True)
class StackCreateOptions(Changing):
    """The options of `inv stack.create`."""

    keep_failed: bool = option(False, "leave the nodes for a look if it fails")
    wait: str = option("", "for how long it tries again where there is no room, as 30m, 6h or 2d; notify is told")


@command(name="create")
def stack_create(c: Context, given: StackCreateOptions) -> None:
    """Create the cluster, in the first zone and of the first type with room, until all nodes are ready."""
    from dlami.tasks import stack_actions

    stack_actions.make_stack(given.file, given.yes, given.dry_run, given.keep_failed, given.wait, given.json)


@command(name="status")
def stack_status(c: Context, given: Answering) -> None:
    """Show the stack, both groups, and each node's health and first boot; exit 1 if something is missing."""
    from dlami.tasks import stack_actions

    if not stack_actions.show_status(given.file, given.json):
        raise Exit(code=1)


@dataclass(frozen=True, kw_only=True)
class Updating(Changing):
    """The options of `inv stack.update`."""

    ami: str = option("", "move to another image: an id, an SSM parameter, or 'latest'")
    source: str = option("", "latest: pin what nodes.source names today")
    roll_back: bool = option(False, "continue the roll-back of an update that failed, and change nothing else")
    skip: str = option("", "with --roll-back: resources that stay as they are, by logical id: A,B")


@command(name="update")
def stack_update(c: Context, given: Updating) -> None:
    """Bring the stack to what the cluster file says: changes first, never a replaced network or storage."""
    from cluster.errors import ConfigError
    from dlami.tasks import stack_actions

    if given.roll_back or given.skip:
        if given.ami or given.source or not given.roll_back:
            raise ConfigError("--roll-back takes --skip alone, and --skip goes with --roll-back")
        stack_actions.roll_stack_back(given.file, given.skip, given.yes, given.dry_run, given.json)
        return
    stack_actions.change_stack(given.file, given.ami, given.source, given.yes, given.dry_run, given.json)


@dataclass(frozen=True, kw_only=True)
class StackReplaceOptions(Changing):
    """The options of `inv stack.replace`."""

    host: str = option(REQUIRED, "rank, private address or instance id")
    unsaved: bool = option(False, "end a job that runs there as it is, without a checkpoint")


@command(name="replace", positional=["host"])
def stack_replace(c: Context, given: StackReplaceOptions) -> None:
    """End one host and wait for its successor, which takes its place in the hostfile."""
    from dlami.tasks import stack_actions

    stack_actions.replace_host(given.file, given.host, given.yes, given.dry_run, given.json, unsaved=given.unsaved)


@dataclass(frozen=True, kw_only=True)
class StackDeleteOptions(Changing):
    """The options of `inv stack.delete`."""

    retain: str = option("", "resources to leave, by comma, after a delete that failed on them")
    unsaved: bool = option(False, "end jobs that run as they are, without a checkpoint")


@command(name="delete")
def stack_delete(c: Context, given: StackDeleteOptions) -> None:
    """Delete the cluster after a question; EFS is kept and its id is said."""
    from dlami.tasks import stack_actions

    stack_actions.remove_stack(given.file, given.yes, given.dry_run, given.retain, given.json, unsaved=given.unsaved)


@dataclass(frozen=True, kw_only=True)
class LabAwsOptions:
    """The options of `inv lab.aws`."""

    port: int = option(0, "0: a free one")
    scale: float = option(0.0, "seconds here for one second of AWS's time-outs")
    nodes: str = option(
        "", "lab: instances are lab hosts, the default as root; ready: they report ready by themselves; none"
    )
    name: str = option("aws", "the lab's name")


@command(name="aws")
def lab_aws(c: Context, given: LabAwsOptions) -> None:
    """Run a fake AWS to try the stack tasks on; Ctrl-C ends it."""
    from dlami import fake_aws as fake

    fake.serve(given.name, given.port, given.scale, given.nodes)
