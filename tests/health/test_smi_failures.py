"""What nvidia-smi's failures mean for a host: which are findings, which absence, which noise beside a good answer."""

import json
import re
from dataclasses import replace
from typing import Any

import pytest

from cluster.health import checks
from cluster.health.check import About, Answer, Finding, finding_on
from cluster.health.verdict import Severity
from cluster.hosts import Host
from cluster.inventory import ROOT
from cluster.top.reading import vitals_of

ABOUT = About(host=Host(rank=0, address="10.0.0.1", slots=2))
LOST = "Unable to determine the device handle for GPU0000:17:00.0: Unknown Error\n\n"
NO_DRIVER = (
    "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver. Make sure that the latest NVIDIA driver "
    "is installed and running.\n\n"
)


def report(*changes: tuple[str, str]) -> str:
    """What nvidia-smi says of two GPUs that are well, with words of it replaced."""
    path = ROOT / "tests/recorded/gpu-driver/p4d.24xlarge-535.54.03-lost.txt"
    text = re.sub(r"^# .*\n", "", path.read_text(), flags=re.MULTILINE).replace("GPU is lost", "31 C")
    for before, after in changes:
        assert before in text
        text = text.replace(before, after)
    return text


def findings(out: str, code: int, about: About = ABOUT, *, err: str = "", seconds: float = 1.0) -> dict[str, Finding]:
    """What every check of the driver's tool says where `nvidia-smi` prints this and exits so."""
    failed = Answer(status="failed" if code else "ok", out=out, err=err, code=code, seconds=seconds)
    apps = Answer(status="ok", out=json.dumps({"apps": out if code else "", "code": code, "owners": {}}))
    links = Answer(status="failed" if code else "ok", out=out if code else "", code=code)
    answers = {"smi": failed, "gpu-processes": apps, "nvlink": links, "nvlink-errors": links}
    return {c.name: finding_on(c, answers, about) for c in checks.GPU if c.question in answers}


def problems(found: dict[str, Finding]) -> list[tuple[str, str, bool, str]]:
    return [(p.check, p.verdict.value, p.unfit, p.what) for f in found.values() for p in f.problems]


@pytest.mark.parametrize(
    ("said", "code", "verdict", "line"),
    [
        ("No devices were found\n", 6, "reboot", "No devices were found"),
        (NO_DRIVER, 9, "replace", "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver."),
        (
            "Failed to initialize NVML: Driver/library version mismatch\nNVML library version: 535.183\n",
            18,
            "reboot",
            "Failed to initialize NVML: Driver/library version mismatch",
        ),
        (LOST, 255, "reboot", "Unable to determine the device handle for GPU0000:17:00.0: Unknown Error"),
        ("Unable to determine the device handle for GPU 0000:17:00.0: GPU requires reset\n", 16, "reset-gpu", "Unable"),
        ("Unable to determine the device handle for GPU 0000:17:00.0: GPU is lost.\n", 15, "reboot", "Unable"),
        ("Failed to initialize NVML: Insufficient Permissions\n", 4, "restart-job", "Failed to initialize"),
        ("Failed to initialize NVML: Unknown Error\n", 255, "reboot", "Failed to initialize NVML: Unknown Error"),
        ("", 255, "reboot", "it exited 255"),
        ("", 15, "reboot", "it exited 15"),
        (
            "nvidia-smi: error while loading shared libraries: libnvidia-ml.so.1: cannot open\n",
            127,
            "replace",
            "nvidia-smi",
        ),
    ],
)
def test_a_failure_that_is_known_is_one_finding(said: str, code: int, verdict: str, line: str) -> None:
    """Unfit, with the line that tells; every other check of the tool is silent, and none of them is ok."""
    for streams in ({"out": said}, {"out": "", "err": said}):
        found = findings(code=code, **streams)

        ((check, of, unfit, what),) = problems(found)
        assert ("gpu-driver", verdict, True) == (check, of, unfit)
        assert what.startswith(f"nvidia-smi: {line}")
        assert Severity.OK not in {f.verdict for f in found.values()}


@pytest.mark.parametrize(("said", "code"), [("Something new\n", 77), ("", 1), ("Segmentation fault\n", 139), ("", -9)])
def test_a_failure_that_nobody_knows_is_not_fit(said: str, code: int) -> None:
    """It is unknown what it means, and a program that looks for GPUs may meet the same."""
    ((check, verdict, unfit, what),) = problems(findings(said, code))

    assert ("gpu-driver", "unknown", True) == (check, verdict, unfit)
    assert (said.strip() or f"it exited {code}") in what


def test_a_host_whose_type_has_no_gpus_has_no_faults_of_them() -> None:
    """The image's driver has nothing to drive there: absence."""
    found = findings(NO_DRIVER, 9, replace(ABOUT, has_no_gpus=True))

    assert {Severity.NOT_APPLICABLE} == {f.verdict for f in found.values()}


def test_noise_beside_a_good_report_hides_nothing() -> None:
    """A warning line and an exit code of its own: the report is read, and what the line says is said."""
    hot = ("<gpu_temp>31 C</gpu_temp>", "<gpu_temp>99 C</gpu_temp>")
    warning = "WARNING: infoROM is corrupted at gpu 0000:00:1E.0\n"
    for out in (report(hot) + warning, warning + report(hot)):
        for code in (0, 14):
            found = findings(out, code)
            assert ("gpu-driver", "watch", False, f"nvidia-smi: {warning.strip()}") in problems(found)
            assert "replace" == found["gpu-temperature"].verdict.value
            assert "ok" == found["gpu-ecc"].verdict.value
    assert [] == problems({"gpu-driver": findings(report(), 1)["gpu-driver"]})


