"""What `inv top` reads, compares and shows: pure, on values and on lines that nvidia-smi prints."""

import dataclasses
import io
import json
import os
import threading
import tracemalloc
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from cluster.errors import ConfigError
from cluster.files import write_json
from cluster.hang_detection.onhost.ranks import all_beats, beats
from cluster.hang_detection.rank_state import RankPhase
from cluster.hosts import Host
from cluster.top.columns import size
from cluster.top.command import Screen, TopRequest, check, sort_named
from cluster.top.onhost import counters
from cluster.top.onhost import jobs as onhost_jobs
from cluster.top.onhost.gpus import Gpus
from cluster.top.onhost.jobs import ActiveJobs
from cluster.top.outliers import MEASURES, with_odd
from cluster.top.reading import Nonsense, jobs_of, rates, vitals_of, with_metrics
from cluster.top.snapshot import ClusterSnapshot, HostState, JobSeen, RankSnapshot, Visibility
from cluster.top.table import SORTS, View, in_order, lines, scrolled
from dlami import heartbeat as dlami_beat
from tests.cluster.frames import ANSWER, LATER, frame, seen, told
from tests.cluster.made_job import made_job
from tests.conftest import wait_for

AS_IT_IS = View()


def text_of(shown: ClusterSnapshot, view: View = AS_IT_IS, width: int = 200, height: int | None = None) -> list[str]:
    return [line.plain for line in lines(shown, view, width, height)]


def test_rates_are_of_two_answers() -> None:
    """Half of the ticks busy, bytes per second; none where a host has booted in between."""
    before, now = vitals_of(ANSWER), vitals_of(LATER)
    made = rates(before, now)

    assert made and (0.5, 2000.0, 0.0, 2000.0, 100.0) == dataclasses.astuple(made)
    assert None is rates(now, before)
    assert None is rates(now, now)


@pytest.mark.parametrize(
    ("name", "use", "celsius", "watts", "trouble"),
    [
        ("p4d.24xlarge-535.183", [0.97, 0.96, 0.98, 0.97, 0.12, 0.97, 0.95, 0.97], 83, 331.42, ""),
        ("g5", [0.0], 27, 16.11, ""),
        ("vm-h100-580.159.04-idle", [0.0], 35, 73.68, ""),
        ("vm-h100-580.159.04-full-power", [0.99], 54, 698.61, ""),
        ("g4dn", [None], 35, None, ""),
        ("p4d.24xlarge-535.54", [0.97, None], 54, 331.42, "nvidia-smi says 'Unable to determine the device handle"),
    ],
)
def test_gpus_as_nvidia_smi_prints_them(name: Any, use: Any, celsius: Any, watts: Any, trouble: Any) -> None:
    """What a GPU does not tell is not taken for 0, and a line that is none is said."""
    vitals = vitals_of(told(name))

    assert use == [gpu.use for gpu in vitals.gpus]
    assert celsius == max(gpu.celsius for gpu in vitals.gpus if gpu.celsius is not None)
    assert watts == vitals.gpus[0].watts
    assert vitals.gpu_trouble.startswith(trouble)
    assert bool(trouble) == bool(vitals.gpu_trouble)


@given(st.data())
def test_an_answer_of_any_other_kind_is_nonsense(data: st.DataObject) -> None:
    """Whatever a host puts in place of a value: it is said, and no traceback."""
    answer = json.loads(json.dumps(ANSWER))
    place, name = data.draw(
        st.sampled_from(
            [(answer, n) for n in ANSWER if n not in ("question", "jobs")]
            + [(answer[n], m) for n in ("cpu", "memory", "net", "disk") for m in answer[n]]
            + [(answer["ranks"][0], n) for n in ("attempt", "rank", "step", "silent_s")]
        )
    )
    bad = st.sampled_from(["x", -1, float("nan"), float("inf"), [], {}, True, 1 << 80, [1], {"a": 1}])
    place[name] = data.draw(bad.filter(lambda v: not (name == "ranks" and v in ([], {}))))
    with pytest.raises(Nonsense):
        vitals_of(answer)
    del place[name]
    with pytest.raises(Nonsense):
        vitals_of(answer)


