"""Records that another user forged on the shared folder: named and passed over, never followed, never run."""

import contextlib
import ctypes
import dataclasses
import fcntl
import json
import multiprocessing
import os
import signal
import socket
import struct
import subprocess
import threading
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cluster.code.onhost import store
from cluster.errors import ClusterError, ConfigError
from cluster.files import write_json
from cluster.guard.onhost import activity, renew
from cluster.guard.onhost.root_code import not_roots
from cluster.health import baseline
from cluster.health.baseline import ClusterKind
from cluster.health.history import write_command
from cluster.health.onhost import readings
from cluster.inventory import ROOT, Cluster
from cluster.jobs import cost
from cluster.jobs import records as job_records
from cluster.jobs.cost import Bill
from cluster.jobs.lock import locked, make_folder, time_in
from cluster.jobs.master.facts import read_facts
from cluster.jobs.master.lost_jobs import heal_lost
from cluster.jobs.master.submit import submit
from cluster.jobs.occupancy import holders, may_hold
from cluster.jobs.onhost import claim
from cluster.jobs.process import ProcessId, process_id, this_process
from cluster.jobs.record import DamagedRecord, JobPaths, JobStatus, read_job, require_own, write_job
from cluster.jobs.record_lease import take_lease, unrenewed_s
from cluster.jobs.records import find, read_all, view, view_all
from cluster.jobs.state import JobState
from cluster.jobs.status import read_status, write_status
from cluster.matrix.state import ResultStore
from cluster.recovery.host_failures import (
    FOLDER,
    FORGIVEN,
    FailureRecord,
    file_name,
    left_out,
    note,
    parse_memory,
    read_memory,
)
from cluster.ssh.fanout import Executor
from cluster.ssh.onhost import shared_tree
from cluster.ssh.onhost.trusted_files import Untrusted, open_file, read_file
from tests.cluster.jobs_here import HERE, a_job
from tests.conftest import PATIENCE_S

EVE, BOB = 12001, 12002
pytestmark = pytest.mark.skipif(os.getuid() != 0, reason="files of several users need root")


@pytest.fixture
def jobs(tmp_path: Path) -> Path:
    """The jobs' folder as first boot makes it, with a lost job of ours (root here) that has ended badly."""
    made = tmp_path / "jobs"
    made.mkdir()
    made.chmod(0o1777)
    a_record(made, "ours", os.getuid(), sequence=1)
    return made


def a_record(jobs: Path, name: str, owner: int, **changes: Any) -> JobPaths:
    """A job that was lost, its folder and files this user's."""
    paths = JobPaths(jobs / name)
    paths.logs(1).mkdir(parents=True)
    write_job(paths, a_job("true", name, heal=True, **changes))
    gone = dataclasses.replace(this_process(), started=1)
    write_status(paths, JobStatus(state=JobState.RUNNING, supervisor=gone, started="2026-11-22T10:00:00+00:00"))
    take_lease(paths, 1, gone)
    paths.console(1).write_text("[1,0]<stdout>:said\n")
    for path in (paths.folder, *paths.folder.rglob("*")):
        os.chown(path, owner, owner, follow_symlinks=False)
    return paths


def linked(path: Path, to: str) -> None:
    path.unlink(missing_ok=True)
    path.symlink_to(to)
    os.chown(path, EVE, EVE, follow_symlinks=False)


def piped(path: Path) -> None:
    path.unlink(missing_ok=True)
    os.mkfifo(path)
    os.chown(path, EVE, EVE)


def socketed(path: Path) -> None:
    path.unlink(missing_ok=True)
    with socket.socket(socket.AF_UNIX) as one:
        here = Path.cwd()
        os.chdir(path.parent)  # the name of a socket is short
        try:
            one.bind(path.name)
        finally:
            os.chdir(here)
    os.chown(path, EVE, EVE)


def hard(path: Path, to: Path) -> None:
    path.unlink(missing_ok=True)
    path.hardlink_to(to)


def foldered(path: Path) -> None:
    path.unlink(missing_ok=True)
    path.mkdir()
    os.chown(path, EVE, EVE)


def said(path: Path, **fields: Any) -> None:
    write_json(path, {**json.loads(path.read_text()), **fields})
    os.chown(path, EVE, EVE)


def rewritten(path: Path, text: str) -> None:
    path.write_text(text)
    os.chown(path, EVE, EVE)


