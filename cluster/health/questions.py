"""Questions put to hosts, and their answers read: the one way from a rung to the hosts."""

import json
import os
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from cluster.errors import ConfigError
from cluster.health.check import Answer, Ask, read_answers
from cluster.health.verdict import Problem, Verdict
from cluster.hosts import Host
from cluster.hostset import fold
from cluster.inventory import Cluster
from cluster.jobs.state import OVER
from cluster.ssh.failure import Reason
from cluster.ssh.fanout import Reach
from cluster.ssh.limits import Limits
from cluster.ssh.program import ask, program
from cluster.ssh.result import Result

Answers = dict[str, Answer]
PATIENCE = 4  # times the limit to connect for hosts that were silent, where those that answered were slow
BUSY_HERE = 3.0  # load per core of this machine, above which it may be the one that is late
_PROBE = "cluster.health.onhost.probe"


def put(
    reach: Reach, hosts: Sequence[Host], chains: Callable[[Host], Sequence[Sequence[Ask]]], *, limits: Limits
) -> tuple[dict[Host, Answers], dict[Host, Problem]]:
    """Every host's answers by the question's name; and for hosts that gave none, why."""
    probe = program(_PROBE)

    def put_to(some: Sequence[Host], limits: Limits) -> tuple[dict[Host, Result], dict[Host, Any]]:
        results, said = ask(reach, some, probe, lambda host: [records(chains(host))], limits=limits)
        return dict(results), said

    results, said = put_to(hosts, limits)
    late = [h for h in hosts if results[h].exit_code is None and h not in said]
    here = os.getloadavg()[0] / (os.cpu_count() or 1)
    if late and may_be_busy([results[h].seconds for h in said], here, limits.connect_s):
        more_results, more_said = put_to(late, replace(limits, connect_s=PATIENCE * limits.connect_s))
        results, said = results | more_results, said | more_said
    silent = {h: _silence(r) for h, r in results.items() if h not in said}
    answers = {h: {**dict.fromkeys(_names(chains(h)), _LOST), **read_answers(raw)} for h, raw in said.items()}
    return answers, silent


def may_be_busy(answered_s: Sequence[float], load_here: float, connect_s: float) -> bool:
    """Whether a host that was silent may only be busy: those that answered took long as well, or this machine is late.

    load_here: of this machine, per core.
    """
    return load_here > BUSY_HERE or (bool(answered_s) and statistics.median(answered_s) > connect_s)


def records(chains: Sequence[Sequence[Ask]]) -> list[list[dict[str, Any]]]:
    """The questions as the probe takes them."""
    return [[question.record() for question in chain] for chain in chains]


_LOST = Answer(status="damaged", err="it is not among the host's answers")


def _names(chains: Sequence[Sequence[Ask]]) -> list[str]:
    return [part.name for chain in chains for ask in chain for part in ask.parts or (ask,)]


def value(answer: Answer | None, default: Any) -> Any:
    """An answer's JSON, or the default where there is none."""
    try:
        return json.loads(answer.out) if answer is not None and answer.status == "ok" else default
    except ValueError:
        return default


def texts(answers: Mapping[Host, Answers], name: str) -> dict[Host, str]:
    """What hosts said to a question, of those that said anything."""
    return {h: a[name].out for h, a in answers.items() if name in a and a[name].status == "ok"}


def refuse_busy(reach: Reach, cluster: Cluster, hosts: Sequence[Host], rung: str) -> None:
    """Raises ConfigError if a job is on any of these hosts: the rung would measure it, and slow it down."""
    asked = [[Ask(name="jobs", limit_s=5, sense="jobs", arguments=(cluster.shared, sorted(OVER)))]]
    answers, silent = put(reach, [cluster.master], lambda _: asked, limits=Limits(connect_s=5, total_s=10))
    if not silent and (said := answers[cluster.master]["jobs"]).status != "ok":
        raise ConfigError(
            f"the master {cluster.master} does not say which jobs run ({said.err or said.status}): the {rung} rung "
            f"could disturb one; see 'inv jobs.list'"
        )
    wanted = {h.address for h in hosts}
    for job in value(answers.get(cluster.master, {}).get("jobs"), []):
        if taken := [a for a in job["hosts"] if a in wanted]:
            raise ConfigError(
                f"{job['id']} runs on {fold(taken)}: the {rung} rung needs its hosts free; wait, "
                f"'inv jobs.stop {job['id']}', or take others with --hosts"
            )


def _silence(result: Result) -> Problem:
    if result.failure is None or result.failure.reason is Reason.NO_ANSWER:
        return Problem(
            check="answers",
            what=f"SSH works, but our program gave no answer: {result.problem}"[:140],
            means="a training may not start there either",
            verdict=Verdict.UNKNOWN,
            do="see what its shell and its Python say",
            command="inv run --hosts {ranks} -- python3 --version",
        )
    return Problem(
        check="answers",
        what=f"it does not answer: {result.problem}"[:140],
        means="no training can start there",
        verdict=Verdict.UNKNOWN,
        do="try again; a host that stays silent is ended and replaced",
        command="inv run --hosts {ranks} -- true",
    )
