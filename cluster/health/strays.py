"""Judges of processes on a host that belong to no running job."""

import json
from typing import Any

from cluster.health.check import About
from cluster.health.verdict import Problem, Unreadable, Verdict

YOUNG_S = 5.0  # what started just now will mostly be gone just as soon; ours


def stray_problems(text: str, about: About) -> list[Problem]:
    """Processes outside running jobs that take processor time or hang in the kernel."""
    found = json.loads(text)
    if not isinstance(found, list):
        raise Unreadable("no list of processes")
    problems = []
    for p in found:
        if p["age_s"] < YOUNG_S or (p["job"] and (about.jobs is None or p["job"] in about.jobs)):
            continue
        name = p["command"][:50] or "?"
        whose = f"of {p['job']}, which has ended" if p["job"] else "of an 'inv run'" if p["run"] else "of no job"
        if set(p["states"]) == {"D"}:
            problems.append(
                Problem(
                    check="strays",
                    what=f"process {p['pid']} hangs in the kernel: {name}",
                    unfit=False,
                    means="it waits for a disk, a mount or a driver that does not answer",
                    verdict=Verdict.WATCH,
                    do="see what it waits for",
                    command=f"inv run --hosts {{ranks}} --sudo -- cat /proc/{p['pid']}/stack",
                )
            )
        elif p["user"] is not None:
            problems.append(
                Problem(
                    check="strays",
                    what=f"process {p['pid']} {whose} keeps a core busy: {name}",
                    means="ranks wait for the core it takes",
                    verdict=Verdict.WATCH,
                    unfit=False,
                    do="end it",
                    command=f"inv run --hosts {{ranks}} --sudo -- kill {p['pid']}",
                )
            )
    return problems


def gpu_stray_problems(text: str, about: About) -> list[Problem]:
    """Reads `nvidia-smi --query-compute-apps=pid,used_memory`: processes outside running jobs that hold GPU memory."""
    said: dict[str, Any] = json.loads(text)
    problems = []
    for line in said["apps"].splitlines():
        pid, memory = (word.strip() for word in line.split(","))
        owner = said["owners"].get(pid, {})
        if not int(pid) or (owner.get("job") and (about.jobs is None or owner["job"] in about.jobs)):
            continue
        whose = f"of {owner['job']}, which has ended," if owner.get("job") else "of no job"
        problems.append(
            Problem(
                check="strays",
                what=f"process {pid} {whose} holds {memory} of a GPU: {owner.get('command', '?')[:40]}",
                means="a training may find too little memory there",
                verdict=Verdict.RESTART_JOB,
                do="end it",
                command=f"inv run --hosts {{ranks}} --sudo -- kill {pid}",
            )
        )
    return problems
