"""Client for a program's packages on the operator's machine; the master runs every verb."""

import dataclasses
import json
import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from cluster.errors import ClusterError, ConfigError
from cluster.hosts import Host
from cluster.hostset import fold
from cluster.inventory import Cluster
from cluster.packages.env_list import Stock
from cluster.packages.interpreter import EnvironmentKind, EnvironmentRequest, Interpreter
from cluster.packages.ready import Ready
from cluster.packages.recipe import Recipe
from cluster.ssh.fanout import Executor
from cluster.ssh.limits import Limits
from cluster.ssh.onhost.frame import Frames
from cluster.ssh.program import NoAnswer, answer_of
from cluster.ssh.result import FanOutError
from cluster.terminal import counted
from cluster.typed import from_json

_SILENT_S = 60.0  # the master sends a heartbeat every five seconds
_CHECK_S = 120.0
_STOCK_S = 600.0


class NotReady(ClusterError):
    """Error: some hosts do not have the environment. The text names them, the reason and the remedy."""

    def __init__(self, wanted: EnvironmentRequest, made: Ready, num_hosts: int) -> None:
        same: dict[str, list[str]] = {}
        for address, why in made.lacking.items():
            same.setdefault(why, []).append(address)
        lines = [f"{wanted.option} is not ready on {len(made.lacking)} of {counted(num_hosts, 'host')}:"]
        lines += [f"  {fold(addresses)}  {why}" for why, addresses in same.items()]
        if wanted.kind in (EnvironmentKind.VENV, EnvironmentKind.CONDA) and len(made.lacking) < num_hosts:
            folder = made.interpreter.folder
            lines.append(f"it has to be at the same path on all of them: inv copy {folder} {folder}")
        super().__init__("\n".join(lines))
        self.lacking = made.lacking


class Packages:
    """Environments of one cluster's programs. `on_word` is called with each progress message."""

    def __init__(self, reach: Executor, cluster: Cluster, on_word: Callable[[str], None] | None = None) -> None:
        self._reach, self._cluster = reach, cluster
        self._on_word = on_word or _print_word

    def ready(
        self, wanted: EnvironmentRequest, recipe: Recipe | None, hosts: Sequence[Host], *, changes: bool = True
    ) -> Interpreter:
        """Build and copy the environment where it is missing, and return the ranks' interpreter. Raises ClusterError.

        changes: if False, nothing is changed, and a message says what would be.
        """
        file = Path(wanted.what).name if wanted.kind is EnvironmentKind.REQUIREMENTS else wanted.what
        said = self._call(
            "ready",
            Limits(silence_s=_SILENT_S),
            wanted=dataclasses.asdict(dataclasses.replace(wanted, what=file)),
            recipe=recipe and dataclasses.asdict(recipe),
            hosts=_as_json(hosts),
            changes=changes,
        )
        made = from_json(Ready, said)
        if made.lacking:
            raise NotReady(wanted, made, len(hosts))
        if not changes and (made.is_built or made.brought):
            what = ["build it on the master"] if made.is_built else []
            what += [f"bring it to {fold(made.brought)}"] if made.brought else []
            self._on_word(f"{wanted.option}: this would {' and '.join(what)}")
        return made.interpreter

    def check(
        self, words: Sequence[str], folder: str, interpreter: Interpreter | None, variables: Mapping[str, str]
    ) -> None:
        """Raise ConfigError with the reason if the program cannot start in this folder of the master."""
        said = self._call(
            "check",
            Limits(total_s=_CHECK_S),
            words=list(words),
            folder=folder,
            interpreter=interpreter and dataclasses.asdict(interpreter),
            variables=dict(variables),
        )
        if said["trouble"]:
            raise ConfigError(said["trouble"])

    def stock(self) -> Stock:
        """Return all environments on all hosts."""
        return from_json(Stock, self._call("list", Limits(total_s=_STOCK_S), hosts=_as_json(self._cluster.hosts)))

    def remove(self, ids: Sequence[str]) -> Mapping[str, str]:
        """Remove environments from all hosts. Return why something is left, by address of the hosts concerned."""
        hosts = _as_json(self._cluster.hosts)
        return dict(self._call("remove", Limits(total_s=_STOCK_S), hosts=hosts, ids=list(ids))["left"])

    def _call(self, verb: str, limits: Limits, **asked: Any) -> Any:
        """Return the answer to one verb. Raises ConfigError or ClusterError if that is an error."""
        cluster = self._cluster
        words = shlex.join([cluster.python, "-m", "cluster.packages", "--shared", cluster.shared, verb])
        # In its own session it gets a signal on interruption and cleans up, also if this machine is the master.
        command = f"cd {shlex.quote(cluster.project)} && exec setsid --wait {words}"
        frames = Frames()

        def heard(_host: Host, stream: str, data: bytes) -> None:
            for record in frames.feed(data) if stream == "stdout" else ():
                if "said" in record:
                    self._on_word(record["said"])

        results = self._reach.run(
            [cluster.master], command, stdin=json.dumps(asked).encode(), limits=limits, on_output=heard
        )
        try:
            said = answer_of(results[cluster.master])
        except NoAnswer as e:
            raise FanOutError(results) if results.failed else ClusterError(f"the master ({cluster.master}): {e}") from e
        if "error" in said:
            raise (ConfigError if said["is_config"] else ClusterError)(said["error"])
        return said


def _print_word(text: str) -> None:
    print(f"packages: {text}", file=sys.stderr, flush=True)


def _as_json(hosts: Sequence[Host]) -> list[dict[str, Any]]:
    return [dataclasses.asdict(h) for h in hosts]
