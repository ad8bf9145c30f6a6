"""Network level: pairs of hosts are measured in rounds to find a bad host or link, then all-reduce over all ranks."""

import re
import secrets
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from cluster.clusterfile.instance_types import hardware_of
from cluster.health import baseline, questions, routes
from cluster.health.pairing import DROP_SHARE, Pair, baseline_problems, mbit, pair_problems, rounds, summary
from cluster.health.questions import Answers, Question, put_questions, texts, value
from cluster.health.quick_check import look_at_hosts
from cluster.health.ranks.run_ranks import RanksRun, run_ranks
from cluster.health.report import HealthReport
from cluster.health.verdict import Problem, Severity
from cluster.hosts import Host
from cluster.inventory import Cluster
from cluster.kill.busy import not_measured, refuse_busy
from cluster.ssh.fanout import Executor
from cluster.ssh.limits import Limits
from cluster.ssh.options import options_on_hosts
from cluster.ssh.program import ask, program
from cluster.terminal import counted

STREAMS = 8  # one TCP flow of ENA carries 5 to 10 Gbit/s
SSH_AT_ONCE = 4  # sessions from each host, so about as many to each: sshd by default drops some above 10
WAY_S = 1.0  # duration of each direction of a pair
SIZES = "4096,65536,1048576,8388608"
GPU_SIZES = f"{SIZES},67108864,268435456"

_PAIRS = "cluster.health.onhost.pairs"
_NCCL = "ls /usr/local/cuda*/efa/test-cuda*/all_reduce_perf /opt/nccl-tests/build/all_reduce_perf 2>/dev/null | tail -1"
_NCCL_ROW = re.compile(r"^\s*(\d+)\s+\d+\s+\w+\s+\w+\s+-?\d+\s+[\d.]+\s+[\d.]+\s+([\d.]+)\s", re.MULTILINE)


def measure_network(reach: Executor, cluster: Cluster, hosts: Sequence[Host]) -> HealthReport:
    """Measure pairs, then all-reduce, on hosts that are free. Raises ConfigError if a job is on them.

    Hosts that do not answer are left out of the pairs and reported. All-reduce runs only if all hosts are fit.
    """
    began = time.monotonic()
    unknown = refuse_busy(reach, cluster, hosts, "the net rung needs its hosts free")
    report = look_at_hosts(reach, cluster, hosts, keep=False)
    silent_now = {h for h in hosts if any(p.check == "answers" for p in report.problems[h])}
    answering = [h for h in hosts if h not in unknown and h not in silent_now]
    hardware = _hardware(reach, answering)
    ways = _ssh_everywhere(reach, answering, report)
    pairs = measure_pairs(reach, answering)
    problems = {h: list(p) for h, p in report.problems.items()}
    for host, more in (*pair_problems(pairs).items(), *ways.items()):
        problems[host] += more
    lines = [*not_measured(unknown), *([summary(pairs, _line_gbit(hardware))] if pairs else [])]
    fit = [h for h in answering if not any(p.unfit for p in problems[h])]
    if len(fit) == len(hosts):
        more_lines, worse = _reduce(reach, cluster, hosts, hardware, pairs)
        lines += more_lines
        for host in hosts:
            problems[host] += worse
    else:
        lines.append("all-reduce: not measured while hosts are unfit or may be busy")
    return replace(
        report,
        rung="net",
        problems={h: tuple(p) for h, p in problems.items()},
        measured=tuple(lines),
        seconds=time.monotonic() - began,
    )


def _ssh_everywhere(reach: Executor, hosts: Sequence[Host], report: HealthReport) -> dict[Host, list[Problem]]:
    """Test SSH from every host to every other. Skip hosts whose SSH or links the quick level has reported."""
    limit_s = 30.0 + 2 * len(hosts)

    def chains(host: Host) -> list[list[Question]]:
        others = [h.address for h in questions.after_it(hosts, host)]
        return [
            [
                Question(
                    name="all-ssh",
                    limit_s=limit_s + 1,
                    reading="ssh",
                    arguments=(others, options_on_hosts(), limit_s, SSH_AT_ONCE),
                )
            ]
        ]

    answers, _ = put_questions(reach, hosts, chains, limits=Limits(total_s=limit_s + 30))
    named = [h for h in hosts if any(p.check in ("ssh", "links") for p in report.problems[h])]
    return routes.node_problems(texts(answers, "all-ssh"), hosts, named)


def measure_pairs(reach: Executor, hosts: Sequence[Host], way_s: float = WAY_S, streams: int = STREAMS) -> list[Pair]:
    """Measure every pair of every round. The pairs of a round run at the same time."""
    pairs: list[Pair] = []
    for number, plan in enumerate(rounds(hosts)):
        port, word = 21000 + secrets.randbelow(8000) + number, secrets.token_hex(8)
        side = {a: ("connect", b) for a, b in plan} | {b: ("listen", a) for a, b in plan}

        def own(
            host: Host, side: Mapping[Host, tuple[str, Host]] = side, port: int = port, word: str = word
        ) -> list[Any]:
            role, peer = side[host]
            return [role, peer.address, port, word, way_s, streams]

        results, said = ask(reach, list(side), program(_PAIRS), own, limits=Limits(connect_s=5, total_s=40))
        pairs += [_pair(a, b, said.get(a), results[a].problem or results[b].problem) for a, b in plan]
    return pairs


