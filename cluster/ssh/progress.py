"""Progress of a fan-out while it runs: a status line, or the hosts' own lines as they arrive."""

import sys

from cluster.hosts import Host
from cluster.hostset import fold
from cluster.printable import printable
from cluster.ssh.fanout import FanoutProgress
from cluster.ssh.limits import OnOutput
from cluster.terminal import counted, pass_on, terminal_size, unfiltered

_LONGEST = 8  # hosts named in the line


class StatusLine:
    """Line on the terminal that is overwritten. Nothing is shown if stderr is no terminal."""

    def __init__(self) -> None:
        self.is_shown = sys.stderr.isatty()

    def update(self, progress: FanoutProgress) -> None:
        """Show the progress of a fan-out."""
        self.show(status(progress))

    def show(self, text: str) -> None:
        """Show this text in the line."""
        self._write(text[: terminal_size().columns - 1])

    def clear(self) -> None:
        """Clear the terminal's line."""
        self._write("")

    def _write(self, text: str) -> None:
        if self.is_shown:
            screen = unfiltered(sys.stderr)
            screen.write(f"\r\x1b[K{printable(text)}")
            screen.flush()


def status(progress: FanoutProgress) -> str:
    """Return the progress in one line: hosts done, failed, and the longest running with their seconds."""
    text = f"{progress.done} of {counted(progress.hosts, 'host')} done"
    if progress.failed:
        text += f", {progress.failed} failed"
    if progress.running:
        longest = [h.address for h, _ in progress.running[:_LONGEST]]
        rest = f" and {len(progress.running) - _LONGEST} more" if len(progress.running) > _LONGEST else ""
        text += f", {len(progress.running)} running, {progress.running[0][1]:.0f} s: {fold(sorted(longest))}{rest}"
    return text


class HostLines:
    """Printer of every host's complete lines as they arrive, each after its host."""

    def __init__(self, on_output: OnOutput = pass_on) -> None:
        self._on_output = on_output
        self._begun: dict[tuple[Host, str], list[bytes]] = {}  # the parts of a line that has not ended

    def took(self, host: Host, stream: str, data: bytes) -> None:
        """Print the lines that are complete now. The parts of a long line are joined once, at its end."""
        begun = self._begun.setdefault((host, stream), [])
        ended, newline, rest = data.rpartition(b"\n")
        if newline:
            self._print(host, stream, b"".join([*begun, ended]).split(b"\n"))
            begun.clear()
        if rest:
            begun.append(rest)

    def end(self) -> None:
        """Print output that has no newline at its end."""
        for (host, stream), parts in self._begun.items():
            self._print(host, stream, [b"".join(parts)] if parts else [])
        self._begun.clear()

    def _print(self, host: Host, stream: str, lines: list[bytes]) -> None:
        if lines:
            self._on_output(host, stream, b"".join(b"%s: %s\n" % (host.address.encode(), line) for line in lines))
