"""Which hosts a job's next attempt gets: the rule as a table and over random clusters, and the gate on real hosts."""

import itertools
import json
import os
import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cluster.health import precheck
from cluster.health.precheck import HealthIssue
from cluster.health.verdict import Severity
from cluster.hosts import Host
from cluster.inventory import load_cluster
from cluster.jobs.host_queue import WHOLE
from cluster.jobs.supervisor import admission
from cluster.recovery import preemption_query
from cluster.recovery.placement import Ineligible, Placement, choose
from cluster.recovery.preemption import PreemptionNotice
from cluster.recovery.replacement import Replacement
from cluster.ssh.fanout import Executor
from lab import lab as labs
from lab.record import Lab
from tests.cluster.flat_jobs import job_of
from tests.cluster.jobs_here import a_job

SEATS = tuple(Host(rank=r, address=a, slots=2) for r, a in enumerate("abcd"))
SPARES = (Host(rank=4, address="y", slots=2, is_spare=True), Host(rank=5, address="z", slots=2, is_spare=True))
GONE = Ineligible(why="does not answer", is_gone=True)


def chosen(unfit: str = "", failed: str = "", spares: int = 0, np: int = 8, min_np: int = 8) -> Placement:
    return choose(
        SEATS, SPARES[:spares], dict.fromkeys(unfit, GONE), dict.fromkeys(failed, "failed 2 times"),
        np=np, min_np=min_np,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("given", "hosts", "np", "missing"),
    [
        ({}, "abcd", 8, ""),
        ({"spares": 2}, "abcd", 8, ""),
        ({"unfit": "c", "spares": 1}, "abyd", 8, ""),  # the same rank
        ({"unfit": "ac", "spares": 2}, "ybzd", 8, ""),
        ({"unfit": "cd", "spares": 1, "min_np": 4}, "aby", 6, "d"),
        ({"unfit": "c"}, "", 0, "c"),  # waits
        ({"unfit": "c", "min_np": 6}, "abd", 6, "c"),
        ({"unfit": "c", "min_np": 7}, "", 0, "c"),
        ({"unfit": "c", "np": 6, "min_np": 6}, "abd", 6, "c"),  # there is room on the others
        ({"unfit": "cy", "spares": 2}, "abzd", 8, ""),  # a spare that is not well
        ({"failed": "c", "spares": 1}, "abyd", 8, ""),
        ({"failed": "c", "min_np": 2}, "abd", 6, "c"),
        ({"failed": "c"}, "abcd", 8, ""),  # it is needed
        ({"failed": "cd", "min_np": 6}, "abd", 6, "c"),  # the better one of both is
        ({"failed": "c", "unfit": "d", "min_np": 6}, "abc", 6, "d"),
        ({"failed": "c", "unfit": "cd", "min_np": 6}, "", 0, "cd"),
        ({"failed": "y", "unfit": "c", "spares": 2}, "abzd", 8, ""),
        ({"failed": "y", "unfit": "c", "spares": 1}, "abyd", 8, ""),  # rather than wait
        ({"failed": "y", "unfit": "c", "spares": 1, "min_np": 6}, "abd", 6, "c"),
        ({"failed": "yz", "unfit": "c", "spares": 2}, "abzd", 8, ""),
        ({"failed": "zb", "unfit": "c", "spares": 2}, "abyd", 8, ""),  # the well one where nobody comes back
        ({"unfit": "abcd", "spares": 1, "min_np": 2}, "y", 2, "bcd"),
        ({"unfit": "abcd", "min_np": 1}, "", 0, "abcd"),
    ],
)
def test_the_hosts_of_the_next_attempt(given: dict[str, Any], hosts: str, np: int, missing: str) -> None:
    """The same, a spare in the dead one's rank, fewer where that is allowed, else none yet."""
    found = chosen(**given)
    assert (hosts, np, missing) == ("".join(h.address for h in found.hosts), np, "".join(sorted(found.missing)))
    assert np == found.np
    assert [0, 1, 2, 3] == [h.rank for h in found.seats]
    assert not any(h.is_spare for h in found.hosts)


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({}, "on the same hosts"),
        ({"unfit": "c", "spares": 1}, "spare y takes the place of c"),
        ({"unfit": "c", "min_np": 6}, "goes on without: c does not answer"),
        ({"unfit": "c"}, "too few hosts: c does not answer"),
        ({"failed": "c", "min_np": 6}, "goes on without: c failed 2 times"),
    ],
)
def test_it_is_said_what_was_chosen(given: dict[str, Any], text: str) -> None:
    """In one line."""
    assert text == str(chosen(**given))


