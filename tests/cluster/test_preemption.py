"""What a host is told of its own end: by its metadata service, over real HTTP with tokens, into one file."""

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cfn.template.design import TAG
from cluster.folder_thread import FolderThread
from cluster.hosts import Host
from cluster.inventory import ROOT
from cluster.jobs.record import JobPaths, JobStatus
from cluster.jobs.state import JobState
from cluster.jobs.supervisor import recovery
from cluster.jobs.supervisor.interruptible_wait import Patience
from cluster.jobs.supervisor.lease_holder import LeaseHolder
from cluster.jobs.supervisor.recovery import NotHealed, Recovery
from cluster.jobs.supervisor.reporter import Telling
from cluster.recovery.onhost import notice as onhost
from cluster.recovery.onhost.notice import BLOCK_ENDS, MAINTENANCE, REBALANCE, SPOT, Metadata, NoticePoller, notice
from cluster.recovery.placement import Ineligible, Placement, choose
from cluster.recovery.policy import Retry
from cluster.recovery.preemption import LEAD_S, PreemptionNotice, departures, due, is_the_end, why
from cluster.recovery.replacement import Replacement
from lab.aws import FakeAws, start
from tests.cluster.jobs_here import a_job
from tests.conftest import PATIENCE_S

NOW = 1_800_000_000.0  # 2027-01-15 08:00:00 UTC
SPOT_SAID = '{"action": "terminate", "time": "2027-01-15T08:02:00Z"}'
REBALANCE_SAID = '{"noticeTime": "2027-01-15T07:59:00Z"}'


def maintenance(code: str, state: str = "active", at: str = "15 Jan 2027 10:00:00 GMT") -> str:
    return json.dumps([{"NotBefore": at, "Code": code, "EventId": "instance-event-1", "State": state}])


@pytest.mark.parametrize(
    ("said", "kind", "in_s", "text"),
    [
        ({}, None, 0, ""),
        ({SPOT: None, REBALANCE: None, MAINTENANCE: "[]", BLOCK_ENDS: None}, None, 0, ""),
        ({SPOT: SPOT_SAID}, "spot", 120, "takes this spot instance back (terminate) at 2027-01-15 08:02 UTC"),
        ({SPOT: '{"action": "hibernate"}'}, "spot", 0, "(hibernate)"),
        ({SPOT: "not JSON"}, "spot", 0, "takes this spot instance back"),
        ({REBALANCE: REBALANCE_SAID}, "rebalance", -60, "a raised risk"),
        ({REBALANCE: REBALANCE_SAID, SPOT: SPOT_SAID}, "spot", 120, ""),
        ({MAINTENANCE: maintenance("instance-retirement")}, "shutdown", 7200, "planned instance-retirement"),
        ({MAINTENANCE: maintenance("system-maintenance")}, "maintenance", 7200, "planned system-maintenance"),
        ({MAINTENANCE: maintenance("instance-stop", "completed")}, None, 0, ""),
        ({MAINTENANCE: maintenance("system-reboot", at="15 Jan 2027 06:00:00 GMT")}, None, 0, ""),  # it has been
        ({BLOCK_ENDS: "2027-01-15T11:30:00Z"}, "block", 3 * 3600, "ends at 2027-01-15 11:30 UTC"),
        ({BLOCK_ENDS: "soon"}, None, 0, ""),
        ({BLOCK_ENDS: "2027-01-15T11:30:00Z", MAINTENANCE: maintenance("instance-stop")}, "shutdown", 7200, ""),
        ({MAINTENANCE: maintenance("system-maintenance"), BLOCK_ENDS: "2027-01-15T11:30:00Z"}, "block", 10800, ""),
    ],
)
def test_the_first_end_of_the_host_counts_most(said: dict[str, str], kind: Any, in_s: float, text: str) -> None:
    """What only may happen is told when nothing else is."""
    found = notice(said, NOW, booted=NOW - 3600)
    if kind is None:
        assert found is None
    else:
        assert found
        assert (kind, NOW + in_s) == (found["kind"], found["at"])
        assert text in found["text"]


