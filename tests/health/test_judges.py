"""Judges at their borders, by a few lines or fields of an answer; and how questions are asked on a host. No GPU."""

import dataclasses
import time
from typing import Any

import pytest

from cluster.clusterfile.instance_types import known_types
from cluster.health import checks, fabric, gpu, xid
from cluster.health.check import About, Answer, finding_on
from cluster.health.onhost import probe
from cluster.health.questions import read_answers
from cluster.health.verdict import Severity, Unreadable
from cluster.hosts import Host

P4D, G4DN = known_types()["p4d.24xlarge"], known_types()["g4dn.xlarge"]
HOST = Host(rank=0, address="10.0.0.1", slots=1)
NVLINK = next(c for c in checks.GPU if c.name == "nvlink")
NO_LINKS = "NVML: Unable to retrieve NVLink information as all links are inActive"


def about(kind: Any = None, gpus: int = 1, **changes: Any) -> About:
    return About(host=HOST, instance=kind and dataclasses.replace(kind, gpus=gpus), **changes)


def links(*of_each: list[str]) -> str:
    """What nvidia-smi says of the links of each GPU."""
    lines = []
    for n, said in enumerate(of_each):
        lines.append(f"GPU {n}: NVIDIA X (UUID: GPU-{n})")
        lines += [f"\t Link {i}: {one}" for i, line in enumerate(said) for one in line.split("; ")] or [NO_LINKS]
    return "\n".join(lines) + "\n"


def errors(recovery: int = 0, replay: int = 0, crc: int = 0) -> str:
    return f"Replay Errors: {replay}; Recovery Errors: {recovery}; CRC Errors: {crc}"


@pytest.mark.parametrize(
    ("said", "what", "verdict"),
    [
        ([errors(), errors()], None, None),
        ([errors(), "<inactive>"], None, None),
        ([errors(recovery=2), errors(recovery=1, crc=4)], "NVLink: 3 recoveries", Severity.RESET_GPU),
        ([errors(replay=1), errors(crc=2)], "NVLink: 1 Replay error, 2 CRC errors", Severity.WATCH),
        ([errors(crc=1)], "NVLink: 1 CRC error", Severity.WATCH),
    ],
)
def test_errors_of_links_are_counted(said: list[str], what: str | None, verdict: Any) -> None:
    """A link that went down makes the host unfit; data that was sent again is watched."""
    found = fabric.nvlink_error_problems(links(said), about())
    assert ([(what, verdict, verdict is Severity.RESET_GPU)] if what else []) == [
        (p.what, p.verdict, p.unfit) for p in found
    ]


@pytest.mark.parametrize(
    ("said", "gpus", "says"),
    [
        (links(["25 GB/s"]), 2, "1 GPU, its type has 2"),
        ("\n", 2, "0 GPUs, its type has 2"),
        (links(["25 GB/s"], ["25 GB/s", "25 GB/s"]), 2, "GPU 0 has the links 0; another one has 2"),
        (links(["25 GB/s"], []).replace(NO_LINKS, ""), 2, "GPU 1 has the links none; another one has 1"),
        ("GPU 1: NVIDIA X (UUID: GPU-1)\n", 1, "GPU 1 after 0 GPUs"),
        ("\t Link 0: 25 GB/s\n", 1, "Link 0: 25 GB/s"),
        (links(["25 GB/s; 25 GB/s"]), 1, "a link that says"),
        (links(["fast"]), 1, "a link that says"),
    ],
)
def test_what_is_not_about_all_links_is_no_answer(said: str, gpus: int, says: str) -> None:
    """Of all GPUs, and as much of each."""
    with pytest.raises(Unreadable, match=says):
        fabric.nvlink_problems(said, about(P4D, gpus))


@pytest.mark.parametrize("judge", [fabric.nvlink_problems, fabric.nvlink_error_problems])
def test_silence_is_of_no_links_and_a_blank_line_is_none(judge: Any) -> None:
    """A host without NVLinks is well; where the type is not known, no number of it is told."""
    assert [] == judge("", about())
    with pytest.raises(Unreadable, match=r"^no GPU in it$"):
        judge("\n", about())