FORGED: dict[str, Callable[[JobPaths, Path], Any]] = {
    "a pipe as state": lambda eve, jobs: piped(eve.status),
    "a pipe as public record": lambda eve, jobs: (piped(eve.public), piped(eve.job)),
    "a socket as state": lambda eve, jobs: socketed(eve.status),
    "a folder as state": lambda eve, jobs: foldered(eve.status),
    "a state without end": lambda eve, jobs: linked(eve.status, "/dev/zero"),
    "a sparse state": lambda eve, jobs: os.truncate(eve.status, 1 << 40),
    "a state that is ours": lambda eve, jobs: linked(eve.status, "../ours/state.json"),
    "a state by another name of ours": lambda eve, jobs: hard(eve.status, jobs / "ours/state.json"),
    "a state that root was made to own": lambda eve, jobs: os.chown(eve.status, 0, 0),
    "a record that bob was made to own": lambda eve, jobs: (os.chown(eve.job, BOB, BOB), os.chown(eve.public, BOB, BOB)),
    "deep JSON": lambda eve, jobs: rewritten(eve.status, "[" * 200_000),
    "numbers that are none": lambda eve, jobs: said(eve.status, attempt=float("nan")),
    "a number of 4,000 digits": lambda eve, jobs: said(eve.job, sequence=10**4000),
    "a record of ours": lambda eve, jobs: linked(eve.job, "../ours/job.json"),
}  # fmt: skip
HARMLESS: dict[str, Callable[[JobPaths, Path], Any]] = {
    "a pipe as lease": lambda eve, jobs: piped(eve.lease),
    "a pipe as metrics": lambda eve, jobs: piped(eve.metrics),
    "metrics without end": lambda eve, jobs: linked(eve.metrics, "/dev/zero"),
    "a pipe as attempts": lambda eve, jobs: piped(eve.attempts),
    "attempts at the end of time": lambda eve, jobs: rewritten(
        eve.attempts, '{"attempts": [{"number": 1, "np": 1, "hosts": [], "began": -Infinity}]}'
    ),
    "a pipe as results": lambda eve, jobs: piped(eve.folder / "results.json"),
    "a pipe as hostfile": lambda eve, jobs: piped(eve.hostfile),
    "a pipe as console": lambda eve, jobs: piped(eve.console(1)),
    "the last of all jobs": lambda eve, jobs: said(eve.job, sequence=10**15),
}
FOLDERS: dict[str, Callable[[Path], Any]] = {
    "a link to all jobs": lambda jobs: (linked(jobs / "evil", "."), rewritten(jobs / "state.json", "{}")),
    "a link to our job": lambda jobs: linked(jobs / "evil", "ours"),
    "a link to the root folder": lambda jobs: linked(jobs / "evil", "/"),
    "a link to nothing": lambda jobs: linked(jobs / "evil", "gone"),
    "a link to itself": lambda jobs: linked(jobs / "evil", "evil"),
    "a pipe for a folder": lambda jobs: piped(jobs / "evil"),
    "a socket for a folder": lambda jobs: socketed(jobs / "evil"),
    "a name with a newline": lambda jobs: a_record(jobs, "evil", EVE).folder.rename(jobs / "evil\n\x1b]0;x\x07"),
    "a hidden name": lambda jobs: a_record(jobs, "evil", EVE).folder.rename(jobs / ".evil"),
    "a folder under another name": lambda jobs: a_record(jobs, "evil", EVE).folder.rename(jobs / "bert"),
}


def require_undisturbed(jobs: Path, eve: str = "evil") -> None:
    """Ours is listed, found as last, and the only one that root would go on with; of eve's nothing is held."""
    records = read_all(jobs)
    views, damaged = view_all(jobs, records)
    assert "ours" in [v.id for v in views]
    assert all(v.owner == str(EVE) for v in views if v.id != "ours")
    assert "ours" == find(jobs, "last").folder.name
    assert [] == [d for d in damaged if d.path.parent.name == "ours"]
    assert ["ours"] == [one.id for one in heal_lost(jobs, dry_run=True)]
    may_hold(records)
    if (jobs / eve).is_dir() and not (jobs / eve).is_symlink():
        with pytest.raises(ConfigError, match=f"evil is {EVE}'s job: only {EVE} can resume it"):
            require_own(JobPaths(jobs / eve), "resume")


@pytest.mark.parametrize("how", FORGED)
def test_a_forged_record_is_named_and_disturbs_nobody(how: str, jobs: Path) -> None:
    """Whatever a user makes of a record, it is that user's job that cannot be read."""
    eve = a_record(jobs, "evil", EVE, sequence=9999)
    FORGED[how](eve, jobs)
    require_undisturbed(jobs)
    views, damaged = view_all(jobs, read_all(jobs))
    lost = [v for v in views if v.job.id == "evil"]
    assert ["evil"] == [d.path.parent.name for d in damaged] + [v.job.id for v in lost]
    if damaged:
        assert f"passed over; {EVE} can remove it" in str(damaged[0])
        with pytest.raises(DamagedRecord):
            view(JobPaths(jobs / "evil"))
    for one in lost:  # by the lease alone
        assert one.status.state is JobState.LOST
        assert "state.json is damaged" in one.status.cause