def test_all_leave_where_every_seat_s_host_says_that_it_goes() -> None:
    """One that stays, or is only silent, may be what the job goes on with."""
    leaves = Ineligible(why="will go", notice=PreemptionNotice(at=1.0, host="a", kind="spot", text="so it is"))
    for unfit, all_leave in (
        (dict.fromkeys("abcd", leaves), True),
        (dict.fromkeys("abc", leaves), False),
        ({**dict.fromkeys("abc", leaves), "d": GONE}, False),
        ({}, False),
    ):
        found = choose(SEATS, (), unfit, {}, np=8, min_np=2)
        assert all_leave is found.all_leave
        assert [leaves.notice] * sum(u is leaves for u in unfit.values()) == list(found.notices)
        assert (not unfit) is found.is_whole


def test_a_look_says_who_is_silent_and_who_is_unwell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A seat that answers is not looked at unless it is suspected; a spare always is. What says that it goes is out."""
    seats = tuple(Host(rank=r, address=a, slots=1) for r, a in enumerate(("127.0.0.2", "gone.invalid", "lost.invalid")))
    spare = Host(rank=3, address="127.0.0.3", slots=1, is_spare=True)
    leaves = PreemptionNotice(at=1.0, host="127.0.0.2", kind="spot", text="spot, at 12:00")
    looked: list[str] = []

    def sight(shared: Path, hosts: Sequence[Host], is_shared: bool) -> dict[str, Any]:
        looked.extend(h.address for h in hosts)
        return {"127.0.0.3": HealthIssue(why="a GPU is lost", verdict=Severity.REPLACE)}

    monkeypatch.setattr(precheck, "glance", sight)
    monkeypatch.setattr(admission, "taken_by_others", lambda hosts, job: {})
    monkeypatch.setattr(preemption_query, "leaving_hosts", lambda hosts: (leaves,))
    found = admission.look_at(tmp_path, seats, [spare], {"lost.invalid"}, a_job("true", "x", hosts=seats))
    silent = Ineligible(why="does not answer", is_gone=True, is_silent=True)
    assert {
        "gone.invalid": silent,
        "lost.invalid": silent,
        "127.0.0.3": Ineligible(why="a GPU is lost", is_gone=True, is_its_own=True),
        "127.0.0.2": Ineligible(why="will go: spot, at 12:00", notice=leaves),
    } == found
    assert ["127.0.0.3"] == looked


class OfAStack(Replacement):
    """b's successor is there, and a spare that was started since."""

    def __init__(self) -> None:
        super().__init__("us-east-1/training", print)
        self._hosts = [Host(rank=1, address="n", slots=2), SPARES[0]]
        self._ranks = {"b": 1}
        self.told: list[Any] = []

    def begin(self, chosen: Placement, job_hosts: Sequence[Host]) -> None:
        self.told.append((sorted(chosen.replaced), [h.address for h in job_hosts]))


