"""What tasks, scripts and notebooks of one's own need of a cluster: hosts, commands, files, jobs, Fabric's connections.

    from dlami import cluster

    gpus = cluster.load()
    gpus.run("nvidia-smi -L", "@workers").check()

The rules are those of the command line: host keys are known, everything has a limit, every host has a result, and what
goes wrong is a `ClusterError` whose text says on which host and what to do. docs/own-tasks.md has recipes.
"""

import dataclasses
import os
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cluster import hostset, inventory
from cluster.errors import ClusterError, ConfigError
from cluster.hosts import Host
from cluster.run.last_run import last_failed, output_folder
from cluster.ssh.fanout import Reach
from cluster.ssh.limits import Limits, OnOutput, check_environment
from cluster.ssh.result import FanOut, FanOutError, Result
from cluster.terminal import counted

if TYPE_CHECKING:  # imported where they are used: a notebook's first line must not wait for them
    from fabric import Group

    from cluster.copying.copy import Copied
    from cluster.jobs.record import JobView
    from cluster.ssh.fabric_connection import Connection

Hosts = str | Host | Iterable[Host] | None
"""Which hosts: the language of --hosts ("@workers,!3"), hosts themselves, or None for all."""

_LOOK_S = (1.0, 10.0)  # between two looks at a job that is waited for: the first pause, and the longest
_PATIENCE_S = 120.0  # for a master that does not answer while a job is waited for

__all__ = [
    "ClusterError", "ConfigError", "FanOut", "FanOutError", "Host", "Hosts", "Jobs", "OpenCluster", "Result", "load",
    "task",
]  # fmt: skip


def load(where: str | None = None, *, fanout: int = 64) -> "OpenCluster":
    """The cluster that a name means, as CLUSTER does for the command line: a folder's path, `lab`, `lab:NAME`.

    Without a name it is CLUSTER's, or that of the folder one stands in. No host is asked yet.

    Args:
        fanout: hosts that are talked to at once.
    Raises ConfigError if there is no such cluster.
    """
    return OpenCluster(inventory.load_cluster(where), fanout)


def task(body: Callable[..., Any] | None = None, **options: Any) -> Any:
    """Invoke's `@task` for a tasks.py, whose ClusterError is a message and an exit code; Ctrl-C cleans up.

    It takes the options of Invoke's; the first parameter of what it decorates is Invoke's context.
    """
    from cluster.commandline.command import command

    return command(body, **options)


