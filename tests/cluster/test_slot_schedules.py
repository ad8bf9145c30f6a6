"""Jobs that share hosts: tables of who gets which slots, and random schedules with crashes in which no slot has two."""

import dataclasses
import random
from typing import Any

import pytest

from cluster.errors import ConfigError
from cluster.hosts import Host
from cluster.jobs.host_queue import WHOLE, Waiting, places
from cluster.jobs.occupancy import held_by, holders, hosts_free_for, places_of, queue, waiting_for
from cluster.jobs.record import Job, JobRecords, JobStatus
from cluster.jobs.state import JobState
from tests.cluster.jobs_here import a_job

HOSTS = tuple(Host(rank=i, address=f"10.0.0.{i}", slots=4) for i in range(3))
SLOTS = {h.address: h.slots for h in HOSTS}


def small(job: str, np: int = 1, hosts: tuple[Host, ...] = HOSTS) -> Waiting:
    return Waiting(job=job, hosts=hosts, np=np, exclusive=False)


@pytest.mark.parametrize(
    ("queue", "held", "expected"),
    [
        ([small("a"), small("b")], {}, {"a": [(0, 1)], "b": [(0, 1)]}),  # beside each other
        ([small("a", 2)], {0: {"x": 3}}, {"a": [(1, 2)]}),  # where there is room
        ([small("a")], {0: {"x": 1}, 1: {"y": 3}}, {"a": [(1, 1)]}),  # the fullest, so that whole hosts stay free
        ([small("a")], {0: {"x": WHOLE}, 1: {"x": WHOLE}, 2: {"y": 4}}, {"a": []}),
        ([small("a", 4)], {0: {"x": 1}}, {"a": [(1, 4)]}),  # as many as a host has: all of it
        ([small("a", 5)], {0: {"x": 1}}, {"a": [(1, 4), (2, 4)]}),  # more than a host has: whole ones
        ([small("a", 5)], {0: {"x": 1}, 1: {"y": 1}}, {"a": []}),
        ([small("a", 3), small("b", 1)], {h: {"x": 2} for h in range(3)}, {"a": [], "b": []}),  # nobody goes past it
        ([dataclasses.replace(small("a"), exclusive=True), small("b")], {}, {"a": [(0, 4)], "b": [(1, 1)]}),
    ],
)
def test_who_gets_which_slots(queue: Any, held: Any, expected: Any) -> None:
    """By host: how many slots each job gets now."""
    found = places(queue, {HOSTS[n].address: jobs for n, jobs in held.items()})
    assert expected == {job: [(h.rank, h.slots) for h in place.hosts] for job, place in found.items()}


def test_who_does_not_wait_is_told_who_has_too_many_slots() -> None:
    """The holder with its state; who only waits is named after that."""
    one_host = HOSTS[:1]
    records = [(a_job("", "x", hosts=one_host, np=3, slots=SLOTS, exclusive=False), JobStatus(state=JobState.RUNNING))]
    found = holders(JobRecords(jobs=tuple(records), damaged=()))
    assert [Host(rank=0, address="10.0.0.0", slots=1)] == list(hosts_free_for(small("a", 1, one_host), (), found))
    with pytest.raises(ConfigError, match=r"hosts taken by x \(running\): 10.0.0.0; wait for them with --queue, 'inv"):
        hosts_free_for(small("a", 2, one_host), (), found)
    with pytest.raises(ConfigError, match=r"w waits in the queue for 10.0.0.0: wait behind it with --queue"):
        hosts_free_for(small("a", 2, one_host), [small("w", 3, one_host)], ())


class Hosts:
    """What the hosts' kernels grant, as `cluster/jobs/onhost/claim.py` asks for it."""

    def __init__(self) -> None:
        self.slots: dict[str, dict[int, str]] = {h.address: {} for h in HOSTS}

    def take(self, job: Job) -> bool:
        """Give the job its slots on all of its hosts, or on none."""
        for host in job.hosts:
            there = self.slots[host.address]
            want = SLOTS[host.address] if job.takes_whole(host) else job.need
            free = [slot for slot in range(SLOTS[host.address]) if slot not in there][:want]
            if len(free) < want:
                self.give_back(job.id)
                return False
            there.update(dict.fromkeys(free, job.id))
        return True

    def give_back(self, job: str) -> None:
        for there in self.slots.values():
            for slot in [slot for slot, by in there.items() if by == job]:
                del there[slot]