def test_the_slow_one_is_marked_with_how_far_it_is_from_the_others() -> None:
    """In words, by the side that matters; those that are like the others are not."""
    hosts = [seen(n) for n in range(4)]
    slow = dataclasses.replace(seen(2), ping_s=0.04)
    (odd,) = with_odd([*hosts[:2], slow, hosts[3]])[2].odd

    assert "ping 40 ms, others 0.20 ms" == odd.text
    assert odd.distance > 10
    assert [()] * 4 == [h.odd for h in with_odd(hosts)]
    assert [()] * 4 == [h.odd for h in with_odd([*hosts[:3], dataclasses.replace(hosts[3], ping_s=0.00001)])], "faster"


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"own_images_per_s": 60.0}, "own img/s 60.0, others 100.0"),
        ({"wait_share": 0.01}, "wait 1 %, others 20 %"),
        ({"input_share": 0.6}, "input 60 %, others 5 %"),
    ],
)
def test_the_rank_that_all_wait_for_is_marked(fields: Any, text: Any) -> None:
    """It is slower by its own work, waits less than the others, or longer for its input."""
    found = with_odd([seen(0), seen(1, **fields), seen(2), seen(3)])

    assert [(), (text,), (), ()] == [tuple(o.text for o in h.odd) for h in found]


def test_what_trainers_write_of_a_rank_is_found_by_its_number() -> None:
    """Shares of a step; nothing where they write nothing, or fewer ranks than there are."""
    rank = RankSnapshot(job="j", attempt=1, rank=1, step=3, phase=RankPhase.STEP, silent_s=0.0)
    row = {
        "images_per_s": 16.0, "rank_images_per_s": [10.0, 20.0], "rank_input_s": [0, 0.1], "rank_compute_s": [1, 0.7], "rank_reduce_s": [1, 0.2],
    }  # fmt: skip
    full = with_metrics(rank, row)

    assert (full.images_per_s, full.own_images_per_s) == (8.0, 20.0)
    assert (full.input_share, full.wait_share) == pytest.approx((0.1, 0.2))
    assert rank == with_metrics(rank, {})
    assert rank == with_metrics(rank, {"rank_images_per_s": [1.0]})
    for part in ("rank_input_s", "rank_compute_s", "rank_reduce_s"):
        alone = with_metrics(rank, {part: [1.0, 2.0]})
        shares = {"rank_input_s": (1.0, None), "rank_compute_s": (None, None), "rank_reduce_s": (None, 1.0)}
        assert shares[part] == (alone.input_share, alone.wait_share)
    assert with_metrics(rank, {"rank_input_s": [0, 0]}).input_share is None


def test_jobs_come_from_the_master_and_a_silent_folder_is_said() -> None:
    """A record's step counts from 0; what is no answer is nonsense."""
    one = {
        "id": "j", "name": "resnet50", "np": 4, "steps": 500, "state": "running", "attempt": 2, "started": "t",
        "cause": "", "hosts": ["a"], "metrics": {"step": 9, "images_per_s": 40.5},
    }  # fmt: skip
    (job,), rows, trouble = jobs_of({"found": [one], "age_s": 0.2})

    assert (10, 40.5, "") == (job.step, job.images_per_s, trouble)
    assert one["metrics"] == rows["j"]
    assert "does not answer" in jobs_of({"found": [], "age_s": None})[2]
    assert "20 s old" in jobs_of({"found": [one], "age_s": 20.4})[2]
    with pytest.raises(Nonsense):
        jobs_of({"found": [{**one, "np": "x"}], "age_s": 0.2})


def test_a_host_that_is_not_seen_is_grey_and_says_why() -> None:
    """It keeps its place, and goes last where hosts are sorted by a value."""
    gone = dataclasses.replace(seen(1), sight=Visibility.GONE, why="the connection was lost", rates=None)
    shown = frame(seen(0), gone, seen(2))
    grey = next(line for line in lines(shown, View(), 200, None) if line.plain.startswith("10.0.0.2"))

    assert "10.0.0.2 gone: the connection was lost" == grey.plain
    assert "dim" == grey.style
    assert "3 hosts, 1 not seen" in text_of(shown)[0]
    for key in SORTS:
        order = [h.host.rank for h in in_order(shown.hosts, View(sort=key))]
        assert (order == [0, 1, 2]) if key == "h" else (order[-1] == 1), key


