"""Deep level: each host's speed compared with the others', and a run of MPI and Horovod over all of them."""

import json
import shlex
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from cluster.health.check import About, Check, finding_on
from cluster.health.known_faults import ACTION
from cluster.health.questions import SCRATCH, Answers, Question, put_questions, value
from cluster.health.quick_check import look_at_hosts
from cluster.health.ranks.run_ranks import run_ranks
from cluster.health.report import HealthReport
from cluster.health.verdict import Problem, Severity, Unreadable
from cluster.hosts import Host
from cluster.inventory import Cluster
from cluster.kill.busy import not_measured, refuse_busy
from cluster.ssh.fanout import Executor
from cluster.ssh.limits import Limits
from cluster.terminal import counted

SLOW_SHARE = 0.7  # of the median of all hosts; ours
MEMORY_BYTES, DISK_BYTES = 256 << 20, 128 << 20
DCGM_S, GPU_S = 900.0, 240.0  # AWS's suite saw level 2 take 2.5 to 10.5 minutes; ours stops at 15


def measure_hosts(reach: Executor, cluster: Cluster, hosts: Sequence[Host]) -> HealthReport:
    """Measure the hosts: the quick level, then memory, disk, GPUs and DCGM, then Horovod over all ranks.

    The Horovod run needs all hosts to be fit. Raises ConfigError if a job is on these hosts.
    """
    began = time.monotonic()
    unknown = refuse_busy(reach, cluster, hosts, "the deep rung needs its hosts free")
    report = look_at_hosts(reach, cluster, hosts, keep=False)
    silent_now = {h for h in hosts if any(p.check == "answers" for p in report.problems[h])}
    answering = [h for h in hosts if h not in unknown and h not in silent_now]
    answers, silent = put_questions(
        reach, answering, lambda _: deep_questions(cluster), limits=Limits(total_s=DCGM_S + GPU_S + 60)
    )
    problems = {h: list(p) for h, p in report.problems.items()}
    rates = {h: rates_of(a) for h, a in answers.items()}
    for host, found in (*slow_ones(rates).items(), *((h, [p]) for h, p in silent.items())):
        problems[host] += found
    for host, mine in answers.items():
        known = About(host=host, shared=cluster.shared)
        problems[host] += [p for check in CHECKS for p in finding_on(check, mine, known).problems]
    lines = not_measured(unknown)
    lines += [_line(name, rates) for name in sorted({n for r in rates.values() for n in r})]
    fit = [h for h in answering if not any(p.unfit for p in problems[h])]
    if len(fit) == len(hosts):
        lines += _smoke(reach, cluster, hosts, problems)
    else:
        lines.append("MPI and Horovod: not tried while hosts are unfit or may be busy")
    return replace(
        report,
        rung="deep",
        problems={h: tuple(p) for h, p in problems.items()},
        measured=tuple(lines),
        seconds=time.monotonic() - began,
    )


def deep_questions(cluster: Cluster) -> list[list[Question]]:
    """Return the deep level's questions to a host, in one chain, because they would slow each other down."""
    gpus = (
        f"[ -e /dev/nvidia0 ] || exit 127; cd {shlex.quote(cluster.project)} && exec {shlex.quote(cluster.python)} "
        "-m cluster.health.ranks.gpu_speed"
    )
    return [
        [
            Question(name="memory", limit_s=30, reading="memory", arguments=(MEMORY_BYTES, 3)),
            Question(name="disk", limit_s=60, reading="disk", arguments=([SCRATCH, "/var/tmp"], DISK_BYTES)),
            Question(name="gpu-speed", limit_s=GPU_S, command=gpus),
            Question(
                name="dcgm", limit_s=DCGM_S, command="[ -e /dev/nvidia0 ] || exit 127; dcgmi diag -r 2 -j", tool="dcgmi"
            ),
        ]
    ]


def rates_of(answers: Answers) -> dict[str, float]:
    """Return the host's measured rates by name. Failed measurements are left out."""
    rates = {f"disk {way}": rate for way, rate in value(answers.get("disk"), {}).items()}
    memory = value(answers.get("memory"), None)
    if memory is not None:
        rates["memory"] = memory
    gpu = answers.get("gpu-speed")
    for line in (gpu.out if gpu is not None else "").splitlines():
        if line.startswith("{"):
            row = json.loads(line)
            rates[f"GPU {row['gpu']} from host"] = row["host_to_device"]
            rates[f"GPU {row['gpu']} product"] = row["flops"]
    return rates


