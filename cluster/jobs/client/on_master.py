"""Connection to the master, which runs the project's modules and answers with JSON."""

import shlex
from collections.abc import Sequence
from typing import Any

from cluster.errors import ClusterError, ConfigError, NothingToDo
from cluster.inventory import Cluster
from cluster.ssh.fanout import Executor
from cluster.ssh.limits import Limits
from cluster.ssh.noise_filter import complaint, marked, trouble
from cluster.ssh.program import NoAnswer, answer_of
from cluster.ssh.result import Result

ANSWER_S = 30.0  # limit for a verb that only reads
CHANGE_S = 200.0  # limit for a verb that waits for a lock, or for a training to save and leave
COPY_S = 3 * 3600.0  # limit for a verb that copies or removes checkpoints, as long as the file server takes


class MasterConnection:
    """Master of a cluster, as a place to run commands.

    user: run them as this user, which only root may set. "" is the SSH connection's user.
    """

    def __init__(self, reach: Executor, cluster: Cluster, user: str = "") -> None:
        self._reach, self._cluster, self._user = reach, cluster, user

    def call(self, *words: str, stdin: bytes = b"", total_s: float | None = ANSWER_S) -> Any:
        """Run one verb of `cluster.jobs` and return its answer. Raises ClusterError."""
        result = self.run(self.words(*words), stdin, Limits(total_s=total_s))
        if not result.ok:
            raise error_of(result)
        try:
            return answer_of(result)
        except NoAnswer as e:
            raise ClusterError(f"the master ({result.host}): {e}; look again with: inv jobs.list") from e

    def words(self, *words: str) -> str:
        """Return the command line of a verb."""
        return self.module("cluster.jobs", ["--shared", self._cluster.shared, *words])

    def module(self, module: str, arguments: Sequence[str]) -> str:
        """Return the command line of a module of the project."""
        words = shlex.join([self._cluster.python, "-m", module, *arguments])
        return f"cd {shlex.quote(self._cluster.project)} && exec {words}"

    def run(self, command: str, stdin: bytes, limits: Limits) -> Result:
        """Run a command. Text that the login shell prints before it is removed from its output."""
        words = marked(command)
        if self._user:
            words = shlex.join(["runuser", "-l", self._user, "-s", "/bin/bash", "-c", words])
        return self._reach.run([self._cluster.master], words, stdin=stdin, limits=limits)[self._cluster.master]


class ConnectionBroken(ClusterError):
    """Error: the connection to the master broke, so its command may or may not have run."""


def error_of(result: Result) -> ClusterError:
    """Return the master's error as an exception here, with its text and type."""
    why = complaint(result)
    if result.exit_code is None:
        return ConnectionBroken(f"the master ({result.host}) could not do it: {result.error or why or trouble(result)}")
    if result.exit_code == 3:
        return NothingToDo(why)
    if result.exit_code == 2:
        return ConfigError(why)
    if result.exit_code == 1 and why and "Traceback" not in why:
        return ClusterError(why)
    return ClusterError(f"the master ({result.host}) could not do it: {result.error or why or trouble(result)}")