json_values = st.recursive(
    st.none() | st.integers() | st.text(max_size=9), lambda x: st.lists(x) | st.dictionaries(st.text(), x)
)


@pytest.mark.seconds
@given(
    st.dictionaries(
        st.sampled_from([SPOT, REBALANCE, MAINTENANCE, BLOCK_ENDS]), st.text() | json_values.map(json.dumps) | st.none()
    )
)
def test_no_answer_of_the_service_ends_the_watch(said: dict[str, str]) -> None:
    """Whatever it says: a notice, or none."""
    found = notice(said, NOW, NOW)
    assert found is None or {"kind", "at", "text"} == found.keys()


@pytest.fixture
def imds(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeAws]:
    """The metadata service of the instance i-1, which AWS_EC2_METADATA_SERVICE_ENDPOINT names."""
    with start(tag_prefix=TAG) as fake:
        monkeypatch.setenv("AWS_EC2_METADATA_SERVICE_ENDPOINT", f"{fake.url}/_fake/imds/i-1")
        yield fake


def says(fake: FakeAws, **said: str) -> None:
    """What the service says from now on, by the names of its paths; tokens given before count no more."""
    paths = {getattr(onhost, name): value for name, value in said.items()}
    fake.app.control.post_metadata("i-1", {}, paths)


def test_a_notice_is_a_file_while_it_holds(imds: FakeAws, tmp_path: Path) -> None:
    """Told, it is there, whole and for all to read; withdrawn, it is gone. A token that has run out is asked for anew."""
    file = tmp_path / "notice.json"
    watch = NoticePoller(Metadata(), str(file))
    watch.look()
    assert not file.exists()
    says(imds, REBALANCE=REBALANCE_SAID)
    watch.look()
    assert "rebalance" == json.loads(file.read_text())["kind"]
    says(imds, REBALANCE=REBALANCE_SAID, SPOT=SPOT_SAID)
    watch.look()
    told = json.loads(file.read_text())
    assert ("spot", NOW + 120) == (told["kind"], told["at"])
    assert 0o644 == file.stat().st_mode & 0o777
    says(imds)
    NoticePoller(Metadata(), str(file)).look()  # one that was started anew knows its predecessor's file
    assert [] == list(tmp_path.iterdir())


def test_a_service_that_is_silent_withdraws_nothing(imds: FakeAws, tmp_path: Path) -> None:
    file = tmp_path / "notice.json"
    watch = NoticePoller(Metadata(), str(file))
    says(imds, SPOT=SPOT_SAID)
    watch.look()
    imds.stop()
    assert onhost.LOOK_S == watch.look()
    assert file.exists()


def test_where_there_is_no_service_it_is_asked_seldom(tmp_path: Path) -> None:
    """A machine of one's own: no notice, no error, hardly a question."""
    assert 60 == NoticePoller(Metadata("http://127.0.0.1:9"), str(tmp_path / "n")).look()


def test_another_s_notice_is_left_alone(imds: FakeAws, tmp_path: Path) -> None:
    """One that an operator or the lab wrote."""
    file = tmp_path / "notice.json"
    file.write_text('{"kind": "shutdown", "at": 5, "text": "moving house"}')
    NoticePoller(Metadata(), str(file)).look()
    assert file.exists()


def test_nobody_sees_half_a_notice(imds: FakeAws, tmp_path: Path) -> None:
    """Whoever has opened one reads it to its end, though another has taken its place; nothing lies beside it."""
    file = tmp_path / "notice.json"
    watch = NoticePoller(Metadata(), str(file))
    says(imds, SPOT=SPOT_SAID)
    watch.look()
    with file.open() as opened:
        says(imds, SPOT=SPOT_SAID.replace("08:02", "08:01"))
        watch.look()
        assert (NOW + 120, NOW + 60) == (json.load(opened)["at"], json.loads(file.read_text())["at"])
    assert [file] == list(tmp_path.iterdir())


