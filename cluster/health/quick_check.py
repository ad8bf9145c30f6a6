"""Quick level: puts all questions to all hosts at once, and judges each answer alone and compared with the others."""

import contextlib
import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from cluster.clusterfile.instance_types import hardware_of
from cluster.health import checks, compare, fabric, gpu, history, pcie, questions, routes
from cluster.health.check import TROUBLE, About, Answer, finding_of, finding_on
from cluster.health.failed_before import failed_before, memory_of
from cluster.health.questions import Answers, put_questions, texts, value
from cluster.health.report import HealthReport
from cluster.health.verdict import Problem, unknown
from cluster.hosts import Host
from cluster.inventory import Cluster
from cluster.ssh.fanout import Executor
from cluster.ssh.limits import Limits

LIMITS = Limits(connect_s=5, total_s=60)
_GPU_FAMILIES = "gp"  # first letters of EC2's families of types with NVIDIA GPUs


def look_at_hosts(reach: Executor, cluster: Cluster, hosts: Sequence[Host], *, keep: bool = True) -> HealthReport:
    """Check these hosts and return the report. This is safe while a training runs. A silent host is a problem, too.

    The master is always asked, because it checks the others' SSH and clocks and has the records of jobs.

    Args:
        keep: write the check to the history.
    """
    began = time.monotonic()
    asked = tuple(dict.fromkeys((cluster.master, *hosts)))
    answers, silent = put_questions(reach, asked, lambda host: questions.quick_questions(cluster, host), limits=LIMITS)
    past = history.read(answers.get(cluster.master, {}).get("history"))
    abouts = {h: about_host(cluster, h, a, answers.get(cluster.master, {}), past) for h, a in answers.items()}
    findings = {
        h: {c.name: finding_on(c, a, abouts[h]) for c in checks.quick_checks(cluster.shared)}
        for h, a in answers.items()
    }
    problems: dict[Host, list[Problem]] = {
        h: [p for f in found.values() for p in f.problems] for h, found in findings.items()
    }
    for host, answer in answers.items():
        problems[host] += checks.driver_missing(answer, abouts[host])
    for name, more in compare_hosts(cluster, answers, silent).items():
        for host in answers:
            findings[host][name] = finding_of(more.get(host, []))
            problems[host] += more.get(host, [])
    problems |= {h: [p] for h, p in silent.items()}
    memory = memory_of(answers.get(cluster.master, {}))
    for host, before in failed_before(memory, hosts).items():
        problems[host] += before
    report = HealthReport(
        rung="quick",
        problems={h: tuple(problems[h]) for h in hosts},
        findings={h: findings.get(h, {}) for h in hosts},
        seconds=time.monotonic() - began,
        before=past,
        notes=(*_notes(cluster, answers, hosts), *memory.damaged),
    )
    if not keep:
        return report
    if not _may_write(answers.get(cluster.master, {}), problems.get(cluster.master, []), cluster.shared):
        return replace(report, notes=(*report.notes, "this look is not in the history, which is on the shared folder"))
    why_not = history.write(reach, cluster, "quick", report.problems, {h: boot_of(a) for h, a in answers.items()})
    return replace(report, notes=(*report.notes, f"this look is not in the history: {why_not}")) if why_not else report


def about_host(
    cluster: Cluster, host: Host, mine: Answers, masters: Answers, past: Sequence[history.QuickCheckRecord]
) -> About:
    """Return the facts about a host that judges need besides an answer."""
    bus, name = value(mine.get("devices"), {}), value(mine.get("instance"), {}).get("instance-type")
    boot_id, _ = boot_of(mine)
    seen = next(
        (
            look.until_s(host.address, boot_id)
            for look in reversed(past)
            if look.until_s(host.address, boot_id) is not None
        ),
        None,
    )
    jobs = value(masters.get("jobs"), None)
    about = About(
        host=host,
        shared=cluster.shared,
        instance=hardware_of(name),
        gpus_on_bus=bus.get("gpus", 0),
        efas_on_bus=bus.get("efas"),
        has_no_gpus=bus.get("gpus") == 0 and bool(name) and name[0] not in _GPU_FAMILIES,
        jobs=None if jobs is None else frozenset(j["id"] for j in jobs if not j["over"]),
        over=frozenset(j["id"] for j in jobs or () if j["over"]),
        kernel_log=mine["kernel-log"].out if "kernel-log" in mine else "",
        mounts=value(mine.get("basics"), {}).get("/proc/self/mounts", ""),
        seen_until_s=seen,
    )
    return replace(about, needs_no_reset=_needs_no_reset(mine, about))