def test_one_dead_gpu_among_healthy_ones_is_named_and_the_others_are_judged() -> None:
    """Whether the driver lists it with words for numbers, counts it only, or cannot even open it."""
    first = report().index("<gpu id")
    second = report().index("<gpu id", first + 1)
    end = report().index("</nvidia_smi_log>")
    healthy, other = report()[:second], report()[second:end]
    slowed = "reason_hw_thermal_slowdown>Active<"
    healthy = healthy.replace("reason_hw_thermal_slowdown>Not Active<", slowed)
    assert slowed in healthy
    for words, verdict in (
        ("GPU requires reset", "reset-gpu"),
        ("[GPU requires reset]", "reset-gpu"),
        ("ERR!", "reboot"),
    ):
        dead = re.sub(r"<(gpu_temp|power_draw|performance_state)>[^<]*<", rf"<\1>{words}<", other)
        found = findings(f"{healthy}{dead}</nvidia_smi_log>\n", 0)
        assert ("gpu-driver", verdict, True, f"GPU 1 does not tell its gpu_temp: {words}") in problems(found)
        assert ("gpu-throttle", "watch", False, "GPU 0: slowed down by heat") in problems(found)
        assert not [p for p in problems(found) if p[1] == "unknown"]
    dead = re.sub(r"<(gpu_temp|power_draw)>[^<]*<", r"<\1>ERR!<", report()[first:second])
    slow = other.replace("reason_hw_thermal_slowdown>Not Active<", slowed).replace(">31 C<", ">99 C<")
    behind = findings(f"{report()[:first]}{dead}{slow}</nvidia_smi_log>\n", 0)
    assert {"GPU 1: slowed down by heat", "GPU 1: 99 C, where it slows down"} <= {p[3] for p in problems(behind)}
    missing = findings(f"{healthy}</nvidia_smi_log>\n{LOST}", 255)
    assert ("gpu-throttle", "watch", False, "GPU 0: slowed down by heat") in problems(missing)
    assert ("gpu-driver", "reboot", True, f"nvidia-smi: {LOST.strip()}") in problems(missing)
    counted = findings(f"{healthy}</nvidia_smi_log>\n", 0)
    assert ("gpu-driver", "reboot", True, "nvidia-smi reports 1 of 2 GPUs") in problems(counted)


def test_a_gpu_that_the_driver_lost_is_no_mistake_of_the_hostfile() -> None:
    """Nobody is told to write slots=1 because one of two GPUs is dead."""
    one = report(("<attached_gpus>2<", "<attached_gpus>1<"))
    one = one[: one.index("<gpu id", one.index("<gpu id") + 1)] + "</nvidia_smi_log>\n"

    assert "restart-job" == findings(one, 0)["gpu-count"].verdict.value
    assert [] == [p for p in problems(findings(one + LOST, 255)) if "slots=" in p[3]]
    (found,) = findings(one, 0, replace(ABOUT, gpus_on_bus=2))["gpu-count"].problems
    assert ("1 GPU, the PCI bus has 2", Severity.REBOOT) == (found.what, found.verdict)


def test_processes_are_judged_as_far_as_they_are_listed() -> None:
    """A GPU that cannot be asked for its processes hides no process of another."""
    who: dict[str, Any] = {"command": "x", "job": "", "run": "", "user": "u", "is_other": False, "record": ""}
    out = json.dumps({"apps": f"7, 10 MiB\n{LOST}", "code": 255, "owners": {"7": who}})
    (check,) = (c for c in checks.GPU if c.name == "gpu-strays")
    found = finding_on(check, {"gpu-processes": Answer(status="ok", out=out)}, ABOUT)

    assert ["restart-job", "unknown"] == [p.verdict.value for p in found.problems]
    assert "Unable to determine the device handle" in found.problems[1].what


@pytest.mark.parametrize("seconds", [5.1, 30.0])
def test_a_slow_nvidia_smi_is_watched(seconds: float) -> None:
    """Not unfit: without persistence mode it is slow, and the report says what turns it on."""
    off = report(("<persistence_mode>Enabled<", "<persistence_mode>Disabled<"))
    (problem,) = findings(off, 0, seconds=seconds)["gpu-driver"].problems

    assert (Severity.WATCH, False) == (problem.verdict, problem.unfit)
    assert "slow: persistence mode is off" in problem.what
    assert "inv setup --settings --hosts {ranks}" == problem.command
    assert () == findings(off, 0, seconds=4.9)["gpu-driver"].problems


def told(*lines: str, error: str = "") -> Any:
    """What a host says of itself to `inv top`."""
    numbers = {"cpu": {"busy": 1, "all": 2, "cores": 1}, "memory": {"used": 1, "total": 2}}
    rates = {"net": {"in": 0, "out": 0}, "disk": {"read": 0, "written": 0}}
    gpus = {"lines": list(lines), "age_s": 0.5, "error": error}
    return {"now": 1.0, **numbers, **rates, "full": 0.1, "gpus": gpus, "ping_s": None, "ranks": []}


def test_top_shows_healthy_gpus_beside_a_dead_one() -> None:
    """And names the dead one in the driver's words."""
    well = "0, 50, 100, 40960, 31, 60.0, 400.0"
    for words in ("[GPU requires reset]", "[GPU is lost]", "[Unknown Error]"):
        vitals = vitals_of(told(well, f"1, {words}, {words}, 40960, {words}, {words}, [N/A]"))
        assert [0.5, None] == [gpu.use for gpu in vitals.gpus]
        assert f"GPU 1: {words}" == vitals.gpu_trouble
    assert (LOST.strip(), 1) == ((v := vitals_of(told(well, error=LOST.strip()))).gpu_trouble, len(v.gpus))
    assert "" == vitals_of(told(well)).gpu_trouble
