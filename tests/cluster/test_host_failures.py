"""Which hosts failed before: the rule by which one is left out, its files on the shared folder, forgiving."""

import json
import os
import stat
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cluster.errors import ClusterError
from cluster.hosts import Host
from cluster.inventory import Cluster
from cluster.jobs.supervisor.admission import remember_end
from cluster.recovery.failure_kinds import FailureKind
from cluster.recovery.host_failures import (
    FORGIVEN,
    WINDOW_S,
    FailureRecord,
    failures,
    how_left_out,
    left_out,
    left_out_here,
    note,
    own_failures,
    pardon,
    parse_memory,
    read_memory,
    spared,
)
from cluster.ssh.onhost import trusted_files
from tests.cluster.flat_jobs import job_of
from tests.conftest import Inv

NOW = 2_000_000_000.0
DAY = 86400.0
HOSTS = tuple(Host(rank=r, address=f"10.0.0.{r}", slots=2) for r in range(4))


def failed(
    days_ago: float, host: str = "10.0.0.2", what: str = "host", job: str = "", attempt: int = 0
) -> FailureRecord:
    return FailureRecord(time=NOW - days_ago * DAY, host=host, what=what, text="it was lost", job=job, attempt=attempt)


@pytest.mark.parametrize(
    ("entries", "out"),
    [
        ([], []),
        ([failed(1)], []),
        ([failed(1), failed(2)], ["10.0.0.2"]),
        ([failed(1), failed(8)], []),  # a week has gone by
        ([failed(1), failed(1, "10.0.0.3")], []),  # two hosts, once each
        ([failed(3), failed(2), failed(1, what=FORGIVEN)], []),
        ([failed(3), failed(2, what=FORGIVEN), failed(1)], []),  # counted anew
        ([failed(4), failed(3, what=FORGIVEN), failed(2), failed(1)], ["10.0.0.2"]),
        ([failed(3), failed(2), failed(1, "10.0.0.3", FORGIVEN)], ["10.0.0.2"]),  # another's
        ([failed(1, job="a", attempt=1), failed(0.9, what="unfit", job="a", attempt=1)], []),  # seen twice
        ([failed(1, job="a", attempt=1), failed(0.9, job="a", attempt=2)], ["10.0.0.2"]),
        ([failed(2), failed(1), *(failed(d, "10.0.0.3") for d in (1, 2, 3))], ["10.0.0.3", "10.0.0.2"]),  # worst first
        ([failed(-0.1), failed(1)], ["10.0.0.2"]),  # by a clock that is ahead
    ],
)
def test_a_host_that_failed_twice_in_seven_days_is_left_out(entries: list[FailureRecord], out: list[str]) -> None:
    """Once per attempt, and only what came after it was forgiven."""
    assert out == list(left_out(entries, NOW))


def test_it_is_said_why_a_host_is_left_out() -> None:
    """When, for what, in which job; nothing that a terminal would obey."""
    entries = [
        failed(2, job="20260101-a"),
        FailureRecord(time=NOW - DAY, host="10.0.0.2", what="host", text="lost\x1b[2J"),
    ]
    assert {
        "10.0.0.2": "failed 2 times in 7 days: 05-16 03:33 it was lost (20260101-a); 05-17 03:33 lost[2J"
    } == left_out(entries, NOW)


@pytest.mark.parametrize(
    ("lost", "others", "own"),
    [
        ({"b"}, {"b"}, ("b",)),
        ({"b"}, {"b", "c", "d"}, ("b",)),
        ({"b", "c"}, {"b", "c"}, ()),
        ({"b", "c"}, {"b", "c", "d"}, ()),
        ({"b", "c"}, {"b", "c", "d", "e"}, ("b", "c")),
    ],
)
def test_the_network_of_all_is_no_host_s_own_failure(lost: set[str], others: set[str], own: tuple[str, ...]) -> None:
    """When most hosts are lost at once, none of them is to blame."""
    assert own == tuple(sorted(own_failures(lost, others)))