def _pair(a: Host, b: Host, said: Mapping[str, Any] | None, problem: str) -> Pair:
    if said is None:
        return Pair(a=a, b=b, error=f"no measurement ({problem})"[:100])
    return Pair(a=a, b=b, to_b=said["to_peer"], to_a=said["from_peer"], latency_s=said["latency_s"])


def _hardware(reach: Executor, hosts: Sequence[Host]) -> dict[Host, Answers]:
    chains = [
        [Question(name="instance", limit_s=6, reading="instance")],
        [
            Question(name="speeds", limit_s=3, reading="files", arguments=(["/sys/class/net/*/speed"],)),
            Question(name="nccl-tests", limit_s=3, command=_NCCL),
        ],
    ]
    return put_questions(reach, hosts, lambda _: chains, limits=Limits(connect_s=5, total_s=12))[0]


def _line_gbit(hardware: Mapping[Host, Answers]) -> float | None:
    """Return the lowest line rate of any host, from its instance type or its card, None if unknown."""
    rates = []
    for answers in hardware.values():
        if known := hardware_of(value(answers.get("instance"), {}).get("instance-type")):
            rates.append(known.card_gbit)
            continue
        speeds = [
            int(t) for p, t in value(answers.get("speeds"), {}).items() if "/lo/" not in p and t.strip().isdigit()
        ]
        rates.append(max(speeds, default=0) / 1000)
    return min(rates, default=0.0) or None


def _reduce(
    reach: Executor, cluster: Cluster, hosts: Sequence[Host], hardware: Mapping[Host, Answers], pairs: Sequence[Pair]
) -> tuple[list[str], list[Problem]]:
    """Measure all-reduce by size and compare it with the baseline. Return lines to print and problems of all hosts."""
    first = hardware.get(next((h for h in hosts if h.slots > 0), cluster.master), {})
    nccl = first["nccl-tests"].out.strip() if "nccl-tests" in first and first["nccl-tests"].status == "ok" else ""
    has_gpus = hardware_of(value(first.get("instance"), {}).get("instance-type")) is not None
    words = (
        [nccl, "-b", "4096", "-e", "256M", "-f", "8", "-g", "1"]
        if nccl and has_gpus
        else [cluster.python, "-m", "cluster.health.ranks.reduce", "--sizes", GPU_SIZES if has_gpus else SIZES]
    )
    ran = run_ranks(reach, cluster, hosts, words, limit_s=180)
    if ran.cause is not None:
        return [], [_failed(ran)]
    rates = reduce_rates(ran)
    ways = [w for p in pairs for w in (p.to_a, p.to_b) if w]
    if ways:
        rates["pairs"] = sorted(ways)[len(ways) // 2]
    ranks = ran.launch.np if ran.launch else 0
    kind = baseline.kind_of(value(first.get("instance"), {}), ran.facts, len(hosts), ranks)
    earlier = baseline.read(reach, cluster, kind)
    before = baseline.middle(earlier)
    worse = baseline_problems("all-reduce of", rates, before)
    lines = [reduce_line(rates, before, ranks)]
    if not worse:
        stored = baseline.add(reach, cluster, kind, earlier, rates)
        lines.append(
            f"baseline of {kind.instance}, {len(earlier)} earlier runs"
            if earlier
            else "no earlier run of this kind: this one is the baseline"
            if stored
            else f"the baseline could not be written to {cluster.shared}/health"
        )
    return lines, [_fell(w) for w in worse[:1]]


def reduce_line(rates: Mapping[str, float], before: Mapping[str, float], ranks: int) -> str:
    """Return the line with the rates by size and their share of the baseline.

    With only one rank nothing is sent, and the baseline has only zeros, which are not compared.
    """
    each = (
        f"{name} {mbit(rate)}" + (f" ({rate / before[name]:.0%})" if before.get(name) else "")
        for name, rate in rates.items()
        if name != "pairs"
    )
    return f"all-reduce, bus bandwidth: {', '.join(each)} ({counted(ranks, 'rank')})"


def reduce_rates(ran: RanksRun) -> dict[str, float]:
    """Return the bus bandwidth in bytes per second by size, from our own rows or from nccl-tests' table."""
    if ran.rows:
        return {_size(int(r["bytes"])): float(r["bus_bytes_per_s"]) for r in ran.rows}
    untagged = re.sub(r"^\[\d+,\d+\]<std(?:out|err)>:", "", ran.text, flags=re.MULTILINE)
    return {_size(int(size)): float(rate) * 1e9 for size, rate in _NCCL_ROW.findall(untagged)}


def _size(number: int) -> str:
    return f"{number >> 20} MiB" if number >= 1 << 20 else f"{number >> 10} KiB"


def _failed(ran: RanksRun) -> Problem:
    assert ran.cause is not None
    return Problem(
        check="all-reduce",
        what=f"it failed: {ran.cause.text}"[:150],
        means="a training would fail so as well",
        verdict=Severity.RESTART_JOB,
        do="mend what it names, then look again",
        command="inv health --net",
    )


def _fell(what: str) -> Problem:
    return Problem(
        check="all-reduce",
        what=what,
        means=f"under {DROP_SHARE:.0%} of what this very kind of cluster does",
        verdict=Severity.WATCH,
        do="look for what changed; the pairs above name a slow host",
        unfit=False,
        command="inv health --since 1d",
    )