@pytest.mark.parametrize("how", HARMLESS)
def test_what_is_beside_a_record_is_passed_over(how: str, jobs: Path) -> None:
    """The job is shown without it."""
    eve = a_record(jobs, "evil", EVE, sequence=9999)
    HARMLESS[how](eve, jobs)
    require_undisturbed(jobs)
    assert str(EVE) == view(JobPaths(jobs / "evil")).owner


@pytest.mark.parametrize("how", FOLDERS)
def test_what_is_no_folder_of_a_job_is_none(how: str, jobs: Path) -> None:
    """A link is nobody's job, wherever it leads."""
    FOLDERS[how](jobs)
    require_undisturbed(jobs)
    assert not [v for v in view_all(jobs, read_all(jobs))[0] if v.id != "ours"]


def test_a_lease_of_the_future_holds_no_host(jobs: Path) -> None:
    """Its owner dates it as wanted; the kernel dates the last change, and somebody's process has to renew that."""
    eve = a_record(jobs, "evil", EVE)
    away = ProcessId(host="elsewhere", pid=1, started=1, boot="another")
    write_status(eve, JobStatus(state=JobState.RUNNING, supervisor=away))
    take_lease(eve, 1, away)
    for path in (eve.status, eve.lease):
        os.chown(path, EVE, EVE)
    far = time.time() + 1e9
    os.utime(jobs / "ours", (far, far))
    os.utime(eve.lease, (far, far))
    assert 60 > unrenewed_s(eve) >= 0


