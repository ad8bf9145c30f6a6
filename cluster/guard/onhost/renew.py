"""Guard's periodic check on the master: detects useful work, moves the cluster's end and warns. Python 3.9, as root.

    python3 -m cluster.guard.onhost.renew NAME LIFE REGION SHARED PROJECT LOGIN     once; a timer does so every minute
    python3 -m cluster.guard.onhost.renew NAME LIFE REGION SHARED PROJECT LOGIN 60  forever, where there are no timers

The state is kept in /run, so that a full disk does no harm, and on the shared folder for a new master.
"""

from __future__ import annotations

import contextlib
import dataclasses
import glob
import json
import os
import pwd
import re
import shlex
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any, Protocol

from cluster.guard.onhost import policy
from cluster.guard.onhost.activity import write
from cluster.guard.onhost.api import Api, GroupStates, HalfSet, Refused
from cluster.guard.onhost.history import Past
from cluster.guard.onhost.policy import ClusterObservation, GuardLimits, GuardState
from cluster.guard.onhost.root_code import not_roots
from cluster.ssh.onhost.trusted_files import folder_owner, open_folder, read_file

RUN = "/run/dlami-guard-state.json"
GOING = ("starting", "running", "stopping", "healing")
OVER = ("succeeded", "failed", "stopped")
_JOB_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,100}")  # other names are no jobs, and would be printed on terminals
_MOST_NUMBER = 1e15  # a job's own numbers are not trusted
_LONGEST_KEEP_S = 14 * 86400.0
_SETTLED_NS = 60 * 10**9  # a folder that changed more recently may change again at the same time by its clock
_OLD_S = 600.0  # a report this much older than the newest is ignored


class AutoScalingClient(Protocol):
    """Interface of the Auto Scaling client, as far as this module uses it; `Api` implements it."""

    offset_s: float

    @property
    def has_answered(self) -> bool:
        """Return True if AWS has answered, so that the clock is AWS's."""

    def now(self) -> float:
        """Return AWS's time in seconds since 1970."""

    def groups(self) -> GroupStates:
        """Return the terms and the instances. Raises Refused."""

    def past(self, now: GroupStates) -> Past:
        """Return what the groups record of the time up to now. Raises Refused."""

    def put(self, at: float) -> None:
        """Schedule the cluster's end. Raises Refused, or HalfSet."""


@dataclasses.dataclass(frozen=True)
class GuardPaths:
    """Paths of the guard's files."""

    name: str
    shared: str
    life: str = ""  # the stack's id: state left by an earlier stack of this name is ignored
    run: str = RUN

    @property
    def ended(self) -> str:
        """Return the file with the last change of each job's folder that has ended: those are not read again."""
        return os.path.join(os.path.dirname(self.run), "dlami-guard-ended.json")

    @property
    def folder(self) -> str:
        """Return the guard's folder: `hosts/` with reports, `keep/` with requests, `told.json` and `state.json`."""
        return os.path.join(self.shared, ".dlami-cluster", self.name, "guard")


@dataclasses.dataclass(frozen=True)
class GuardReport:
    """Result of a check: the report to publish, a warning to send and whether to save jobs."""

    told: dict[str, Any]
    warn: str = ""  # warning to send now
    save: bool = False