@pytest.mark.parametrize(
    ("out", "least", "without"),
    [
        (["10.0.0.2"], 1, ["10.0.0.2"]),
        (["10.0.0.2"], 6, ["10.0.0.2"]),
        (["10.0.0.2"], 7, []),
        (["10.0.0.3", "10.0.0.1"], 6, ["10.0.0.3"]),  # the worst goes
        ([h.address for h in HOSTS], 1, ["10.0.0.0", "10.0.0.1", "10.0.0.2"]),  # one host stays
        (["10.9.9.9"], 1, []),
    ],
)
def test_no_more_hosts_are_left_out_than_a_training_can_do_without(
    out: list[str], least: int, without: list[str]
) -> None:
    """Never below --min-np, nor below one host."""
    assert without == list(spared(HOSTS, dict.fromkeys(out, "why"), least))


@pytest.mark.parametrize(
    ("hosts", "what", "failed"),
    [
        (["127.0.0.2", "127.0.0.3", "gone1.invalid"], FailureKind.HOST, ["gone1.invalid"]),
        (
            ["127.0.0.2", "gone1.invalid", "gone2.invalid", "gone3.invalid"],
            FailureKind.HOST,
            [],
        ),  # though only one was named
        (["127.0.0.2", "127.0.0.3", "gone1.invalid"], FailureKind.RANK_SIGNAL, []),
        (["127.0.0.2", "127.0.0.3", "gone1.invalid"], FailureKind.HANG, []),
    ],
)
def test_what_the_end_of_an_attempt_says_of_its_hosts(
    tmp_path: Path, hosts: list[str], what: FailureKind, failed: list[str]
) -> None:
    """A lost host is kept once, unless most are silent; no ending that is not the host's own counts."""
    job = job_of(id="small", hosts=tuple(Host(rank=r, address=a, slots=1) for r, a in enumerate(hosts)))
    for _ in range(2):
        remember_end(tmp_path, job, what, "it was lost", {"gone1.invalid"})
    assert failed == [e.host for e in read_memory(tmp_path).entries]


ENTRIES = st.lists(
    st.builds(
        failed,
        st.floats(-1, 9),
        st.sampled_from([h.address for h in HOSTS]),
        st.sampled_from(["host", "unfit", FORGIVEN]),
        st.sampled_from(["", "a", "b"]),
        st.integers(1, 3),
    ),
    max_size=12,
)


@given(ENTRIES, st.integers(0, 12), st.randoms())
def test_whatever_is_on_record_the_rule_holds(entries: list[FailureRecord], least: int, random: Any) -> None:
    """Order of files does not matter; who is left out failed twice; what is left suffices; forgiving takes all back."""
    out = left_out(entries, NOW)
    shuffled = random.sample(entries, len(entries))
    assert out.keys() == left_out(shuffled, NOW).keys()
    for address in out:
        assert 2 <= sum(e.host == address and e.what != FORGIVEN and e.time > NOW - WINDOW_S for e in entries)
    without = spared(HOSTS, out, least)
    assert not without or sum(h.slots for h in HOSTS if h.address not in without) >= max(least, 1)
    pardoned = [*entries, *(pardon(entries, address, NOW) for address in out)]
    assert {} == left_out(pardoned, NOW)


@given(
    st.dictionaries(st.text(min_size=1), st.one_of(st.text(), st.from_regex(r'\{"time": \S{1,8}, "host": "a"[^}]*\}')))
)
def test_a_damaged_file_is_named_and_hides_no_other(files: dict[str, str]) -> None:
    """Whatever stands in it."""
    good = {"/shared/zz.json": json.dumps({"time": NOW, "host": "a", "what": "host", "later": 1})}
    memory = parse_memory({**files, **good})
    assert "host" in [e.what for e in memory.entries]
    assert len(files) + 1 >= len(memory.entries) + len(memory.damaged)
    left_out(memory.entries, NOW)


def test_the_folder_is_open_to_all_users_and_old_files_go(tmp_path: Path) -> None:
    """As the jobs' folder is; nothing half-written is read."""
    for days in (20, 1, 0):
        note(tmp_path, FailureRecord(time=time.time() - days * DAY, host="a", what="host", text="lost"))
        if days == 20:
            old = next((tmp_path / "host-failures").glob("*.json"))
            os.utime(old, times=(time.time() - 20 * DAY,) * 2)
    folder = tmp_path / "host-failures"
    (folder / ".half.json").write_text("{")
    (folder / "bad.json").write_text("{")
    memory = read_memory(tmp_path)

    assert 0o1777 == stat.S_IMODE(folder.stat().st_mode)
    assert not old.exists()
    assert 2 == len(memory.entries)
    assert [f"{folder}/bad.json is damaged"] == [d.partition(" (")[0] for d in memory.damaged]


