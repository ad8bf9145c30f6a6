"""`inv run`: runs one command on many hosts. Output is printed as it arrives, or folded at the end."""

import contextlib
import secrets
import shlex
import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from cluster import hostset, scratch
from cluster.errors import ClusterError, ConfigError
from cluster.hosts import Host
from cluster.hostset import fold
from cluster.inventory import Cluster
from cluster.last_run import last_command, last_failed, output_folder, remember
from cluster.run import folding
from cluster.run.guard import guarded
from cluster.ssh.fanout import Executor
from cluster.ssh.limits import Limits
from cluster.ssh.noise_filter import marked, output_between_marks
from cluster.ssh.progress import HostLines, StatusLine
from cluster.ssh.result import FanOut
from cluster.terminal import counted, painted, pass_on, pass_on_raw, print_json, print_output


@dataclass(frozen=True, kw_only=True)
class RunRequest:
    """Arguments of `inv run`: the command, the hosts, and how their output is shown."""

    command: str = ""
    script: Path | None = None  # run this file on the hosts; the command's words are its arguments
    stdin: str = ""  # a file that every host reads as its stdin, `-` for this task's own
    hosts: str | None = None  # a host set
    limits: Limits = Limits()
    fanout: int = 64
    sudo: bool = False
    environment: Mapping[str, str] = field(default_factory=dict)
    as_json: bool = False
    live: bool = False  # print lines as they arrive, instead of folded at the end
    diff: bool = False
    mask: bool = False  # ignore hosts' own names when outputs are compared
    outdir: Path | None = None  # folder for a file per host
    raw: bool = False  # write control characters to a terminal, too


def run_on_hosts(cluster: Cluster, request: RunRequest) -> int:
    """Run the command, print the output, and record the failed hosts. Return the exit code: 0 if every host succeeded.

    Raises ConfigError for unusable input, before any host is reached.
    """
    chosen = hostset.select(cluster.hosts, request.hosts, failed=last_failed(cluster))
    text = "" if request.script else _command(cluster, request)
    if request.script and request.stdin:
        raise ConfigError("--script and --stdin exclude each other: a script comes over stdin")
    if request.outdir:
        _make(request.outdir)
    spill = request.outdir or output_folder()
    with _input(request) as stdin, Executor(cluster, request.fanout, spill) as reach:
        if request.script and isinstance(stdin, Path):
            text = _script_command(request, stdin)
        results = _results(cluster, reach, chosen, text, stdin, request)
        try:  # print first, since recording may fail
            if not (request.as_json or request.live):
                shown = folding.masked(results, _names(reach, results)) if request.mask else results
                print_output(folding.folded(shown, diff=request.diff), raw=request.raw)
            if not request.as_json:
                _say_failures(results, every_one=request.live)
        finally:
            remember(cluster, "" if request.script else text, results.failed)
        if request.outdir:
            write_outputs(results, request.outdir)
    return 0 if not results.failed else 1


def _results(
    cluster: Cluster, reach: Executor, hosts: Sequence[Host], text: str, stdin: bytes | Path, request: RunRequest
) -> FanOut:
    """Run the command on the hosts. Return the results, after printing them as they arrive if that was requested."""
    line, lines, run_id = StatusLine(), HostLines(pass_on_raw if request.raw else pass_on), secrets.token_hex(8)
    try:
        with guarded(cluster, hosts, run_id, sudo=request.sudo):
            return reach.run(
                hosts,
                text,
                stdin=stdin,
                limits=request.limits,
                environment=dict(request.environment),
                sudo=request.sudo,
                run_id=run_id,
                on_result=(lambda result: print_json(result.record(), one_line=True)) if request.as_json else None,
                on_output=lines.took if request.live else None,
                on_progress=line.update if line.is_shown and not request.live else None,
            )
    finally:
        line.clear()
        lines.end()


