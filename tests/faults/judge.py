"""What is promised of every command whatever breaks, judged by what is on the hosts and in the job's folder.

1. The command ends by itself, in its time, and never in a traceback; nor does a job's supervisor.
2. Exit code 0 means that all of it was done; a failure says something, and names the host that failed.
3. What it says is so: a job's end as its record has it, a copy's files byte by byte, a host that is unfit.
4. Nothing is lost: checkpoints stay, a file under its own name is the old one or the new one, a bystander lives.
5. When the fault is gone the same command does its work, and a job goes on from its newest checkpoint to its end.
6. No process of ours is left on any host.
"""

import hashlib
import re
from dataclasses import dataclass, field

from tests.faults.bench import ENDED, HOSTS, TARGET, Bench, wait
from tests.faults.breaking import FAULTS, inside
from tests.faults.grid import OPERATOR, Cell

# A process of a job that has ended, which does not care for TERM, and one that nobody of us started.
LEFTOVER = (
    "DLAMI_JOB={job} DLAMI_JOB_FOLDER=/shared/jobs/{job} setsid sh -c 'trap \"\" TERM; while :; do sleep 5; done' &\n"
)
BYSTANDER = "setsid sleep 7777 &\n"
# What `inv health` has to see where it was there before: it is on the host itself or between the hosts.
SEEN_BY_HEALTH = {
    *("power cut", "network cut", "sshd frozen", "sshd gone", "/tmp full", "no python"),
    *("/shared gone", "/shared read-only", "/shared full", "/shared hangs"),
}
# Where the supervisor is gone, its job may be `lost`.
REBOOTS = {"power cut", "power cut and back", "sshd gone"}
ENDS_SUPERVISORS = {*REBOOTS, "supervisor killed"}
KEEPS_RECORDS = {"/shared full", "/shared read-only"}  # nothing new can be written there
ENDING = re.compile(r"^(\d{8}-\d{6}-[a-z0-9-]+): (succeeded|failed|stopped|lost)\b(.*)", re.MULTILINE)


@dataclass
class Trial:
    """What came of one cell."""

    cell: Cell
    seconds: float = 0.0
    code: int | None = None
    said: str = ""
    job: str = ""
    heals: bool = False  # its training goes on by itself
    steps: int = 0  # that its training takes
    checkpoint: int = -1  # the newest there was when the fault came
    broken: list[str] = field(default_factory=list)
    story: str = ""  # what was seen afterwards

    def __str__(self) -> str:
        verdict = "; ".join(self.broken) or "held"
        tail = next((line for line in reversed(self.said.strip().splitlines()) if line.strip()), "")
        return f"{self.cell} | exit {self.code} in {self.seconds:.0f} s | {verdict} | {tail[:140]}"


def while_it_is_there(bench: Bench, trial: Trial) -> None:
    """What must hold at the command's end, the fault still being there."""
    cell, said = trial.cell, trial.said
    failed = trial.code not in (0, None)
    if "Traceback" in said:
        trial.broken.append("traceback: " + said.strip().splitlines()[-1][:120])
    if cell.fault in OPERATOR:
        return
    if failed and not said.strip():
        trial.broken.append("failed without a word")
    address = bench.host(cell.place).address
    is_one_hosts = not FAULTS[cell.fault].only_on_master
    if failed and cell.command in ("run", "copy", "kill", "health") and is_one_hosts and address not in said:
        trial.broken.append(f"{address} is not named")
    if failed and cell.command == "run" and _answered(said) < HOSTS - 1:
        trial.broken.append("what the other hosts answered is not shown")
    if trial.code == 0:
        trial.broken += _not_done(bench, trial)
    for job, state, _ in ENDING.findall(said):
        real = bench.recorded(job).get("state")
        if (
            real
            and state != real
            and not (
                (state == "lost" and cell.fault in ENDS_SUPERVISORS)
                or (cell.fault in KEEPS_RECORDS and not any(bench.left(h) for h in bench.lab.hosts))
            )
        ):  # the folder keeps its old record; what is so is told by who is there
            trial.broken.append(f"says {job} is {state}, it is {real}")


def _answered(said: str) -> int:
    """On how many hosts the command of `inv run` came to its end, by what is shown of each group of them."""
    return sum(map(int, re.findall(r"\((\d+)\)\n(?:  .*\n)*?  begun\n  done", said)))


def _not_done(bench: Bench, trial: Trial) -> list[str]:
    """What a command that ended with 0 has not done."""
    command, fault = trial.cell.command, trial.cell.fault
    if command == "run" and _answered(trial.said) < HOSTS:
        return ["exit 0, but not every host answered"]
    if command == "copy":
        return [f"exit 0, but {one}" for one in copies(bench, whole=True)]
    if command == "health" and trial.cell.moment == "before" and fault in SEEN_BY_HEALTH:
        return ["health has not seen it"]
    if command in ("train", "resume", "logs"):
        return [f"exit 0, but {one}" for one in _unfinished(bench, trial)]
    if command in ("stop", "kill"):
        left = {h.address: found for h in bench.lab.hosts if (found := bench.left(h))}
        return [f"exit 0, but these run: {left}"[:300]] if left else []
    return []


def _unfinished(bench: Bench, trial: Trial) -> list[str]:
    job = trial.job or (bench.jobs() or [""])[-1]
    state, step, kept = bench.recorded(job).get("state"), bench.steps(job), bench.checkpoint(job)
    if (state, step, kept) == ("succeeded", trial.steps - 1, trial.steps):
        return []
    return [f"{job} is {state}, {step + 1} of {trial.steps} steps, its newest checkpoint of step {kept}"]