def test_the_program_needs_nothing_but_python(imds: FakeAws, tmp_path: Path) -> None:
    """As the unit starts it: the file alone, isolated, in little memory."""
    says(imds, BLOCK_ENDS="2027-01-15T11:30:00Z")
    file = tmp_path / "notice.json"
    program = (ROOT / "cluster/recovery/onhost/notice.py").read_text().replace(onhost.FILE, str(file))
    copied = tmp_path / "copied.py"
    copied.write_text(program)
    running = subprocess.Popen([sys.executable, "-I", "-S", str(copied)])
    try:
        deadline = time.monotonic() + PATIENCE_S
        while not file.exists():
            assert time.monotonic() < deadline and running.poll() is None
            time.sleep(0.05)
        assert "block" == json.loads(file.read_text())["kind"]
    finally:
        used = Path(f"/proc/{running.pid}/status").read_text()
        running.terminate()
        running.wait()
    assert int(used.partition("VmRSS:")[2].split()[0]) < 40_000, "kilobytes"


def said(kind: str, in_s: float) -> dict[str, Any]:
    return {"kind": kind, "at": NOW + in_s, "text": "so it is"}


@pytest.mark.parametrize(
    ("notices", "leaving"),
    [
        ({}, []),
        ({"a": said("spot", 120)}, ["a"]),
        ({"a": said("spot", -5)}, ["a"]),
        ({"a": said("block", 3600)}, []),
        ({"a": said("block", 170), "b": said("block", 100)}, ["b", "a"]),
        ({"a": said("rebalance", -60), "b": said("maintenance", -60)}, []),
        ({"a": said("shutdown", LEAD_S + 1)}, []),
        ({"a": None, "b": "spot", "c": {"kind": "spot"}, "d": {"kind": 3, "at": 5}, "e": said("spot", 0)}, ["e"]),
        ({"a": {"kind": "spot", "at": float("nan")}}, []),
    ],
)
def test_who_leaves_an_attempt_now(notices: dict[str, Any], leaving: list[str]) -> None:
    """Three minutes before it goes; who may go is only told of; what is no notice is none."""
    assert leaving == [d.host for d in due(notices, NOW)]


def test_a_notice_is_one_line_of_two_hundred_characters() -> None:
    """What is no notice is passed over: no object, no kind, no time, or a time that no clock has."""
    assert 200 == len(departures({"a": {"kind": "spot", "at": 1, "text": "x" * 300}})[0].text)
    (one,) = departures({"a": {"kind": "spot", "at": 1, "text": " two\n lines "}})
    assert ("two lines", 1.0, "a") == (one.text, one.at, one.host)
    for said in (
        None,
        {"at": 1},
        {"kind": 1, "at": 1},
        {"kind": "spot"},
        {"kind": "spot", "at": "1"},
        {"kind": "spot", "at": 1e12},
    ):
        assert () == departures({"a": said})
    assert 1 == len(departures({"a": {"kind": "spot", "at": -1e11}}))


@pytest.mark.parametrize(
    ("kind", "in_s", "is_due"), [("spot", 180, True), ("spot", 181, False), ("rebalance", 0, False)]
)
def test_three_minutes_before_its_end_a_host_is_left(kind: str, in_s: float, is_due: bool) -> None:
    """One that only may go is not."""
    assert is_due is PreemptionNotice(at=1000.0 + in_s, host="a", kind=kind, text="").is_due(1000.0)


def test_what_leaving_hosts_mean_is_said_in_a_line() -> None:
    both, saved = due({"a": said("block", 60), "b": said("block", 60)}, NOW), "saved after step 41"
    assert "host a (and 1 more) will go: so it is; saved after step 41" == why(both, ["a", "b", "c"], saved)
    assert "all hosts will go: so it is; saved after step 41" == why(both, ["a", "b"], saved)
    assert not is_the_end((), [])


