"""The guard's two programs on this machine: what a host reports, what AWS answers, what is remembered and told."""

import calendar
import email.message
import io
import json
import os
import socket
import struct
import subprocess
import time
import urllib.error
import urllib.parse
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from cluster.errors import ClusterError
from cluster.guard import line, tell
from cluster.guard.extend import Seen, keep, seconds_of, seen
from cluster.guard.onhost import activity, renew
from cluster.guard.onhost.activity import ProcessUsage, busy
from cluster.guard.onhost.api import Api, GroupStates, HalfSet, Refused, terms
from cluster.guard.onhost.history import Past
from cluster.guard.onhost.policy import NEVER, GuardLimits, GuardState
from cluster.guard.onhost.renew import GuardPaths
from cluster.inventory import Cluster

T = 1_800_000_000.0  # 08:00 UTC
TOLD = {"end": 1.8e9, "why": "no useful work", "useful_at": 1.7e9, "what": "a terminal on h", "hours": 2.5}


def a_process(cpu_s: float = 0.0, **more: Any) -> ProcessUsage:
    return ProcessUsage(**{"cpu_s": cpu_s, "moved": 0, "is_job": False, "is_ours": False, "is_service": False, **more})


@pytest.mark.parametrize(
    ("before", "now", "seconds", "kinds"),
    [
        (a_process(0), a_process(7.5), 30.0, {"processors"}),  # a quarter of a core
        (a_process(0), a_process(7.4), 30.0, set()),
        (a_process(100), a_process(100), 30.0, set()),
        (None, a_process(8), 30.0, {"processors"}),  # a new one counts from its beginning
        (a_process(0), a_process(0.25), 0.1, {"processors"}),  # a look that comes at once is taken for a second's
        (a_process(0), a_process(0.2), 0.1, set()),
        (a_process(is_ours=True), a_process(is_ours=True, moved=1 << 20), 30.0, {"staging or preparation"}),
        (a_process(is_ours=True), a_process(is_ours=True, moved=(1 << 20) - 1), 30.0, set()),
        (a_process(is_ours=True, moved=9 << 20), a_process(is_ours=True, moved=9 << 20), 30.0, set()),
        (None, a_process(is_ours=True, moved=2 << 20), 30.0, {"staging or preparation"}),
        (
            a_process(is_ours=True),
            a_process(30, is_ours=True, moved=2 << 20),
            30.0,
            {"processors", "staging or preparation"},
        ),
    ],
)
def test_work_begins_at_a_quarter_of_a_core_and_at_a_mebibyte(
    before: ProcessUsage | None, now: ProcessUsage, seconds: float, kinds: set[str]
) -> None:
    """Since the last look, not since the process began."""
    assert kinds == busy({("1", "0"): before} if before else {}, {("1", "0"): now}, seconds)


def test_the_work_of_many_small_processes_adds_up() -> None:
    """Four that use a tenth of a core each are at work, beside a job's rank that does not count and hides none."""
    now = {(str(n), "0"): a_process(3) for n in range(4)}
    ranks = {("8", "0"): a_process(30, is_job=True), ("9", "0"): a_process(30, is_service=True)}
    assert {"processors"} == busy({}, {**ranks, **now}, 30.0)
    assert set() == busy({}, ranks, 30.0)


@pytest.mark.parametrize(
    ("variable", "is_job", "is_ours", "is_service"),
    [
        ("DLAMI_JOB=x", True, False, False),
        ("DLAMI_RUN=x", False, True, False),
        ("DLAMI_SERVICE=x", False, False, True),
        ("OTHER=x", False, False, False),
    ],
)
def test_whose_a_process_is_stands_in_its_environment(
    variable: str, is_job: bool, is_ours: bool, is_service: bool
) -> None:
    """Of a real process of this machine, known by its number and its start."""
    name, _, value = variable.partition("=")
    pipe = subprocess.PIPE
    child = subprocess.Popen(["sh", "-c", "echo; read line"], stdin=pipe, stdout=pipe, env={name: value})
    try:
        assert child.stdout
        assert child.stdout.readline(), "it is there"
        start = Path(f"/proc/{child.pid}/stat").read_text().rpartition(")")[2].split()[19]
        found = activity.processes()[str(child.pid), start]
    finally:
        child.communicate(b"\n")
    assert (is_job, is_ours) == (found.is_job, found.is_ours)
    assert found.is_service or not is_service