def slow_ones(rates: Mapping[Host, Mapping[str, float]]) -> dict[Host, list[Problem]]:
    """Return the hosts far below the median in any measurement. Needs three values to compare.

    GPUs are compared with all GPUs of all hosts.
    """
    pools: dict[str, list[float]] = {}
    for mine in rates.values():
        for name, rate in mine.items():
            pools.setdefault(_pool(name), []).append(rate)
    found: dict[Host, list[Problem]] = {}
    for host, mine in rates.items():
        for name, rate in mine.items():
            usual = statistics.median(pools[_pool(name)])
            if len(pools[_pool(name)]) >= 3 and rate < SLOW_SHARE * usual:
                do, command = ACTION[Severity.WATCH]
                found.setdefault(host, []).append(
                    Problem(
                        check="speed",
                        what=f"{name}: {rate / usual:.0%} of the median ({_rate(name, rate)})",
                        unfit=False,
                        means="all ranks wait for the slowest",
                        verdict=Severity.WATCH,
                        do=do,
                        command=command.replace("inv health", "inv health --deep"),
                    )
                )
    return found


def dcgm_problems(text: str, about: About) -> list[Problem]:
    """Read `dcgmi diag -r 2 -j`: each failed test and its reason. DCGM 3 and 4 name the outer object differently."""
    said = json.loads(text[text.index("{") :])
    body = next((v for k, v in said.items() if k.startswith("DCGM") and isinstance(v, dict)), None)
    if body is None or "test_categories" not in body:
        raise Unreadable("no test_categories")
    problems = []
    for category in body["test_categories"]:
        for test in category["tests"]:
            bad = [r for r in test["results"] if r["status"].lower() == "fail"]
            if bad:
                do, command = ACTION[Severity.REPLACE]
                where = ",".join(str(r.get("gpu_id", r.get("entity_id", "?"))) for r in bad)
                problems.append(
                    Problem(
                        check="dcgm",
                        what=f"DCGM's {test['name']} failed on GPU {where}: {_warning(bad)}"[:150],
                        means="NVIDIA's own diagnosis finds it defective",
                        verdict=Severity.REPLACE,
                        do=do,
                        command=command,
                    )
                )
    return problems


def _warning(results: Sequence[Mapping[str, Any]]) -> str:
    """Return the first warning of the results: a text in DCGM 3, a list of objects in DCGM 4."""
    for given in (r.get("warnings") for r in results):
        if given:
            first = given if isinstance(given, str) else given[0]
            return str(first["warning"] if isinstance(first, dict) else first)
    return "no reason given"


def gpu_speed_problems(text: str, about: About) -> list[Problem]:
    """Check that `cluster.health.ranks.gpu_speed` printed rates. `slow_ones` compares them."""
    rows = [json.loads(line) for line in text.splitlines() if line.startswith("{")]
    if not rows or not all(r["host_to_device"] > 0 and r["flops"] > 0 for r in rows):
        raise Unreadable("no rates in it")
    return []


CHECKS = (
    Check(
        name="dcgm",
        about="DCGM diagnostics, level 2",
        question="dcgm",
        judge=dcgm_problems,
        reads_failure=True,
        missing="DCGM (package datacenter-gpu-manager-4-core) is on the Deep Learning AMI",
    ),
    Check(
        name="gpu-speed",
        about="bandwidth from the host's memory and a matrix product, per GPU",
        question="gpu-speed",
        judge=gpu_speed_problems,
    ),
)


def _smoke(reach: Executor, cluster: Cluster, hosts: Sequence[Host], problems: dict[Host, list[Problem]]) -> list[str]:
    """Run a short Horovod job over all ranks. A failure is reported on the host that it names, or on all hosts."""
    began = time.monotonic()
    ran = run_ranks(
        reach,
        cluster,
        hosts,
        [cluster.python, "-m", "cluster.health.ranks.reduce", "--sizes", "1048576", "--runs", "2"],
        limit_s=180,
    )
    if ran.cause is None and ran.rows:
        return [
            f"MPI and Horovod: {counted(ran.rows[0]['ranks'], 'rank')} reduce rightly "
            f"({time.monotonic() - began:.0f} s)"
        ]
    why = ran.cause.text if ran.cause else "no rank said anything"
    named = [h for h in hosts if ran.cause and h.address == ran.cause.host] or list(hosts)
    for host in named:
        problems[host].append(
            Problem(
                check="horovod",
                what=f"a Horovod run over all ranks failed: {why}"[:150],
                means="so would a training",
                verdict=Severity.RESTART_JOB,
                do="mend what it names",
                command="inv health --deep",
            )
        )
    return []


def _pool(name: str) -> str:
    return name.partition(" ")[0] + name.rpartition(" ")[2] if name.startswith("GPU") else name


def _line(name: str, rates: Mapping[Host, Mapping[str, float]]) -> str:
    mine = [r[name] for r in rates.values() if name in r]
    return (
        f"{name}: {_rate(name, statistics.median(mine))} (median of {counted(len(mine), 'host')}; "
        f"{_rate(name, min(mine))} to {_rate(name, max(mine))})"
    )


def _rate(name: str, rate: float) -> str:
    return f"{rate / 1e12:.2f} TFLOP/s" if name.endswith("product") else f"{rate / 1e9:.2f} GB/s"
