"""Tasks of the guard, which ends an idle cluster."""

from invoke import Context

from cluster.inventory import load_cluster
from cluster.terminal import print_json
from dlami.tasks.command import command


@command(
    help={
        "time": "how long from now, as 90m, 2h, 1d (--time may be left out); without it, say when it ends",
        "dry_run": "say when it would end, change nothing",
        "json": "as JSON",
    },
)
def keep(c: Context, time: str = "", dry_run: bool = False, json: bool = False) -> None:
    """Keep the cluster though nobody works on it: inv keep 2h. Its guard hears of it within a minute."""
    import dataclasses

    from cluster.guard.extend import keep as keep_for
    from cluster.guard.extend import seconds_of, seen

    cluster = load_cluster()
    seconds = seconds_of(time) if time else 0.0
    if seconds and not dry_run:
        keep_for(cluster, seconds)
    now = seen(cluster)
    if json:
        print_json({**dataclasses.asdict(now), "kept_s": seconds, "dry_run": dry_run})
        return
    print(f"before it has heard of this: {now}" if seconds and not dry_run else now)
    if seconds:
        print(f"{'would be' if dry_run else 'is'} kept for {time} from now, by its guard's next look, within a minute")