@pytest.mark.parametrize("module", ["cluster.jobs.supervisor.supervise", "cluster.jobs.supervise"])
def test_a_supervisor_belongs_to_a_job(module: str) -> None:
    """Its work keeps no cluster that its ranks do not keep, in this version and in the one before."""
    pipe = subprocess.PIPE
    child = subprocess.Popen(["sh", "-c", "echo; read line", "-m", module, "/shared/jobs/j"], stdin=pipe, stdout=pipe)
    try:
        assert child.stdout
        assert child.stdout.readline(), "it is there"
        start = Path(f"/proc/{child.pid}/stat").read_text().rpartition(")")[2].split()[19]
        assert activity.processes()[str(child.pid), start].is_job
    finally:
        child.communicate(b"\n")


@pytest.fixture
def still(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> dict[str, Any]:
    """A host on which nothing happens but what a test changes here."""
    scene: dict[str, Any] = {"processes": {}, "terminals": {}, "beats": 0, "gpu": False}
    monkeypatch.setattr(activity, "processes", lambda: dict(scene["processes"]))
    monkeypatch.setattr(activity, "terminals", lambda: dict(scene["terminals"]))
    monkeypatch.setattr(activity, "beats", lambda: scene["beats"])
    monkeypatch.setattr(activity, "gpu_is_busy", lambda now: scene["gpu"])
    monkeypatch.setattr(activity, "BOOT", str(tmp_path / "report.json"))
    monkeypatch.setattr(activity, "NVME", str(tmp_path / "nvme"))
    return scene


def test_each_kind_of_work_is_a_counter_that_grows_while_it_is_seen(still: dict[str, Any], tmp_path: Path) -> None:
    """And stays where it was once it is over; each carries the boot that it counts in."""
    watch, boot = activity.UsefulWork(), Path("/proc/sys/kernel/random/boot_id").read_text()[:8]

    def counted() -> dict[str, str]:
        return {kind: value.removeprefix(f"{boot}:") for kind, value in watch.look()["signs"].items()}

    assert {} == counted()
    still |= {"beats": 7, "gpu": True, "terminals": {"/dev/pts/1": 5}}
    assert {"a terminal": "1", "steps of a job": "1", "a GPU": "1"} == counted()
    assert {"a terminal": "1", "steps of a job": "1", "a GPU": "2"} == counted()
    still |= {"gpu": False, "processes": {("7", "1"): a_process(99)}}
    (tmp_path / "report.json").write_text('{"status": "running"}')
    grown = {"a terminal": "1", "steps of a job": "1", "a GPU": "2", "processors": "1", "a first boot": "1"}
    assert grown == counted()
    (tmp_path / "report.json").write_text('{"status": "ready"}')
    assert grown == counted()


def test_a_host_names_what_only_its_own_disk_has(
    still: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Eight names at most, without hidden ones; an empty list where nothing is mounted there or nothing is on it."""
    nvme = tmp_path / "nvme"
    nvme.mkdir()
    assert [] == activity.local_data() == activity.UsefulWork().look()["local"]
    monkeypatch.setattr(os.path, "ismount", lambda path: path == str(nvme))
    for name in (".hidden", "lost+found"):
        (nvme / name).mkdir()
    assert [] == activity.local_data()
    for n in range(8):
        (nvme / f"d{n}").mkdir()
    room = SimpleNamespace(f_blocks=9 << 20, f_bfree=2 << 20, f_frsize=4096)
    monkeypatch.setattr(os, "statvfs", lambda path: room)
    assert [f"{nvme}: d0, d1, d2, d3, d4, d5, d6, d7 (28 GiB)"] == activity.local_data()
    (nvme / "d8").touch()
    assert [f"{nvme}: d0, d1, d2, d3, d4, d5, d6, d7 … (28 GiB)"] == activity.local_data()


@pytest.mark.parametrize(
    ("cards", "programs", "is_busy"),
    [
        (["GPU-a, 10"], ["GPU-a, 7"], True),
        (["GPU-a, 9"], ["GPU-a, 7"], False),
        (["GPU-a, 90"], ["GPU-a, 5"], False),  # a job's rank
        (["GPU-a, 90"], ["GPU-a, 5", "GPU-a, 7"], True),
        (["GPU-a, 90", "GPU-b, 0"], ["GPU-b, 7"], False),
        (["GPU-a, [N/A]"], ["GPU-a, 7"], False),
        (["GPU-a, 90"], [], False),
    ],
)
def test_a_gpu_that_works_for_no_job(
    cards: list[str], programs: list[str], is_busy: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From a tenth of its time on, as the driver's tool says."""
    tool = tmp_path / "nvidia-smi"
    said = {"*utilization*": cards, "*": programs}
    cases = "".join(f"{one}) printf '%s\\n' {' '.join(map(repr, lines))};;\n" for one, lines in said.items() if lines)
    tool.write_text(f'#!/bin/sh\ncase "$1" in\n{cases}esac\n')
    tool.chmod(0o755)
    now = {("5", "1"): a_process(is_job=True), ("7", "1"): a_process()}
    monkeypatch.setenv("PATH", str(tmp_path / "none"))
    assert not activity.gpu_is_busy(now)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    assert is_busy is activity.gpu_is_busy(now)


def test_beats_are_those_of_plain_files_that_are_beats(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another mark, half a record, a link and a pipe count nothing and hide nothing."""
    for name, data in {
        "a": struct.pack("<Q4s", 5, b"beat"), "b": struct.pack("<Q4s", 7, b"beat") + b"more",
        "c": struct.pack("<Q4s", 9, b"none"), "d": b"short",
    }.items():  # fmt: skip
        (tmp_path / name).write_bytes(data)
    (tmp_path / "e").symlink_to(tmp_path / "a")
    monkeypatch.setattr(activity.glob, "glob", lambda pattern: sorted(map(str, tmp_path.iterdir())))
    assert 12 == activity.beats()


def test_what_is_said_is_whole_and_for_all_to_read(tmp_path: Path) -> None:
    """In the place of what was there, and nothing is left beside it."""
    file = tmp_path / "told.json"
    for text in ("{}", '{"line": "x"}'):
        activity.write(str(file), text)
        assert (text, 0o644) == (file.read_text(), file.stat().st_mode & 0o777)
    assert [file] == [*tmp_path.iterdir()]


class Answers:
    """AWS's side of a connection: what it answers, one after the other, and what it was asked."""

    def __init__(self, *said: Any) -> None:
        self.said, self.asked = list(said), list[dict[str, str]]()

    def __call__(self, request: Any, timeout: float) -> Any:
        self.asked.append(dict(urllib.parse.parse_qsl(request.data.decode())))
        code, text, at = self.said.pop(0)
        head = email.message.Message()
        if at is not None:
            head["Date"] = time.strftime("%a, %d %b %Y %H:%M:%S GMT", time.gmtime(at))
        body = io.BytesIO(text.encode())
        if code == 0:
            raise OSError(text)
        if code != 200:
            raise urllib.error.HTTPError("https://aws", code, "", head, body)
        body.headers = head  # type: ignore[attr-defined]
        return body


@pytest.fixture
def says(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Answers]]:
    """This machine's clock stands still, and AWS says what a test has it say."""
    monkeypatch.setattr(time, "time", lambda: T)
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "x")

    def these(*said: Any) -> Answers:
        answers = Answers(*said)
        monkeypatch.setattr(urllib.request, "urlopen", answers)
        return answers

    yield these


def groups_xml(tag: str, **members: list[str]) -> str:
    groups = "".join(
        f"<member><AutoScalingGroupName>demo-{name}</AutoScalingGroupName><Instances>"
        + "".join(f"<member><InstanceId>{i}</InstanceId></member>" for i in instances)
        + f"</Instances><Tags><member><Key>dlami-cluster:guard</Key><Value>{tag}</Value></member></Tags></member>"
        for name, instances in members.items()
    )
    return f'<R xmlns="http://autoscaling.amazonaws.com/doc/2011-01-01/"><AutoScalingGroups>{groups}</AutoScalingGroups></R>'


REFUSAL = "<ErrorResponse><Error><Code>{}</Code><Message>{}</Message></Error></ErrorResponse>"


@pytest.mark.parametrize(
    ("off_s", "kept_s"), [(3600.0, 3600.0), (-3600.0, -3600.0), (3.0, 3.0), (2.0, 0.0), (None, 0.0)]
)
def test_every_answer_tells_how_far_the_clock_is_off(says: Any, off_s: float | None, kept_s: float) -> None:
    """By more than two seconds, since its date has whole ones; an answer without a date tells nothing."""
    says((200, groups_xml("idle_minutes=60", workers=["i-2"], master=["i-1"]), None if off_s is None else T + off_s))
    api = Api("us-east-1", "demo")
    assert T == api.now()
    found = api.groups()
    assert GroupStates(terms=GuardLimits(idle_minutes=60), instances=("i-1", "i-2"), masters=1) == found
    assert (off_s is not None, T + kept_s) == (api.has_answered, api.now())


def test_a_request_that_is_refused_for_its_time_is_made_again_by_aws_s_clock(says: Any) -> None:
    """Once: a second refusal, and one that moves the clock by less than a minute, are final."""
    late = REFUSAL.format("SignatureDoesNotMatch", "expired")
    answers = says((403, late, T + 60), (200, "", T + 60), (200, "", T + 60))
    Api("us-east-1", "demo").put(T + 7200)
    workers, again, master = answers.asked
    assert workers == again
    assert ("demo-workers", "demo-master") == (workers["AutoScalingGroupName"], master["AutoScalingGroupName"])
    assert ("2027-01-15T10:00:00Z", "0", "0", "0") == tuple(
        master[name] for name in ("StartTime", "MinSize", "MaxSize", "DesiredCapacity")
    )
    for said in ([(403, late, T + 59)], [(403, late, T + 60), (403, late, T + 180)]):
        answers = says(*said)
        with pytest.raises(Refused, match=r"^DescribeAutoScalingGroups: SignatureDoesNotMatch: expired$"):
            Api("us-east-1", "demo").groups()
        assert not answers.said


@pytest.mark.parametrize("refused", [(), ("workers",), ("master",), ("workers", "master")])
def test_each_group_gets_its_end_whatever_the_other_says(says: Any, refused: tuple[str, ...]) -> None:
    """A refusal names the group; that only one has its end is told apart from that none has."""
    no = (400, REFUSAL.format("Throttling", "Rate exceeded"), None)
    answers = says(*(no if name in refused else (200, "", None) for name in ("workers", "master")))
    kind = None
    try:
        Api("us-east-1", "demo").put(T)
    except Refused as e:
        kind, said = type(e), str(e)
        assert all(f"demo-{name} is not set: " in said for name in refused) and "Rate exceeded" in said
    assert (None, HalfSet, Refused)[len(refused)] == kind
    assert ["demo-workers", "demo-master"] == [one["AutoScalingGroupName"] for one in answers.asked]


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        ((0, "no route", None), "DescribeAutoScalingGroups: no route"),
        ((500, "<html", None), "DescribeAutoScalingGroups: HTTP 500"),
        ((400, REFUSAL.format("Throttling", ""), None), "DescribeAutoScalingGroups: Throttling"),
        ((200, "<R", None), "DescribeAutoScalingGroups: the answer is no XML"),
        ((200, "<R/>", None), "the groups demo-master, demo-workers have no tag dlami-cluster:guard"),
        (
            (200, groups_xml("so it is", master=[]), None),
            "the tag dlami-cluster:guard says 'so it is', which are no terms",
        ),
    ],
)
def test_what_aws_did_not_say_is_refused_in_words(says: Any, answer: Any, said: str) -> None:
    """Its own, where it has some."""
    says(answer)
    with pytest.raises(Refused) as error:
        Api("us-east-1", "demo").groups()
    assert str(error.value).startswith(said)


