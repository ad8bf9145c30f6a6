"""`inv stage` and `inv data.status`: data between S3 and all hosts, each for itself, and what each host has."""

import json
import re
import secrets
import shlex
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from cluster.errors import ConfigError
from cluster.hosts import Host
from cluster.hostset import fold
from cluster.inventory import Cluster
from cluster.ssh.fanout import Reach
from cluster.ssh.limits import Limits
from cluster.ssh.onhost.frame import Frames
from cluster.ssh.program import ask, program
from cluster.ssh.result import FanOut, Result

_S3 = "cluster.staging.onhost.s3"
_LOOK = "cluster.staging.onhost.look"


@dataclass(frozen=True, kw_only=True)
class Asked:
    """What is staged where."""

    bucket: str
    prefix: str
    folder: str  # on every host, absolute
    upload: bool = False
    untar: bool = False
    endpoint: str | None = None  # S3 elsewhere than at AWS


@dataclass(frozen=True)
class Staged:
    """How it went on one host."""

    host: Host
    error: str | None
    said: Mapping[str, Any]

    def record(self) -> dict[str, Any]:
        """As JSON takes it."""
        return {"host": self.host.address, "rank": self.host.rank, "error": self.error, **self.said}


def asked_for(source: str, target: str, *, upload: bool, untar: bool, endpoint: str | None) -> Asked:
    """S3 first to stage, last to upload. Raises ConfigError for anything else."""
    url, folder = (target, source) if upload else (source, target)
    match = re.fullmatch(r"s3://([a-z0-9][a-z0-9.-]{1,61}[a-z0-9])(?:/(.*))?", url)
    if not match:
        raise ConfigError(
            f"{url!r} is not s3://BUCKET/PREFIX" + ("; with --upload the folder comes first, then S3" if upload else "")
        )
    if not folder.startswith("/"):
        raise ConfigError(f"{folder!r} is not an absolute path: hosts have no current folder in common")
    if upload and untar:
        raise ConfigError("--untar is for what comes from S3")
    return Asked(bucket=match[1], prefix=match[2] or "", folder=folder, upload=upload, untar=untar, endpoint=endpoint)


def stage(
    reach: Reach,
    cluster: Cluster,
    hosts: Sequence[Host],
    asked: Asked,
    on_progress: Callable[[Mapping[Host, tuple[int, int]]], None] | None = None,
) -> list[Staged]:
    """Every host moves its part: all of it to a folder of its own, an equal share to a folder that all of them see."""
    shared = is_shared(reach, hosts, asked.folder)
    place = {h: n for n, h in enumerate(hosts)}
    at: dict[Host, tuple[int, int]] = {}
    frames: dict[Host, Frames] = {}

    def own(host: Host) -> list[Any]:
        part = (place[host], len(hosts)) if shared else (0, 1)
        prefix = asked.prefix
        if asked.upload and not shared and len(hosts) > 1:
            prefix = "/".join(p for p in (prefix.strip("/"), host.address) if p)  # each host's own results
        return [{**vars(asked), "prefix": prefix, "part": part}]

    def heard(host: Host, stream: str, data: bytes) -> None:
        if stream != "stdout" or on_progress is None:
            return
        for record in frames.setdefault(host, Frames()).feed(data):
            if "at" in record:
                at[host] = (record["at"], record["of"])
                on_progress(at)

    sent = program(_S3, python=cluster.python, is_isolated=False)  # it imports boto3
    results = reach.run(hosts, lambda h: sent.command(*own(h)), stdin=sent.stdin, on_output=heard)
    return [_staged(r) for r in results.values()]


def is_shared(reach: Reach, hosts: Sequence[Host], folder: str) -> bool:
    """Whether the folder is one and the same on all hosts: what the first writes, the last one sees."""
    if len(hosts) < 2:
        return False
    probe = shlex.quote(f"{folder}/.dlami-probe-{secrets.token_hex(6)}")
    made = reach.run(hosts[:1], f"mkdir -p {shlex.quote(folder)} && : >{probe}")
    try:
        seen = reach.run(hosts[1:], f"[ -e {probe} ]", limits=Limits(total_s=20))
    finally:
        reach.run(hosts[:1], f"rm -f {probe}")
    return not made.failed and not seen.failed