class OpenCluster:
    """A cluster's hosts, reachable over the connections that all tasks on this machine share and leave open."""

    def __init__(self, described: inventory.Cluster, fanout: int = 64) -> None:
        self._described = described
        self._reach = Reach(described, fanout, spill=output_folder())

    def __repr__(self) -> str:
        return f"<cluster {self.name}: {hostset.fold(h.address for h in self.hosts)}>"

    @property
    def name(self) -> str:
        """Its name."""
        return self._described.name

    @property
    def hosts(self) -> tuple[Host, ...]:
        """Its hosts by rank, the master first; `host.rank`, `host.address`, `host.slots` (0: a master that does not
        train), `host.is_spare`.
        """
        return self._described.hosts

    @property
    def master(self) -> Host:
        """Rank 0: jobs are started and kept from here."""
        return self._described.master

    @property
    def shared(self) -> str:
        """The path of the shared folder, the same on every host."""
        return self._described.shared

    @property
    def jobs(self) -> "Jobs":
        """Its jobs."""
        return Jobs(self, self._described, self._reach)

    def select(self, hosts: Hosts = None) -> tuple[Host, ...]:
        """The hosts that are meant, in rank order. Raises ConfigError if these are none, or not of this cluster."""
        if hosts is None or isinstance(hosts, str):
            return hostset.select(self.hosts, hosts, failed=last_failed(self._described))
        named = {hosts} if isinstance(hosts, Host) else set(hosts)
        if not named:
            raise ConfigError(f"no host is named: leave hosts out for all of them, or give {hostset.HELP}")
        if strange := sorted(named - set(self.hosts)):
            raise ConfigError(f"{hostset.fold(h.address for h in strange)}: no host of {self.name}")
        return tuple(sorted(named))

    def run(
        self,
        command: str | Callable[[Host], str],
        hosts: Hosts = None,
        *,
        timeout_s: float | None = None,
        silence_s: float | None = None,
        connect_s: float = 10.0,
        stdin: bytes | Path = b"",
        environment: Mapping[str, str] | None = None,
        sudo: bool = False,
        on_result: Callable[[Result], None] | None = None,
        on_output: OnOutput | None = None,
    ) -> FanOut:
        """A shell command on these hosts at once; host -> its result, one for each, whatever happens to the others.

        A host's result says `ok`, `exit_code`, `text` (its stdout), `stderr`, `seconds` and, if it is not ok, its
        `problem` in a line. `.check()` of them all raises FanOutError if one is not ok; `.failed` are those hosts;
        `.groups()` are hosts with equal answers.

        Args:
            command: or a function from a host to its own.
            timeout_s: for the command; one that takes longer is ended, on its host too.
            silence_s: without a byte of output.
            connect_s: for reaching a host.
            stdin: what each host's command reads; a path for a file.
            environment: variables of the command; not for secrets, which every list of processes would show.
            sudo: as root.
            on_result: hears of each host as it ends.
            on_output: hears the host, "stdout" or "stderr" and bytes, as they come.
        """
        return self._reach.run(
            self.select(hosts),
            command,
            stdin=stdin,
            limits=Limits(connect_s=connect_s, silence_s=silence_s, total_s=timeout_s),
            environment=check_environment([f"{name}={value}" for name, value in (environment or {}).items()]),
            sudo=sudo,
            on_result=on_result,
            on_output=on_output,
        )

    def copy(
        self,
        src: str | os.PathLike[str],
        dst: str,
        hosts: Hosts = None,
        *,
        excludes: Sequence[str] = (),
        everything: bool = False,
        encrypt: bool = False,
    ) -> "Copied":
        """A file or folder onto these hosts, as `inv copy`: each passes it on while it receives.

        `.outcomes` has every host's; `.check()` raises ClusterError if one does not have it.

        Args:
            src: on this machine (on the master where this is it).
            dst: absolute; what the copy is called on each host, or, with a slash at its end, the folder it goes into.
            excludes: names or paths with wildcards.
            everything: a code folder's .git and caches too.
            encrypt: TLS between the hosts.
        """
        from cluster.copying.task import CopyRequest, copy_as_asked

        # A slash at the end of SRC means nothing here, where a path may come from Path.
        request = CopyRequest(
            src=os.fspath(src),
            dst=dst,
            hosts=None if hosts is None else ",".join(h.address for h in self.select(hosts)),
            excludes=tuple(excludes),
            everything=everything,
            encrypt=encrypt,
        )
        return copy_as_asked(self._described, request, lambda _: False)

    def connection(self, host: str | Host, *, forward_agent: bool = False) -> "Connection":
        """Fabric's `Connection` to one host, inside the open connection: `run`, `sudo`, `put`, `get`, `forward_local`.

        It connects when it is used; host keys, key and gateway are the cluster's. Raises ConfigError for more than one
        host, and for this very machine; ClusterError where it cannot connect.
        """
        chosen = self.select(host)
        if len(chosen) > 1:
            raise ConfigError(f"{host!r} names {counted(len(chosen), 'host')}: name one, or take group()")
        return self._connections(chosen, forward_agent)[0]

    def group(self, hosts: Hosts = None, *, one_by_one: bool = False) -> "Group":
        """Fabric's `ThreadingGroup` of such connections, or with `one_by_one` its `SerialGroup`."""
        from fabric import SerialGroup, ThreadingGroup

        kind = SerialGroup if one_by_one else ThreadingGroup
        return kind.from_connections(self._connections(self.select(hosts), False))

    def _connections(self, hosts: Sequence[Host], forward_agent: bool) -> "list[Connection]":
        if local := next((h for h in hosts if h.is_local), None):
            raise ConfigError(f"{local} is this machine, which needs no connection: leave it out, or take run()")
        from cluster.ssh.fabric_connection import over_open_connection

        access = self._described.access
        made = [over_open_connection(self._reach, h, access, forward_agent=forward_agent) for h in hosts]
        if not (sys.stdin and sys.stdin.isatty()):
            for connection in made:
                connection.config.run.in_stream = False  # a script's input is its own, and a notebook has none
        return made