def test_an_end_that_was_left_is_that_of_the_group_that_ends_first(says: Any) -> None:
    """It is asked for where the terms hold none; what is no schedule is refused."""
    schedule = (
        "<R><ScheduledUpdateGroupActions><member><StartTime>{}</StartTime></member></ScheduledUpdateGroupActions></R>"
    )
    off = groups_xml("idle_minutes=0", master=["i-1"])
    nine, ten = "2027-01-15T09:00:00Z", "2027-01-15T10:00:00Z"
    for times, until in (((ten, nine), T + 3600), ((nine, ten), T + 3600)):
        says((200, off, None), *((200, schedule.format(at), None) for at in times))
        assert until == Api("us-east-1", "demo").groups().until
    says((200, off, None), (200, "<R/>", None), (200, "<R/>", None))
    assert Api("us-east-1", "demo").groups().until is None
    says((200, off, None), (200, schedule.format("soon"), None))
    with pytest.raises(Refused, match="DescribeScheduledActions: the answer is no schedule"):
        Api("us-east-1", "demo").groups()


def test_the_history_is_read_page_by_page(says: Any) -> None:
    """Until there is no further one; each group's own."""

    def page(text: str, token: str = "") -> tuple[int, str, None]:
        one = f"<member><Description>{text}</Description><StatusCode>Successful</StatusCode>"
        times = "<StartTime>2027-01-15T06:00:00Z</StartTime><EndTime>2027-01-15T07:00:00Z</EndTime></member>"
        return 200, f"<R><Activities>{one}{times}</Activities><NextToken>{token}</NextToken></R>", None

    answers = says(
        page("Launching a new EC2 instance: i-1", "more"),
        page("Terminating EC2 instance: i-1"),
        page("Launching a new EC2 instance: i-2"),
    )
    now = GroupStates(terms=GuardLimits(), instances=("i-2",), masters=0)
    assert Past(began=T - 7200, hours=3.0, master_hours=1.0) == Api("us-east-1", "demo").past(now)
    assert [None, "more", None] == [asked.get("NextToken") for asked in answers.asked]
    assert ["demo-master"] * 2 + ["demo-workers"] == [asked["AutoScalingGroupName"] for asked in answers.asked]
    says((200, "<R><Activities><member><StartTime>soon</StartTime></member></Activities></R>", None))
    with pytest.raises(Refused, match="DescribeScalingActivities: the answer is no history"):
        Api("us-east-1", "demo").past(now)