def check_once(
    aws: AutoScalingClient, place: GuardPaths, monotonic: Callable[[], float] = time.monotonic
) -> GuardReport:
    """Check once, and postpone the end if there is useful work. Return the report and the actions that are due."""
    state, terms, clock = _remembered(place, monotonic())
    if not aws.has_answered and clock is not None:
        aws.offset_s = clock - aws.now()
    instances: tuple[str, ...] = ()
    masters, past = 0, None
    until = state.until if state else None
    trouble = ""
    try:
        groups = aws.groups()
        terms, instances, masters, until = groups.terms, groups.instances, groups.masters, groups.until
        past = aws.past(groups) if policy.wants_history(state, instances) else None
    except Refused as e:
        trouble = str(e)
    if terms is None:  # without terms from AWS, the end that was set when the groups were made stays
        return GuardReport(told={"trouble": trouble})
    seen = ClusterObservation(
        now=aws.now(), instances=instances, signs=signs(place), wishes=wishes(place), masters=masters, past=past,
        until=until,
    )  # fmt: skip
    plan = policy.plan(terms, state or policy.begin(seen), seen)
    state = plan.state
    # Without stored state each look would seem the first and postpone the end forever: then nothing is postponed.
    is_remembered = _remember(place, state, terms, aws.now(), monotonic())
    if plan.lease is not None and is_remembered:
        try:
            aws.put(plan.lease)
            state = policy.taken(state, plan.lease)
        except HalfSet as e:
            state, trouble = policy.half_taken(state, plan.lease), str(e)
        except Refused as e:
            trouble = str(e)
    due = policy.warning(terms, state, aws.now())
    _remember(place, due.state, terms, aws.now(), monotonic())
    return _outcome(place, terms, plan, due, aws.now(), trouble)


