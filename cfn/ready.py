"""Waiting until a cluster's nodes are ready, or at least its minimum number of them."""

from cfn.hosts import GroupMember, hosts, read
from cfn.progress import StackWatch, wait_for
from cfn.stack import StackError, get
from cluster.clusterfile.model import ClusterFile
from cluster.terminal import counted


def wait_for_nodes(watch: StackWatch, outputs: dict[str, str], file: ClusterFile) -> list[GroupMember]:
    """Wait until all nodes are ready, and return the hosts.

    With `nodes.min_nodes`, that many are enough once AWS has refused more. Raises StackError with the causes if they
    are not ready within `nodes.boot_minutes`.
    """
    watch.stack = get(watch.aws, file.name)
    wanted = file.nodes.instances

    def full() -> bool:
        members = read(watch.aws, outputs)
        enough = len(members) == wanted or (bool(watch.refused) and wanted > len(members) >= file.nodes.least)
        return enough and all(m.is_usable for m in members)

    if not wait_for(full, file.nodes.boot_minutes * 60, watch.look):
        members = read(watch.aws, outputs)
        if sum(m.is_usable for m in members) < file.nodes.least:
            raise StackError(
                f"{sum(m.is_usable for m in members)} of {counted(wanted, 'host')} of {file.name} are ready after "
                f"{counted(file.nodes.boot_minutes, 'minute')}"
                + trouble(watch)
                + "\nThe stack goes on trying; `inv stack.status` tells how far it is."
            )
    found = hosts(watch.aws, outputs)
    if len(found) < wanted:
        watch.show(
            f"{file.name} begins with {len(found)} of {counted(wanted, 'host')}: its group goes on trying, and "
            "`inv hosts.write` takes in who has come"
        )
    return found


def trouble(watch: StackWatch) -> str:
    """Return the failed launches and first boots so far, one line each."""
    said = [f"no instance: {text}" for text in dict.fromkeys(watch.launches)] + [
        f"{i}: first boot {b}" for i, b in watch.boots.items()
    ]
    return "".join(f"\n  {line}" for line in said)
