"""A host taken for one job by a socket of the kernel's: here, without a lab, each test with a name of its own."""

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from cluster.errors import ClusterError
from cluster.hosts import Host
from cluster.inventory import ROOT
from cluster.jobs.claim import NAME_VARIABLE, HostsTaken, _refuse_taken, claim_hosts, give_back, taken_by_others
from cluster.jobs.cleanup import release, sweep
from cluster.jobs.onhost import claim as onhost
from cluster.jobs.supervisor.interruptible_wait import Patience, StopAsked
from tests.cluster.flat_jobs import changed
from tests.cluster.jobs_here import HERE, a_job, wait_until
from tests.conftest import PATIENCE_S
from tests.other_users import NOBODY, copy_sources, open_folder, python_of_all
from tests.processes import begun

ME = subprocess.run(["id", "-un"], capture_output=True, text=True).stdout.strip()
OTHER_USER: Any = {"user": NOBODY, "group": NOBODY, "extra_groups": []}
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root: to be two users")


@pytest.fixture
def name(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Iterator[str]:
    """A socket that no job on this machine uses; nobody holds it afterwards."""
    one = f"dlami-test-{os.getpid()}-{request.node.name}"[:100]
    monkeypatch.setenv(NAME_VARIABLE, one)
    yield one
    for holder in onhost.holders(one):
        with contextlib.suppress(ProcessLookupError):
            os.kill(holder.pid, signal.SIGKILL)


def taken_by(
    name: str,
    job: str,
    since: float = 0.0,
    folder: str = "",
    *,
    settled_s: float = 300,
    wait_s: float = 15,
    look_s: float = 3600,
    python: str = sys.executable,
    cwd: Path = ROOT,
    **user: Any,
) -> Any:
    """What a host says to whom claims it, as a process of its own."""
    words = (
        "import sys, json; from cluster.jobs.onhost import claim; job, folder, since, name = sys.argv[1:5];"
        "claim.SETTLED_S, claim.WAIT_S, claim.LOOK_S = map(float, sys.argv[5:]); other = claim.take(claim.Claim(job, 1, folder, float(since)), name).by;"
        "print(json.dumps(other and [other.claim and other.claim.job, other.uid, other.pid]))"
    )
    arguments = [job, folder, str(since), name, str(settled_s), str(wait_s), str(look_s)]
    done = subprocess.run(
        [python, "-B", "-c", words, *arguments], cwd=cwd, capture_output=True, text=True, timeout=PATIENCE_S, **user
    )
    assert 0 == done.returncode, done.stderr
    return json.loads(done.stdout)


def holder_of(name: str) -> onhost.ClaimHolder:
    found = onhost._ask(name, "who")
    assert found
    return found


def said_by(holder: onhost.ClaimHolder) -> str:
    assert holder.claim
    return holder.claim.job


def test_a_host_is_one_job_s_until_its_holder_ends(name: str) -> None:
    """The second is told who has it; kill -9 of the holder is enough for the third."""
    assert taken_by(name, "first") is None
    holder = holder_of(name)
    assert ["first", os.getuid(), holder.pid] == taken_by(name, "second", 1.0)
    assert taken_by(name, "first", 2.0) is None, "what it has it keeps"
    assert holder.pid == holder_of(name).pid
    os.kill(holder.pid, signal.SIGKILL)
    wait_until(lambda: onhost._ask(name, "who") is None, "the holder is gone")
    assert taken_by(name, "third", 3.0) is None
    assert "third" == said_by(holder_of(name))


def test_who_has_a_host_is_told_without_taking_it(name: str, tmp_path: Path) -> None:
    """Nobody, a job, and nobody again once that job's record says that it is over."""
    record = tmp_path / "state.json"
    record.write_text('{"state": "running", "attempt": 1}')
    assert [] == onhost.held(name)
    assert taken_by(name, "first", folder=str(tmp_path)) is None
    assert [{"job": "first", "user": ME, "pid": holder_of(name).pid, "slots": ()}] == onhost.held(name)
    record.write_text('{"state": "failed", "attempt": 1}')
    assert [] == onhost.held(name)


@pytest.mark.seconds
def test_of_many_in_the_same_moment_one_has_the_host(name: str) -> None:
    """Whichever that is, and all others are told its name."""
    jobs = [f"job-{n}" for n in range(6)]
    said: dict[str, Any] = {}

    def try_it(job: str) -> None:
        said[job] = taken_by(name, job, since=float(job[-1]), wait_s=5)

    threads = [threading.Thread(target=try_it, args=(job,)) for job in reversed(jobs)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    winners = [job for job, other in said.items() if other is None]
    assert [said_by(holder_of(name))] == winners
    assert {*winners} == {other[0] for other in said.values() if other}


def test_the_later_of_two_gives_way_and_the_earlier_waits_for_that(name: str) -> None:
    """So that of two jobs which want hosts of each other's not both go without."""
    assert taken_by(name, "later", since=2.0) is None
    later = holder_of(name)
    said: list[Any] = []
    earlier = threading.Thread(target=lambda: said.append(taken_by(name, "earlier", since=1.0, wait_s=100)))
    earlier.start()
    assert ["later", os.getuid(), later.pid] == taken_by(name, "latest", since=3.0)
    os.kill(later.pid, signal.SIGTERM)
    earlier.join()

    assert [None] == said


def slots_taken(name: str, job: str, slots: int, of: int = 4, since: float = 0.0) -> onhost.ClaimResult:
    """What a host of `of` slots gives to whom claims some of them, 0 for all."""
    done = subprocess.run(
        [sys.executable, "-c", "import sys, json; from cluster.jobs.onhost import claim;"
         "found = claim.take(claim.Claim(sys.argv[1], 1, '', float(sys.argv[2]), *map(int, sys.argv[3:5])), sys.argv[5]);"
         "print(json.dumps([found.slots, found.by and [found.by.pid, found.by.claim.job, found.by.slots]]))",
         job, str(since), str(slots), str(of), name],
        cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE_S,
    )  # fmt: skip
    assert 0 == done.returncode, done.stderr
    mine, by = json.loads(done.stdout)
    holder = by and onhost.ClaimHolder(by[0], os.getuid(), onhost.Claim(by[1], 1, "", 0.0), 0.0, tuple(by[2]))
    return onhost.ClaimResult(tuple(mine), holder)


def test_slots_of_a_host_are_given_to_as_many_jobs_as_they_suffice_for(name: str) -> None:
    """Each has its own; who finds too few is told who has them; a job's own stay its own; freed ones are given again."""
    assert (0, 1) == slots_taken(name, "a", 2).slots
    assert (2,) == slots_taken(name, "b", 1, since=1.0).slots
    refused = slots_taken(name, "c", 2, since=2.0)
    assert refused.by and ("a", (0, 1)) == (said_by(refused.by), refused.by.slots)
    assert (3,) == slots_taken(name, "c", 1, since=2.0).slots
    assert (0, 1) == slots_taken(name, "a", 2, since=3.0).slots, "what it has it keeps"
    assert [("a", (0, 1)), ("b", (2,)), ("c", (3,))] == [(said_by(h), h.slots) for h in onhost.holders(name)]
    os.kill(next(h.pid for h in onhost.holders(name) if said_by(h) == "a"), signal.SIGKILL)
    wait_until(lambda: 2 == len(onhost.holders(name)), "its slots are free")
    assert (0,) == slots_taken(name, "d", 1, since=4.0).slots


def test_a_whole_host_and_a_slot_of_it_exclude_each_other(name: str) -> None:
    """Whichever was first, and also where the whole host was claimed by a version that knows no slots."""
    slots_taken(name, "a", 1)
    assert (other := slots_taken(name, "whole", 0, since=1.0).by) and "a" == said_by(other)
    for holder in onhost.holders(name):
        os.kill(holder.pid, signal.SIGKILL)
    wait_until(lambda: not onhost.holders(name), "it is free")
    assert onhost.ClaimResult() == slots_taken(name, "whole", 0)
    assert (other := slots_taken(name, "a", 1, since=1.0).by) and ("whole", ()) == (said_by(other), other.slots)


def test_of_many_slots_asked_for_in_the_same_moment_none_is_given_twice(name: str) -> None:
    """And as many jobs get theirs as there is room for."""
    found: dict[str, onhost.ClaimResult] = {}
    jobs = {f"job-{n}": n % 3 + 1 for n in range(8)}
    threads = [
        threading.Thread(target=lambda job, n: found.update({job: slots_taken(name, job, n, 8)}), args=one)
        for one in jobs.items()
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    given = [slot for one in found.values() for slot in one.slots]
    assert len(given) == len({*given}) >= 6
    assert sorted(given) == sorted(slot for h in onhost.holders(name) for slot in h.slots)


@pytest.mark.parametrize("reads", [True, False], ids=["asked", "in the queue"])
def test_a_holder_that_ends_while_it_is_asked_has_nothing(name: str, reads: bool) -> None:
    """The host is free then; it is not taken by a process that says nothing."""
    door = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    door.bind("\0" + name)
    door.listen()

    def end() -> None:
        with door:
            caller, _ = door.accept()
        with caller:
            if reads:
                while caller.recv(64):
                    pass

    ends = threading.Thread(target=end)
    ends.start()
    assert taken_by(name, "next") is None
    ends.join()
    assert "next" == said_by(holder_of(name))


def test_a_claim_of_an_attempt_that_is_over_is_stale(name: str, tmp_path: Path) -> None:
    """By that job's own record. That of an attempt which is still to be recorded is not, unless it never comes."""
    old, new = tmp_path / "jobs" / "old", tmp_path / "jobs" / "new"
    old.mkdir(parents=True)
    record = old / "state.json"
    record.write_text('{"state": "running", "attempt": 1}')
    assert taken_by(name, "old", folder=str(old)) is None
    assert "old" == taken_by(name, "next", 1.0)[0]
    record.write_text('{"state": "failed", "attempt": 0}')
    assert "old" == taken_by(name, "next", 1.0)[0], "it is about to be resumed"
    record.write_text('{"state": "failed", "attempt": 1}')
    assert taken_by(name, "new", 1.0, str(new)) is None
    assert "new" == taken_by(name, "next", 2.0)[0], "it is about to be recorded"
    assert taken_by(name, "next", 2.0, settled_s=0.0) is None, "it never was"
    assert "next" == taken_by(name, "after", 3.0, settled_s=0.0)[0], "nothing is known of its record"


def test_a_holder_leaves_by_itself_once_its_attempt_is_over(name: str, tmp_path: Path) -> None:
    """Where nobody can reach the host to end it; not while the job goes on, has another attempt, or has no record."""
    folder = tmp_path / "jobs" / "cut-off"
    record = folder / "state.json"

    def says(text: str) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        record.with_suffix(".new").write_text(text)
        record.with_suffix(".new").rename(record)

    def faults() -> int:
        """Of the programs that the holder ran and waited for: more with each look."""
        return int(Path(f"/proc/{holder}/stat").read_text().rsplit(")", 1)[1].split()[8])

    def looks() -> None:
        for _ in range(2):  # the first may have begun before
            before = faults()
            wait_until(lambda: faults() > before, "the holder looks at its record")  # noqa: B023

    says('{"state": "running", "attempt": 1}')
    assert taken_by(name, "cut-off", folder=str(folder), look_s=0.01) is None
    holder = holder_of(name).pid
    looks()
    folder.rename(tmp_path / "away")
    looks()
    folder.parent.rmdir()
    looks()
    for record_text in ("", "{", '{"state": "failed", "attempt": 0}'):
        says(record_text)
        looks()
    assert onhost._ask(name, "renew 2")
    says('{"state": "failed", "attempt": 1}')
    looks()
    assert holder == holder_of(name).pid
    says('{"state": "failed", "attempt": 2}')
    wait_until(lambda: onhost._ask(name, "who") is None, "it has left")


def test_a_holder_for_an_attempt_that_never_came_leaves_once_its_job_is_over(name: str, tmp_path: Path) -> None:
    """As when a stop came between the taking of its hosts and its first word; who would take the host waits no longer."""
    folder = tmp_path / "jobs" / "stopped"
    folder.mkdir(parents=True)
    (folder / "state.json").write_text('{"state": "healing", "attempt": 0}')
    assert taken_by(name, "stopped", folder=str(folder), look_s=0.01, settled_s=0.0) is None
    assert "stopped" == taken_by(name, "next", 1.0)[0]
    (folder / "state.json").write_text('{"state": "stopped", "attempt": 0}')
    wait_until(lambda: onhost.holder(name) is None, "it has left")


@as_root
def test_another_user_s_claim_is_the_kernel_s_word(name: str, tmp_path: Path) -> None:
    """Whatever it says of itself it stays, and nothing of it is ended; it is named with its user."""
    folder = tmp_path / "jobs" / "theirs"
    folder.mkdir(parents=True)
    (folder / "state.json").write_text('{"state": "failed"}')
    with open_folder() as place:
        sources = copy_sources(place)
        theirs = {"python": python_of_all(sources, "cluster.jobs.onhost.claim"), "cwd": sources, **OTHER_USER}
        assert taken_by(name, "theirs", folder=str(folder), **theirs) is None
    holder = holder_of(name)
    assert NOBODY == holder.uid
    assert ["theirs", NOBODY, holder.pid] == taken_by(name, "ours", 1.0, settled_s=0.0)
    assert ["theirs", NOBODY, holder.pid] == taken_by(name, "theirs", 1.0)
    with pytest.raises(HostsTaken, match=r"hosts taken by theirs \(user nobody\): localhost; wait for it"):
        claim_hosts(a_job("exit 0", f"ours-{os.getpid()}"), tmp_path)
    os.kill(holder.pid, signal.SIGKILL)


@pytest.mark.seconds
def test_who_holds_a_host_and_says_nothing_is_named_by_its_process(name: str, tmp_path: Path) -> None:
    """And its user: both as the kernel knows them."""
    with socket.socket(socket.AF_UNIX) as squatter:
        squatter.bind("\0" + name)
        squatter.listen(1)
        with pytest.raises(HostsTaken, match=rf"process {os.getpid()}, which does not say for which job \(user {ME}\)"):
            claim_hosts(a_job("exit 0", f"ours-{os.getpid()}"), tmp_path)


def test_whose_hosts_are_is_said_of_the_first_and_known_of_all() -> None:
    """Jobs of one name and two users are two."""
    job = a_job("exit 0", "ours")
    taken = {
        "10.0.0.1": {"job": "x", "user": "ann", "pid": 1},
        "10.0.0.2": {"job": "x", "user": "ann", "pid": 2},
        "10.0.0.3": {"job": "x", "user": "bob", "pid": 3},
        "10.0.0.4": {"job": "", "user": "ann", "pid": 4},
    }
    with pytest.raises(
        HostsTaken, match=re.escape("hosts taken by x (user ann): 10.0.0.[1-2]; wait for it")
    ) as refused:
        _refuse_taken(job, taken)

    why = {f"10.0.0.{n}": f"is taken by x (user {user})" for n, user in ((1, "ann"), (2, "ann"), (3, "bob"))}
    nameless = {"10.0.0.4": "is taken by process 4, which does not say for which job (user ann)"}
    assert {**why, **nameless} == refused.value.why
    _refuse_taken(job, {})


def test_a_claim_goes_with_its_job_s_processes(name: str, tmp_path: Path) -> None:
    """It carries the job's id, so that 'inv kill', the end of the attempt and 'inv jobs.stop' end it."""
    job = a_job("exit 0", f"claimed-{os.getpid()}")
    claim_hosts(job, tmp_path / job.id)
    holder = holder_of(name)
    environment = Path(f"/proc/{holder.pid}/environ").read_bytes().split(b"\0")
    assert f"DLAMI_JOB={job.id}".encode() in environment
    assert {"/dev/null"} == {str(Path(f"/proc/{holder.pid}/fd/{fd}").readlink()) for fd in range(3)}
    with pytest.raises(HostsTaken, match=f"hosts taken by {job.id}"):
        claim_hosts(changed(job, id=job.id + "b"), tmp_path)
    assert holder.pid == holder_of(name).pid, "who is refused ends nothing of the other's"
    give_back(job)
    assert onhost._ask(name, "who") is None


def test_what_a_job_has_stays_its_own_while_it_prepares_another_attempt(name: str, tmp_path: Path) -> None:
    """Its processes end without its claim, and it keeps the host though another one cannot be had."""
    job = a_job("exit 0", f"claimed-{os.getpid()}", hosts=(HERE, Host(rank=1, address="nowhere.invalid", slots=1)))
    here = changed(job, hosts=(HERE,))
    claim_hosts(here, tmp_path / job.id)
    holder = holder_of(name)
    with begun(["sleep", "4321"], env={**os.environ, "DLAMI_JOB": job.id}) as program:
        assert () == sweep([HERE], job.id, keeps_hosts=True).left
        assert -signal.SIGTERM == program.wait(60)
    with pytest.raises(ClusterError, match=r"1 of 2 hosts could not be taken for it:\n  nowhere.invalid"):
        claim_hosts(job, tmp_path / job.id, kept={HERE.address})
    assert holder.pid == holder_of(name).pid
    with pytest.raises(ClusterError, match="1 of 2 hosts could not be taken for it"):
        claim_hosts(job, tmp_path / job.id)
    assert onhost.holder(name) is None


def test_a_host_can_be_let_go_while_the_job_goes_on(name: str, tmp_path: Path) -> None:
    """One in whose place another is now; what runs of the job is not ended."""
    job = a_job("exit 0", f"claimed-{os.getpid()}")
    claim_hosts(job, tmp_path / job.id)
    with begun(["sleep", "4321"], env={**os.environ, "DLAMI_JOB": job.id}) as program:
        release([HERE], job.id)
        assert onhost.holder(name) is None
        assert program.poll() is None


def test_whose_a_host_is_can_be_asked_without_taking_it(name: str, tmp_path: Path) -> None:
    """Another's, by its claim alone; not who has it already, nor one whose job is over."""
    job, other = (a_job("exit 0", f"{which}-{os.getpid()}") for which in ("asks", "has"))
    assert {} == taken_by_others([HERE], job)
    claim_hosts(other, tmp_path / "jobs" / other.id)
    holder = holder_of(name)
    assert {"localhost": f"is taken by {other.id} (user {ME})"} == taken_by_others([HERE], job)
    assert {} == taken_by_others([HERE], other)
    (tmp_path / "jobs" / other.id).mkdir(parents=True)
    (tmp_path / "jobs" / other.id / "state.json").write_text('{"state": "failed", "attempt": 1}')
    assert {} == taken_by_others([HERE], job)
    assert holder.pid == holder_of(name).pid


def test_a_stop_is_heard_after_what_must_not_be_left_half_done() -> None:
    """The taking of hosts, which are given back then; everything else is left to itself."""
    asked, begun, go = threading.Event(), threading.Event(), threading.Event()
    signals = SimpleNamespace(ask_to_end=False)
    patience = Patience(cast(Any, signals), lambda: asked.set() if signals.ask_to_end else None)
    done: list[str] = []

    def work(what: str) -> None:
        begun.set()
        go.wait()
        done.append(what)

    def stop() -> None:
        begun.wait()
        signals.ask_to_end = True
        asked.wait()
        go.set()

    stops = threading.Thread(target=stop)
    stops.start()
    with pytest.raises(StopAsked):
        patience.wait_for(lambda: work("takes"), to_its_end=True)
    assert ["takes"] == done
    stops.join()
    go.clear()
    with pytest.raises(StopAsked):
        patience.wait_for(lambda: work("looks"))
    assert ["takes"] == done
    go.set()
