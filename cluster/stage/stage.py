"""`inv stage`: transfers data between S3 and all hosts. Each host transfers its own part."""

import os
import re
import secrets
import shlex
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from cluster.errors import ConfigError
from cluster.hosts import Host
from cluster.hostset import fold
from cluster.inventory import Cluster
from cluster.ssh.fanout import Executor
from cluster.ssh.limits import Limits
from cluster.ssh.onhost.frame import Frames
from cluster.ssh.program import program
from cluster.ssh.result import Result
from cluster.ssh.secret_variables import why_secret
from cluster.terminal import counted, print_json

SILENCE_S = 30.0
_SHOWN = 10  # most objects named per reason, and most reasons
_PROBE_S = 20.0
_S3 = "cluster.stage.onhost.s3"
# Writes a probe file in the folder, or in the nearest one above it that exists, so that no folder is made.
_PROBE = """d={folder}; while [ ! -d "$d" ]; do d=$(dirname "$d"); done; : >"$d"/{name} && printf %s%s {name} "$d" """


@dataclass(frozen=True, kw_only=True)
class StageRequest:
    """Arguments of a stage: bucket, prefix, folder and options."""

    bucket: str
    prefix: str
    folder: str  # on every host, absolute
    upload: bool = False
    untar: bool = False
    endpoint: str | None = None  # URL of an S3 service other than AWS
    environment: Mapping[str, str] = field(default_factory=dict)  # for boto3 on the hosts; goes over stdin
    plan: bool = False  # only report what would be moved
    silence_s: float = SILENCE_S  # a host gives up on S3 after so long without a byte or an answer


@dataclass(frozen=True)
class Staged:
    """Result of a stage on one host."""

    host: Host
    error: str | None
    said: Mapping[str, Any]

    def record(self) -> dict[str, Any]:
        """Return this result as a dict for JSON."""
        return {"host": self.host.address, "rank": self.host.rank, "error": self.error, **self.said}


def request_of(source: str, target: str, *, upload: bool = False, **options: Any) -> StageRequest:
    """Return the request for a source and a target. Raises ConfigError if they are no S3 URL and absolute path.

    The S3 URL is the source, or with `upload` the target.
    """
    url, folder = (target, source) if upload else (source, target)
    match = re.fullmatch(r"s3://([a-z0-9][a-z0-9.-]{1,61}[a-z0-9])(?:/(.*))?", url, re.DOTALL)
    if not match:
        raise ConfigError(
            f"{url!r} is not s3://BUCKET/PREFIX" + ("; with --upload the folder comes first, then S3" if upload else "")
        )
    if not folder.startswith("/"):
        raise ConfigError(f"{folder!r} is not an absolute path: hosts have no current folder in common")
    if upload and options.get("untar"):
        raise ConfigError("--untar is for what comes from S3")
    return StageRequest(bucket=match[1], prefix=match[2] or "", folder=folder, upload=upload, **options)


