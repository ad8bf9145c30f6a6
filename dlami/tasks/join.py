"""Tasks that set up hosts: make a cluster of hosts without a stack, and install what nodes need beside their image."""

import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from invoke import Context, Exit

from cluster.hosts import Host, totals
from cluster.inventory import Cluster
from cluster.terminal import agreed, counted, print_json
from dlami.tasks.command import HOSTS_HELP, command, option


@dataclass(frozen=True, kw_only=True)
class Joining:
    """The options of `inv hosts.join`."""

    host: Any = option(
        None, "an address, localhost, or 10.0.0.[2-5]; any number of them, also without --host", repeats=True
    )
    name: str = option("", "the cluster's name; the folder's without it")
    slots: int = option(0, "ranks that each of these hosts may hold; its GPUs without it")
    user: str = option("", "login name on all hosts")
    key: str = option("", "the private key to log in with now; the agent's and the usual ones without it")
    port: int = option(0, "port of sshd on all hosts")
    shared: str = option("", "a folder that is the same one on all hosts, or where --nfs makes one")
    nfs: bool = option(False, "the leader serves that folder to the others (needs sudo there)")
    yes: bool = option(False, "the fingerprints were compared; do not ask")
    dry_run: bool = option(False, "only show the hosts and the fingerprints of their keys")
    json: bool = option(False, "as JSON; joins nothing without --yes")


@command(name="join")
def hosts_join(c: Context, given: Joining) -> None:
    """Make a cluster of hosts without a stack, the leader first: inv hosts.join localhost 10.0.0.2 10.0.0.3."""
    from cluster import written
    from cluster.inventory import SshSettings
    from cluster.join.discovery import gather
    from cluster.join.files import request_of, targets
    from cluster.join.join import join
    from cluster.locate import cluster_folder

    folder = cluster_folder() if os.environ.get("CLUSTER") else Path.cwd()
    access = SshSettings(
        user=given.user or None,
        port=given.port or None,
        key=Path(given.key).expanduser().absolute() if given.key else None,
    )
    request = request_of(
        folder,
        tuple(given.host or ()),
        name=given.name,
        slots=given.slots,
        access=access,
        shared=given.shared,
        nfs=given.nfs,
    )
    gathered = gather(request, folder)
    if given.json and (given.dry_run or not given.yes):
        print_json({"dry_run": given.dry_run, **gathered.record()})
        return
    if not given.json:
        print("\n".join(map(str, gathered.shown.values())))
        if gathered.unproven and gathered.consoles.why_not:
            print(f"not compared with their consoles: {gathered.consoles.why_not}", file=sys.stderr)
    if given.dry_run:
        return
    unproven = [s.address for s in gathered.unproven]
    if unproven and not given.yes and not agreed(f"are these the keys of {', '.join(unproven)}"):
        raise Exit("nothing was changed", code=1)
    joined = join(request, gathered, folder, lambda line: print(line, file=sys.stderr, flush=True))
    if replaced := written.write_all(targets(joined)):
        print(replaced, file=sys.stderr)
    if given.json:
        print_json(joined.record())
        return
    hosts = joined.cluster.hosts
    print(f"{folder / 'hosts'}: {totals(hosts)}")
    print("\n".join(joined.advice()))


@dataclass(frozen=True, kw_only=True)
class SettingUp:
    """The options of `inv setup`."""

    hosts: str = option("", HOSTS_HELP)
    force: bool = option(False, "run the script again where it has succeeded")
    settings: bool = option(False, "only settings that health judges: GPU persistence, clocks and power, MTU, sysctl")
    timeout: float = option(1800.0, "seconds the script may take")
    dry_run: bool = option(False, "only say what would be done on which host")
    json: bool = option(False, "one JSON record per host and thing")


@command(name="setup")
def set_up(c: Context, given: SettingUp) -> None:
    """Bring every node to what it needs: the project's environment, and your own script, `setup` in cluster.toml."""
    from cluster import hostset
    from cluster.clusterfile.reader import read
    from cluster.inventory import load_cluster
    from cluster.setup.script import read_script
    from cluster.setup.setup import install_environment, lines, run_script
    from cluster.ssh.fanout import Executor

    cluster = load_cluster()
    chosen = hostset.select(cluster.hosts, given.hosts or None)
    if given.settings:
        raise Exit(code=_change_settings(cluster, chosen, dry_run=given.dry_run, as_json=given.json))
    path = cluster.setup
    script = read(cluster.folder / "cluster.toml", lambda _: read_script(path)) if path else None
    ended = []
    with Executor(cluster) as reach:
        ended.append(install_environment(reach, cluster, chosen, dry_run=given.dry_run))
        if script:
            ended.append(
                run_script(
                    reach, cluster, chosen, script, limit_s=given.timeout, force=given.force, dry_run=given.dry_run
                )
            )
    for done in ended:
        if given.json:
            for host, one in done.items():
                print_json(one.record(host), one_line=True)
        else:
            print("\n".join(lines(done)))
    if not script and not given.json:
        print('cluster.toml names no script of your own: setup = "FILE" does', file=sys.stderr)
    raise Exit(code=int(any(one.is_failed for done in ended for one in done.values())))


def _change_settings(cluster: Cluster, hosts: Sequence[Host], *, dry_run: bool, as_json: bool) -> int:
    """Find, print and apply the changes of system settings. Return 1 if any failed or a host did not answer."""
    from cluster.setup.node_settings import apply_changes, find_changes
    from cluster.ssh.fanout import Executor

    with Executor(cluster) as reach:
        changes, silent = find_changes(reach, cluster, hosts)
        if not dry_run:
            changes = apply_changes(reach, changes)
    for host, some in changes.items():
        for one in some:
            if as_json:
                print_json(one.record(host), one_line=True)
            else:
                print(f"{host}  {one}")
    for host, why in silent.items():
        print(f"{host}  {why}", file=sys.stderr)
    if not any(changes.values()) and not silent and not as_json:
        print(f"all settings of {counted(len(hosts), 'host')} are so already")
    return int(bool(silent) or any(one.why_not for some in changes.values() for one in some))
