"""Tasks of hosts: list them, log in, run a command on all, check health, kill leftovers, reboot."""

import sys
from dataclasses import dataclass
from typing import Any

from invoke import Context, Exit

from cluster.errors import ConfigError
from cluster.inventory import load_cluster
from cluster.terminal import agreed, counted, print_json
from dlami.tasks.command import HOSTS_HELP, command, option, rest


@command(name="list", help={"hosts": HOSTS_HELP, "json": "as JSON"})
def hosts_list(c: Context, hosts: str = "", json: bool = False) -> None:
    """Show the cluster's hosts: rank, address, slots; where the shared folder is, also who is left out of trainings."""
    from cluster import hostset
    from cluster.hosts import table
    from cluster.recovery.host_failures import how_left_out, left_out_here

    cluster = load_cluster()
    chosen = hostset.select(cluster.hosts, hosts or None)
    out = left_out_here(cluster.shared)
    if json:
        print_json([{**vars(h), "left_out": out.get(h.address, "")} for h in chosen])
    else:
        print(table(chosen))
        for sentence in how_left_out({a: why for a, why in out.items() if a in {h.address for h in chosen}}):
            print(sentence, file=sys.stderr)


@command(
    name="forgive",
    help={"hosts": HOSTS_HELP, "dry_run": "say what would be forgiven, change nothing", "json": "as JSON"},
    positional=["hosts"],
)
def hosts_forgive(c: Context, hosts: str, dry_run: bool = False, json: bool = False) -> None:
    """Take hosts back that are left out of trainings because they failed twice in 7 days."""
    from cluster import hostset
    from cluster.health.forgive import forgive
    from cluster.ssh.fanout import Executor

    cluster = load_cluster()
    chosen = hostset.select(cluster.hosts, hosts)
    with Executor(cluster) as reach:
        forgiven = forgive(reach, cluster, chosen, dry_run=dry_run)
    if json:
        print_json({"dry_run": dry_run, "hosts": forgiven})
        return
    for address, what in forgiven.items():
        print("\n  ".join([f"{address}: {'would be forgiven' if dry_run else 'forgiven'}", *what]))


@dataclass(frozen=True, kw_only=True)
class RunOptions:
    """The options of `inv run`."""

    hosts: str = option("", HOSTS_HELP)
    failed: bool = option(False, "only where the last run failed; the same command unless another is given")
    json: bool = option(False, "one JSON record per host, as each ends")
    live: bool = option(False, "lines as they come, not folded")
    diff: bool = option(False, "other answers as a difference to the majority's")
    mask: bool = option(False, "hosts' own names make no difference")
    outdir: str = option("", "a folder for a file per host")
    raw: bool = option(False, "to a terminal, too, byte for byte: control characters of the output can steer it")
    script: str = option("", "a file to run there; words after -- are its arguments")
    stdin: str = option("", "a file every host reads, - for this task's own stdin")
    sudo: bool = option(False, "run it as root")
    env: Any = option(None, "NAME=VALUE for the command, may be repeated", repeats=True)
    fanout: int = option(64, "connections at once")
    connect_timeout: float = option(10.0, "seconds to reach a host")
    timeout: float = option(0.0, "seconds the command may take")
    silence: float = option(0.0, "seconds without output before it is given up")


@command(name="run")
def run_command(c: Context, given: RunOptions) -> None:
    """Run a command on every host at once: inv run -- 'df /'."""
    from pathlib import Path

    from cluster.run.command import RunRequest, run_on_hosts
    from cluster.ssh.limits import Limits, check_environment

    if given.failed and given.hosts:
        raise ConfigError("--failed and --hosts exclude each other: --hosts @failed,!3 narrows it")
    request = RunRequest(
        command=" ".join(rest()),
        hosts="@failed" if given.failed else given.hosts or None,
        as_json=given.json,
        live=given.live,
        diff=given.diff,
        mask=given.mask,
        outdir=Path(given.outdir).resolve() if given.outdir else None,
        raw=given.raw,
        script=Path(given.script) if given.script else None,
        stdin=given.stdin,
        sudo=given.sudo,
        environment=check_environment(given.env or []),
        fanout=given.fanout,
        limits=Limits(connect_s=given.connect_timeout, total_s=given.timeout or None, silence_s=given.silence or None),
    )
    raise Exit(code=run_on_hosts(load_cluster(), request))


@command(
    help={
        "host": "rank, address or any term that names one host",
        "agent": "forward your ssh-agent; root there can use its keys while you are logged in",
    },
    positional=["host"],
)
def login(c: Context, host: str, agent: bool = False) -> None:
    """Log in to one host, or run a command there with a terminal: inv login 1 -- htop."""
    from cluster import hostset
    from cluster.ssh.login import login

    cluster = load_cluster()
    chosen = hostset.select(cluster.hosts, host)
    if len(chosen) > 1:
        raise ConfigError(f"{host!r} names {counted(len(chosen), 'host')}: name one, or use inv run")
    raise Exit(code=login(cluster, chosen[0], " ".join(rest()), forward_agent=agent))