def test_whoever_has_the_shared_folder_knows_who_is_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With what takes it back; nothing where the folder is not there, or hangs."""
    for days in (2, 1):
        note(tmp_path, FailureRecord(time=time.time() - days * DAY, host="a", what="host", text="lost"))
    out = left_out_here(str(tmp_path))
    assert ["a"] == list(out)
    (said,) = how_left_out(out)
    assert said.startswith("a: trainings leave it out: failed 2 times in 7 days: ")
    assert said.endswith("lost; 'inv hosts.forgive a' takes it back")
    assert {} == left_out_here(str(tmp_path / "none"))
    assert [] == how_left_out({})
    os.mkfifo(tmp_path / "host-failures/pipe.json")  # another user's way to hold up all; it is passed over
    assert ["a"] == list(left_out_here(str(tmp_path)))
    assert ["is a named pipe, not a file"] == [d.split("(")[1].split(")")[0] for d in read_memory(tmp_path).damaged]
    answers = threading.Event()
    monkeypatch.setattr(trusted_files, "read_file", lambda *_, **__: answers.wait())  # a file server that is gone
    assert {} == left_out_here(str(tmp_path), wait_s=0.01)
    answers.set()


@pytest.mark.parametrize(("age_s", "counts"), [(WINDOW_S - 1, True), (WINDOW_S, False)])
def test_a_failure_counts_for_a_week(age_s: float, counts: bool) -> None:
    """To the second."""
    assert counts is ("a" in failures([FailureRecord(time=NOW - age_s, host="a", what="host")], NOW))


def test_what_is_forgiven_comes_after_all_that_the_host_did() -> None:
    """Also where its clock was ahead; another's failures are none of it."""
    ahead = [failed(-1), failed(-9, "10.0.0.3")]
    assert NOW + DAY + 0.001 == pardon(ahead, "10.0.0.2", NOW).time
    assert NOW == pardon([], "10.0.0.2", NOW).time
    assert {"10.0.0.3"} == set(failures([*ahead, pardon(ahead, "10.0.0.2", NOW)], NOW))


def test_a_record_that_cannot_be_written_says_where(tmp_path: Path) -> None:
    """A shared folder that is not there is not made."""
    with pytest.raises(
        ClusterError, match="host-failures cannot be written, where it is kept which hosts fail: No such"
    ):
        note(tmp_path / "none", failed(0))
    assert not (tmp_path / "none").exists()


def test_a_host_that_failed_twice_is_told_left_out_and_forgiven(inv: Inv, cluster: Cluster, lab: Any) -> None:
    """By hosts of a lab: health says it, a training starts without it, forgiving takes it back."""
    bad = cluster.hosts[2].address
    for hours in (30, 2):
        note(lab.shared, FailureRecord(time=time.time() - hours * 3600, host=bad, what="host", text="it was lost"))
    health = inv("health")
    assert 1 == health.returncode, health.stderr
    assert f"{bad} (rank 2): failed 2 times in 7 days" in health.stdout
    assert f"inv hosts.forgive {bad}" in health.stdout
    assert bad in inv("jobs.list").stderr

    skipped = inv("train.resnet50", "--dry-run", "--skip-unfit", "--", "--synthetic", "--num-batches", "1")
    assert f"left out: {bad}" in skipped.stderr
    assert "-np 6" in skipped.stdout
    needed = inv("train.resnet50", "--dry-run", "--skip-unfit", "--np", "8", "--", "--synthetic", "--num-batches", "1")
    assert "-np 8" in needed.stdout, needed.stderr

    assert "would be forgiven" in inv("hosts.forgive", bad, "--dry-run").stdout
    assert [bad] == list(json.loads(inv("hosts.forgive", "@all", "--json").stdout)["hosts"])
    assert {} == left_out(read_memory(lab.shared).entries, time.time())
    assert 1 == len(failures([failed(1)], NOW))
    assert "nothing is on record" in inv("hosts.forgive", bad).stderr