def test_terms_that_are_not_understood_are_off() -> None:
    """Each by itself; a negative one too."""
    assert GuardLimits(max_hours=2.0) == terms("idle_minutes=soon max_hours=2 budget_usd=-5 block_ends=tomorrow other")
    assert GuardLimits(usd_per_hour=2.0, master_usd_per_hour=0.5) == terms("usd_per_hour=2 master_usd_per_hour=0.5")
    assert calendar.timegm((2027, 1, 15, 8, 0, 0)) == terms("block_ends=2027-01-15T08:00:00Z").block_ends


STATE = GuardState(began=T, useful_at=T, what="its start", looked_at=T, instances=("i-1",), until=T + 900)


@pytest.fixture
def place(tmp_path: Path) -> GuardPaths:
    made = GuardPaths(name="demo", shared=str(tmp_path), life="1", run=str(tmp_path / "run.json"))
    for name in ("hosts", "keep"):
        Path(made.folder, name).mkdir(parents=True)
    return made


@pytest.mark.parametrize(
    ("said", "wish"),
    [
        ({"id": "a", "seconds": 60}, ("a", 60.0)),
        ({"id": "a", "seconds": 15 * 86400}, ("a", 14 * 86400.0)),
        ({"id": "a", "seconds": -1}, ("a", 0.0)),
        ({"id": "x" * 99, "seconds": "60"}, ("x" * 64, 60.0)),
        ({"id": "a"}, None),
        ({"id": "a", "seconds": "long"}, None),
        ([], None),
    ],
)
def test_a_wish_is_for_two_weeks_at_most(place: GuardPaths, said: Any, wish: Any) -> None:
    """What is none keeps nothing, and hides no other."""
    Path(place.folder, "keep").chmod(0o1777)
    for uid, text in ((1, json.dumps(said)), (2, '{"id": "b", "seconds": 1}')):
        path = Path(place.folder, "keep", f"{3 - uid}.json")  # whose it is, says its owner
        path.write_text(text)
        os.chown(path, uid, -1) if os.getuid() == 0 else pytest.skip("needs root")
    assert {"2.json": ("b", 1.0), **({"1.json": wish} if wish else {})} == renew.wishes(place)


