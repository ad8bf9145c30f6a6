"""Judges of processes on a host that belong to no running job."""

import json
import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from cluster.health.check import About, PartlyRead
from cluster.health.verdict import Problem, Severity, Unreadable
from cluster.ssh.onhost.telling_line import telling_line

_ROW = re.compile(r"\s*\d+\s*,[^,]+$")
YOUNG_S = 5.0  # age below which a process will mostly end soon by itself; ours


@dataclass(frozen=True, kw_only=True)
class _Owner:
    """Owner of a process, in words, and the action to take."""

    whose: str
    do: str
    command: str
    may_end: bool  # True if nobody needs it any more


def stray_problems(text: str, about: About) -> list[Problem]:
    """Report processes outside running jobs that take processor time or hang in the kernel."""
    found = json.loads(text)
    if not isinstance(found, list):
        raise Unreadable("no list of processes")
    problems = []
    for p in found:
        if p["age_s"] < YOUNG_S or _is_of_a_running_job(p, about):
            continue
        name = p["command"][:50] or "?"
        if set(p["states"]) == {"D"}:
            problems.append(
                Problem(
                    check="strays",
                    what=f"process {p['pid']} hangs in the kernel: {name}",
                    unfit=False,
                    means="it waits for a disk, a mount or a driver that does not answer",
                    verdict=Severity.WATCH,
                    do="see what it waits for",
                    command=f"inv run --hosts {{ranks}} --sudo -- cat /proc/{p['pid']}/stack",
                )
            )
        elif p["user"] is not None:
            owner = _owner(p["pid"], p, about)
            problems.append(
                Problem(
                    check="strays",
                    what=f"process {p['pid']} {owner.whose} keeps a core busy: {name}",
                    means="ranks wait for the core it takes",
                    verdict=Severity.WATCH,
                    unfit=False,
                    do=owner.do,
                    command=owner.command,
                )
            )
    return problems


def gpu_stray_problems(text: str, about: About) -> list[Problem]:
    """Read `nvidia-smi --query-compute-apps=pid,used_memory`: processes outside running jobs that hold GPU memory."""
    said: dict[str, Any] = json.loads(text)
    problems = []
    lines = said["apps"].splitlines()
    rows = [line for line in lines if _ROW.match(line)]
    for line in rows:
        pid, memory = (word.strip() for word in line.split(","))
        if not int(pid):
            continue
        who = said["owners"][pid]
        if _is_of_a_running_job(who, about):
            continue
        owner = _owner(int(pid), who, about)
        problems.append(
            Problem(
                check="strays",
                what=f"process {pid} {owner.whose} holds {memory} of a GPU: {who['command'][:40] or '?'}",
                means="a training may find too little memory there",
                verdict=Severity.RESTART_JOB if owner.may_end else Severity.WATCH,
                unfit=owner.may_end,
                do=owner.do,
                command=owner.command,
            )
        )
    if said.get("code") or len(rows) != len([line for line in lines if line.strip()]):
        why = telling_line("\n".join(line for line in lines if line not in rows)) or f"exit code {said.get('code')}"
        raise PartlyRead(f"nvidia-smi: {why}", problems)
    return problems


def _is_of_a_running_job(who: Mapping[str, Any], about: About) -> bool:
    """Return True if the process belongs to a running job of this cluster.

    If the master did not report its jobs, any job counts that has not ended.
    """
    if about.jobs is None:
        return bool(who["job"]) and who["record"] != "over"
    return who["job"] in about.jobs


def _owner(pid: int, who: Mapping[str, Any], about: About) -> _Owner:
    """Return the owner of a process outside this cluster's running jobs.

    A job counts as ended only if its own record or the master's records show it.
    """
    show = f"inv run --hosts {{ranks}} -- ps -o user,pid,etime,args -p {pid}"
    if who["user"] is None:
        return _Owner(
            whose="(not seen from here)", do="look again", command="inv health --hosts {ranks}", may_end=False
        )
    if who["is_other"]:
        user = shlex.quote(who["user"])
        return _Owner(
            whose=f"of the user {who['user']}",
            do="ask that user: it may be a training",
            command=f"inv run --hosts {{ranks}} -- ps -u {user} -o user,pid,etime,args",
            may_end=False,
        )
    has_ended = who["record"] == "over" or who["job"] in about.over
    if who["job"] and not has_ended:
        how = "runs by its own record" if who["record"] == "going" else "has no record here that says it has ended"
        return _Owner(whose=f"of {who['job']}, which {how},", do="see what it is", command=show, may_end=False)
    whose = f"of {who['job']}, which has ended," if who["job"] else "of an 'inv run'" if who["run"] else "of no job"
    return _Owner(whose=whose, do="end it", command=f"inv run --hosts {{ranks}} --sudo -- kill {pid}", may_end=True)