class Jobs:
    """The jobs of a cluster. A job is named as on the command line: its id, a part of it, or `last`."""

    def __init__(self, cluster: OpenCluster, described: inventory.Cluster, reach: Reach) -> None:
        from cluster.jobs.client import Jobs as Client

        self._cluster, self._described = cluster, described
        self._client = Client(reach, described)

    def submit(
        self,
        words: Sequence[str],
        hosts: Hosts = None,
        *,
        np: int | None = None,
        per: str = "gpu",
        name: str = "",
        environment: Mapping[str, str] | None = None,
        **options: Any,
    ) -> "JobView":
        """Start a program of one's own as a job, as `inv train.run` from the folder one stands in; the job.

        Hosts are looked at first. Raises ConfigError and ClusterError as the command says them, before anything runs.

        Args:
            words: the program and its arguments; one word with a shell's signs in it is a line for a shell.
            np: ranks; one per slot without it.
            per: it is started for each "gpu" (slot), each "node", or "once", on the first of `hosts`, or that trains.
            environment: variables for every rank; not for secrets.
            options: the other options of `inv train.run`, by name: unchecked=True, no_heal=True, profile="tcp".
        """
        from cluster.commandline.running import RunOptions, start_program

        known = {f.name for f in dataclasses.fields(RunOptions)} - {"env", "detach", "dry_run"}
        if unknown := sorted(options.keys() - known):
            raise ConfigError(f"train.run has no option {unknown[0]!r}: there are {', '.join(sorted(known))}")
        given = RunOptions(
            hosts="" if hosts is None else ",".join(h.address for h in self._cluster.select(hosts)),
            np=str(np or ""),
            per=per,
            name=name,
            env=[f"{variable}={value}" for variable, value in (environment or {}).items()],
            detach=True,
            **options,
        )
        return self.show(start_program(self._described, words, given))

    def list(self, *, all: bool = False) -> "tuple[JobView, ...]":
        """Those that may hold hosts, oldest first; with `all` those that have ended too."""
        return tuple(j for j in self._client.list().jobs if all or j.state.holds_hosts)

    def show(self, job: str = "last") -> "JobView":
        """One job: `state`, `status` (its cause, exit code), `progress`, `attempts`, `folder`, what was asked for."""
        return self._client.show(job)

    def stop(self, job: str) -> "JobView":
        """End it on every host: its ranks save and leave, the rest is ended. Raises NothingToDo if it has ended."""
        return self._client.stop(job)

    def wait(self, job: str = "last", *, timeout_s: float | None = None) -> "JobView":
        """Wait until it has ended, healed or not; how it ended. A master that is away for two minutes is waited for.

        Raises ClusterError if it goes on after `timeout_s`; nothing of it is ended then.
        """
        began = answered = time.monotonic()
        pause = _LOOK_S[0]
        while True:
            try:
                view = self._client.show(job)
                job, answered = view.id, time.monotonic()  # `last` may mean another one the next time
                if not view.state.is_going:
                    return view
            except ConfigError:
                raise
            except ClusterError:
                if time.monotonic() - answered > _PATIENCE_S:
                    raise
            if timeout_s is not None and time.monotonic() - began > timeout_s:
                raise ClusterError(f"{job} goes on after {timeout_s:g} s: wait longer, or stop it with jobs.stop")
            time.sleep(pause)
            pause = min(_LOOK_S[1], pause * 1.5)

    def print_log(self, job: str = "last", *, follow: bool = False, rank: int | None = None) -> int:
        """Print its output, with `follow` until it ends; its exit code. Ctrl-C ends the printing, not the job."""
        return self._client.logs(job, follow=follow, rank=rank)