def _needs_no_reset(mine: Answers, about: About) -> bool:
    try:
        return mine["smi"].status == "ok" and gpu.needs_no_reset(mine["smi"].out, about)
    except TROUBLE:  # no complete answer, which its own checks report
        return False


def compare_hosts(
    cluster: Cluster, answers: Mapping[Host, Answers], silent: Mapping[Host, Problem]
) -> dict[str, compare.Found]:
    """Return the problems that only a comparison of hosts shows: check -> host -> problems."""
    found = {
        name: _all(judge, name_of, answers)
        for name, name_of, judge in (*_by_their_answers(cluster, answers), *_by_their_files(cluster, answers))
    }
    named = {h for name in ("ssh", "links") for h, more in found[name].items() if any(p.check == name for p in more)}
    found["next-ssh"] = _all(lambda: routes.node_problems(texts(answers, "next-ssh"), answers, named), "ssh", answers)
    for name, question in QUESTION_OF.items():
        found[name] = {**found[name], **_unsaid(name, question, answers)}
    return {name: {h: p for h, p in more.items() if h not in silent} for name, more in found.items()}


# Comparisons that a host could escape by not answering, and the question of each.
QUESTION_OF = {
    "versions": "versions",
    "open-mpi": "mpirun",
    "kernel": "basics",
    "frames": "addresses",
    "trust": "trust",
    "links": "links",
    "next-ssh": "next-ssh",
}
Comparison = tuple[str, str, Callable[[], compare.Found]]  # name, check to blame if an answer is unreadable, judge


def _by_their_answers(cluster: Cluster, answers: Mapping[Host, Answers]) -> list[Comparison]:
    """Return the comparisons of software, frame sizes, known hosts, SSH from the master and TCP between all."""
    master, hosts = cluster.master, {h.address: h for h in cluster.hosts}

    def mpi() -> dict[Host, str | None]:
        said = {h: a["mpirun"] for h, a in answers.items() if a["mpirun"].status in ("ok", "missing")}
        return {h: (a.out.splitlines() or [""])[0] or None for h, a in said.items()}

    install = "inv run --hosts {ranks} --sudo -- apt-get install openmpi-bin"
    return [
        (
            "versions",
            "versions",
            lambda: compare.version_problems(_with_project(answers), master, cluster.project),
        ),
        (
            "open-mpi",
            "versions",
            lambda: compare.odd_ones("mpirun", mpi(), master, do="install the others' Open MPI", command=install),
        ),
        ("frames", "frames", lambda: compare.mtu_problems(texts(answers, "addresses"), master)),
        ("trust", "ssh", lambda: compare.trust_problems(texts(answers, "trust"), _reached(answers))),
        ("ssh", "ssh", lambda: _ssh(answers[master]["ssh"], hosts, master) if master in answers else {}),
        ("links", "links", lambda: routes.link_problems(texts(answers, "links"))),
        ("efa-cards", "efa", lambda: fabric.card_problems(texts(answers, "efa"), _types(answers))),
        ("gpu-lanes", "gpu-pcie", lambda: pcie.lane_problems(_lanes(answers))),
    ]


def _by_their_files(cluster: Cluster, answers: Mapping[Host, Answers]) -> list[Comparison]:
    """Return the comparisons of files in /proc and /sys: kernel, mounts, load."""
    files: dict[Host, dict[str, str]] = {h: json.loads(t) for h, t in texts(answers, "basics").items()}
    with_place = {h: f for h, f in files.items() if _has_place(answers[h], cluster.shared)}

    def of(path: str, wanted: Mapping[Host, dict[str, str]]) -> dict[Host, str]:
        return {h: f[path] for h, f in wanted.items()}

    def loads() -> dict[Host, tuple[str, int]]:
        return {h: (f["/proc/loadavg"], _cores(f["/sys/devices/system/cpu/online"])) for h, f in files.items()}

    kernel, mounts = "/proc/sys/kernel/osrelease", "/proc/self/mounts"
    return [
        ("kernel", "kernel", lambda: compare.kernel_problems(of(kernel, files), cluster.master)),
        (
            "shared",
            "mounts",
            lambda: compare.shared_problems(of(mounts, with_place), cluster.shared, cluster.master),
        ),
        ("load", "load", lambda: compare.load_problems(loads())),
    ]


