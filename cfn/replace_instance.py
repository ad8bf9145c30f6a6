"""Replacement of a dead host by a spare or a new instance, with nothing but the node's role.

`python -m cfn.replace_instance REGION STACK hosts` prints the usable hosts as a JSON object. It is a process because
`dlami-names`, which needs them, is root's program of the system's Python, and asks as the login user.
"""

import argparse
import json
import sys
from dataclasses import replace as with_
from typing import Any

from cfn import in_stack, stack, suspension
from cfn.aws import Aws, asking, aws_of_node
from cfn.hostfile import slots_of
from cfn.hosts import GroupMember, keep_ranks, read
from cfn.hosts import hosts as usable_hosts
from cluster.errors import ClusterError

GONE = 1000  # added to the rank of a host that is being terminated


def main(argv: list[str]) -> int:
    """Print the usable hosts. Return the exit code."""
    parser = argparse.ArgumentParser(prog="cfn.replace_instance")
    parser.add_argument("region")
    parser.add_argument("stack")
    parser.add_argument("verb", choices=["hosts"])
    asked = parser.parse_args(argv)
    aws = aws_of_node(asked.region)
    try:
        print(json.dumps(hosts(aws, asked.stack, stack.outputs(aws, asked.stack))))
    except ClusterError as e:
        print(e, file=sys.stderr)
        return e.exit_code or 1
    return 0


def hosts(aws: Aws, name: str, outputs: dict[str, str]) -> dict[str, Any]:
    """Return the stack's usable hosts: address, rank, slots, and which of them are spares."""
    workers = in_stack.file_of(aws, name).nodes.workers
    each = [
        {
            "address": m.address,
            "rank": m.rank,
            "slots": slots_of(m, outputs),
            "is_spare": (m.rank or 0) > workers,
        }
        for m in usable_hosts(aws, outputs)
    ]
    return {"slots": int(outputs["Slots"]), "hosts": each}  # nodes with older programs still read "slots"


def take(aws: Aws, outputs: dict[str, str], address: str, rank: int, spare: str) -> int | None:
    """Swap the ranks of the dead host, or its successor, and the spare. Return the dead host's rank.

    Returns None if one of the two is not in the cluster.

    Args:
        rank: the dead host's rank, by which its successor is found.
    """
    members = read(aws, outputs)
    old, new = _of_a_worker(members, address, rank), _of_a_worker(members, spare)
    if old is None or new is None or old is new:
        return None
    others = (m for m in members if m not in (old, new))
    keep_ranks(aws, [*others, with_(new, rank=old.rank), with_(old, rank=new.rank)])
    return old.rank


def end(aws: Aws, outputs: dict[str, str], address: str, rank: int) -> int:
    """Terminate a worker so that its group starts a successor. Return its rank, or `rank` if it is already gone."""
    members = read(aws, outputs)
    old = _of_a_worker(members, address)
    if old is None or old.rank is None or old.rank >= GONE:
        return rank if old is None or old.rank is None else old.rank - GONE
    suspension.check(aws, [outputs["WorkerGroup"]], "Launch", "a replacement")
    nobodys = with_(old, rank=old.rank + GONE)  # frees the rank for the successor before the old instance is gone
    keep_ranks(aws, [*(m for m in members if m is not old), nobodys])
    if old.lifecycle == "InService":
        with asking(f"replacing host {address}"):
            aws.client("autoscaling").terminate_instance_in_auto_scaling_group(
                InstanceId=old.instance_id, ShouldDecrementDesiredCapacity=False
            )
    return old.rank


def _of_a_worker(members: list[GroupMember], address: str, rank: int | None = None) -> GroupMember | None:
    """Return the worker with this address, else the one with this rank."""
    workers = [m for m in members if m.role == "worker"]
    return next((m for m in workers if m.address == address), next((m for m in workers if m.rank == rank), None))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