class Played:
    """Operators, a master, supervisors and hosts, each of which may stop at any moment between two steps."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.hosts, self.elsewhere = Hosts(), 0
        self.jobs: dict[str, tuple[Job, JobStatus]] = {}
        self.granted: set[str] = set()  # jobs whose supervisor has claimed their slots: their ranks may run
        self.refused = 0

    @property
    def records(self) -> JobRecords:
        return JobRecords(jobs=tuple(self.jobs.values()), damaged=())

    def step(self) -> None:
        """One of the things that happen."""
        self.random.choice([self.submit, self.start, self.give_turns, self.claim, self.claim, self.end, self.crash,
                            self.take_up, self.other_cluster])()  # fmt: skip
        self.check()

    def drawn(self) -> Job:
        count = self.random.randint(1, len(HOSTS))
        wanted = tuple(sorted(self.random.sample(HOSTS, count)))
        np = self.random.randint(1, sum(h.slots for h in wanted))
        exclusive = self.random.random() < 0.2
        number = len(self.jobs) + 1
        return a_job("", f"job-{number:02}", hosts=(), wanted=wanted, np=np, whole_np=np, slots=SLOTS, ticket=number,
                     exclusive=exclusive)  # fmt: skip

    def submit(self) -> None:
        """A job comes with --queue; its operator may go away at once, which changes nothing."""
        job = self.drawn()
        self.jobs[job.id] = job, JobStatus(state=JobState.QUEUED)

    def start(self) -> None:
        """A job comes without --queue: refused, or its hosts are claimed; the operator may stop before the claim."""
        job = self.drawn()
        try:
            hosts = hosts_free_for(waiting_for(job, job.wanted), queue(self.records.jobs), holders(self.records))
        except ConfigError:
            self.refused += 1
            return
        job = dataclasses.replace(
            job.planned(hosts=hosts, whole_hosts=hosts), spec=dataclasses.replace(job.spec, queue=False)
        )
        if hosts and self.random.random() < 0.9 and self.hosts.take(job):
            self.granted.add(job.id)
            self.jobs[job.id] = job, JobStatus(state=JobState.RUNNING)

    def give_turns(self) -> None:
        """A supervisor finds all turns; it may stop after it has written some."""
        for job_id, place in places_of(self.records).items():
            if place.hosts:
                job, status = self.jobs[job_id]
                self.jobs[job_id] = job.planned(hosts=place.hosts, whole_hosts=place.hosts), status
            if self.random.random() < 0.1:
                return

    def claim(self) -> None:
        """Supervisors whose turn has come claim; who is refused by a host gives all back and waits again."""
        for job_id, (job, status) in self.jobs.items():
            if job.hosts and status.state is JobState.QUEUED and self.random.random() < 0.5:
                if self.hosts.take(job):
                    self.granted.add(job_id)
                    self.jobs[job_id] = job, JobStatus(state=JobState.RUNNING)
                else:
                    self.jobs[job_id] = job.planned(hosts=(), whole_hosts=()), status

    def going(self, *states: JobState) -> list[str]:
        return [job_id for job_id, (_, status) in self.jobs.items() if status.state in states]

    def end(self) -> None:
        for job_id in self.going(JobState.RUNNING)[:2]:
            self._over(job_id)

    def _over(self, job_id: str) -> None:
        self.hosts.give_back(job_id)
        self.granted.discard(job_id)
        self.jobs[job_id] = self.jobs[job_id][0], JobStatus(state=JobState.SUCCEEDED)

    def crash(self) -> None:
        """A supervisor is killed, or the master goes down with all of them: claims and ranks on hosts stay."""
        going = self.going(JobState.RUNNING, JobState.QUEUED)
        for job_id in going if self.random.random() < 0.3 else going[:1]:
            self.jobs[job_id] = self.jobs[job_id][0], JobStatus(state=JobState.LOST)

    def take_up(self) -> None:
        """A lost job goes on: what is left of it is ended first, and where it had waited it waits again."""
        for job_id in self.going(JobState.LOST)[:2]:
            job = self.jobs[job_id][0]
            self.hosts.give_back(job_id)
            self.granted.discard(job_id)
            if job.wanted:
                self.jobs[job_id] = job.planned(hosts=(), whole_hosts=()), JobStatus(state=JobState.QUEUED)
            elif self.hosts.take(job):
                self.granted.add(job_id)
                self.jobs[job_id] = job, JobStatus(state=JobState.RUNNING)
            else:
                self._over(job_id)

    def other_cluster(self) -> None:
        """A job of another shared folder, on no record here, takes a slot or leaves again."""
        there = self.hosts.slots[self.random.choice(HOSTS).address]
        mine = [slot for slot, by in there.items() if by.startswith("elsewhere")]
        free = [slot for slot in range(4) if slot not in there]
        if mine:
            del there[mine[0]]
        elif free:
            there[free[0]] = "elsewhere"

    def check(self) -> None:
        """Ranks run on slots of their own, as many as they need; the records never promise more than there is."""
        for job_id in self.granted:
            job = self.jobs[job_id][0]
            for host in job.hosts:
                mine = [slot for slot, by in self.hosts.slots[host.address].items() if by == job_id]
                assert len(mine) == (4 if job.takes_whole(host) else job.need)
        for address, jobs in held_by(holders(self.records)).items():
            promised = [min(slots, SLOTS[address]) for slots in jobs.values()]
            assert sum(promised) <= SLOTS[address], (address, jobs)


def test_in_a_thousand_random_schedules_no_slot_is_given_twice() -> None:
    """With operators, supervisors and the master stopped at any moment, and a job of another cluster beside them."""
    placed = refused = 0
    for seed in range(1000):
        played = Played(seed)
        for _ in range(40):
            played.step()
        placed += sum(bool(job.hosts) for job, _ in played.jobs.values())
        refused += played.refused
        for _ in range(200):  # nobody waits for ever
            for job_id in played.going(JobState.LOST, JobState.RUNNING):
                played._over(job_id)
            for there in played.hosts.slots.values():
                for slot in [slot for slot, by in there.items() if by == "elsewhere"]:
                    del there[slot]
            played.give_turns()
            played.claim()
            played.check()
            if not played.going(JobState.QUEUED):
                break
        assert not played.going(JobState.QUEUED), seed
    assert placed > 2000
    assert refused > 300