def test_reports_of_hosts_that_are_gone_are_old(place: GuardPaths) -> None:
    """By ten minutes against the newest; signs carry their host, and jobs how far they are."""
    for host, age_s in (("a", 0), ("b", 599), ("c", 600), ("d", 0)):
        file = Path(place.folder, "hosts", f"{host}.json")
        file.write_text(json.dumps({"host": host, "signs": {"a GPU": "x:1"} if host != "d" else "none", "local": []}))
        os.utime(file, (T - age_s, T - age_s))
    for job, attempts in (("j", {"attempts": [{}, {"number": 2, "step": 7, "alive_at": 9}]}), ("k", {"attempts": [3]})):
        folder = Path(place.shared, "jobs", job)
        folder.mkdir(parents=True)
        (folder / "state.json").write_text('{"state": "running"}')
        (folder / "attempts.json").write_text(json.dumps(attempts))
    expected = {"a GPU on a": "x:1", "a GPU on b": "x:1", "job j": "running 2 7 9", "job k": "running None None None"}
    assert expected == renew.signs(place)


def test_attempts_that_repeat_what_others_did_are_no_work(place: GuardPaths) -> None:
    """Two in a row made no progress: the third counts once it does more steps, or lives longer where none tells any."""
    folder = Path(place.shared, "jobs", "j")
    folder.mkdir(parents=True)
    (folder / "state.json").write_text('{"state": "running"}')

    def sign(*attempts: dict[str, Any]) -> str:
        (folder / "attempts.json").write_text(json.dumps({"attempts": attempts}))
        return renew.signs(place)["job j"]

    steps = [{"number": 1, "step": 50}, {"number": 2, "step": 40, "futile": 0}]
    assert "running 3 20 9" == sign(*steps, {"number": 3, "step": 20, "futile": 1, "alive_at": 9})
    assert "repeats" == sign(*steps, {"number": 4, "step": 50, "futile": 2, "alive_at": 9})
    assert "running 4 51 9" == sign(*steps, {"number": 4, "step": 51, "futile": 2, "alive_at": 9})
    silent = [{"number": 1, "started": 100, "ended": 700}, {"number": 2, "started": 800, "alive_at": 1200}]
    assert "repeats" == sign(*silent, {"number": 3, "futile": 2, "started": 2000, "alive_at": 2600})
    assert "running 3 None 2601" == sign(*silent, {"number": 3, "futile": 2, "started": 2000, "alive_at": 2601})
    assert "repeats" == sign(*silent, {"number": 3, "futile": 2, "started": "x"})