@pytest.mark.seconds
@given(st.integers(1, 240), st.integers(1, 70), st.booleans(), st.integers(0, 80), st.integers(1, 70))
def test_every_size_of_a_terminal_is_filled_and_not_left(
    width: int, height: int, by_rank: bool, offset: int, number: int
) -> None:
    """No line is longer than the terminal is wide, and no frame higher, however it is resized."""
    job = JobSeen(
        id="20261120-231500-resnet50-x7", name="resnet50", state="running", attempt=1, np=4, steps=None, step=3,
        images_per_s=1.0, started="", hosts=("a",),
    )  # fmt: skip
    hosts = tuple(seen(n, ranks=2) if n % 5 else seen(n, sight=Visibility.GONE, why="w" * 300) for n in range(number))
    shown = lines(
        ClusterSnapshot(time=0, cluster="c", hosts=hosts, jobs=(job,)),
        View(by_rank=by_rank, offset=offset),
        width,
        height,
    )

    assert len(shown) <= max(height, 5)
    assert all(line.cell_len <= width for line in shown)


def test_ranks_have_lines_of_their_own_when_asked() -> None:
    """Each beside the GPU of its place on its host."""
    vitals = vitals_of(told("p4d.24xlarge-535.183"))
    ranks = tuple(
        RankSnapshot(job="j", attempt=1, rank=8 + n, step=5, phase=RankPhase.STEP, silent_s=0.0, images_per_s=50.0 + n)
        for n in range(8)
    )
    host = dataclasses.replace(seen(1), vitals=dataclasses.replace(vitals, ranks=ranks))
    shown = text_of(frame(host), View(by_rank=True), width=220)
    (hot,) = (line for line in shown if line.strip().startswith("rank 12"))

    assert {"12", "83", "141", "54.0"} <= set(hot.split())
    assert "428.0" in shown[-9], "the host's own line has the sum of images/s"
    assert scrolled(View(by_rank=True), 100, frame(host)) == 8
    assert scrolled(View(offset=3), -10, frame(host)) == 0


def test_bad_input_is_refused_before_anybody_is_asked() -> None:
    """With what there is to choose from."""
    with pytest.raises(ConfigError, match=r"every 0\.5 s at most"):
        check(TopRequest(every_s=0.1, view=View()))
    with pytest.raises(ConfigError, match="host, odd, cpu"):
        check(TopRequest(view=View(sort=sort_named("height"))))
    check(TopRequest(view=View(sort=sort_named("img/s"))))


@pytest.mark.parametrize(
    ("amount", "text"),
    [
        (None, ""),
        (0, "0"),
        (999, "999"),
        (1000, "1.0K"),
        (34_000_000, "34M"),
        (9.94e9, "9.9G"),
        (9.96e9, "10G"),
        (999.4, "999"),
        (999.6, "1.0K"),
        (1e25, "huge"),
    ],
)
def test_sizes_are_four_characters(amount: Any, text: Any) -> None:
    """Powers of 1000, as network cards are sold."""
    assert text == size(amount)