def test_of_another_user_s_jobs_only_so_many_are_read(jobs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All of one's own are, whatever their names; each job is found by its id."""
    monkeypatch.setattr(job_records, "MOST_OF_ANOTHER", 2)
    for n in range(4):
        a_record(jobs, f"z{n}", EVE, sequence=9)
        a_record(jobs, f"b{n}", BOB, sequence=9)
        a_record(jobs, f"a{n}", os.getuid(), sequence=9)
    records = read_all(jobs)
    assert {"a0", "a1", "a2", "a3", "ours", "b2", "b3", "z2", "z3"} == {job.id for job, _ in records.jobs}
    assert {str(EVE): 2, str(BOB): 2} == records.unread
    assert "z0" == find(jobs, "z0").folder.name


def test_one_s_own_job_comes_before_another_s_of_the_same_name(jobs: Path) -> None:
    """Whoever types a part of his job's id does not follow somebody else's, which is named just so."""
    a_record(jobs, "resnet50", EVE, sequence=5)
    a_record(jobs, "20261128-resnet50-19cf", os.getuid(), sequence=3)
    assert "20261128-resnet50-19cf" == find(jobs, "resnet50").folder.name
    (jobs / "20261128-resnet50-19cf").rename(jobs / "away")
    assert "resnet50" == find(jobs, "resnet50").folder.name


@pytest.mark.parametrize("log", ["/etc/passwd", "../ours/secret", "logs/attempt-1/console.log"])
def test_a_page_shows_no_log_but_the_owner_s(log: str, jobs: Path) -> None:
    """The path is the record's own: it could name what only its reader may read."""
    eve = a_record(jobs, "evil", EVE)
    (jobs / "ours/secret").write_text("secret\n")
    said(eve.status, log=log if log.startswith("/") else str(eve.folder / log), state="failed")
    assert read_facts(eve).tail == (("[1,0]<stdout>:said",) if "console" in log else ())


def failed_twice(host: str, **changes: Any) -> list[FailureRecord]:
    return [FailureRecord(time=time.time() - n, host=host, what="lost", job=f"j{n}", **changes) for n in (1, 2)]


def test_a_host_is_left_out_and_taken_back_by_trusted_words_alone(tmp_path: Path) -> None:
    """One's own, root's and the program's owner's; of another's entries neither excludes a host nor forgives one."""
    folder = tmp_path / FOLDER
    for entry in failed_twice("bad"):
        note(tmp_path, entry)
    for entry in (*failed_twice("good"), FailureRecord(time=4e9, host="bad", what=FORGIVEN)):
        write_json(folder / file_name(entry), dataclasses.asdict(entry))
        newest = max(folder.iterdir(), key=lambda p: p.stat().st_ctime_ns)
        os.chown(newest, EVE, EVE)
    assert {"bad"} == left_out(read_memory(tmp_path).entries, time.time()).keys()
    asked = readings.trusted([f"{folder}/*.json"], str(ROOT))
    assert {"bad"} == left_out(parse_memory(asked).entries, time.time()).keys()


def test_checks_that_another_user_recorded_change_nothing(tmp_path: Path) -> None:
    """Not the history of a host, nor the rates that it is compared with."""
    looks = tmp_path / "health/looks"
    looks.mkdir(parents=True)
    for n, owner in enumerate((0, EVE, EVE)):
        rewritten(looks / f"{n}.json", str(n))
        os.chown(looks / f"{n}.json", owner, owner)
    assert [0] == readings.history(str(tmp_path), 1, str(ROOT))
    kind = ClusterKind(instance="no-ec2", ami="none", ranks=1, hosts=1, versions=())
    here = Cluster(name="c", hosts=(HERE,), folder=tmp_path, shared=str(tmp_path), project=str(ROOT))
    with Executor(here) as reach:
        assert baseline.add(reach, here, kind, [], {"hbm": 1.0})
        assert [{"hbm": 1.0}] == baseline.read(reach, here, kind)
        os.chown(tmp_path / "health/baselines" / kind.file, EVE, EVE)
        assert [] == baseline.read(reach, here, kind)


def test_a_job_of_the_jobs_folder_s_owner_is_not_acted_on(jobs: Path) -> None:
    """Who owns the folder could put another in the place of ours: it is said how root takes it back."""
    os.chown(jobs, EVE, EVE)
    with pytest.raises(
        ConfigError, match=f"{jobs} belongs to {EVE}, who could replace .*: as root .*chown root {jobs}"
    ):
        require_own(JobPaths(jobs / "ours"), "resume")
    os.chown(jobs, 0, 0)
    jobs.chmod(0o777)
    with pytest.raises(ConfigError, match=r"has no sticky bit: as root .*chmod 1777"):
        require_own(JobPaths(jobs / "ours"), "resume")


def test_a_hard_link_where_all_can_write_is_refused(jobs: Path, tmp_path: Path) -> None:
    """There a second name may be of a file that its owner keeps elsewhere; in a user's own folder it is that user's."""
    secret = tmp_path / "secret"
    secret.write_text("x")
    hard(jobs / "note", secret)
    with pytest.raises(Untrusted, match="second name"):
        read_file(jobs / "note")
    (tmp_path / "own").mkdir()
    hard(tmp_path / "own/note", secret)
    assert b"x" == read_file(tmp_path / "own/note")
    with pytest.raises(Untrusted, match=f"belongs to root, not to {EVE}"):
        read_file(tmp_path / "own/note", owner=EVE)


def test_a_record_alone_takes_no_host_of_all(jobs: Path) -> None:
    """Not a lost one, a damaged one, or one whose supervisor is somebody else's process; one's own lost job does."""
    for name, pid in (("lost", 0), ("evil", os.getpid()), ("init", 1)):
        eve = a_record(jobs, name, EVE)
        if pid:
            write_status(eve, JobStatus(state=JobState.RUNNING, supervisor=process_id(pid)))
            take_lease(eve, 1, process_id(pid))
            os.chown(eve.status, EVE, EVE)
            os.chown(eve.lease, EVE, EVE)
    rewritten(a_record(jobs, "damaged", EVE).status, "{")
    records = read_all(jobs)
    assert {"lost", "evil", "init", "damaged"} == records.others | {"damaged"}
    assert ["ours"] == [one.job for one in holders(records)]
    assert {JobState.LOST} == {status.state for _, status in records.jobs}


@pytest.mark.parametrize(
    "forged", ['{"number": 1, "futile": %s}' % ("9" * 400), '{"step": -1e999}', '{"step": [1]}', '"x"', ""]
)
def test_no_word_of_a_job_ends_the_guard(forged: str, jobs: Path) -> None:
    """A traceback there would let the cluster end as idle, or never."""
    eve = a_record(jobs, "evil", EVE)
    a_record(jobs, "-x", EVE).folder.rename(jobs / "evil\n\x1b]0;x\x07")
    rewritten(eve.attempts, f'{{"attempts": [{forged}, {forged}]}}')
    keep = jobs.parent / ".dlami-cluster/demo/guard/keep"
    keep.mkdir(parents=True)
    keep.chmod(0o1777)
    rewritten(keep / "0.json", f'{{"id": "x", "seconds": {"9" * 400}}}')
    place = renew.GuardPaths(name="demo", shared=str(jobs.parent))
    assert {"job evil", "job ours"} == set(renew.signs(place))
    assert {f"{EVE}.json"} >= set(renew.wishes(place))


def test_a_pipe_among_beats_holds_up_no_guard(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Root's service goes on to say what is done on its host: without it the cluster would end as idle."""
    piped(tmp_path / "dlami-beat-1-x")
    (tmp_path / "dlami-beat-2-x").write_bytes(struct.pack("<Q4s", 7, b"beat"))
    tmp_path.chmod(0o1777)
    monkeypatch.setattr(activity.glob, "glob", lambda _: sorted(map(str, tmp_path.iterdir())))
    assert 7 == activity.beats()


@pytest.mark.parametrize("write", [False, True])
def test_no_link_is_followed_to_a_file_of_one_s_own(tmp_path: Path, write: bool) -> None:
    """The name is another's choice, whoever owns what it leads to."""
    (tmp_path / "file").write_text("kept")
    (tmp_path / "link").symlink_to("file")
    with pytest.raises(OSError):
        open_file(tmp_path / "link", write=write)
    os.close(open_file(tmp_path / "file", write=write))


@pytest.mark.parametrize("which", ["file", "folder"])
def test_no_swap_between_check_and_use_is_believed(which: str, jobs: Path, tmp_path: Path) -> None:
    """Eve puts a link in its place at each moment: what is read is hers, or refused; never what only root may read."""
    eve, secret = a_record(jobs, "evil", EVE), tmp_path / "secret"
    for path in (secret / "state.json", secret / "state.json.link"):
        path.parent.mkdir(exist_ok=True)
        path.write_text("secret")
    own, other = (eve.status, jobs / "link") if which == "file" else (eve.folder, jobs / "link")
    other.symlink_to(secret / "state.json" if which == "file" else secret)
    libc, swap = ctypes.CDLL(None, use_errno=True), 2  # RENAME_EXCHANGE
    stopped, read = threading.Event(), {"own": 0, "refused": 0}

    def exchange() -> None:
        while not stopped.is_set():
            if libc.renameat2(-100, os.fsencode(own), -100, os.fsencode(other), swap):
                raise OSError(ctypes.get_errno(), "renameat2")

    thread = threading.Thread(target=exchange, daemon=True)
    thread.start()
    try:
        for _ in range(5000):
            try:
                text = read_file(eve.status)
            except OSError:
                read["refused"] += 1
                continue
            assert b"secret" not in text
            read["own"] += 1
    finally:
        stopped.set()
        thread.join()
    assert all(read.values()), read


def test_files_of_a_user_who_was_removed_are_nobody_s(jobs: Path, tmp_path: Path, project: Path) -> None:
    """At boot nothing goes on for a number without a name; it is shown as that number, and acted on by root alone."""
    a_record(jobs, "left", EVE)
    assert str(EVE) == view(JobPaths(jobs / "left")).owner
    with pytest.raises(ConfigError, match=f"left is {EVE}'s job: only {EVE} can resume it, or root with --yes"):
        require_own(JobPaths(jobs / "left"), "resume")
    ran, told = healed(tmp_path, project, nameless=EVE)
    assert (False, True) == (f"as user{EVE}" in ran, f"jobs of user {EVE}, who has no name on this host, stay" in told)


def test_no_handle_stays_open(jobs: Path) -> None:
    """Of refused files and folders, too: a thousand of them do not stop who lists jobs."""
    eve = a_record(jobs, "evil", EVE)
    piped(eve.status)
    before = len(os.listdir("/proc/self/fd"))  # noqa: PTH208
    for path in (eve.status, eve.folder, jobs / "none", eve.folder / "job.json/x"):
        with pytest.raises(OSError):
            open_file(path)
    assert before == len(os.listdir("/proc/self/fd"))  # noqa: PTH208
    assert "evil" == read_job(eve).id
    assert "is a named pipe, not a file" in read_status(eve).cause
    assert before == len(os.listdir("/proc/self/fd"))  # noqa: PTH208


def as_user(uid: int, do: Callable[[], None]) -> int:
    """Do it in a process of this user; return 0, or 1 if it raised."""
    child = os.fork()
    if child == 0:
        try:
            os.setgroups([])
            os.setgid(uid)
            os.setuid(uid)
            do()
            os._exit(0)
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(1)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def open_to_all(folder: Path) -> None:
    """Let other users pass to it."""
    for above in folder.parents:
        if above.stat().st_uid == 0 and above.is_relative_to("/tmp") and above != Path("/tmp"):
            above.chmod(above.stat().st_mode | 0o011)


def locks(jobs: Path) -> list[Path]:
    return sorted(jobs.glob(".lock-*"))


def test_nobody_holds_up_another_by_a_lock(jobs: Path) -> None:
    """Each user has his own; names that others have made, links and pipes among them, are nobody's."""
    open_to_all(jobs)
    for n, make in enumerate((lambda p: linked(p, "/etc/passwd"), piped, foldered, lambda p: rewritten(p, ""))):
        make(jobs / f".lock-{BOB}-{n}")
        make(jobs / f".lock-0-{n}")

    def eve() -> None:
        with locked(jobs, 0):
            for path in jobs.glob(".lock-*"):  # all that there are, as far as eve may
                with contextlib.suppress(OSError):
                    fcntl.flock(os.open(path, os.O_RDONLY | os.O_NONBLOCK), fcntl.LOCK_EX | fcntl.LOCK_NB)
            told.send_bytes(b"held")
            told.recv_bytes()

    fork = multiprocessing.get_context("fork")
    here, told = fork.Pipe()
    eves = fork.Process(target=lambda: as_user(EVE, eve))
    eves.start()
    try:
        assert here.poll(PATIENCE_S) and b"held" == here.recv_bytes()
        with locked(jobs, 0):
            assert 0 == as_user(BOB, lambda: time_in(jobs) and locked(jobs, 0).__enter__())
        assert 1 == as_user(EVE, lambda: locked(jobs, 0).__enter__())
    finally:
        here.send_bytes(b"end")
        eves.join()
    assert (0, EVE, BOB) == tuple(sorted(p.stat().st_uid for p in locks(jobs) if len(p.name) > 20 and p.is_file()))


def test_of_two_processes_that_both_made_a_lock_one_has_it(jobs: Path) -> None:
    """The later one takes all that are there; a hard link to one is no second lock."""
    with locked(jobs, 0):
        (first,) = locks(jobs)
        hard(jobs / f".lock-{os.getuid()}-0", first)
        with pytest.raises(ClusterError, match=f"process {os.getpid()} on "), locked(jobs, 0):
            pass
        rewritten(jobs / f".lock-{os.getuid()}-00", "")
        os.chown(jobs / f".lock-{os.getuid()}-00", 0, 0)
        with pytest.raises(ClusterError), locked(jobs, 0):
            pass
    with locked(jobs, 0):
        pass


def test_a_lock_s_name_leads_nowhere(jobs: Path, tmp_path: Path) -> None:
    """Another user's link is not followed: no file of root's is made or opened to all."""
    linked(jobs / ".lock", str(tmp_path / "cron"))
    linked(jobs / ".lock-0-0", str(tmp_path / "cron"))
    with locked(jobs, 0):
        pass
    assert time_in(jobs)
    assert not (tmp_path / "cron").exists()
    assert all(0 == p.stat().st_mode & 0o077 for p in locks(jobs) if not p.is_symlink())


def test_who_answers_a_byte_at_a_time_is_named_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """The time for an answer is for all of it."""
    monkeypatch.setattr(claim, "_TALK_S", 1.0)
    name = f"dlami-test-{os.getpid()}-drip"
    with socket.socket(socket.AF_UNIX) as door:
        door.bind("\0" + name)
        door.listen(1)

        def drip() -> None:
            caller, _ = door.accept()
            with contextlib.suppress(OSError):
                while caller.send(b"["):
                    time.sleep(0.2)

        threading.Thread(target=drip, daemon=True).start()
        (found,) = claim.holders(name)
        assert (os.getpid(), None) == (found.pid, found.claim)


def test_a_claim_that_nobody_can_connect_to_is_not_called_root_s(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever binds the name and does not listen is not known by name."""
    monkeypatch.setattr(claim, "WAIT_S", 0.1)
    name = f"dlami-test-{os.getpid()}-deaf"
    with socket.socket(socket.AF_UNIX) as door:
        door.bind("\0" + name)
        other = claim.take(claim.Claim("ours", 1, "/none", 0.0), name).by
    assert other is not None and "unknown" == claim.described(other)["user"]


def test_silent_callers_of_another_user_s_do_not_stop_a_claim_s_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It answers its own user, whose next attempt would find its hosts taken by itself else."""
    name = f"dlami-test-{os.getpid()}-mute"
    monkeypatch.setenv("DLAMI_JOB", name)
    assert claim.take(claim.Claim("ours", 1, str(tmp_path), 0.0), name).by is None
    fork = multiprocessing.get_context("fork")
    here, told = fork.Pipe()

    def mute() -> None:
        callers = [socket.socket(socket.AF_UNIX) for _ in range(3)]
        for caller in callers:
            caller.connect("\0" + name)
        told.send_bytes(b"connected")
        told.recv_bytes()

    eves = fork.Process(target=lambda: as_user(EVE, mute))
    eves.start()
    try:
        assert here.poll(PATIENCE_S)
        other = claim.holder(name)
        assert other is not None and other.claim is not None and "ours" == other.claim.job
    finally:
        here.send_bytes(b"end")
        eves.join()
        if (last := claim.holder(name)) is not None:
            os.kill(last.pid, signal.SIGKILL)


@pytest.mark.parametrize("kind", ["another user's", "a link", "not sticky"])
def test_the_jobs_folder_is_made_by_root_or_refused(kind: str, tmp_path: Path) -> None:
    """With how root takes it back; nothing is made in it."""
    jobs = tmp_path / "jobs"
    (tmp_path / "elsewhere").mkdir()
    if kind == "a link":
        linked(jobs, "elsewhere")
    else:
        jobs.mkdir()
        os.chown(jobs, EVE if kind == "another user's" else 0, -1)
        jobs.chmod(0o777)
    if kind == "not sticky":  # root's own is mended
        make_folder(jobs)
        assert 0o1777 == jobs.stat().st_mode & 0o7777
        return
    with pytest.raises(ConfigError, match=f"{jobs} (belongs to {EVE}|is a link)"):
        submit(jobs, a_job("true", "mine"))
    assert [] == [*jobs.iterdir()]


@pytest.mark.parametrize("kind", ["a folder", "a link"])
def test_a_new_job_does_not_move_into_a_folder_of_another_s(kind: str, jobs: Path, tmp_path: Path) -> None:
    """Neither as its last place nor as that where it is made."""
    (tmp_path / "elsewhere").mkdir()
    for name in ("mine", ".new-other"):
        linked(jobs / name, "../elsewhere") if kind == "a link" else foldered(jobs / name)
    for job_id in ("mine", "other"):
        with pytest.raises(ClusterError, match=f"{EVE}|{job_id}"):
            submit(jobs, a_job("true", job_id))
    assert [] == [*(tmp_path / "elsewhere").iterdir(), *(jobs / "mine").iterdir(), *(jobs / ".new-other").iterdir()]


def test_the_folders_of_all_users_are_made_once_by_root(tmp_path: Path) -> None:
    """Those of an operator are taken over, those of others named; a link is not followed."""
    (tmp_path / "jobs").mkdir()
    os.chown(tmp_path / "jobs", BOB, BOB)
    (tmp_path / "environments").mkdir()
    os.chown(tmp_path / "environments", EVE, EVE)
    linked(tmp_path / "notebooks", "/etc")
    wrong = shared_tree.make(str(tmp_path), [BOB])
    assert [f"{tmp_path}/{name}" for name in ("environments", "notebooks")] == [line.split()[0] for line in wrong]
    assert wrong == shared_tree.troubles(str(tmp_path))
    for name in set(shared_tree.FOLDERS) - {"environments", "notebooks"}:
        assert (0, 0o1777) == ((tmp_path / name).stat().st_uid, (tmp_path / name).stat().st_mode & 0o7777)


FAKES = {
    "getent": '[ "$2" = 0 ] && echo root:x:0 || [ "$2" = "$NAMELESS" ] || echo "user$2:x:$2"',
    "runuser": 'echo "as $2" >>"$LOG"',
    "bash": 'echo "as root" >>"$LOG"',
}


def healed(tmp_path: Path, project: Path, nameless: int = -1) -> tuple[set[str], str]:
    """As whom heal-lost.sh runs something of jobs, and what it says."""
    fakes, log = tmp_path / "fakes", tmp_path / "log"
    fakes.mkdir(exist_ok=True)
    for name, script in FAKES.items():
        (fakes / name).write_text(f"#!/bin/sh\n{script}\n")
        (fakes / name).chmod(0o755)
    log.write_text("")
    done = subprocess.run(
        [ROOT / "scripts/heal-lost.sh", tmp_path, project],
        env={"PATH": f"{fakes}:/usr/bin:/bin", "LOG": str(log), "NAMELESS": str(nameless)},
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=True,
    )
    return set(log.read_text().split("\n")) - {""}, done.stdout


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A project of root's alone."""
    made = tmp_path / "project"
    (made / ".venv/bin").mkdir(parents=True)
    (made / ".venv/bin/python").symlink_to("/bin/true")
    return made


@pytest.mark.parametrize("how", FOLDERS)
def test_root_goes_on_with_no_job_by_a_link(how: str, jobs: Path, tmp_path: Path, project: Path) -> None:
    """At boot each owner's jobs go on as that owner, whatever their folders are named or lead to."""
    for path in (jobs / "ours", *(jobs / "ours").rglob("*")):
        os.chown(path, BOB, BOB)
    FOLDERS[how](jobs)
    ran, _ = healed(tmp_path, project)
    assert f"as user{BOB}" in ran
    assert ran <= {f"as user{BOB}", f"as user{EVE}"}


def test_root_runs_no_code_that_another_user_can_write(jobs: Path, tmp_path: Path, project: Path) -> None:
    """Its own jobs go on by themselves only where the project and what is above it are root's."""
    assert ({"as root"}, "") == healed(tmp_path, project)
    code = project / "module.py"
    code.write_text("")
    for owner, mode, why in ((EVE, 0o644, code), (0, 0o664, code), (0, 0o646, code), (0, 0o644, "")):
        os.chown(code, owner, owner)
        code.chmod(mode)
        assert str(why) == not_roots(str(project))
        ran, told = healed(tmp_path, project)
        assert (set(), True) == (ran, f"root's jobs stay as they are: {why} is" in told) if why else {"as root"} == ran
    os.chown(jobs, EVE, EVE)
    ran, told = healed(tmp_path, project)
    assert (set(), True) == (ran, "jobs is not root's" in told)


def test_jobs_behind_a_link_are_nobody_s(jobs: Path, tmp_path: Path, project: Path) -> None:
    """Also of the whole folder."""
    jobs.rename(tmp_path / "elsewhere")
    linked(jobs, "elsewhere")
    ran, told = healed_or_not(tmp_path, project)
    assert (set(), True) == (ran, "jobs is a link" in told)


def healed_or_not(tmp_path: Path, project: Path) -> tuple[set[str], str]:
    try:
        return healed(tmp_path, project)
    except subprocess.CalledProcessError as e:
        return set(), e.stdout


@pytest.mark.parametrize("kind", ["another user's", "a link", "a file", "writable by all", "none"])
def test_a_boot_takes_no_folder_of_another_s_for_its_own(kind: str, tmp_path: Path) -> None:
    """On a file system that was used before: keys and the project would be that user's to replace."""
    script = (ROOT / "scripts/first-boot.sh").read_text()
    begin = script.index("own_folder() {")
    function = script[begin : script.index("\n}\n", begin) + 3]
    path = tmp_path / ".dlami-cluster"
    if kind == "a link":
        linked(path, str(tmp_path))
    elif kind == "a file":
        path.touch()
    elif kind != "none":
        path.mkdir()
        path.chmod(0o777)
        os.chown(path, EVE if kind == "another user's" else 0, -1)
    done = subprocess.run(
        ["bash", "-euc", f'{function}\nown_folder "$1"', "boot", path], capture_output=True, text=True, check=False
    )
    if kind in ("writable by all", "none"):
        assert (0, 0o755) == (done.returncode, path.stat().st_mode & 0o7777), done.stdout
    else:
        assert (1, True) == (done.returncode, "is not a folder of root's: remove it" in done.stdout)


@pytest.mark.parametrize("bad", ["$SHARED/.dlami-cluster", "$STATE", "$LIFE"])
def test_a_boot_ends_at_any_of_its_folders_that_is_another_s(bad: str) -> None:
    """As the calls stand there: in a list of `&&` bash would go on after the first."""
    lines = (ROOT / "scripts/first-boot.sh").read_text().splitlines()
    calls = "\n".join(line for line in lines if line.startswith("    own_folder "))
    code = f'SHARED=/s STATE=/t LIFE=/l; own_folder() {{ [ "$1" != "{bad}" ]; }}\n{calls}\necho went on'
    done = subprocess.run(["bash", "-euc", code], capture_output=True, text=True, check=False)

    assert (1, "") == (done.returncode, done.stdout)


def test_forged_stacks_cost_nobody_his_time(jobs: Path) -> None:
    """A list asks AWS for a few stacks at most, one's own first, and for no name that none can have."""
    a_record(jobs, "own", os.getuid(), stack="us-east-1/own")
    for n in range(9):
        a_record(jobs, f"evil-{n}", EVE, stack=f"ap-south-1/evil-{n}")
    a_record(jobs, "evil-x", EVE, stack="evil.example/#/x")
    views = [dataclasses.replace(v, began=1.0) for v in view_all(jobs, read_all(jobs))[0]]
    asked: list[str] = []
    cost.priced(views, lambda stack: asked.append(stack) or Bill(()))
    assert "us-east-1/own" == asked[0]
    assert ["us-east-1/own", *(f"ap-south-1/evil-{n}" for n in range(3))] == asked


def test_a_matrix_of_another_user_s_is_not_gone_on_with(tmp_path: Path) -> None:
    """What is in its folder would be believed, and cells not run."""
    here = Cluster(name="c", hosts=(HERE,), folder=tmp_path, shared=str(tmp_path), project="")
    folder = tmp_path / "matrices/vgg"
    folder.mkdir(parents=True)
    (folder / "state.json").write_text('{"cells": {}}')
    with Executor(here) as reach:
        results = ResultStore(reach, here, "vgg")
        assert {} == results.read().cells
        os.chown(folder, EVE, EVE)
        with pytest.raises(ClusterError, match="it is another user's: give the matrix another name"):
            results.read()


@pytest.mark.parametrize("name", ["look.json", "base line.json"])
def test_what_health_keeps_is_written_through_no_link(name: str, tmp_path: Path) -> None:
    """Whatever another user has put beside it or in its place."""
    (tmp_path / "health").mkdir()
    linked(tmp_path / "health" / name, "../bobs")
    linked(tmp_path / f"health/.{name}", "../bobs")
    subprocess.run(
        ["sh", "-c", write_command(str(tmp_path), "health", name)], input=b"{}", check=True, timeout=PATIENCE_S
    )
    assert not (tmp_path / "bobs").exists()
    assert "{}" == (tmp_path / "health" / name).read_text()


def test_code_is_kept_in_a_folder_that_nobody_else_can_write_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ranks run what is there."""
    monkeypatch.setattr(store, "FOLDER", str(tmp_path / "code"))
    (tmp_path / "code").mkdir()
    os.chown(tmp_path / "code", EVE, EVE)
    with pytest.raises(Untrusted, match=f"belongs to {EVE}, not to root"):
        store.answer("d", {"content": "c"}, [])
    os.chown(tmp_path / "code", 0, 0)
    (tmp_path / "code").chmod(0o777)
    with pytest.raises(Untrusted, match="can be written by others"):
        store.answer("d", {"content": "c"}, [])
    (tmp_path / "code").chmod(0o700)
    assert not store.answer("d", {"content": "c"}, [])["is_there"]