def lines(staged: Sequence[Staged]) -> str:
    """A line per host, with its rate."""
    return "\n".join(f"{s.host.address}  " + (f"FAILED: {s.error}" if s.error else _moved(s.said)) for s in staged)


def _moved(said: Mapping[str, Any]) -> str:
    megabytes = said["bytes"] / 1e6
    return (
        f"{said['files']} moved, {megabytes:,.1f} MB, {megabytes / max(said['seconds'], 0.001):,.1f} MB/s; "
        f"{said['skipped']} were there"
    )


def total_progress(began: float) -> Callable[[Mapping[Host, tuple[int, int]]], str]:
    """A function that says how far all hosts together are."""

    def text(at: Mapping[Host, tuple[int, int]]) -> str:
        done, total = (sum(v) for v in zip(*at.values(), strict=True))
        rate = done / max(time.monotonic() - began, 0.001)
        left = f", {(total - done) / rate:.0f} s left" if rate else ""
        return f"{done / max(1, total):4.0%} of {total / 1e6:,.0f} MB on {len(at)} hosts, {rate / 1e6:,.1f} MB/s{left}"

    return text


def status(
    reach: Reach, cluster: Cluster, hosts: Sequence[Host], folder: str
) -> tuple[FanOut, dict[Host, dict[str, Any]]]:
    """What every host has in a folder, as `look` says it."""
    return ask(reach, hosts, program(_LOOK, folder, python=cluster.python), limits=Limits(total_s=600))


def status_lines(results: FanOut, found: Mapping[Host, Mapping[str, Any]]) -> tuple[str, bool]:
    """Hosts with equal data together, and whether all have the same and all of it."""
    same: dict[str, list[str]] = {}
    usual = Counter(v["sample"] for v in found.values()).most_common(1)
    for host, result in results.items():
        same.setdefault(_status_text(found.get(host), result, usual[0][0] if usual else ""), []).append(host.address)
    fine = len(same) == 1 and all(v["there"] and not v["unfinished"] for v in found.values()) and bool(found)
    return "\n".join(f"{fold(hosts)} ({len(hosts)})  {text}" for text, hosts in same.items()), fine


def _status_text(has: Mapping[str, Any] | None, result: Result, usual: str) -> str:
    if has is None:
        return f"unknown: {result.problem}"
    if not has["there"]:
        return "nothing there"
    odd = "" if has["sample"] == usual else "   <- not what most hosts have"
    unfinished = f", {has['unfinished']} unfinished" if has["unfinished"] else ""
    counts = f"{has['files']} files, {has['shards']} shards, {has['bytes']:,} bytes"
    return f"{counts}, sample {has['sample']}{unfinished}{odd}"


def _staged(result: Result) -> Staged:
    records = Frames().feed(result.stdout)
    said = next((r["result"] for r in reversed(records) if "result" in r), None)
    error = next((r["error"] for r in reversed(records) if "error" in r), None)
    if said is None:
        return Staged(result.host, error or result.problem, {})
    if said["num_failed"]:
        key, why = next(iter(said["failed"].items()))
        return Staged(result.host, f"{said['num_failed']} of {said['objects']} not moved; {key}: {why}", said)
    return Staged(result.host, None, said)


def run(cluster: Cluster, chosen: Sequence[Host], asked: Asked, *, as_json: bool) -> int:
    """Stage, say how it went; the exit code."""
    from cluster.run.progress import StatusLine

    line, text = StatusLine(), total_progress(time.monotonic())
    with Reach(cluster) as reach:
        try:
            staged = stage(
                reach, cluster, chosen, asked, on_progress=(lambda at: line.show(text(at))) if line.is_shown else None
            )
        finally:
            line.clear()
    if as_json:
        for s in staged:
            print(json.dumps(s.record()))
    else:
        print(lines(staged))
    failed = [s for s in staged if s.error]
    if failed and not as_json:
        print(
            f"{len(failed)} of {len(staged)} hosts failed; run it again: what arrived is not moved twice",
            file=sys.stderr,
        )
    return 1 if failed else 0
