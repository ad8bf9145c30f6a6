"""A host that is only busy is not unfit, one that talks first is understood, and no advice can break a host."""

import json
import os
import shlex
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cluster.health import net, places
from cluster.health.check import About, Answer
from cluster.health.history import write_command
from cluster.health.onhost import peers, probe
from cluster.health.questions import may_be_busy, silence_problem
from cluster.health.quick_check import look_at_hosts
from cluster.health.system import NETWORK
from cluster.health.verdict import Severity
from cluster.hosts import Host
from cluster.inventory import Cluster, load_cluster
from cluster.ssh.failure import Failure, Reason
from cluster.ssh.fanout import Executor
from cluster.ssh.result import Result

HOST = Host(rank=0, address="10.0.0.1", slots=8)
MOUNTS = """\
/dev/root / ext4 rw,relatime 0 0
fs-1:/ /efs nfs4 rw,hard 0 0
fs-2:/ /home nfs4 rw,hard 0 0
fs-3:/ /usr/share/data nfs4 rw,hard 0 0
/dev/nvme1n1 /data ext4 rw 0 0
dead /shared fuse rw 0 0
"""


def hanging(path: str, mounts: str = MOUNTS, *, stuck: bool = False, disk_works: bool = False) -> Any:
    """What is said of a folder that did not take a file in time."""
    answer = Answer(status="timeout", seconds=6.0, stuck=stuck, disk_works=disk_works)
    return places.place_hangs(answer, About(host=HOST, mounts=mounts), path)


@pytest.mark.parametrize("path", ["/efs", "/shared"])
def test_a_dead_network_mount_is_detached(path: Any) -> None:
    """Nothing else waits for it."""
    assert f"'umount -lf {path} && mount {path}'" in hanging(path).command
    assert Severity.RESTART_JOB == hanging(path).verdict
    assert Severity.REBOOT == hanging(path, stuck=True).verdict


@pytest.mark.parametrize("path", ["/", "/usr", "/home", "/home/ubuntu", "/tmp", "/dev/shm", "/usr/share/data", "/data"])
@pytest.mark.parametrize("mounts", [MOUNTS, "", "fs-1:/ / nfs4 rw 0 0\nfs-1:/ /usr nfs4 rw 0 0\nx /tmp nfs rw 0 0\n"])
def test_no_folder_of_the_system_is_ever_detached(path: Any, mounts: Any) -> None:
    """Whatever is mounted there, and however it hangs."""
    for stuck in (False, True):
        said = hanging(path, mounts, stuck=stuck)
        assert "umount" not in said.command
        assert (Severity.REBOOT, True) == (said.verdict, said.unfit)


@given(
    st.sampled_from(["", *places.SYSTEM_FOLDERS]), st.text("abc/", max_size=6), st.sampled_from([*NETWORK, "fuse.x"])
)
def test_nothing_under_a_folder_of_the_system_is_detached(first: Any, rest: Any, kind: Any) -> None:
    """`/var/lib/x` on NFS is somebody's database."""
    path = f"/{first}" + f"/{rest}".rstrip("/") * bool(first)

    assert not places.may_detach(path, f"server:/ {path} {kind} rw 0 0")


def test_a_slow_disk_that_works_is_watched() -> None:
    """Busy with a checkpoint, say: that is no reason to refuse the host."""
    said = hanging("/", disk_works=True)

    assert (Severity.WATCH, False) == (said.verdict, said.unfit)
    assert "/ is slow: a file was not written within 6 s, while its disk works" == said.what


def test_a_disk_is_known_by_the_folder_that_is_on_it() -> None:
    """By what is mounted nearest above it; where a file system has no disk of its own, any disk that works counts."""
    mounts = "1 1 259:1 / / rw - ext4 a rw\n2 1 259:2 / /data rw - ext4 b rw\n3 1 0:50 / /dev/shm rw - tmpfs c rw\n"
    disks = "259 1 nvme0n1p1 10 0 80 1 5 0 40 1\n259 2 nvme1n1 3 0 80 1 4 0 40 1\n7 0 loop0 900 0 80 1 900 0 40 1\n"

    assert 15 == probe.transfers_of("/tmp", mounts, disks)
    assert 7 == probe.transfers_of("/data/x", mounts, disks) == probe.transfers_of("/data", mounts, disks)
    assert 15 == probe.transfers_of("/database", mounts, disks)
    assert 22 == probe.transfers_of("/dev/shm", mounts, disks)


@pytest.mark.parametrize(
    ("answered_s", "load_here", "is_busy"),
    [([1.2, 2.0, 3.1], 0.5, False), ([1.2, 9.0, 12.0], 0.5, True), ([1.0], 9.0, True), ([], 0.5, False)],
)
def test_silent_hosts_are_asked_again_where_the_others_were_slow(answered_s: Any, load_here: Any, is_busy: Any) -> None:
    """Or where this machine itself is late; a host that died among quick ones is not waited for."""
    assert is_busy == may_be_busy(answered_s, load_here, connect_s=5.0)


@pytest.mark.parametrize("reason", Reason)
def test_only_a_host_that_is_silent_is_said_to_need_a_replacement(reason: Any) -> None:
    """Not one whose host key we do not know, that refuses our key, or whose shell answers in its own words."""
    failure = Failure(reason=reason, detail="because", limit_s=5.0)
    said = silence_problem(Result(host=HOST, exit_code=None, seconds=1.0, failure=failure))
    is_ours = {Reason.UNKNOWN_NAME, Reason.UNKNOWN_HOST, Reason.CHANGED_HOST, Reason.REFUSED_KEY, Reason.NO_SESSION}
    is_ours |= {Reason.NOT_STARTED, Reason.OUTPUT_NOT_KEPT, Reason.NO_ANSWER, Reason.INTERRUPTED, Reason.NO_TUNNEL}
    is_ours.add(Reason.NOT_BEGUN)

    assert (reason not in is_ours) == ("replaced" in said.do)
    assert (Severity.UNKNOWN, True) == (said.verdict, said.unfit)
    assert str(failure)[:100] in said.what


