"""Sender of the guard's warning to the `notify` address. On the master: `python -m cluster.guard.tell TEXT`."""

import sys

from cluster.clusterfile.reader import decode
from cluster.clusterfile.receivers import check_notify
from cluster.errors import ClusterError
from cluster.locate import cluster_file
from cluster.notify import Message, NotifyEvent, deliver


def main(text: str) -> int:
    """Send the text if the cluster file names an address, and return the exit code."""
    try:
        values = decode(cluster_file("cluster.toml"))[1]
        if notify := values.get("notify", ""):
            check_notify(notify)
            deliver(notify, Message(event=NotifyEvent.GUARD, job=f"no job of {values.get('name', '')}", text=text))
    except ClusterError as e:
        print(e, file=sys.stderr)
        return e.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
