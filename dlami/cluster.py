"""Clusters for your own tasks, scripts and notebooks: hosts, commands, files, jobs, Fabric connections.

    from dlami import cluster

    gpus = cluster.load()
    gpus.run("nvidia-smi -L", "@workers").check()

The rules are those of the command line: host keys are checked, every operation has a time limit, and every host has a
result. Errors are `ClusterError`s, whose text names the host and the remedy. docs/own-tasks.md has recipes.
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
from cluster.last_run import last_failed, output_folder
from cluster.ssh.fanout import Executor
from cluster.ssh.limits import Limits, OnOutput, check_environment
from cluster.ssh.result import FanOut, FanOutError, Result
from cluster.terminal import counted

if TYPE_CHECKING:  # imported where used, so that importing this module is fast
    from fabric import Group

    from cluster.broadcast.copy import Copied
    from cluster.jobs.record import JobView
    from cluster.ssh.fabric_connection import Connection

Hosts = str | Host | Iterable[Host] | None
"""Selection of hosts: an expression as for --hosts ("@workers,!3"), Host objects, or None for all."""

_LOOK_S = (1.0, 10.0)  # between polls of a job in `wait`: the first pause, and the longest
_PATIENCE_S = 120.0  # limit on a master's silence in `wait`

__all__ = [
    "ClusterError", "ConfigError", "FanOut", "FanOutError", "Host", "Hosts", "Jobs", "OpenCluster", "Result", "load",
    "task",
]  # fmt: skip


def load(where: str | None = None, *, fanout: int = 64) -> "OpenCluster":
    """Return the cluster with this name, as CLUSTER on the command line: a folder's path, `lab`, or `lab:NAME`.

    Without a name it is the one that CLUSTER names, or that of the current folder. No host is contacted yet.

    Args:
        fanout: number of hosts to work on at once.
    Raises ConfigError if there is no such cluster.
    """
    return OpenCluster(inventory.load_cluster(where), fanout)


def task(body: Callable[..., Any] | None = None, **options: Any) -> Any:
    """Return Invoke's `@task` for your tasks.py, with this project's error handling.

    A ClusterError becomes a message and an exit code, and Ctrl-C cleans up. It takes the options of Invoke's `@task`.
    The first parameter of the decorated function is Invoke's context.
    """
    from dlami.tasks.command import command

    return command(body, **options)


class OpenCluster:
    """Cluster whose hosts are reached over SSH connections that all tasks on this machine share and leave open."""

    def __init__(self, described: inventory.Cluster, fanout: int = 64) -> None:
        self._described = described
        self._reach = Executor(described, fanout, spill=output_folder())

    def __repr__(self) -> str:
        return f"<cluster {self.name}: {hostset.fold(h.address for h in self.hosts)}>"

    @property
    def name(self) -> str:
        """Return the cluster's name."""
        return self._described.name

    @property
    def hosts(self) -> tuple[Host, ...]:
        """Return the hosts by rank, the master first.

        Each has `rank`, `address`, `slots` (0 for a master that does not train) and `is_spare`.
        """
        return self._described.hosts

    @property
    def master(self) -> Host:
        """Return rank 0, on which jobs are started and supervised."""
        return self._described.master

    @property
    def shared(self) -> str:
        """Return the path of the shared folder, the same on every host."""
        return self._described.shared

    @property
    def jobs(self) -> "Jobs":
        """Return the cluster's jobs."""
        return Jobs(self, self._described, self._reach)

    def select(self, hosts: Hosts = None) -> tuple[Host, ...]:
        """Return the selected hosts, in rank order. Raises ConfigError if there are none, or not of this cluster."""
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
        """Run a shell command on these hosts at once. Return a result for every host, whatever happens to the others.

        The return value maps hosts to results. A result has `ok`, `exit_code`, `text` (stdout), `stderr`, `seconds`
        and, if it is not ok, a one-line `problem`. `.check()` of the return value raises FanOutError if a result is not
        ok. `.failed` has those hosts, and `.groups()` the hosts with equal answers.

        Args:
            command: the command, or a function that returns it for a host.
            timeout_s: limit on the command, which is then killed on its host too.
            silence_s: limit on the time without a byte of output.
            connect_s: limit on connecting to a host.
            stdin: input of each host's command; a path for a file.
            environment: variables of the command; not for secrets, which every process list would show.
            sudo: run as root.
            on_result: called with each host's result as it ends.
            on_output: called with the host, "stdout" or "stderr", and bytes, as they arrive.
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
        """Copy a file or folder to these hosts, as `inv copy` does: each host passes it on while receiving.

        `.outcomes` of the return value has every host's outcome. `.check()` raises ClusterError if a host lacks the
        copy.

        Args:
            src: path on this machine.
            dst: absolute path of the copy on each host, or, with a slash at its end, the folder to put it into.
            excludes: names or paths to leave out, with wildcards.
            everything: include a code folder's .git and caches.
            encrypt: use TLS between the hosts.
        """
        from cluster.broadcast.task import CopyRequest, copy_as_asked

        # A slash at the end of `src` is ignored here, because a Path drops it.
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
        """Return Fabric's `Connection` to one host over the open SSH connection.

        It has `run`, `sudo`, `put`, `get` and `forward_local`. It connects on first use, with the cluster's host keys,
        key and gateway. Raises ConfigError for more than one host, and for this machine itself. Raises ClusterError if
        it cannot connect.
        """
        chosen = self.select(host)
        if len(chosen) > 1:
            raise ConfigError(f"{host!r} names {counted(len(chosen), 'host')}: name one, or take group()")
        return self._connections(chosen, forward_agent)[0]

    def group(self, hosts: Hosts = None, *, one_by_one: bool = False) -> "Group":
        """Return Fabric's `ThreadingGroup` of such connections, or its `SerialGroup` if `one_by_one`."""
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
                connection.config.run.in_stream = False  # do not read a script's stdin; a notebook has none
        return made