def on_master(cluster: Cluster, module: str, arguments: Sequence[str]) -> int:
    """Run a module of the project on the master. Pass its output on as it arrives, and return its exit code."""
    from cluster.jobs.client.client import JobsClient

    with Executor(cluster) as reach:
        result = JobsClient(reach, cluster).on_master(module, arguments, on_output=pass_on)
    if result.exit_code is None:
        raise ClusterError(f"master {cluster.master}: {result.error}")
    return result.exit_code


def script_command(first_line: bytes, arguments: str) -> str:
    """Return the shell command that reads a script from stdin and runs it. Its file is gone before it runs."""
    words = first_line[2:].decode(errors="replace").split() if first_line.startswith(b"#!") else ["/bin/sh"]
    run_it = f"exec {shlex.join(words)} /dev/fd/3 {arguments} </dev/null"
    return (
        'trap \'rm -f "$f"\' EXIT; trap "exit 143" HUP INT TERM; '
        f'f=$(mktemp) && cat >"$f" && exec 3<"$f" && rm -f "$f" && {run_it}'
    )


def write_outputs(results: FanOut, folder: Path) -> None:
    """Write a file per host and stream: `<address>`, and `<address>.stderr` if there was any.

    Raises ClusterError after trying all, if one cannot be written.
    """
    lost = {}
    for host, result in results.items():
        for stream, name in (("stdout", host.address), ("stderr", f"{host.address}.stderr")):
            try:
                if stream in result.more:
                    shutil.move(result.more[stream].path, folder / name)
                elif stream == "stdout" or result.stderr:
                    (folder / name).write_bytes(getattr(result, stream))
            except OSError as e:
                lost[host] = e.strerror or str(e)
    if lost:
        why = next(iter(lost.values()))
        raise ClusterError(f"--outdir {folder}: the output of {fold(h.address for h in lost)} is not there: {why}")


def _script_command(request: RunRequest, script: Path) -> str:
    try:
        with script.open("rb") as file:
            first_line = file.readline()
    except OSError as e:
        raise ConfigError(f"--script {request.script}: {e.strerror}") from e
    if not first_line:
        raise ConfigError(f"--script {request.script}: it is empty")
    return script_command(first_line, request.command)


def _command(cluster: Cluster, request: RunRequest) -> str:
    command = request.command or (last_command(cluster) if request.hosts == "@failed" else "")
    if not command.strip():
        raise ConfigError("no command: give it after two dashes, for example inv run -- 'df /'")
    return command


@contextlib.contextmanager
def _input(request: RunRequest) -> Iterator[bytes | Path]:
    """Yield the input that every host reads from its beginning.

    Input that can be read only once goes to a file first.
    """
    given = str(request.script) if request.script else request.stdin
    if not given:
        yield b""
    elif given != "-" and Path(given).is_file():
        yield Path(given)
    else:
        flag = "--script" if request.script else "--stdin"
        with tempfile.NamedTemporaryFile(prefix="stdin-", dir=scratch.folder()) as file:
            try:
                with contextlib.nullcontext(sys.stdin.buffer) if given == "-" else Path(given).open("rb") as source:
                    shutil.copyfileobj(source, file)
            except OSError as e:
                raise ConfigError(f"{flag} {given}: {e.strerror}; - is this task's own stdin") from e
            file.flush()
            yield Path(file.name)


def _names(reach: Executor, results: FanOut) -> dict[Host, list[str]]:
    """Return the names that the answering hosts have for themselves, long and short."""
    answered = [h for h, r in results.items() if r.exit_code is not None]
    answers = reach.run(answered, marked("uname -n"), limits=Limits(total_s=10))
    names = {h: name for h, r in answers.items() if (name := (output_between_marks(r) or "").strip())}
    return {h: [name, name.partition(".")[0]] for h, name in names.items()}


def _make(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as e:
        raise ConfigError(f"--outdir {folder}: {e.strerror}") from e


def _say_failures(results: FanOut, *, every_one: bool) -> None:
    if results.failed:
        for host in results.failed if every_one else ():
            print(f"{host}: {results[host].problem}", file=sys.stderr)
        count = f"{len(results.failed)} of {counted(len(results), 'host')} failed"
        print(painted(f"{count}; those again: inv run --failed", "red", sys.stderr), file=sys.stderr)