def test_a_job_whose_state_is_damaged_is_seen_by_its_lease(place: GuardPaths) -> None:
    """Or the guard would end the nodes below it."""
    folder = Path(place.shared, "jobs", "j")
    folder.mkdir(parents=True)
    (folder / "state.json").write_text("")
    (folder / "attempts.json").write_text('{"attempts": [{"number": 2, "step": 7, "alive_at": 9}]}')
    assert {} == renew.signs(place)
    (folder / "lease.json").write_text(json.dumps({"holder": {"host": socket.gethostname()}}))
    assert {"job j": "running 2 7 9"} == renew.signs(place)


def test_a_job_that_has_ended_is_not_read_at_each_look(place: GuardPaths) -> None:
    """Ten thousand of them took the guard half a minute; one that is resumed is seen, since its folder changes."""
    folder = Path(place.shared, "jobs", "j")
    folder.mkdir(parents=True)
    (folder / "state.json").write_text('{"state": "failed"}')
    os.utime(folder, (time.time() - 3600, time.time() - 3600))
    assert {} == renew.signs(place)
    with (folder / "state.json").open("r+") as file:  # in place, which leaves the folder's time as it is
        file.write('{"state":"running"}')
    assert {} == renew.signs(place)
    activity.write(str(folder / "state.json"), '{"state": "running"}')
    assert ["job j"] == list(renew.signs(place))