def copies(bench: Bench, *, whole: bool) -> list[str]:
    """What of the copies is not as the source; of parts of a copy each file that is there is the old or the new one."""
    new = {p.name: hashlib.sha256(p.read_bytes()).hexdigest() for p in bench.source.iterdir()}
    old = hashlib.sha256(b"old\n").hexdigest()
    wrong = []
    for host, listed in bench.everywhere(f"cd {TARGET} && find . -type f | xargs -r sha256sum").items():
        found = {line.split("  ./", 1)[1]: line.split()[0] for line in listed.splitlines()}
        here = {n: d for n, d in found.items() if n in new}
        if whole and found != new:
            what = sorted(n for n in {*found, *new} if found.get(n) != new.get(n))
            wrong.append(f"{host.address} differs in {what[:5]}")
        elif not whole and (torn := [n for n, d in here.items() if d not in (new[n], old)]):
            wrong.append(f"{host.address} has half-written {torn[:5]}")
    return wrong


def afterwards(bench: Bench, trial: Trial, words: tuple[str, ...]) -> None:
    """What must hold once the fault is gone."""
    command = trial.cell.command
    if command == "copy":
        trial.broken += copies(bench, whole=False)
    if trial.job or bench.jobs():
        trial.job = trial.job or bench.jobs()[-1]
        if command != "kill":
            _job_afterwards(bench, trial)
    if command in ("run", "copy", "health", "kill"):
        code, said = bench.ask(*words)
        if code != 0:
            trial.broken.append(f"again, without the fault: exit {code}: {said.strip()[-300:]}")
        if command == "copy":
            trial.broken += copies(bench, whole=True)
    for question in (("jobs.list",), ("kill", "--yes")):
        code, said = bench.ask(*question)
        if code != 0 or "Traceback" in said:
            trial.broken.append(f"afterwards {question[0]} ends with {code}: {said.strip()[-200:]}")
    for host in bench.lab.hosts:
        if not wait(lambda host=host: not bench.left(host), 20):
            trial.broken.append(f"left on {host.address}: {bench.left(host)[0][:100]}")
        is_down = trial.cell.fault in REBOOTS and host == bench.host(trial.cell.place)
        if command == "kill" and not is_down and not inside(bench.lab, host, "pgrep -f '[s]leep 7777'"):
            trial.broken.append(f"a bystander on {host.address} was ended")


def _job_afterwards(bench: Bench, trial: Trial) -> None:
    """The job comes to an end that is so; from there it goes on."""
    cell, job = trial.cell, trial.job
    is_to_end = cell.command != "stop"
    can_be_lost = cell.fault in ENDS_SUPERVISORS and cell.place == "master"  # which no record says by itself
    wait(lambda: bench.recorded(job).get("state") in ENDED, 200 if is_to_end and not can_be_lost else 30)
    seen = bench.shown(job)
    state, cause = str(seen.get("state")), str(seen.get("cause"))
    trial.story += f"{job}: {state}: {cause}; left {seen.get('left')}\n"
    if state not in ENDED:
        code, said = bench.ask("jobs.stop", job)
        trial.story += f"jobs.stop ends with {code}: {said}\n"
        if bench.shown(job).get("state") not in ENDED:
            trial.broken.append(f"{job} is {state}, and jobs.stop ends with {code}: {said[-200:]}")
        elif is_to_end:
            trial.broken.append(f"{job} was {state} long after the fault was gone")
    if state == "lost" and not can_be_lost:
        trial.broken.append(f"{job} is lost")
    if state == "failed" and not cause:
        trial.broken.append(f"{job} failed without a cause")
    if state == "failed" and cell.fault in ("power cut", "network cut") and bench.host(cell.place).address not in cause:
        trial.broken.append(f"the cause does not name the host: {cause[:150]}")
    has_begun = cell.command != "resume" or seen.get("attempt") == 2
    if state != "succeeded" and cell.fault in OPERATOR and is_to_end and has_begun:
        trial.broken.append(f"what happened to the operator's command ended the job: {state}: {cause}")
    if state == "succeeded":
        trial.broken += _unfinished(bench, trial)
    for log in (bench.lab.shared / "jobs" / job).glob("logs/*/supervisor.log"):
        if "Traceback" in (text := log.read_text(errors="replace")):
            trial.broken.append("its supervisor ended in a traceback: " + text.strip().splitlines()[-1][:150])
    if bench.checkpoint(job) < trial.checkpoint:
        trial.broken.append(f"the checkpoint of step {trial.checkpoint} is gone: {bench.checkpoint(job)}")
    if state != "succeeded":
        trial.broken += _goes_on(bench, trial)


def _goes_on(bench: Bench, trial: Trial) -> list[str]:
    """The next attempt goes on where the newest checkpoint was."""
    job, kept = trial.job, bench.checkpoint(trial.job)
    detach = ("--detach",) if trial.cell.command == "stop" else ()
    code, said = bench.ask("jobs.resume", job, "--unchecked", *detach)
    trial.story += f"resumed from step {kept}: exit {code}\n{said}\n"
    if code != 0:
        return [f"resume ends with {code}: {said.strip()[-300:]}"]
    if not detach:
        return [f"after resume {one}" for one in _unfinished(bench, trial)]
    has_more = wait(lambda: bench.steps(job) > kept + 2 or bench.recorded(job).get("state") in ENDED, 200)
    state = bench.recorded(job).get("state")
    code, said = bench.ask("jobs.stop", job)
    if not has_more or state in ENDED or code != 0:
        return [f"resumed from step {kept}, it is {state} at step {bench.steps(job)}; jobs.stop: {code}: {said[-200:]}"]
    return []
