"""Looks at this machine's own GPUs with the real nvidia-smi; skipped where it has none."""

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from cluster.guard.onhost import activity
from cluster.health import checks
from cluster.health.check import About, Answer, finding_on
from cluster.health.onhost import probe, readings
from cluster.health.questions import gpu_questions, read_answers, records
from cluster.health.verdict import Severity
from cluster.hosts import Host
from cluster.kill.onhost import leftovers
from cluster.setup.onhost import settings
from cluster.top.onhost.gpus import Gpus
from cluster.top.reading import GpuState, gpu_of
from tests.conftest import PATIENCE_S

HOLDER = Path(__file__).with_name("holds_gpu_memory.py")


@pytest.fixture(scope="module")
def gpus() -> int:
    """How many there are."""
    if not shutil.which("nvidia-smi"):
        pytest.skip("no GPU is at hand: there is no nvidia-smi")
    said = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, timeout=60).stdout
    count = sum(line.startswith("GPU") for line in said.splitlines())
    if not count:
        pytest.skip("no GPU is at hand: nvidia-smi lists none")
    return count


@pytest.fixture
def holder(gpus: int) -> Iterator[int]:
    """A process of no job that holds a GPU's memory."""
    with subprocess.Popen([sys.executable, HOLDER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as one:
        assert one.stdout and "held\n" == one.stdout.readline()
        yield one.pid
        one.kill()


def answers() -> dict[str, Answer]:
    """What the probe says of the GPUs here."""
    os.environ["LC_ALL"] = "C"
    return read_answers(probe.ask_all(records(gpu_questions()), readings.READINGS))


def test_every_check_of_gpus_can_read_its_answer(gpus: int) -> None:
    """None is unknown, and the GPUs are counted."""
    found, about = answers(), About(host=Host(rank=0, address="localhost", slots=gpus), gpus_on_bus=8)
    said = {check.name: finding_on(check, found, about) for check in checks.GPU}
    unread = {name: (one.note, one.problems) for name, one in said.items() if one.verdict is Severity.UNKNOWN}

    assert not unread
    assert Severity.OK is said["gpu-count"].verdict
    assert not checks.driver_missing(found, about)


def test_who_holds_memory_is_named_with_whose_it_is(holder: int) -> None:
    """By health, and among what trainings left."""
    about = About(host=Host(rank=0, address="localhost", slots=1), gpus_on_bus=8)
    check = next(c for c in checks.GPU if c.name == "gpu-strays")
    mine = [p for p in finding_on(check, answers(), about).problems if f"process {holder} " in p.what]
    listed = [one for one in leftovers.find_processes(leftovers.LeftoversArguments([], [])) if one["pid"] == holder]

    assert 1 == len(mine) and "of no job holds" in mine[0].what and mine[0].unfit
    assert ["no job's"] == [one["fate"] for one in listed] and listed[0]["gpu_mb"] >= 256


def test_an_idle_holder_keeps_no_cluster(holder: int) -> None:
    """The guard of an idle cluster waits for a GPU that works, not for memory that is held."""
    assert not activity.gpu_is_busy({})


def test_what_is_watched_and_set_is_told_of_every_gpu(gpus: int) -> None:
    """Use, memory, heat and power as numbers within their limits; settings with a value for each."""
    watch, until = Gpus(), time.monotonic() + PATIENCE_S
    try:
        while len((watch.newest() or {})["lines"]) < gpus and time.monotonic() < until:
            time.sleep(0.1)
        told = watch.newest()
    finally:
        watch.close()
    assert told and "" == told["error"]
    seen = [gpu_of(line) for line in told["lines"]]
    settable = settings.now("", [])["gpus"]

    assert list(range(gpus)) == sorted(one.index for one in seen)
    assert all(is_sound(one) for one in seen), seen
    assert [str(i) for i in range(gpus)] == [one["index"] for one in settable]
    assert all(set(settings.GPU_FIELDS) == set(one) for one in settable)


def is_sound(gpu: GpuState) -> bool:
    """Within what a GPU can be."""
    assert None not in (gpu.use, gpu.memory_used, gpu.memory_total, gpu.celsius, gpu.watts, gpu.watts_limit)
    return 0 <= gpu.use <= 1 and 0 <= gpu.memory_used < gpu.memory_total and 0 < gpu.watts < 2 * gpu.watts_limit
