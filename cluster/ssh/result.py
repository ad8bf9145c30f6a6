"""Results of one command on many hosts: one for each host, always."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from cluster.errors import ClusterError
from cluster.hosts import Host
from cluster.hostset import fold
from cluster.ssh.capture import Spilled
from cluster.ssh.failure import Failure
from cluster.ssh.onhost.telling_line import telling_line
from cluster.terminal import counted


@dataclass(frozen=True, kw_only=True)
class Result:
    """Result of one host: the exit code and output, or the failure."""

    host: Host
    exit_code: int | None  # None if the command did not end by itself: `failure` says why
    stdout: bytes = b""
    stderr: bytes = b""
    seconds: float  # from the start of connecting to the end
    failure: Failure | None = None  # why the host could not be reached or the command was given up
    more: Mapping[str, Spilled] = field(default_factory=dict)  # streams of which only the beginning is here

    @property
    def ok(self) -> bool:
        """Return True if the command ran and ended with 0."""
        return self.exit_code == 0

    @property
    def error(self) -> str | None:
        """Return the failure in words. Return None if the command ended by itself."""
        return str(self.failure) if self.failure else None

    @property
    def whole_stdout(self) -> bytes:
        """Return all of stdout, from disk if it was too long for memory.

        Without a spill folder of the caller's, this works only until its `Executor` is closed.
        """
        return self.more["stdout"].path.read_bytes() if "stdout" in self.more else self.stdout

    @property
    def text(self) -> str:
        """Return stdout as text. Bytes that are not UTF-8 are replaced."""
        return self.stdout.decode(errors="replace")

    @property
    def problem(self) -> str:
        """Return in one line why the result is not ok. Return an empty string if it is."""
        if self.ok:
            return ""
        if self.exit_code is None:
            return self.error or "no answer"
        said = telling_line((self.stderr or self.stdout).decode(errors="replace"))
        return f"exited {self.exit_code}" + (f"   | {said}" if said else "")

    def record(self) -> dict[str, Any]:
        """Return the result as JSON accepts it."""
        files = {f"{name}_file": str(m.path) for name, m in self.more.items()}
        return {
            "host": self.host.address,
            "rank": self.host.rank,
            "exit_code": self.exit_code,
            "seconds": round(self.seconds, 4),
            "stdout": self.text,
            "stderr": self.stderr.decode(errors="replace"),
            "error": self.error,
            "reason": self.failure.reason.value if self.failure else None,
            **files,
        }


class FanOut(Mapping[Host, Result]):
    """Mapping of each host to its result, in rank order."""

    def __init__(self, command: str, results: Mapping[Host, Result]) -> None:
        self.command = command
        self._results = {h: results[h] for h in sorted(results)}

    def __getitem__(self, host: Host) -> Result:
        return self._results[host]

    def __iter__(self) -> Iterator[Host]:
        return iter(self._results)

    def __len__(self) -> int:
        return len(self._results)

    @property
    def failed(self) -> tuple[Host, ...]:
        """Return the hosts whose result is not ok."""
        return tuple(h for h, r in self.items() if not r.ok)

    def groups(self) -> list[tuple[tuple[Host, ...], Result]]:
        """Return the hosts grouped by equal results, the largest group first."""
        same: dict[tuple[Any, ...], list[Host]] = {}
        for host, r in self.items():
            whole = tuple((name, m.size, m.sha256) for name, m in sorted(r.more.items()))
            same.setdefault((r.exit_code, r.stdout, r.stderr, r.error, whole), []).append(host)
        return sorted(((tuple(hosts), self[hosts[0]]) for hosts in same.values()), key=lambda g: (-len(g[0]), g[0]))

    def check(self) -> "FanOut":
        """Return this object if every host succeeded. Raises FanOutError otherwise."""
        if self.failed:
            raise FanOutError(self)
        return self


class FanOutError(ClusterError):
    """Error: some hosts failed. `results` has the results of all hosts."""

    def __init__(self, results: FanOut) -> None:
        super().__init__(results)
        self.results = results

    def __str__(self) -> str:
        failed = self.results.failed
        lines = [
            f"{len(failed)} of {counted(len(self.results), 'host')} failed: {_short(self.results.command)}"
            f"  ({len(self.results) - len(failed)} ok)"
        ]
        same: dict[str, list[str]] = {}
        for host in failed:
            same.setdefault(self.results[host].problem, []).append(host.address)
        return "\n".join([*lines, *(f"  {fold(hosts)}  {problem}" for problem, hosts in same.items())])


def _short(command: str, width: int = 80) -> str:
    one_line = " ".join(command.split())
    return one_line if len(one_line) <= width else one_line[: width - 1] + "…"
