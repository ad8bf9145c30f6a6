"""`inv health`: prints the report of one level, or repeats the quick level and prints the changes."""

import datetime
import time
from collections.abc import Callable

from cluster import hostset, notify
from cluster.errors import ConfigError
from cluster.health import history
from cluster.health.deep import measure_hosts
from cluster.health.net import measure_network
from cluster.health.quick_check import look_at_hosts
from cluster.health.report import HealthReport
from cluster.inventory import Cluster
from cluster.last_run import last_failed
from cluster.ssh.fanout import Executor
from cluster.terminal import print_json

RUNGS: dict[str, Callable[..., HealthReport]] = {"quick": look_at_hosts, "deep": measure_hosts, "net": measure_network}


def show_health(
    cluster: Cluster,
    *,
    hosts: str | None = None,
    rung: str = "quick",
    as_json: bool = False,
    since: str | None = None,
    interval_s: float | None = None,
    tell: bool = False,
) -> int:
    """Check the hosts and print the report. Return the exit code.

    The code is 0 if all is well, 1 if something needs attention, 2 if a host is unfit to train. Raises ConfigError.

    Args:
        tell: notify the recipients of the cluster file of problems that are new or gone since the last quick check.
            Raises Undelivered if the notification is not accepted.
    """
    if tell:
        notify.require(cluster)
        if interval_s is not None:
            raise ConfigError("--notify tells of one look: start it by a timer instead of --watch")
    chosen = hostset.select(cluster.hosts, hosts, failed=last_failed(cluster), for_ranks=rung != "quick")
    if interval_s is not None and (interval_s <= 0 or rung != "quick"):
        raise ConfigError(f"--watch repeats the quick rung every --interval seconds, not {rung} every {interval_s:g}")
    with Executor(cluster) as reach:
        if interval_s is not None:
            return watch(lambda: look_at_hosts(reach, cluster, chosen, keep=False), interval_s)
        report = RUNGS[rung](reach, cluster, chosen)
    if as_json:
        print_json(report.record())
    elif since:
        print(changes(report, since))
    else:
        print(report)
    if tell and (text := news(report)):
        notify.tell_on_master(cluster, notify.NotifyEvent.HEALTH, text, subject=cluster.name, host=_only_host(report))
    return report.exit_code


def news(report: HealthReport) -> str:
    """Return the text of a notification: problems new or gone since the last quick check. A first check lists all."""
    look, lines = history.changes_since(report.before, report.problems, "last")
    if look is not None:
        return "; ".join([*lines, report.heading]) if lines else ""
    found = [f"{h.address} {p.check}: {p.what}" for h, problems in report.problems.items() for p in problems]
    return "; ".join([*found, report.heading]) if found else ""


def _only_host(report: HealthReport) -> str:
    """Return the address of the host with problems if there is exactly one, else ""."""
    hosts = [h.address for h, problems in report.problems.items() if problems]
    return hosts[0] if len(hosts) == 1 else ""


def changes(report: HealthReport, when: str) -> str:
    """Return the problems that are new or gone since an earlier quick check."""
    look, lines = history.changes_since(report.before, report.problems, when)
    if look is None:
        return f"{report}\n(there is no earlier look to compare with)"
    return "\n".join(lines or ["nothing changed"]) + f"\nsince {look.time}; {report.heading}"


def watch(look: Callable[[], HealthReport], interval_s: float, rounds: int | None = None) -> int:
    """Check every `interval_s` seconds. Print the first report completely, then only the changes.

    Ends with Ctrl-C, or after `rounds`.
    """
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