def test_a_file_server_that_hangs_holds_up_no_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Jobs are read in a thread; until it has read them once they are not known, and that is said."""
    for name, state in (("a", "running"), ("b", "succeeded")):
        (tmp_path / f"jobs/{name}").mkdir(parents=True)
        (tmp_path / f"jobs/{name}/state.json").write_text(json.dumps({"state": state, "attempt": 1}))
        (tmp_path / f"jobs/{name}/public.json").write_text(json.dumps({"id": name, "hosts": [{"address": "h"}]}))
    rows = [{"kind": "train", "step": 4, "images_per_s": 2.5}, {"kind": "eval", "step": 4}]
    (tmp_path / "jobs/a/metrics.jsonl").write_text("".join(json.dumps(r) + "\n" for r in rows) + '{"kind": "tra')
    jobs = ActiveJobs(str(tmp_path))
    wait_for(lambda: jobs.newest()["age_s"] is not None, 30, "the jobs are read")
    (one,) = jobs.newest()["found"]
    assert ("a", "running", ["h"], {"step": 4, "images_per_s": 2.5}) == (
        one["id"], one["state"], one["hosts"], one["metrics"],
    )  # fmt: skip

    (tmp_path / "hung/jobs/c").mkdir(parents=True)
    (tmp_path / "hung/jobs/c/state.json").write_text("{}")
    answers = threading.Event()
    monkeypatch.setattr(onhost_jobs, "read_file", lambda *_: answers.wait())
    hung = ActiveJobs(str(tmp_path / "hung")).newest()
    answers.set()
    assert {"found": [], "age_s": None} == hung
    assert "does not answer" in jobs_of(hung)[2]


def test_a_job_of_ten_attempts_with_lines_of_10_mb(tmp_path: Path) -> None:
    """Its attempt and its newest record are there; what is read of its files stays small."""
    paths = made_job(tmp_path, steps=1000, attempts=10)
    paths.metrics.write_text("x" * 10_000_000 + "\n")
    with paths.metrics.open("a") as metrics:
        metrics.write(json.dumps({"kind": "train", "step": 990, "time": 1.76e9, "images_per_s": 8.5}) + "\n")
    paths.console(10).write_text("y" * 10_000_000 + "\n")
    write_json(paths.status, {**json.loads(paths.status.read_text()), "state": "running"})
    jobs = ActiveJobs(str(tmp_path))
    tracemalloc.start()
    try:
        wait_for(lambda: bool(jobs.newest()["found"]), 60, "the job is read")
        most = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    (one,) = jobs_of(jobs.newest())[0]

    assert (10, 1000, 8.5) == (one.attempt, one.steps, one.images_per_s)
    assert most < 2 << 20
    assert any("attempt 10" in line for line in text_of(frame(seen(0), jobs=(one,))))


def test_an_nvidia_smi_that_never_speaks_is_told_and_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One process of it for all looks; what it said last stays, with its age; nothing of it stays behind."""
    tool = tmp_path / "nvidia-smi"
    tool.write_text(f"#!/bin/sh\necho $$ >{tmp_path}/pid\necho '0, 5, 4, 23028, 27, 16.11, 300.00'\nexec sleep 1000\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    gpus = Gpus()
    wait_for(lambda: bool((gpus.newest() or {"lines": []})["lines"]), 30, "its first line")
    first = gpus.newest()
    wait_for(lambda: (gpus.newest() or {"age_s": 0})["age_s"] > first["age_s"], 30, "it gets older")
    pid = int((tmp_path / "pid").read_text())
    gpus.close()

    wait_for(lambda: (gpus.newest() or {"error": ""})["error"] != "", 30, "its end is noticed")
    assert not Path(f"/proc/{pid}").exists()
    monkeypatch.setenv("PATH", str(tmp_path / "nowhere"))
    monkeypatch.setattr("cluster.top.onhost.gpus._TOOLS", "")
    assert None is Gpus().newest()


def test_beats_of_jobs_with_names_alike_are_not_mixed_up() -> None:
    """A job's name may end as another's attempt and rank do."""
    job = f"top-{os.getpid()}"
    for name, attempt, rank in ((job, "2", "0"), (f"{job}-2", "1", "3")):
        file = dlami_beat.beat_file({"DLAMI_JOB": name, "DLAMI_ATTEMPT": attempt, "OMPI_COMM_WORLD_RANK": rank})
        beat = dlami_beat.Beat()
        beat.begin(file)
        beat.stepped(5)
    try:
        assert [0] == list(beats(job, "2"))
        assert {(job, 2, 0), (f"{job}-2", 1, 3)} <= set(all_beats())
    finally:
        for one in Path("/dev/shm").glob(f"dlami-beat-*-{job}-*"):
            one.unlink()


KERNEL = {
    "/proc/stat": "cpu  1 2 3 40 50 6 7 8 9 9\ncpu0 1 1 1 1 1 1 1 1 1 1\ncpu1 1 1 1 1 1 1 1 1 1 1\nintr 5\n",
    "/proc/meminfo": "MemTotal: 100 kB\nMemFree: 1 kB\nMemAvailable: 30 kB\n",
    "/proc/net/dev": (
        "Inter-| Receive\n face |bytes\n    lo: 1000 1 0 0 0 0 0 0 2000 1\n"
        "  e0: 10 1 0 0 0 0 0 0 20 1\n  e1: 30 1 0 0 0 0 0 0 40 1\n"
    ),
    "/proc/diskstats": "8 0 sda 1 1 3 1 1 1 5 1\n8 1 sda1 1 1 3 1 1 1 5 1\n7 0 loop0 1 1 9 1 1 1 9 1\n259 0 nvme0n1 1 1 4 1 1 1 6 1\n",
}


def test_what_the_kernel_counts_is_told_in_bytes_and_ticks(monkeypatch: pytest.MonkeyPatch) -> None:
    """All cores' ticks, memory that nobody can have, cards where there are some, and whole disks alone."""
    folders = {"/sys/block/sda", "/sys/block/nvme0n1", "/sys/block/loop0"}
    cards: set[str] = set()
    monkeypatch.setattr(counters, "open", lambda path: io.StringIO(KERNEL[path]), raising=False)
    monkeypatch.setattr(os.path, "isdir", lambda path: path in folders)
    monkeypatch.setattr(os.path, "exists", lambda path: path in cards)
    monkeypatch.setattr(os.path, "ismount", lambda path: path in cards)
    rooms = {"/": (100, 60, 40), counters.SCRATCH: (100, 20, 20)}
    room = lambda path: SimpleNamespace(**dict(zip(("f_blocks", "f_bfree", "f_bavail"), rooms[path], strict=True)))  # noqa: E731
    monkeypatch.setattr(os, "statvfs", room)
    told = counters.counters()
    assert {"busy": 27, "all": 117, "cores": 2} == told["cpu"]
    assert {"total": 102400, "used": 71680} == told["memory"]
    assert ({"in": 40, "out": 60}, {"read": 7 * 512, "written": 11 * 512}) == (told["net"], told["disk"])
    assert 0.5 == told["full"]
    cards |= {"/sys/class/net/e1/device", counters.SCRATCH}
    assert {"in": 30, "out": 40} == counters.counters()["net"]
    assert 0.8 == counters.counters()["full"]


@pytest.mark.parametrize(
    ("key", "view"),
    [
        ("r", View(by_rank=True, offset=1)),
        ("o", View(sort="o")),
        ("h", View()),
        ("down", View(offset=2)),
        ("j", View(offset=2)),
        ("up", View()),
        ("k", View()),
        ("x", View(offset=1)),
    ],
)
def test_what_a_key_does_to_what_is_shown(key: str, view: View) -> None:
    """Another order begins at the top; ranks come and go; the table scrolls by a line."""
    screen = Screen(Console(file=io.StringIO()), View(offset=1))
    screen._frame = ClusterSnapshot(cluster="c", time=0.0, hosts=tuple(seen(n) for n in range(4)), jobs=())
    assert view == screen._after(key, View(offset=1))
    if key == "r":
        assert View(offset=1) == screen._after(key, view)


def test_a_host_that_tells_nothing_is_neither_odd_nor_left_out() -> None:
    """It has no value for any measure, and its record says why; what a rank has not measured stays open."""
    silent = HostState(host=Host(rank=1, address="10.0.0.2", slots=1), sight=Visibility.SILENT, why="no answer")
    assert {None} == {measure.value(silent) for measure in MEASURES}

    told = frame(dataclasses.replace(seen(0, input_share=None, wait_share=0.123456)), silent).to_json()
    ours, other = told["hosts"]
    (rank,) = ours["ranks"]
    assert ("silent", "no answer", [], [], None) == tuple(
        other[name] for name in ("sight", "why", "gpus", "ranks", "cores")
    )
    assert (None, 0.1235, 0) == tuple(rank[name] for name in ("input_share", "wait_share", "rank"))
    assert json.loads(json.dumps(told)) == told