def _with_project(answers: Mapping[Host, Answers]) -> dict[Host, str]:
    """Return the versions on hosts that have this project and its environment.

    For the other hosts the check `project` reports a problem.
    """
    said = {h: json.loads(text) for h, text in texts(answers, "project").items()}
    return {h: text for h, text in texts(answers, "versions").items() if h not in said or said[h]["python"]}


def _unsaid(name: str, question: str, answers: Mapping[Host, Answers]) -> compare.Found:
    """Return a problem for each host that got the question and gave no usable answer."""
    return {
        h: [unknown(name, f"{name}: no answer ({a[question].status})")]
        for h, a in answers.items()
        if question in a and a[question].status not in ("ok", "missing")
    }


def _cores(online: str) -> int:
    """Return the number of processors in a list like `0-3,8`."""
    spans = [span.partition("-") for span in online.strip().split(",")]
    return sum(int(last or first) - int(first) + 1 for first, _, last in spans)


def boot_of(mine: Answers) -> tuple[str, float]:
    """Return the id of the host's current boot, and the seconds since then."""
    files = value(mine.get("basics"), {})
    return (files.get("/proc/sys/kernel/random/boot_id", "").strip(), float(files.get("/proc/uptime", "0").split()[0]))


def _lanes(answers: Mapping[Host, Answers]) -> dict[Host, dict[str, int]]:
    """Return each host's lanes by kind of GPU and instance. Other checks report a report that cannot be read."""
    found = {}
    for host, log in texts(answers, "smi").items():
        name = value(answers[host].get("instance"), {}).get("instance-type", "")
        with contextlib.suppress(*TROUBLE):
            found[host] = {f"{kind} in {name}" if name else kind: n for kind, n in pcie.most_lanes(log).items()}
    return found


def _types(answers: Mapping[Host, Answers]) -> dict[Host, str]:
    """Return the EC2 types of the hosts that reported one."""
    told = {h: value(a.get("instance"), {}).get("instance-type", "") for h, a in answers.items()}
    return {h: name for h, name in told.items() if name}


def _reached(answers: Mapping[Host, Answers]) -> dict[Host, set[str]]:
    """Return the addresses that each host's own SSH has reached in this check."""
    said = {h: {**value(a.get("ssh"), {}), **value(a.get("next-ssh"), {})} for h, a in answers.items()}
    return {h: {a for a, way in ways.items() if way["state"] == "whole"} for h, ways in said.items()}


def _has_place(mine: Answers, path: str) -> bool:
    """Return True if the folder could be tested. If it hangs, another check reports that."""
    return f"place:{path}" in mine and mine[f"place:{path}"].status == "ok"


def _may_write(masters: Answers, problems: Sequence[Problem], shared: str) -> bool:
    """Return True if the shared folder is there and mounted. It must never be created on the master's own disk."""
    is_there = value(masters.get(f"place:{shared}"), {}).get("exists", False)
    return is_there and not any(p.check == "mounts" and shared in p.what for p in problems)


def _ssh(answer: Answer, hosts: Mapping[str, Host], master: Host) -> compare.Found:
    if answer.status != "ok":
        return {master: [unknown("ssh", f"ssh from the master to the workers: {answer.err or answer.status}")]}
    return compare.ssh_problems(answer.out, hosts, master)


def _all(judge: Callable[[], compare.Found], check: str, answers: Mapping[Host, Answers]) -> compare.Found:
    """Return the result of a comparison. It is unknown on every host if the judge cannot read an answer."""
    try:
        return judge()
    except TROUBLE as e:
        return {
            h: [unknown(check, f"{check}: the answers cannot be compared ({type(e).__name__}: {e})"[:160])]
            for h in answers
        }


def _notes(cluster: Cluster, answers: Mapping[Host, Answers], hosts: Sequence[Host]) -> tuple[str, ...]:
    if cluster.master not in answers:
        return (f"the master {cluster.master} does not answer: SSH, clocks and jobs were not looked at",)
    return ()