class Jobs:
    """Jobs of a cluster. A job is named as on the command line: its id, a part of it, or `last`."""

    def __init__(self, cluster: OpenCluster, described: inventory.Cluster, reach: Executor) -> None:
        from cluster.jobs.client.client import JobsClient as Client

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
        """Start your own program as a job and return it, as `inv train.run` does in the current folder.

        Hosts are checked first. Raises ConfigError and ClusterError like the command, before anything runs.

        Args:
            words: the program and its arguments; one word with shell syntax is run by a shell.
            np: number of ranks; by default one per slot.
            per: start it per "gpu" (slot), per "node", or "once", on the first of `hosts`, or the first that trains.
            environment: variables for every rank; not for secrets.
            options: the other options of `inv train.run`, by name: unchecked=True, no_heal=True, profile="tcp".
        """
        from dlami.tasks.running import TrainRunOptions, start_program

        known = {f.name for f in dataclasses.fields(TrainRunOptions)} - {"env", "detach", "dry_run"}
        if unknown := sorted(options.keys() - known):
            raise ConfigError(f"train.run has no option {unknown[0]!r}: there are {', '.join(sorted(known))}")
        given = TrainRunOptions(
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
        """Return the jobs that may hold hosts, oldest first; with `all`, ended ones too."""
        return tuple(j for j in self._client.list(going=not all).jobs if all or j.state.holds_hosts)

    def show(self, job: str = "last") -> "JobView":
        """Return a job: `state`, `status` (cause, exit code), `progress`, `attempts`, `folder`, and its request."""
        return self._client.show(job)

    def stop(self, job: str) -> "JobView":
        """Stop a job on every host and return it: its ranks may save and exit, then the rest is killed.

        Raises NothingToDo if it has ended.
        """
        return self._client.stop(job)

    def wait(self, job: str = "last", *, timeout_s: float | None = None) -> "JobView":
        """Wait until a job has ended, with all its retries, and return it.

        A master that does not answer for up to two minutes is waited for. Raises ClusterError if the job is still
        running after `timeout_s`; the job itself continues.
        """
        began = answered = time.monotonic()
        pause = _LOOK_S[0]
        while True:
            try:
                view = self._client.show(job)
                job, answered = view.id, time.monotonic()  # `last` may name another job at the next poll
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
        """Print a job's output, with `follow` until the job ends, and return its exit code.

        Ctrl-C ends the printing, not the job.
        """
        return self._client.logs(job, follow=follow, rank=rank)