def test_only_silence_that_came_whole_is_an_answer() -> None:
    """What was cut on its way, ended badly or was given up says nothing of the links."""
    sent = {"status": "ok", "code": 0, "out": "", "err": "", "seconds": 0.1, **probe.framed("GPU 0: X\n")}
    (lost,) = read_answers({"nvlink": {**sent, "out": ""}}).values()
    (whole,) = read_answers({"nvlink": {**sent, **probe.framed("")}}).values()
    ways = (lost, Answer(status="failed", code=9), Answer(status="timeout", seconds=5.0), whole)

    found = [finding_on(NVLINK, {"nvlink": one}, about()).verdict for one in ways]
    assert [Severity.UNKNOWN] * 3 + [Severity.OK] == found


@pytest.mark.parametrize(
    ("log", "stuck", "what", "means"),
    [
        ("", False, "nvidia-smi did not answer within 4 s", "the driver hangs; so would every job that asks it"),
        ("", True, "nvidia-smi did not answer within 4 s, and its process cannot be ended", "the driver hangs"),
        (f"x {xid.HANGS[0]} y", False, "nvidia-smi did not answer within 4 s", "the kernel log says why: "),
    ],
)
def test_why_a_driver_hangs_may_be_in_the_kernel_log(log: str, stuck: bool, what: str, means: str) -> None:
    """Which was read before it was asked."""
    found = gpu.driver_hangs(Answer(status="timeout", seconds=4.2, stuck=stuck), about(kernel_log=log))
    assert (what, Severity.REBOOT) == (found.what, found.verdict)
    assert found.means.startswith(means)


@pytest.mark.parametrize(
    ("ask", "answers", "status"),
    [
        ({}, {}, None),
        ({"unless": ["log", "dead", "gone"]}, {}, None),
        ({"unless": ["log", "dead", "gone"]}, {"log": {"out": "all is well"}}, None),
        ({"unless": ["log", "dead", "gone"]}, {"log": {"out": "it is gone"}}, "skipped"),
        ({"unless": ["log", "dead", "gone"]}, {"log": {}}, None),
        ({"tool": "sh"}, {}, None),
        ({"tool": "no-such-tool"}, {}, "missing"),
    ],
)
def test_what_cannot_be_asked_says_why(ask: dict[str, Any], answers: dict[str, Any], status: str | None) -> None:
    """Each part of it, where it has some."""
    for parts in ([], [{"name": "a"}, {"name": "b"}]):
        said = dict(answers)
        question = {"name": "q", **ask, **({"parts": parts} if parts else {})}
        assert (status is None) is probe._can_ask(question, said)
        empty = {"status": status, "out": "", "err": "", "code": None, "seconds": 0}
        names = [one["name"] for one in parts] or ["q"]
        assert {**answers, **(dict.fromkeys(names, empty) if status else {})} == said


@pytest.mark.parametrize(
    ("now", "on_processor_s", "works", "disk_works", "more_s", "is_over"),
    [
        (110.0, 0.0, False, False, 0.0, False),
        (111.0, 0.0, False, False, 0.0, True),
        (111.0, 1.0, False, False, 0.0, True),
        (111.0, 1.1, False, False, 0.0, False),
        (111.0, 0.0, True, False, 0.0, False),
        (111.0, 0.0, False, True, 0.0, False),
        (100.0 + 11 + probe.MOST_MORE_S, 0.0, True, True, probe.MOST_MORE_S, False),
        (100.0 + 12 + probe.MOST_MORE_S, 0.0, True, True, probe.MOST_MORE_S + 1, True),
    ],
)
def test_a_question_s_time_is_up_where_it_does_nothing(
    now: float, on_processor_s: float, works: bool, disk_works: bool, more_s: float, is_over: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """After ten seconds from a hundred on, besides those on a processor; then it has half a second more."""
    child = object.__new__(probe.Child)
    child.ask, child.started, child.more_s, child.pid = {"limit_s": 10}, 100.0, more_s, 1
    monkeypatch.setattr(child, "works", lambda: works)
    monkeypatch.setattr(child, "disk_works", lambda: disk_works)
    monkeypatch.setattr(probe, "_processor_s", lambda pid: on_processor_s)
    monkeypatch.setattr(time, "monotonic", lambda: now)
    assert is_over is child.is_over()
    assert (more_s if is_over or now <= 110 else now + 0.5 - 110) == child.more_s
