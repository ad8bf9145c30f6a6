"""`inv run`: one command on many hosts, shown as it comes and folded at the end."""

import contextlib
import json
import shlex
import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from cluster import hostset
from cluster.errors import ClusterError, ConfigError
from cluster.hosts import Host
from cluster.inventory import Cluster
from cluster.run import folding
from cluster.run.last_run import cache_folder, last_command, last_failed, remember
from cluster.run.progress import Lines, StatusLine
from cluster.ssh.fanout import Reach
from cluster.ssh.limits import Limits
from cluster.ssh.result import FanOut, Result


@dataclass(frozen=True, kw_only=True)
class Asked:
    """What `inv run` is asked for."""

    command: str = ""
    script: Path | None = None  # run this file on the hosts; the command's words are its arguments
    stdin: str = ""  # a file that every host reads as its stdin, `-` for our own
    hosts: str | None = None  # a host set
    limits: Limits = Limits()
    fanout: int = 64
    sudo: bool = False
    environment: Mapping[str, str] = field(default_factory=dict)
    as_json: bool = False
    live: bool = False  # lines as they come, instead of folded at the end
    diff: bool = False
    mask: bool = False  # hosts' own names do not make their outputs differ
    outdir: Path | None = None  # a file per host there


def run(cluster: Cluster, asked: Asked) -> int:
    """Run it, print the answers, remember where it failed. The exit code: 0 if every host succeeded.

    Raises ConfigError, before any host is reached, for input that cannot be used.
    """
    chosen = hostset.select(cluster.hosts, asked.hosts, failed=last_failed(cluster))
    text = _command(cluster, asked)
    if asked.outdir:
        _make(asked.outdir)
    line, lines = StatusLine(), Lines()
    with _input(asked) as stdin, Reach(cluster, asked.fanout, asked.outdir or cache_folder() / "output") as reach:
        try:
            results = reach.run(
                chosen,
                text,
                stdin=stdin,
                limits=asked.limits,
                environment=dict(asked.environment),
                sudo=asked.sudo,
                on_result=_print_record if asked.as_json else None,
                on_output=lines.took if asked.live else None,
                on_progress=line.update if line.is_shown and not asked.live else None,
            )
        finally:
            line.clear()
            lines.end()
        remember(cluster, "" if asked.script else text, results.failed)
        if asked.outdir:
            write_outputs(results, asked.outdir)
        if not (asked.as_json or asked.live):
            shown = folding.masked(results, _names(reach, results)) if asked.mask else results
            print(folding.folded(shown, diff=asked.diff))
    if not asked.as_json:
        _say_failures(results, every_one=asked.live)
    return 0 if not results.failed else 1


def on_master(cluster: Cluster, module: str, arguments: Sequence[str]) -> int:
    """Run one of the project's modules on the master, its output passed on as it comes; its exit code."""
    from cluster.jobs.client import Jobs

    def pass_on(_host: Host, stream: str, data: bytes) -> None:
        target = sys.stdout if stream == "stdout" else sys.stderr
        target.buffer.write(data)
        target.buffer.flush()

    with Reach(cluster) as reach:
        result = Jobs(reach, cluster).on_master(module, arguments, on_output=pass_on)
    if result.exit_code is None:
        raise ClusterError(f"master {cluster.master}: {result.error}")
    return result.exit_code


def script_command(first_line: bytes, arguments: str) -> str:
    """The shell command that takes a script on stdin and runs it: its file is gone before its first line runs."""
    words = first_line[2:].decode(errors="replace").split() if first_line.startswith(b"#!") else ["/bin/sh"]
    run_it = f"exec {shlex.join(words)} /dev/fd/3 {arguments} </dev/null"
    return (
        'trap \'rm -f "$f"\' EXIT; trap "exit 143" HUP INT TERM; '
        f'f=$(mktemp) && cat >"$f" && exec 3<"$f" && rm -f "$f" && {run_it}'
    )


def write_outputs(results: FanOut, folder: Path) -> None:
    """A file per host and stream: `<address>` and, where there was any, `<address>.stderr`."""
    for host, result in results.items():
        for stream, name in (("stdout", host.address), ("stderr", f"{host.address}.stderr")):
            if stream in result.more:
                shutil.move(result.more[stream].path, folder / name)
            elif stream == "stdout" or result.stderr:
                (folder / name).write_bytes(getattr(result, stream))


def _command(cluster: Cluster, asked: Asked) -> str:
    if asked.script:
        if asked.stdin:
            raise ConfigError("--script and --stdin exclude each other: a script comes over stdin")
        try:
            with asked.script.open("rb") as script:
                return script_command(script.readline(), asked.command)
        except OSError as e:
            raise ConfigError(f"--script {asked.script}: {e.strerror}") from e
    command = asked.command or (last_command(cluster) if asked.hosts == "@failed" else "")
    if not command.strip():
        raise ConfigError("no command: give it after two dashes, for example inv run -- 'df /'")
    return command


@contextlib.contextmanager
def _input(asked: Asked) -> Iterator[bytes | Path]:
    if asked.script:
        yield asked.script
    elif asked.stdin == "-":
        with tempfile.NamedTemporaryFile(prefix="dlami-stdin-") as file:
            shutil.copyfileobj(sys.stdin.buffer, file)
            file.flush()
            yield Path(file.name)
    elif asked.stdin:
        if not Path(asked.stdin).is_file():
            raise ConfigError(f"--stdin {asked.stdin}: there is no such file; - is this task's own stdin")
        yield Path(asked.stdin)
    else:
        yield b""


def _names(reach: Reach, results: FanOut) -> dict[Host, list[str]]:
    """The names that hosts which answered have for themselves, long and short."""
    answered = [h for h, r in results.items() if r.exit_code is not None]
    answers = reach.run(answered, "uname -n", limits=Limits(total_s=10))
    names = {h: r.text.strip() for h, r in answers.items() if r.ok}
    return {h: [name, name.partition(".")[0]] for h, name in names.items()}


def _make(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as e:
        raise ConfigError(f"--outdir {folder}: {e.strerror}") from e


def _print_record(result: Result) -> None:
    print(json.dumps(result.record()), flush=True)


def _say_failures(results: FanOut, *, every_one: bool) -> None:
    if results.failed:
        for host in results.failed if every_one else ():
            print(f"{host}: {results[host].problem}", file=sys.stderr)
        print(f"{len(results.failed)} of {len(results)} hosts failed; those again: inv run --failed", file=sys.stderr)