def _outcome(
    place: GuardPaths, terms: GuardLimits, plan: policy.GuardDecision, due: policy.Warning, now: float, trouble: str
) -> GuardReport:
    end = policy.next_end(terms, due.state, now)
    why = policy.reason(terms, due.state, end, plan.why)
    told: dict[str, Any] = {"end": end if end != policy.NEVER else None, "why": why, "trouble": trouble}
    told |= {"useful_at": due.state.useful_at, "what": due.state.what, "hours": round(due.state.hours, 2)}
    told |= {"kept_until": due.state.kept_until}
    warn = ""
    if end - now <= policy.WARN_S[0] and due.state.warned_s != policy.NEVER:
        told["line"] = f"all nodes of {place.name} end at {policy.clock(end)}: {why}" + (
            "; 'inv keep 2h' puts that off" if why == plan.why and "guard." not in why else ""
        )
        minutes = max(0, round((end - now) / 60))
        local = [text for one in _reports(place) for text in one.get("local", [])]
        lost = f" Only on the nodes' own disks, and lost then: {'; '.join(sorted(set(local)))}." if local else ""
        step = int(due.state.warned_s // 60)
        told["warning"] = f"dlami-cluster, {step} minutes before the end: {told['line']}.{lost}"
        warn = f"in {minutes} minutes {told['line']}.{lost}" if due.warn_s else ""
    return GuardReport(told=told, warn=warn, save=due.save)


def signs(place: GuardPaths) -> dict[str, str]:
    """Return all signs of useful work: the counters of the hosts' reports, and the progress of each job."""
    found = {}
    for one in _reports(place):
        said = one.get("signs")
        for kind, value in said.items() if isinstance(said, dict) else ():
            found[f"{kind} on {one.get('host')}"] = str(value)
    for folder, status in going(place.shared, place.ended):
        far = _how_far(status, _object(os.path.join(folder, "attempts.json")).get("attempts"))
        found[f"{policy.JOB}{os.path.basename(folder)}"] = " ".join(str(one)[:40] for one in far)
    return found


def _how_far(status: dict[str, Any], attempts: object) -> tuple[object, ...]:
    """Return what changes while a job makes progress.

    Once attempts in a row made none, another one that does the same again changes nothing until it gets further.
    """
    known = [a for a in attempts if isinstance(a, dict)] if isinstance(attempts, list) else []
    last = known[-1] if known else {}
    if last and _number(last, "futile") >= policy.REPEATS and not _is_further(last, known[:-1]):
        return (policy.REPEATING,)
    return (status.get("state"), last.get("number"), last.get("step"), last.get("alive_at"))


def _is_further(last: dict[str, Any], before: list[dict[str, Any]]) -> bool:
    """Return True if the last attempt did more steps than any before; if none reports steps, if it lived longer."""
    if any(a.get("step") is not None for a in (last, *before)):
        return _number(last, "step") > max((_number(a, "step") for a in before), default=-1.0)
    lived = [max(_number(a, "alive_at"), _number(a, "ended")) - _number(a, "started") for a in before]
    return _number(last, "alive_at") - _number(last, "started") > max(lived, default=-1.0)


def _number(record: dict[str, Any], name: str) -> float:
    value = record.get(name)
    return float(value) if isinstance(value, (int, float)) and abs(value) < _MOST_NUMBER else 0.0


def going(shared: str, cache: str = "") -> list[tuple[str, dict[str, Any]]]:
    """Return folder and status of each active job that this master supervises; other clusters may share the folder.

    cache: file that keeps which jobs have ended.
    """
    found, above = [], os.path.join(shared, "jobs")
    known, ended = _object(cache), {}
    for name in filter(_JOB_ID.fullmatch, _names(above)):
        folder = os.path.join(above, name)
        changed = _changed(folder)
        if changed and known.get(folder) == changed:
            ended[folder] = changed
            continue
        status = _object(os.path.join(folder, "state.json"))
        # Damaged record: a job with a lease counts as running; without a supervisor its sign no longer changes
        if not status:
            holder = _object(os.path.join(folder, "lease.json")).get("holder")
            status = {"state": "running", "supervisor": holder} if isinstance(holder, dict) else {}
        supervisor = status.get("supervisor")
        where = supervisor.get("host") if isinstance(supervisor, dict) else None
        if status.get("state") in GOING and where in (None, socket.gethostname()):
            found.append((folder, status))
        elif status.get("state") in OVER and changed and changed[0] < time.time_ns() - _SETTLED_NS:
            ended[folder] = changed
    if cache and ended != known:
        with contextlib.suppress(OSError):
            write(cache, json.dumps(ended))
    return found


def _changed(folder: str) -> list[int]:
    """Return what identifies the last change of a job's folder; [] without a folder. Each new state changes it."""
    with contextlib.suppress(OSError):
        found = os.lstat(folder)
        return [found.st_mtime_ns, found.st_ino, found.st_uid]
    return []


def save(shared: str, project: str) -> None:
    """Make every active job save and stop, each as its owner. Does not wait for that."""
    for folder, _ in going(shared):
        words = ["-m", "cluster.jobs", "--shared", shared, "stop", os.path.basename(folder)]
        with contextlib.suppress(OSError):
            as_user(folder_owner(folder), project, words)


def tell(login: str, project: str, text: str) -> None:
    """Send a text to the address that the cluster file names under `notify`, as the login user of the nodes."""
    with contextlib.suppress(KeyError):
        as_user(pwd.getpwnam(login).pw_uid, project, ["-m", "cluster.guard.tell", text])


def as_user(uid: int, project: str, given: list[str]) -> None:
    """Start the project's Python in a login shell of this user, detached.

    Root runs it only if root alone owns the project.
    """
    if uid == 0 and (others := not_roots(project)):
        print(
            f"{others} is not root's alone, and root runs no code of others: not run: {shlex.join(given)}", flush=True
        )
        return
    command = f"cd {shlex.quote(project)} && exec {shlex.join(['.venv/bin/python', *given])}"
    words = ["bash", "-lc", command]
    with contextlib.suppress(KeyError, OSError):
        if uid != os.getuid():
            words = ["runuser", "-l", pwd.getpwuid(uid).pw_name, "-s", "/bin/bash", "-c", command]
        subprocess.Popen(words, stdin=subprocess.DEVNULL, start_new_session=True, cwd="/")


def wishes(place: GuardPaths) -> dict[str, tuple[str, float]]:
    """Return each user's last keep request by `UID.json`: its id, and for how many seconds."""
    found: dict[str, tuple[str, float]] = {}
    written: list[tuple[float, str, str]] = []
    folder = os.path.join(place.folder, "keep")
    for name in _names(folder):
        path = os.path.join(folder, name)
        with contextlib.suppress(OSError):
            one = os.lstat(path)
            # The file's owner, not its name, identifies the user.
            written += [(one.st_mtime, f"{one.st_uid}.json", path)] if name.endswith(".json") else []
    for _, who, path in sorted(written):
        said = _object(path)
        with contextlib.suppress(ValueError, TypeError, KeyError, OverflowError):
            seconds = min(_LONGEST_KEEP_S, max(0.0, float(said["seconds"])))
            found[who] = str(said["id"])[:64], seconds
    return found


def _reports(place: GuardPaths) -> list[dict[str, Any]]:
    """Return the hosts' recent reports. Those much older than the newest are left out, because their hosts are gone."""
    found = []
    for path in sorted(glob.glob(os.path.join(glob.escape(place.folder), "hosts", "*.json"))):
        with contextlib.suppress(OSError):
            found.append((os.stat(path).st_mtime, _object(path)))
    newest = max((at for at, _ in found), default=0.0)
    return [one for at, one in found if one and at > newest - _OLD_S]


def _remembered(place: GuardPaths, monotonic: float) -> tuple[GuardState | None, GuardLimits | None, float | None]:
    """Return state and terms of the last check, and AWS's current time.

    The time is None if the host has booted since. All three are None if nothing is stored.
    """
    boot = _boot()
    for path in (place.run, os.path.join(place.folder, "state.json")):
        said = _object(path)
        with contextlib.suppress(AttributeError, TypeError, KeyError, ValueError):
            if said["life"] != place.life:
                continue
            heard = {who: (wish, until) for who, (wish, until) in said["state"]["wishes"].items()}
            instances = tuple(said["state"]["instances"])
            state = GuardState(**{**said["state"], "instances": instances, "wishes": heard})
            clock = said["now"] + monotonic - said["monotonic"] if said["boot"] == boot else None
            return state, GuardLimits(**said["terms"]), clock
    return None, None, None


def _remember(place: GuardPaths, state: GuardState, terms: GuardLimits, now: float, monotonic: float) -> bool:
    """Store state, terms and AWS's time. Return True if at least one of the two files was written."""
    kept = {"state": dataclasses.asdict(state), "terms": dataclasses.asdict(terms)}
    text = json.dumps({**kept, "now": now, "monotonic": monotonic, "boot": _boot(), "life": place.life})
    is_kept = False
    for path in (place.run, os.path.join(place.folder, "state.json")):
        with contextlib.suppress(OSError):
            write(path, text)
            is_kept = True
    return is_kept


def _boot() -> str:
    with contextlib.suppress(OSError), open("/proc/sys/kernel/random/boot_id") as file:
        return file.read().strip()
    return ""


def _object(path: str) -> dict[str, Any]:
    """Return the JSON object in a file; {} without one.

    Pipes and links are refused, because others may write here.
    """
    with contextlib.suppress(OSError, ValueError, RecursionError):
        found = json.loads(read_file(path))
        if isinstance(found, dict):
            return found
    return {}


def _names(folder: str) -> list[str]:
    """Return the sorted names in a folder, without hidden ones; [] if the folder is missing or a link."""
    with contextlib.suppress(OSError):
        handle = open_folder(folder)
        try:
            return sorted(name for name in os.listdir(handle) if not name.startswith("."))
        finally:
            os.close(handle)
    return []


def _folders(place: GuardPaths) -> None:
    for name, mode in (("", 0o755), ("hosts", 0o755), ("keep", 0o1777)):
        folder = os.path.join(place.folder, name)
        with contextlib.suppress(OSError):
            os.makedirs(folder, exist_ok=True)
            os.chmod(folder, mode)


def main(name: str, life: str, region: str, shared: str, project: str, login: str, every_s: str = "") -> int:
    """Check once and act on the result or, given `every_s`, again and again."""
    place = GuardPaths(name=name, shared=shared, life=life)
    while True:
        _look_and_act(place, region, project, login)
        if not every_s:
            return 0
        time.sleep(float(every_s))


def _look_and_act(place: GuardPaths, region: str, project: str, login: str) -> None:
    _folders(place)
    outcome = check_once(Api(region, place.name), place)
    with contextlib.suppress(OSError):
        write(os.path.join(place.folder, "told.json"), json.dumps(outcome.told))
    if outcome.told.get("trouble"):
        print(outcome.told["trouble"], flush=True)
    if outcome.warn:
        tell(login, project, outcome.warn)
    if outcome.save:
        save(place.shared, project)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