def environment_of(words: Sequence[str], here: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return the variables of --env: NAME=VALUE, or NAME for its value on this machine. Raises ConfigError.

    The values go to the hosts over stdin. A secret must not be on a command line on this machine either.
    """
    found = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
            raise ConfigError(f"--env {word!r} is neither NAME=VALUE nor NAME")
        if equals and (why := why_secret(name, value)):
            raise ConfigError(f"{name} {why} all users here can read: export it here, and give --env {name} alone")
        if not equals and name not in here:
            raise ConfigError(f"--env {name}: it has no value here; export it, or give NAME=VALUE")
        found[name] = value if equals else here[name]
    return found


def stage(
    reach: Executor,
    hosts: Sequence[Host],
    request: StageRequest,
    *,
    python: str,
    on_progress: Callable[[Mapping[Host, tuple[int, int]]], None] | None = None,
) -> list[Staged]:
    """Let every host move its part. Return a result for each host.

    A host moves everything to its own folder. If all hosts share the folder, each moves a share of the objects by name.
    """
    shared = is_shared(reach, hosts, request.folder)
    place = {h: n for n, h in enumerate(hosts)}
    at: dict[Host, tuple[int, int]] = {}
    frames: dict[Host, Frames] = {h: Frames() for h in hosts}
    ends: dict[Host, list[Any]] = {h: [] for h in hosts}  # records except progress, which would be too long to keep
    common = {**vars(request), "environment": dict(request.environment)}

    def own(host: Host) -> dict[str, Any]:
        prefix = request.prefix
        if request.upload and not shared and len(hosts) > 1:
            prefix = "/".join(p for p in (prefix.strip("/"), host.address) if p)  # each host's own results
        return {"prefix": prefix, "part": (place[host], len(hosts)) if shared else (0, 1)}

    def heard(host: Host, stream: str, data: bytes) -> None:
        for record in frames[host].feed(data) if stream == "stdout" else ():
            if "at" not in record:
                ends[host].append(record)
            elif on_progress:
                at[host] = (record["at"], record["of"])
                on_progress(at)

    sent = program(_S3, common, python=python, is_isolated=False)  # it imports boto3
    results = reach.run(hosts, lambda h: sent.command(own(h)), stdin=sent.stdin, on_output=heard)
    return of_one_list([how_it_went(h, ends[h], _no_answer(r)) for h, r in results.items()])


def of_one_list(staged: Sequence[Staged]) -> list[Staged]:
    """Return the results with errors for hosts of a shared folder that listed other objects than the longest list.

    Such a host may have left out some of its part.
    """
    seen = {s.host: tuple(s.said["seen"]) for s in staged if "seen" in s.said}
    most = max(seen.values(), default=())

    def held_against(s: Staged) -> Staged:
        if s.error or seen.get(s.host, most) == most:
            return s
        why = f"it saw {counted(seen[s.host][0], 'name')}, and another host {most[0]}, some of them others"
        return replace(
            s, error=f"{why}: what is its part may not all be moved; stage it again when nothing writes there"
        )

    return [held_against(s) for s in staged]


def is_shared(reach: Executor, hosts: Sequence[Host], folder: str) -> bool:
    """Return True if all hosts share the folder.

    One host writes a probe file in it, or in the nearest folder above it that exists. All others must see that file.
    """
    limits = Limits(total_s=_PROBE_S)
    name = f".dlami-probe-{secrets.token_hex(6)}"
    for first in hosts[:-1]:
        made = reach.run([first], _PROBE.format(folder=shlex.quote(folder), name=name), limits=limits)[first]
        if made.exit_code is None:
            continue  # it will fail later by itself; the next host serves as well
        # The shell's start-up files may have printed something before the name.
        probe = shlex.quote(f"{made.text.rpartition(name)[2]}/{name}")
        try:
            seen = reach.run([h for h in hosts if h != first], f"[ -e {probe} ]", limits=limits)
        finally:
            reach.run([first], f"rm -f {probe}", limits=limits)
        answers = [r.ok for r in seen.values() if r.exit_code is not None]
        return made.ok and bool(answers) and all(answers)
    return False


def lines(staged: Sequence[Staged], *, plan: bool = False) -> str:
    """Return a line per host with its rate. Hosts with the same failure, or the same plan, share a line."""
    same: dict[tuple[str, str], list[str]] = {}
    for s in staged:
        text = f"FAILED: {s.error}" if s.error else _would_move(s.said) if plan else _moved(s.said)
        own = "" if s.error or plan else s.host.address
        same.setdefault((text, own), []).append(s.host.address)
    return "\n".join(
        f"{fold(hosts)} ({len(hosts)})  {text}" if len(hosts) > 1 else f"{hosts[0]}  {text}"
        for (text, _), hosts in same.items()
    )


def _moved(said: Mapping[str, Any]) -> str:
    megabytes = said["bytes"] / 1e6
    return (
        f"{said['files']} moved, {megabytes:,.1f} MB, {megabytes / max(said['seconds'], 0.001):,.1f} MB/s; "
        f"{said['skipped']} were there"
    )


def _would_move(said: Mapping[str, Any]) -> str:
    return f"would move {said['files']}, {said['bytes'] / 1e6:,.1f} MB; {said['skipped']} are there"


def total_progress(began: float) -> Callable[[Mapping[Host, tuple[int, int]]], str]:
    """Return a function that formats the progress of all hosts together."""

    def text(at: Mapping[Host, tuple[int, int]]) -> str:
        done, total = (sum(v) for v in zip(*at.values(), strict=True))
        rate = done / max(time.monotonic() - began, 0.001)
        left = f", {(total - done) / rate:.0f} s left" if rate else ""
        whole = f"{done / max(1, total):4.0%} of {total / 1e6:,.0f} MB on {counted(len(at), 'host')}"
        return f"{whole}, {rate / 1e6:,.1f} MB/s{left}"

    return text


def staged(result: Result) -> Staged:
    """Return the result of a host from its output."""
    return how_it_went(result.host, Frames().feed(result.whole_stdout), _no_answer(result))


def _no_answer(result: Result) -> str:
    return result.problem or "its answer did not arrive whole"


def how_it_went(host: Host, records: Sequence[Mapping[str, Any]], otherwise: str) -> Staged:
    """Return the result of a host from its program's records.

    Args:
        otherwise: the error if the records have neither a result nor an error.
    """
    said = next((r["result"] for r in reversed(records) if "result" in r), None)
    error = next((r["error"] for r in reversed(records) if "error" in r), None)
    if said is None:
        return Staged(host, error or otherwise, {})
    if said["num_failed"]:
        return Staged(host, f"{said['num_failed']} of {said['objects']} not moved; {not_moved(said)}", said)
    return Staged(host, None, said)


def not_moved(said: Mapping[str, Any]) -> str:
    """Return a text with the objects that were not moved, grouped by reason. Long lists are cut and counted."""
    reasons: dict[str, list[str]] = {}
    for key, why in said["failed"].items():
        reasons.setdefault(why, []).append(key)
    parts = [
        f"{', '.join(keys[:_SHOWN])}{f' and {len(keys) - _SHOWN} more' if len(keys) > _SHOWN else ''}: {why}"
        for why, keys in [*reasons.items()][:_SHOWN]
    ]
    is_cut = len(reasons) > _SHOWN or any(len(keys) > _SHOWN for keys in reasons.values())
    return "; ".join(parts) + "; --json names them all" * is_cut


def run_stage(cluster: Cluster, chosen: Sequence[Host], request: StageRequest, *, as_json: bool) -> int:
    """Stage, print the results, and return the exit code."""
    from cluster.ssh.progress import StatusLine

    line, text = StatusLine(), total_progress(time.monotonic())
    show = (lambda at: line.show(text(at))) if line.is_shown else None
    with Executor(cluster) as reach:
        try:
            staged = stage(reach, chosen, request, python=cluster.python, on_progress=show)
        finally:
            line.clear()
    if as_json:
        for s in staged:
            print_json(s.record(), one_line=True)
    else:
        print(lines(staged, plan=request.plan))
    failed = [s for s in staged if s.error]
    if failed and not as_json:
        print(
            f"{len(failed)} of {counted(len(staged), 'host')} failed; run it again: what arrived is not moved twice",
            file=sys.stderr,
        )
    return 1 if failed else 0
