"""Tasks of a cluster on EKS: plan, create or change, show its status, delete."""

from dataclasses import dataclass

from invoke import Context, Exit

from dlami.tasks.command import command, option
from dlami.tasks.stack import Answering, Changing


@command(name="plan")
def eks_plan(c: Context, given: Answering) -> None:
    """Check the cluster file against the account for EKS; show what would be made or changed, and its cost."""
    from dlami.tasks import eks_actions

    eks_actions.show_plan(given.file, given.json)


@dataclass(frozen=True, kw_only=True)
class EksCreateOptions(Changing):
    """The options of `inv eks.create`."""

    keep_failed: bool = option(False, "leave what was made for a look if it fails")
    wait: str = option("", "for how long it tries again where there is no room, as 30m, 6h or 2d")
    kubeconfig: bool = option(False, "let the AWS CLI write kubectl's way to the cluster; it is only said without")


@command(name="create")
def eks_create(c: Context, given: EksCreateOptions) -> None:
    """Create the cluster on EKS, or change one that is there, until its nodes and add-ons are ready."""
    from dlami.tasks import eks_actions

    eks_actions.make_cluster(
        given.file, given.yes, given.dry_run, given.keep_failed, given.kubeconfig, given.json, given.wait
    )


@command(name="status")
def eks_status(c: Context, given: Answering) -> None:
    """Show the EKS cluster's stack, control plane, nodes, add-ons and cost; exit 1 if something is wrong."""
    from dlami.tasks import eks_actions

    if not eks_actions.show_status(given.file, given.json):
        raise Exit(code=1)


@dataclass(frozen=True, kw_only=True)
class EksDeleteOptions(Changing):
    """The options of `inv eks.delete`."""

    retain: str = option("", "resources to leave, by comma, after a delete that failed on them")


@command(name="delete")
def eks_delete(c: Context, given: EksDeleteOptions) -> None:
    """Delete the EKS cluster after a question; EFS is kept, and what stays is said."""
    from dlami.tasks import eks_actions

    eks_actions.remove_cluster(given.file, given.yes, given.dry_run, given.retain, given.json)