def test_each_notice_is_told_once_whoever_hears_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The watch over the ranks, again and again, or the gate after them; in the console and to who is to be told."""
    paths, told, seats = (
        JobPaths(tmp_path / "j"),
        tmp_path / "told",
        tuple(Host(rank=r, address=a, slots=1) for r, a in enumerate("ab")),
    )
    paths.logs(1).mkdir(parents=True)
    job = a_job("", "j", hosts=seats, np=2, notify=f"sh -c 'cat >>{told}'")
    leaving = departures({"a": said("block", 60), "b": said("block", 90)})
    unfit = {d.host: Ineligible(why="will go", notice=d) for d in leaving}
    known: list[Any] = []

    def next_hosts(*_: object, **asked: Any) -> Placement:
        known.append((asked["without"], asked["leaving"]))
        return choose(seats, (), unfit, {}, np=2, min_np=1)

    monkeypatch.setattr(recovery, "next_hosts", next_hosts)
    folder = FolderThread()
    telling = Telling(job, paths, LeaseHolder(paths, 1, folder), folder, JobStatus(state=JobState.HEALING))
    for _ in range(3):
        telling.notice(leaving[0])
    patience = Patience(cast(Any, NobodyAsks()), on_look=lambda: None)
    with pytest.raises(NotHealed, match=r"a will go; b will go: 'inv jobs.resume' goes on with it on new ones"):
        Recovery(job, paths, patience, Replacement("", print), telling, folder).prepare(Retry(leaving=leaving), 2)
    telling.close()
    folder.close()

    assert [({}, leaving)] == known
    said_to = [json.loads(line) for line in told.read_text().splitlines()]
    assert [("notice", "a"), ("notice", "b")] == [(e["event"], e["host"]) for e in said_to]
    assert [f"dlami: host {h} says: so it is" for h in "ab"] == paths.console(1).read_text().splitlines()


@pytest.mark.seconds
@pytest.mark.parametrize("is_news", [True, False])
def test_who_waits_for_a_host_looks_again_at_once_when_the_stack_has_other_ones(
    is_news: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Heard while it looked, too. Else some seconds later."""
    paths, folder, replacing = JobPaths(tmp_path / "j"), FolderThread(), Replacement("", print)
    paths.logs(1).mkdir(parents=True)
    seats = tuple(Host(rank=r, address=a, slots=1) for r, a in enumerate("ab"))
    job = a_job("", "j", hosts=seats, np=2)
    looks, slept = [], []

    class Waiting(Patience):
        def sleep(self, seconds: float) -> None:
            slept.append(seconds)
            super().sleep(seconds)

    def next_hosts(*_: object, **asked: Any) -> Placement:
        looks.append(asked)
        leaving = departures({"b": said("block", 60)} if len(looks) == 1 else {a: said("block", 60) for a in "ab"})
        replacing.news += is_news
        unfit = {d.host: Ineligible(why="will go", notice=d) for d in leaving}
        return choose(seats, (), unfit, {}, np=2, min_np=2 if len(looks) == 1 else 1)

    monkeypatch.setattr(recovery, "next_hosts", next_hosts)
    telling = Telling(job, paths, LeaseHolder(paths, 1, folder), folder, JobStatus(state=JobState.HEALING))
    patience = Waiting(cast(Any, NobodyAsks()), on_look=lambda: None)
    with pytest.raises(NotHealed, match="a will go; b will go"):
        Recovery(job, paths, patience, replacing, telling, folder).prepare(Retry(), 2)
    telling.close()
    folder.close()

    assert (2, is_news) == (len(looks), not slept)


def test_a_spare_s_place_is_given_with_the_notice_that_made_it_free() -> None:
    """Also of one whose rank a spare has taken; of one that is only silent there is none."""
    seats = tuple(Host(rank=r, address=a, slots=1) for r, a in enumerate("ab"))
    (one,) = departures({"a": said("spot", 60)})
    unfit = {"a": Ineligible(why="will go", notice=one), "b": Ineligible(why="does not answer", is_gone=True)}
    found = choose(seats, [Host(rank=2, address="y", slots=1, is_spare=True)], unfit, {}, np=2, min_np=1)
    assert ({"a": "y"}, (one,), False) == (found.taken, found.notices, found.all_leave)


class NobodyAsks:
    """No signal has come."""

    ask_to_end = False
