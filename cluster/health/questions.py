"""Questions put to hosts, and their answers read: the one way from a rung to the hosts."""

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from cluster.errors import ConfigError
from cluster.health.check import Answer, Ask, read_answers
from cluster.health.verdict import Problem, Verdict
from cluster.hosts import Host
from cluster.hostset import fold
from cluster.inventory import Cluster
from cluster.ssh.fanout import Reach
from cluster.ssh.limits import Limits
from cluster.ssh.program import ask, program
from cluster.ssh.result import Result

Answers = dict[str, Answer]
_PROBE = "cluster.health.onhost.probe"


def put(
    reach: Reach, hosts: Sequence[Host], chains: Callable[[Host], Sequence[Sequence[Ask]]], *, limits: Limits
) -> tuple[dict[Host, Answers], dict[Host, Problem]]:
    """Every host's answers by the question's name; and for hosts that gave none, why."""
    results, said = ask(reach, hosts, program(_PROBE), lambda host: [records(chains(host))], limits=limits)
    silent = {h: _silence(r) for h, r in results.items() if h not in said}
    answers = {h: {**dict.fromkeys(_names(chains(h)), _LOST), **read_answers(raw)} for h, raw in said.items()}
    return answers, silent


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
    asked = [[Ask(name="jobs", limit_s=5, sense="jobs", arguments=(cluster.shared,))]]
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
    return Problem(
        check="answers",
        what=f"it does not answer: {result.problem}"[:140],
        means="no training can start there",
        verdict=Verdict.UNKNOWN,
        do="try again; a host that stays silent is ended and replaced",
        command="inv run --hosts {ranks} -- true",
    )