class Told:
    """AWS as `look` meets it: what it says, or its refusal, and the end that was asked for."""

    offset_s, has_answered = 0.0, False

    def __init__(self, *, refuses: str = "", refuses_ends: str = "", found: GuardLimits | None = None) -> None:
        self.refuses, self.refuses_ends, self.found = refuses, refuses_ends, found or GuardLimits(idle_minutes=60)
        self.end: float | None = None
        self.half = ""  # why one of the two groups refuses its end

    def now(self) -> float:
        return T + self.offset_s

    def groups(self) -> GroupStates:
        if self.refuses:
            raise Refused(self.refuses)
        return GroupStates(terms=self.found, instances=("i-1", "i-2"), masters=1)

    def past(self, now: GroupStates) -> Past:
        return Past(began=T - 1800, hours=1.2345, master_hours=0.5)

    def put(self, at: float) -> None:
        if self.refuses_ends:
            raise Refused(self.refuses_ends)
        self.end = at
        if self.half:
            raise HalfSet(self.half)


def test_the_first_look_asks_for_an_end_and_says_so(place: GuardPaths) -> None:
    """An hour after the last useful work; until AWS has said the terms there is nothing to say but the trouble."""
    assert {"trouble": "no route"} == renew.check_once(Told(refuses="no route"), place).told
    aws = Told()
    said = renew.check_once(aws, place)
    assert (T + 3600, T + 3600) == (aws.end, said.told["end"])
    assert ("", False, False) == (said.warn, said.save, "line" in said.told)
    assert {"useful_at": T, "what": "its start", "hours": 1.23, "kept_until": 0.0, "trouble": ""} == {
        name: said.told[name] for name in ("useful_at", "what", "hours", "kept_until", "trouble")
    }
    assert "no route" == renew.check_once(Told(refuses="no route"), place).told["trouble"]
    assert "too late" == renew.check_once(Told(refuses_ends="too late"), replace(place, life="2")).told["trouble"]


def test_an_end_that_one_group_refuses_is_asked_for_again(place: GuardPaths) -> None:
    """The earlier of both ends is warned of, or jobs there would end unsaved; the other group is named until it has it."""
    aws = Told()
    renew.check_once(aws, place)
    aws.found, aws.half = GuardLimits(idle_minutes=30), "the end of demo-master is not set: Throttling"
    for _ in range(2):
        aws.end = None
        told = renew.check_once(aws, place).told
        assert (T + 1800, T + 1800, aws.half) == (aws.end, told["end"], told["trouble"])
    aws.half = ""
    assert (T + 1800, "") == tuple(renew.check_once(aws, place).told[name] for name in ("end", "trouble"))
    aws.end = None
    renew.check_once(aws, place)
    assert aws.end is None, "both have it"
    aws.found, aws.half = GuardLimits(idle_minutes=90), "the end of demo-workers is not set: Throttling"
    assert T + 1800 == renew.check_once(aws, place).told["end"], "the group that has not moved ends first"


def test_no_end_is_put_off_by_a_guard_that_forgets(place: GuardPaths, tmp_path: Path) -> None:
    """It would take each look for the first, for ever."""
    aws = Told()
    renew.check_once(aws, replace(place, shared=str(tmp_path / "gone"), run=str(tmp_path / "gone/run.json")))
    assert aws.end is None


@pytest.mark.parametrize(
    ("found", "left_s", "why", "way_out"),
    [
        (GuardLimits(idle_minutes=60), 900, "no useful work since 08:00 UTC (its start)", True),
        (GuardLimits(idle_minutes=60), 290, "no useful work since 08:00 UTC (its start)", True),
        (GuardLimits(max_hours=1), 900, "guard.max_hours is 1", False),
    ],
)
def test_a_warning_says_when_why_and_what_puts_it_off(
    place: GuardPaths, found: GuardLimits, left_s: float, why: str, way_out: bool
) -> None:
    """For everybody as long as it holds, and once for whom it is told to; what is lost with the nodes is named once."""
    for host in ("a", "b"):
        Path(place.folder, "hosts", f"{host}.json").write_text('{"host": "h", "local": ["/nvme: x (9 GiB)"]}')
    renew._remember(place, replace(STATE, until=T + 3600), found, T + 3600 - left_s, 0.0)
    said = renew.check_once(Told(refuses="no route"), place, lambda: 0.0)
    again = renew.check_once(Told(refuses="no route"), place, lambda: 0.0)
    text = f"all nodes of demo end at 09:00 UTC: {why}" + ("; 'inv keep 2h' puts that off" if way_out else "")
    lost = " Only on the nodes' own disks, and lost then: /nvme: x (9 GiB)."
    assert text == said.told["line"] == again.told["line"]
    step = 15 if left_s == 900 else 5
    assert f"dlami-cluster, {step} minutes before the end: {text}.{lost}" == again.told["warning"]
    assert (f"in {step} minutes {text}.{lost}", "") == (said.warn, again.warn)
    assert (left_s < 300, False) == (said.save, again.save)


