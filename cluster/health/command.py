"""`inv health`: one rung, shown as asked for; or quick again and again, showing only what changes."""

import datetime
import time
from collections.abc import Callable

from cluster import hostset
from cluster.errors import ConfigError
from cluster.health import history
from cluster.health.deep import measure_hosts
from cluster.health.look import examine
from cluster.health.net import measure_network
from cluster.health.report import Report
from cluster.inventory import Cluster
from cluster.run.last_run import last_failed
from cluster.ssh.fanout import Reach
from cluster.terminal import print_json

RUNGS: dict[str, Callable[..., Report]] = {"quick": examine, "deep": measure_hosts, "net": measure_network}


def run(
    cluster: Cluster,
    *,
    hosts: str | None = None,
    rung: str = "quick",
    as_json: bool = False,
    since: str | None = None,
    interval_s: float | None = None,
) -> int:
    """Look, print, and give the exit code: 0 all is well, 1 attention, 2 unfit to train. Raises ConfigError."""
    chosen = hostset.select(cluster.hosts, hosts, failed=last_failed(cluster))
    if interval_s is not None and (interval_s <= 0 or rung != "quick"):
        raise ConfigError(f"--watch repeats the quick rung every --interval seconds, not {rung} every {interval_s:g}")
    with Reach(cluster) as reach:
        if interval_s is not None:
            return watch(lambda: examine(reach, cluster, chosen, keep=False), interval_s)
        report = RUNGS[rung](reach, cluster, chosen)
    if as_json:
        print_json(report.record())
    elif since:
        print(changes(report, since))
    else:
        print(report)
    return report.exit_code


def changes(report: Report, when: str) -> str:
    """What is new and what is gone since an earlier look, in words."""
    look, lines = history.since(report, when)
    if look is None:
        return f"{report}\n(there is no earlier look to compare with)"
    return "\n".join(lines or ["nothing changed"]) + f"\nsince {look.time}; {report.heading}"


def watch(look: Callable[[], Report], interval_s: float, rounds: int | None = None) -> int:
    """Look every so many seconds, and print what changed; the first look whole. Ends with Ctrl-C, or after `rounds`."""
    shown: dict[str, str] | None = None
    report = None
    while rounds is None or rounds > 0:
        began = time.monotonic()
        report = look()
        now = {
            f"{h.address}  {p.check}  {'unfit' if p.unfit else 'watch'}": p.what
            for h, problems in report.problems.items()
            for p in problems
        }
        at = f"{datetime.datetime.now():%Y-%m-%d %H:%M:%S}"
        if shown is None:
            print(f"{at}  {report}", flush=True)
        else:
            for key in [k for k in now if k not in shown]:
                print(f"{at}  new   {key}: {now[key]}", flush=True)
            for key in [k for k in shown if k not in now]:
                print(f"{at}  gone  {key}", flush=True)
        shown = now
        rounds = None if rounds is None else rounds - 1
        if rounds != 0:
            time.sleep(max(0.0, interval_s - (time.monotonic() - began)))
    return report.exit_code if report else 0
