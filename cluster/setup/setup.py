"""Set-up of every node: the project's environment where it is missing, then the operator's script."""

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from cluster.hosts import Host
from cluster.inventory import Cluster
from cluster.setup.script import Script
from cluster.ssh.fanout import Executor
from cluster.ssh.limits import Limits
from cluster.ssh.noise_filter import complaint, marked, output_between_marks, trouble
from cluster.ssh.program import ask, program
from cluster.ssh.progress import StatusLine

INSTALL_S = 3600.0  # for an environment: a gigabyte of packages, and a build of Horovod
_LOOK_S = 60.0
_MORE_S = 60.0  # additional time for the runner of the script
_SCRIPT = "cluster.setup.onhost.script"
_LOOK = """\
cd {project} 2>/dev/null && [ -x scripts/install.sh ] || {{ echo no project; exit 0; }}
.venv/bin/python -c 'import sys, importlib.util as u; sys.exit(not all(map(u.find_spec, ("tensorflow", "horovod"))))' \
2>/dev/null && echo there || echo missing"""


@dataclass(frozen=True, kw_only=True)
class SetupStepResult:
    """Result of one set-up step on one host."""

    what: str  # "environment" or the script's name
    state: str  # there, before, would run, done, failed
    why: str = ""  # why it failed
    tail: tuple[str, ...] = ()  # last lines of its output, if it failed
    seconds: float = 0.0

    @property
    def is_failed(self) -> bool:
        """Return True if the step failed."""
        return self.state == "failed"

    def record(self, host: Host) -> dict[str, Any]:
        """Return the result as JSON data."""
        return {"host": host.address, "rank": host.rank, **vars(self)}


def environment_of(*, name: str, role: str, shared: str, project: str, user: str) -> dict[str, str]:
    """Return the variables of a set-up script, the same at first boot and later."""
    return {
        "DLAMI_CLUSTER": name,
        "DLAMI_ROLE": role,
        "DLAMI_SHARED": shared,
        "DLAMI_PROJECT": project,
        "DLAMI_USER": user,
        "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
        "HOME": "/root",
        "DEBIAN_FRONTEND": "noninteractive",
    }


def run_script(
    reach: Executor,
    cluster: Cluster,
    hosts: Sequence[Host],
    script: Script,
    *,
    limit_s: float,
    force: bool,
    dry_run: bool,
) -> dict[Host, SetupStepResult]:
    """Run the script on every host where it has not yet succeeded, and return the results."""
    if dry_run and not force:
        sent = program(_SCRIPT, "plan", script.digest)
    elif dry_run:
        return {h: SetupStepResult(what=script.name, state="would run") for h in hosts}
    else:
        sent = program(_SCRIPT, "run", script.name, script.text, script.digest, limit_s, force)

    def own(host: Host) -> list[Any]:
        if dry_run:
            return []
        role = "master" if host.rank == 0 else "worker"
        user = cluster.access.user or "root"
        told = environment_of(name=cluster.name, role=role, shared=cluster.shared, project=cluster.project, user=user)
        return [told]

    line = StatusLine()
    try:
        results, answers = ask(
            reach,
            hosts,
            sent,
            own,
            limits=Limits(total_s=limit_s + _MORE_S),
            sudo=True,
            on_progress=line.update if line.is_shown else None,
        )
    finally:
        line.clear()
    failed = {
        h: SetupStepResult(what=script.name, state="failed", why=r.problem)
        for h, r in results.items()
        if h not in answers
    }
    return {h: _done(script.name, answers[h]) if h in answers else failed[h] for h in hosts}


def _done(what: str, said: Mapping[str, Any]) -> SetupStepResult:
    return SetupStepResult(
        what=what,
        state=str(said["state"]),
        why=str(said.get("why", "")),
        tail=tuple(map(str, said.get("tail", ()))),
        seconds=float(said.get("seconds", 0.0)),
    )


def install_environment(
    reach: Executor, cluster: Cluster, hosts: Sequence[Host], *, dry_run: bool
) -> dict[Host, SetupStepResult]:
    """Install the project's environment on every host that has the project without it, and return the results."""
    what = "environment"
    look = marked(_LOOK.format(project=shlex.quote(cluster.project)))
    found: dict[Host, SetupStepResult] = {}
    for host, result in reach.run(hosts, look, limits=Limits(total_s=_LOOK_S)).items():
        state = (output_between_marks(result) or "").strip()
        if why := trouble(result):
            found[host] = SetupStepResult(what=what, state="failed", why=why)
        elif state == "no project":
            found[host] = SetupStepResult(
                what=what, state="failed", why=f"{cluster.project} is not there: inv sync brings it"
            )
        else:
            found[host] = SetupStepResult(what=what, state="there" if state == "there" else "would run")
    missing = [h for h, done in found.items() if done.state == "would run"]
    if dry_run or not missing:
        return found
    line = StatusLine()
    command = marked(f"exec {shlex.quote(cluster.project)}/scripts/install.sh 2>&1")
    try:
        results = reach.run(
            missing,
            command,
            limits=Limits(total_s=INSTALL_S),
            on_progress=line.update if line.is_shown else None,
        )
    finally:
        line.clear()
    for host, result in results.items():
        lines = (output_between_marks(result) or complaint(result)).strip().splitlines()
        found[host] = SetupStepResult(
            what=what,
            state="failed" if trouble(result) else "done",
            why=trouble(result),
            tail=tuple(lines[-8:]) if trouble(result) else (),
            seconds=result.seconds,
        )
    return found


def lines(done: Mapping[Host, SetupStepResult]) -> list[str]:
    """Format the results: hosts with the same result together, failed ones last with their output."""
    from cluster.hostset import fold

    shown = {"there": "is there", "before": "was done before", "would run": "would run", "done": "done"}
    out = []
    for state, text in shown.items():
        if hosts := [h.address for h, d in done.items() if d.state == state]:
            what = next(d.what for d in done.values())
            out.append(f"{fold(hosts)}  {what}: {text}")
    for host, one in done.items():
        if one.is_failed:
            out += [f"{host}  {one.what}: FAILED, {one.why}", *(f"    | {line}" for line in one.tail)]
    return out