@pytest.mark.parametrize(
    ("replacing", "gone", "hosts", "successors", "taken", "missing"),
    [
        (OfAStack(), "b", "ancd", {"b": "n"}, {}, ""),
        (OfAStack(), "bc", "anyd", {"b": "n"}, {"c": "y"}, ""),
        (OfAStack(), "bcd", "", {"b": "n"}, {"c": "y"}, "d"),
        (None, "b", "", {}, {}, "b"),
    ],
)
def test_the_gate_knows_who_is_there_instead(
    replacing: OfAStack | None, gone: str, hosts: str, successors: Any, taken: Any, missing: str,
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """A successor has its predecessor's rank; the stack's new spare can be taken; who else is gone is to be replaced."""
    job = job_of(id="small", np=8, hosts=SEATS)
    found_gone = lambda _, seats, free, *rest: {h.address: GONE for h in (*seats, *free) if h.address in gone}  # noqa: E731
    monkeypatch.setattr(admission, "look_at", found_gone)
    found = admission.next_hosts(tmp_path, job, seats=SEATS, spares=(), np=8, min_np=8, replacing=replacing)

    assert hosts == "".join(h.address for h in found.hosts)
    assert (successors, taken, missing) == (found.successors, found.taken, "".join(found.missing))
    assert list(SPARES[:1] if replacing and not taken else ()) == list(found.spares)
    assert not replacing or [(list(taken), list("ancd"))] == replacing.told


@given(
    unfit=st.sets(st.sampled_from("abcdyz")),
    failed=st.lists(st.sampled_from("abcdyz"), unique=True),
    spares=st.integers(0, 2),
    np=st.integers(1, 8),
    min_np=st.integers(1, 8),
    slots=st.lists(st.integers(1, 4), min_size=6, max_size=6),
)
def test_whatever_happened_to_the_hosts_the_choice_is_sound(
    unfit: set[str], failed: list[str], spares: int, np: int, min_np: int, slots: list[int]
) -> None:
    """Nobody twice, nobody unfit, room for the ranks, everybody's rank kept, and no waiting or use of those that failed
    before while enough others are well, spares too.
    """
    seats = tuple(Host(rank=r, address=a, slots=slots[r]) for r, a in enumerate("abcd"))
    pool = tuple(Host(rank=r, address=a, slots=slots[r], is_spare=True) for r, a in ((4, "y"), (5, "z")))[:spares]
    np = min(np, sum(h.slots for h in seats))
    min_np = min(np, min_np)
    found = choose(seats, pool, dict.fromkeys(unfit, GONE), dict.fromkeys(failed, "often"), np=np, min_np=min_np)
    used = [h.address for h in found.hosts]

    assert len(used) == len(set(used))
    assert not set(used) & unfit
    assert sorted(found.hosts) == list(found.hosts)
    assert {h.rank for h in found.seats} == {0, 1, 2, 3}
    assert {h.address for h in found.seats} - {s.address for s in pool} <= set("abcd")
    if found.hosts:
        assert min_np <= found.np <= sum(h.slots for h in found.hosts)
    else:
        assert most_slots(seats, pool, unfit) < min_np
    if set(used) & set(failed):
        assert most_slots(seats, pool, unfit | set(failed)) < min_np


@pytest.mark.parametrize(
    ("job", "exclusive", "rooms"),
    [
        (1, False, {"b": 1, "c": 4}),
        (2, False, {"c": 4}),
        (1, True, {"c": 4}),
        (4, False, {"c": 4}),
        (8, False, {"c": 4}),
    ],
)
def test_a_spare_has_room_for_the_slots_that_a_job_needs(job: int, exclusive: bool, rooms: dict[str, int]) -> None:
    """Beside others where it shares hosts, on an empty one where it does not."""
    spares = [Host(rank=n, address=a, slots=4) for n, a in enumerate("abc")]
    asks = a_job("", "x", np=job, hosts=(), slots=dict.fromkeys("abc", 4), exclusive=exclusive)
    found = admission._with_room(asks, spares, {"a": {"y": WHOLE}, "b": {"y": 2, "z": 1}})
    assert rooms == {s.address: s.slots for s in found}


def test_a_host_that_another_job_uses_is_replaced_once_or_not_at_all() -> None:
    """A dead one by the oldest of its jobs; one that answers by nobody while another job has it."""
    dead, sick = Ineligible(why="is silent", is_gone=True, is_silent=True), Ineligible(why="is sick", is_gone=True)
    chosen = Placement(missing={"a": dead, "b": sick}, replaced={"c": dead})
    held = {"a": {"job-2": 1}, "b": {"job-2": 1}, "c": {"job-0": 1}}
    found = admission._replaceable(a_job("", "job-1"), chosen, held)
    assert {"a": True, "b": False, "c": False} == {a: u.is_gone for a, u in {**found.missing, **found.replaced}.items()}
    alone = admission._replaceable(a_job("", "job-1"), chosen, {})
    assert chosen == alone


def most_slots(seats: Sequence[Host], spares: Sequence[Host], out: set[str]) -> int:
    """The slots of the seats that can be filled without these hosts, by trying every way."""
    well = [s for s in spares if s.address not in out]
    empty = [s for s in seats if s.address in out]
    ways = itertools.permutations([*well, *[None] * len(empty)], len(empty))
    filled = (sum(e.slots for e, s in zip(empty, way, strict=True) if s and s.slots >= e.slots) for way in ways)
    return sum(s.slots for s in seats if s not in empty) + max(filled)


@pytest.fixture
def spare_lab(lab_allowed: None) -> Iterator[Lab]:
    """Three hosts and a spare."""
    name = f"s{os.getpid() % 10_000_000}"
    try:
        yield labs.up(name, 3, 2, spares=1)
    finally:
        labs.down(name)


ON_MASTER = """
import json, sys
from pathlib import Path
from cluster.jobs.supervisor.admission import next_hosts
from cluster.hosts import Host
from cluster.jobs.flat_record import from_flat
from cluster.jobs.record import Job
from cluster.typed import from_json
given = json.loads(sys.argv[1])
hosts = [Host(**h) for h in given["hosts"]]
seats, spares = [h for h in hosts if not h.is_spare], [h for h in hosts if h.is_spare]
job = from_json(Job, from_flat({"id": "20260101-small", "name": "small", "command": [], "np": 6, "hosts": [vars(h) for h in seats], "profile": "tcp",
                                "versions": {}, "created": ""}))
found = next_hosts(Path("/shared"), job, seats=seats, spares=spares, suspects=given["suspects"], np=6, min_np=4)
print(json.dumps([[h.address for h in found.hosts], found.taken, {a: u.why for a, u in found.missing.items()}]))
"""


def test_the_gate_on_real_hosts(spare_lab: Lab) -> None:
    """A dead host's rank goes to the spare; a spare that is not well is none; who comes back is taken again."""
    cluster = load_cluster(f"lab:{spare_lab.name}")
    master, one, two, spare = (h.address for h in cluster.hosts)

    with Executor(cluster) as reach:

        def asked(*suspects: str) -> Any:
            given = json.dumps({"hosts": [vars(h) for h in cluster.hosts], "suspects": suspects})
            words = shlex.join([cluster.python, "-c", ON_MASTER, given])
            result = reach.run([cluster.master], f"cd {cluster.project} && {words}")[cluster.master]
            assert result.ok, result.problem + result.stderr.decode()
            return json.loads(result.text.splitlines()[-1])

        assert [[master, one, two], {}, {}] == asked(one)
        labs.crash(spare_lab, spare_lab.hosts[1])
        assert [[master, spare, two], {one: spare}, {}] == asked(one)
        reach.run([cluster.hosts[3]], "echo 'fs-1:/ /efs nfs4 defaults 0 0' >>/etc/fstab").check()
        assert [[master, two], {}, {one: "does not answer"}] == asked(one)
        labs.heal(spare_lab, spare_lab.hosts)
        assert [[master, one, two], {}, {}] == asked(one)
