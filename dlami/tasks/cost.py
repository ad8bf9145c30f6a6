"""Tasks about a stack's cost: stop and start its nodes, show cost, orphans and IAM rights, buy capacity blocks."""

from dataclasses import dataclass

from invoke import Context, Exit

from dlami.tasks.command import command, option
from dlami.tasks.stack import Answering, Changing, OfFile


@dataclass(frozen=True, kw_only=True)
class Stopping(Changing):
    """The options of `inv stack.stop`."""

    unsaved: bool = option(False, "end what runs as it is, without asking jobs to save")


@command(name="stop")
def stack_stop(c: Context, given: Stopping) -> None:
    """End all nodes, running jobs saved first; the stack, its files and the master's addresses stay."""
    from dlami.tasks import stop_actions

    stop_actions.stop_stack(given.file, given.yes, given.dry_run, given.unsaved, given.json)


@command(name="start")
def stack_start(c: Context, given: Changing) -> None:
    """Start all nodes of a stopped cluster again and write its hosts."""
    from dlami.tasks import stop_actions

    stop_actions.start_stack(given.file, given.yes, given.dry_run, given.json)


@dataclass(frozen=True, kw_only=True)
class Costing(Answering):
    """The options of `inv stack.cost`."""

    no_jobs: bool = option(False, "do not ask the master, or on EKS the launchers, how far jobs are: no forecast")
    eks: bool = option(False, "the cluster on EKS, where both of the file's are there")


@command(name="cost")
def stack_cost(c: Context, given: Costing) -> None:
    """Show hours and dollars so far by host, spot against on-demand, and the sum when the running job is done."""
    from dlami.tasks import cost_actions

    cost_actions.show_cost(given.file, given.no_jobs, given.json, of_eks=given.eks)


@dataclass(frozen=True, kw_only=True)
class Orphans:
    """The options of `inv stack.orphans`."""

    region: str = option("", "only these, by comma; all that the account may use without it")
    delete: bool = option(False, "ask about each, and remove what you agree to")
    json: bool = option(False, "answer as JSON on stdout")


@command(name="orphans")
def stack_orphans(c: Context, given: Orphans) -> None:
    """Show everything with our tags and without a living stack: dollars per day, and what removes it."""
    from dlami.tasks import cost_actions

    raise Exit(code=0 if cost_actions.show_orphans(given.region, given.delete, given.json) else 1)


@dataclass(frozen=True, kw_only=True)
class Rights(OfFile):
    """The options of `inv stack.policy`."""

    orphans: bool = option(False, "the policy for stack.orphans --delete instead")
    blocks: bool = option(False, "the policy for stack.blocks --buy instead")
    eks: bool = option(False, "the policy for eks.plan, eks.create, eks.status and eks.delete instead")


@command(name="policy")
def stack_policy(c: Context, given: Rights) -> None:
    """Print the IAM policy that your own user needs for the tasks of this cluster file, as JSON."""
    from dlami.tasks import cost_actions

    cost_actions.show_policy(given.file, given.orphans, given.blocks, given.eks)


@dataclass(frozen=True, kw_only=True)
class Blocks(Answering):
    """The options of `inv stack.blocks`."""

    days: int = option(1, "how long: 1 to 14, or whole weeks up to 182")
    instances: int = option(0, "how many; as many as the cluster file says without it")
    since: str = option("", "none that begins before this day, as 2027-01-15")
    buy: str = option("", "the id of an offer to buy: asks twice, and is paid at once")
    dry_run: bool = option(False, "with --buy: show what would be bought and stop")


@command(name="blocks")
def stack_blocks(c: Context, given: Blocks) -> None:
    """Show the capacity blocks that AWS offers for the cluster, with prices and dates; buy one."""
    from dlami.tasks import cost_actions

    if given.buy:
        cost_actions.buy_block(given.file, given.days, given.instances, given.buy, given.dry_run, given.json)
    else:
        cost_actions.show_blocks(given.file, given.days, given.instances, given.since, given.json)