def test_a_program_that_fails_there_is_no_reason_to_replace_the_host() -> None:
    """Python is missing, say."""
    said = silence_problem(Result(host=HOST, exit_code=127, seconds=1.0, stderr=b"sh: python3: not found\n"))

    assert "SSH works, but our program gave no answer: exited 127   | sh: python3: not found" == said.what
    assert "replaced" not in said.do


@pytest.fixture
def ssh_to_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """An `ssh` that runs the command on this machine, after what a start-up file there does."""

    def prepare(start_up: str) -> None:
        (tmp_path / "ssh").write_text(f'#!/bin/sh\n{start_up}\nfor last in "$@"; do :; done\nexec sh -c "$last"\n')
        (tmp_path / "ssh").chmod(0o755)
        monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")

    return prepare


@pytest.mark.parametrize(
    "start_up", ["", "echo Welcome", "printf 'no end of line'", "seq 5000", "printf '{\"a\":\\n\\n'"]
)
def test_a_shell_that_prints_first_changes_no_answer(ssh_to_here: Any, start_up: Any) -> None:
    """Neither the clock nor the frames."""
    ssh_to_here(start_up)
    said = peers.ssh(["127.0.0.1"], [], limit_s=30.0)["127.0.0.1"]

    assert ("whole", peers.EXCHANGES) == (said["state"], len(said["exchanges"]))
    assert all(sent <= clock <= got for sent, clock, got in said["exchanges"]), said


def test_a_shell_that_prints_and_ends_has_failed(ssh_to_here: Any) -> None:
    """What it printed is no word of ours."""
    ssh_to_here("echo This account is closed; exit 1")

    assert "failed" == peers.ssh(["127.0.0.1"], [], limit_s=30.0)["127.0.0.1"]["state"]


def this_machine(folder: Any, **settings: Any) -> Cluster:
    """A cluster of this machine alone, which is not asked over SSH."""
    (folder / "hosts").write_text("localhost slots=1\n")
    (folder / "cluster.toml").write_text("".join(f"{k} = {json.dumps(str(v))}\n" for k, v in settings.items()))
    return load_cluster(str(folder))


def test_a_look_does_not_make_the_shared_folder(tmp_path: Path) -> None:
    """It is unfit for lack of it, and still is at the next look."""
    cluster = this_machine(tmp_path, shared=tmp_path / "not-mounted")
    for _ in range(2):
        with Executor(cluster) as reach:
            report = look_at_hosts(reach, cluster, cluster.hosts)
        assert any(p.what == f"{cluster.shared} is not there" for p in report.problems[cluster.master])
        assert any("not in the history" in note for note in report.notes)
        assert not (tmp_path / "not-mounted").exists()


@pytest.mark.parametrize("says_if_busy", [False, True])
def test_beside_a_host_that_does_not_answer_all_reduce_is_not_measured(
    says_if_busy: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That is said, with why; what runs of other tests on this machine is no matter here."""
    this_machine(tmp_path, shared=tmp_path)
    (tmp_path / "hosts").write_text("localhost slots=1\nnowhere.invalid slots=1\n")
    cluster = load_cluster(str(tmp_path))
    master, silent = cluster.hosts
    monkeypatch.setattr(net, "refuse_busy", lambda *_: {} if says_if_busy else {silent: "no such name"})
    with Executor(cluster) as reach:
        report = net.measure_network(reach, cluster, cluster.hosts)

    unsaid = "nowhere.invalid: not measured, it does not say whether a job runs there: no such name"
    why = "all-reduce: not measured while hosts are unfit or may be busy"
    assert (why,) == report.measured[-1:]
    assert (() if says_if_busy else (unsaid,)) == report.measured[:-1]
    assert ("net", ["answers"]) == (report.rung, [p.check for p in report.problems[silent]])
    assert "all-reduce" not in {p.check for p in report.problems[master]}
    assert not (tmp_path / "health").exists(), "neither is it a look for the history"


def test_what_is_written_makes_folders_in_the_shared_one_only(tmp_path: Path) -> None:
    """The command that writes looks and baselines."""
    write = write_command(str(tmp_path / "shared"), "health/looks", "it.json")

    assert 0 != os.system(f"cd / && echo 1 | sh -c {shlex.quote(write)} 2>/dev/null")
    assert [] == list(tmp_path.iterdir())
    (tmp_path / "shared").mkdir()
    assert 0 == os.system(f"cd / && echo 1 | sh -c {shlex.quote(write)}")
    assert "1\n" == (tmp_path / "shared/health/looks/it.json").read_text()


def test_a_host_without_the_project_is_unfit(tmp_path: Path) -> None:
    """With the command that puts it there, and no word on versions that it cannot have."""
    cluster = this_machine(tmp_path, shared=tmp_path, project=tmp_path / "project")
    with Executor(cluster) as reach:
        report = look_at_hosts(reach, cluster, cluster.hosts)
    found = [p for p in report.problems[cluster.master] if p.check == "project"]

    assert [f"this project is not in {tmp_path}/project"] == [p.what for p in found]
    assert found[0].unfit
    assert "inv sync --hosts " in found[0].command
    assert "versions" not in {p.check for p in report.problems[cluster.master]}