def test_no_end_is_told_as_none(place: GuardPaths) -> None:
    """Where the guard is off."""
    said = renew.check_once(Told(found=GuardLimits()), place)
    assert (None, "", "") == (said.told["end"], said.told["why"], said.warn)
    assert NEVER > T


@pytest.fixture
def stacked(here: Cluster) -> tuple[Cluster, Path]:
    """This machine as a stack's master, and where its guard's folder would be."""
    return replace(here, stack="us-east-1/demo"), Path(here.shared, ".dlami-cluster/demo/guard")


def test_a_wish_is_left_where_the_guard_looks_for_it(stacked: tuple[Cluster, Path]) -> None:
    """And without a guard it is said that there is none."""
    cluster, folder = stacked
    with pytest.raises(ClusterError, match=r"localhost: .*there is no guard on this master"):
        keep(cluster, 60.0)
    (folder / "keep").mkdir(parents=True)
    keep(cluster, 7200.0)
    place = GuardPaths(name="demo", shared=cluster.shared)
    assert [(f"{os.getuid()}.json", 7200.0)] == [(who, seconds) for who, (_, seconds) in renew.wishes(place).items()]


@pytest.mark.parametrize("text", [None, "", "{", "[]", '{"end": null}', '{"end": "x"}'])
def test_a_guard_that_has_said_nothing_yet_is_looked_at_again(stacked: tuple[Cluster, Path], text: str | None) -> None:
    """So is one whose word cannot be read."""
    cluster, folder = stacked
    folder.mkdir(parents=True)
    if text is not None:
        (folder / "told.json").write_text(text)
    with pytest.raises(ClusterError, match="localhost: its guard has not said anything yet"):
        seen(cluster)
    (folder / "told.json").write_text(json.dumps(TOLD))
    assert Seen(end=1.8e9, why="no useful work", useful_at=1.7e9, what="a terminal on h", hours=2.5) == seen(cluster)


def test_what_the_guard_said_is_read_by_people() -> None:
    """With an end, and without one."""
    last = "useful work was seen last at 2023-11-14 22:13 UTC: a terminal on h"
    found = Seen.from_json(TOLD)
    assert f"all nodes end at 2027-01-15 08:00 UTC unless something is done until then; {last}" == str(found)
    assert f"nothing ends this cluster by itself; {last}" == str(replace(found, end=None))
    assert Seen.from_json({**TOLD, "end": None}).end is None
    assert (60.0, 14 * 86400.0) == (seconds_of("1m"), seconds_of("14d"))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('{"line": "all nodes end", "end": 4e9}', "guard: all nodes end\n"),
        ('{"line": "all nodes end", "end": 1e9}', ""),
        ('{"line": "all nodes end"}', ""),
        ('{"line": "", "end": 4e9}', ""),
        ("[]", ""),
        ("{", ""),
    ],
)
def test_on_a_node_the_line_is_in_a_file(
    text: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    """It is said as long as the end is to come; whatever goes wrong, nothing is."""
    monkeypatch.setattr(line, "TOLD", tmp_path / "told.json")
    monkeypatch.setenv("CLUSTER", str(tmp_path / "none"))
    line.say_line()
    (tmp_path / "told.json").write_text(text)
    line.say_line()
    assert ("", said) == tuple(capsys.readouterr())


def test_a_warning_that_nobody_took_is_an_exit_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    """With why, for the guard's log."""
    monkeypatch.delenv("CLUSTER", raising=False)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "cluster.toml").write_text('name = "demo"\nnotify = "/no/such/program"\n')
    assert 1 == tell.main("in 15 minutes")
    assert "/no/such/program cannot be started" in capsys.readouterr().err
    (tmp_path / "cluster.toml").write_text('name = "demo"\nnotify = "tell \'x"\n')
    assert 2 == tell.main("in 15 minutes")