@command(help={"hosts": HOSTS_HELP})
def disconnect(c: Context, hosts: str = "") -> None:
    """End this cluster's idle SSH connections, which tasks leave open for the next one; those in use stay."""
    from cluster import hostset
    from cluster.ssh import connections
    from cluster.ssh.options import way_to

    cluster = load_cluster()
    chosen = [h for h in hostset.select(cluster.hosts, hosts or None) if not h.is_local]
    ways = {way_to(h, cluster.access): h for h in chosen}
    ended, in_use = connections.disconnect_idle([*ways])
    print(f"{counted(ended, 'connection')} ended")
    if in_use:
        stay = hostset.fold(ways[way].address for way in in_use)
        print(f"in use, and left open: {stay}; end what runs over them, then again", file=sys.stderr)


@command(
    help={
        "hosts": HOSTS_HELP,
        "all_mine": "everything training-like of this user of no live job and no other task",
        "grace": "seconds between TERM and KILL",
        "yes": "do not ask",
        "dry_run": "only show",
        "json": "as JSON; ends nothing without --yes",
    }
)
def kill(
    c: Context,
    hosts: str = "",
    all_mine: bool = False,
    grace: float = 5.0,
    yes: bool = False,
    dry_run: bool = False,
    json: bool = False,
) -> None:
    """Show, then end what crashed trainings left on the hosts: processes of our jobs, shared memory."""
    from cluster import hostset
    from cluster.kill.kill import describe, describe_end, end_leftovers, find_leftovers, known_jobs
    from cluster.ssh.fanout import Executor

    cluster = load_cluster()
    chosen = hostset.select(cluster.hosts, hosts or None)
    with Executor(cluster) as reach:
        found = find_leftovers(reach, cluster, chosen, known_jobs(reach, cluster), all_mine=all_mine)
        if not json:
            print(describe(found))
        wanted = not dry_run and bool(found.num_to_end or found.num_segments) and (yes or not json)
        if not wanted or not (
            yes
            or agreed(f"end {counted(found.num_to_end, 'process')}, remove {counted(found.num_segments, 'segment')}")
        ):
            if json:
                print_json(found.record())
            raise Exit(code=1 if found.unanswered else 0)
        now = known_jobs(reach, cluster)  # again: one may have begun while the question waited
        ended = end_leftovers(reach, cluster, found, now, all_mine=all_mine, grace_s=grace)
    if json:
        print_json(ended.record(found))
    else:
        print(describe_end(found, ended))
    raise Exit(code=1 if ended.num_left or ended.unanswered else 0)


@command(
    help={
        "hosts": HOSTS_HELP,
        "timeout": "seconds to wait for them",
        "yes": "do not ask",
        "dry_run": "only say which, and whether a job runs there",
    }
)
def reboot(c: Context, hosts: str, timeout: float = 600.0, yes: bool = False, dry_run: bool = False) -> None:
    """Reboot hosts and wait until they answer; refused while a job runs on them."""
    from cluster import hostset
    from cluster.kill import reboot as boots
    from cluster.ssh.fanout import Executor

    cluster = load_cluster()
    chosen = hostset.select(cluster.hosts, hosts)
    with Executor(cluster) as reach:
        boots.refuse_while_a_job_runs(reach, cluster, chosen)
        which = f"{hostset.fold(h.address for h in chosen)} ({len(chosen)})"
        if dry_run:
            print(f"would reboot {which}; no job runs there")
        elif yes or agreed(f"reboot {which}"):
            if not yes:  # again: one may have begun while the question waited
                boots.refuse_while_a_job_runs(reach, cluster, chosen)
            missing = boots.reboot(reach, chosen, timeout, lambda h, s: print(f"{h}  back after {s:.0f} s", flush=True))
            for host, why in missing.items():
                print(f"{host}  {why}", file=sys.stderr)
            raise Exit(code=1 if missing else 0)


@command(
    optional=["since"],
    help={
        "hosts": HOSTS_HELP,
        "json": "as JSON",
        "deep": "measure each host, run MPI over all (minutes; hosts must be free)",
        "net": "measure the network between hosts (a minute, hosts must be free)",
        "since": "only what changed since the last look, or since 30m, 2h, 1d ago",
        "watch": "look again and again, print only changes",
        "interval": "seconds between looks",
        "notify": "tell whom the cluster file names what is new or gone since the last look",
    },
)
def health(
    c: Context,
    hosts: str = "",
    json: bool = False,
    deep: bool = False,
    net: bool = False,
    since: Any = "",
    watch: bool = False,
    interval: float = 60.0,
    notify: bool = False,
) -> None:
    """Look at every host before training: name the one that will not hold, and what to do. Exit code 0, 1 or 2."""
    from cluster.health.command import show_health

    rung = "deep" if deep else "net" if net else "quick"
    raise Exit(
        code=show_health(
            load_cluster(),
            hosts=hosts or None,
            as_json=json,
            rung=rung,
            since="last" if since is True else since or None,
            interval_s=interval if watch else None,
            tell=notify,
        )
    )
