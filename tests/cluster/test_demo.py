"""The demonstrations: what they fit to a machine, and both of them from end to end, small."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from cluster.errors import ClusterError
from cluster.hosts import Host
from cluster.inventory import ROOT
from cluster.locate import LABS
from dlami import demo
from lab import lab as labs
from lab.machine import Missing

# Read by every Python that the typed command starts: what makes the demo small, as soon as it is imported.
SMALLER = """\
import importlib.abc, importlib.machinery, json, os, sys

class Smaller(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name != "dlami.demo":
            return None
        found = importlib.machinery.PathFinder.find_spec(name, path)
        load = found.loader.exec_module
        def exec_module(module):
            load(module)
            for constant, value in json.loads(os.environ["SMALLER_DEMO"]).items():
                setattr(module, constant, type(getattr(module, constant))(value))
        found.loader.exec_module = exec_module
        return found

sys.meta_path.insert(0, Smaller())
"""


@pytest.fixture
def small(lab_allowed: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Its lab's name; a demo that is typed has a folder of its own and few images."""
    name = f"d{os.getpid() % 10_000_000}"
    short = ["TRAIN.LR_EPOCH_SCHEDULE=[(1,None)]", "TRAIN.EVAL_PERIOD=1", "TRAIN.WARMUP=0"]
    smaller = {
        "FOLDER": str(tmp_path / "demo"), "LAB": name, "SAMPLE_IMAGES": 128, "SAMPLE_VALIDATION": 20,
        "TRAINING_S": 0.0, "SHAPES_IMAGES": 8, "SHAPES_RECIPE": [*demo.SHAPES_RECIPE, *short],
    }  # fmt: skip
    (tmp_path / "python").mkdir()
    (tmp_path / "python/sitecustomize.py").write_text(SMALLER)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "python"))
    monkeypatch.setenv("SMALLER_DEMO", json.dumps(smaller))
    yield name
    if labs.is_anything_left(name):
        labs.down(name)
    (LABS.parent / f"{name}.lock").unlink(missing_ok=True)


def made(goal: str) -> str:
    """What `make demo` says to who types it, but that nothing is installed first."""
    if Path(sys.prefix).resolve() != (ROOT / ".venv").resolve():
        pytest.skip("this Python is not the one of 'make': it is no .venv of this checkout")
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("MAKE", "MFLAGS"))}
    words = ["make", "--old-file", "install", goal]
    done = subprocess.run(words, cwd=ROOT, env=clean, capture_output=True, text=True, timeout=1500)
    assert 0 == done.returncode, done.stdout + done.stderr
    return done.stdout


def test_the_demo_times_its_first_steps_trains_evaluates_and_leaves_its_curves(small: str, tmp_path: Path) -> None:
    """Over four hosts; the lab is gone at the end."""
    said = made("demo")

    assert re.search(r"this machine trains \d+ images/s at 64 pixels: 1 epoch at 32 pixels, about two minutes", said)
    assert "4 ranks on 4 hosts" in said
    assert "the lab is taken down" in said and not labs.is_anything_left(small)
    (curves,) = (tmp_path / "demo").glob("*/curves.png")
    assert curves.stat().st_size > 10_000


def test_the_demo_of_mask_rcnn_shows_what_it_sees(small: str, tmp_path: Path) -> None:
    """Pictures of images that it has not learned from."""
    said = made("demo-maskrcnn")

    assert 4 == len(list((tmp_path / "demo").glob("*/pictures/*.png")))
    assert "the lab is taken down" in said and not labs.is_anything_left(small)


@pytest.mark.parametrize(("cores", "threads"), [(1, 1), (2, 1), (4, 2), (7, 3), (64, 32)])
def test_ranks_of_lab_hosts_share_the_machine_s_cores(
    monkeypatch: pytest.MonkeyPatch, cores: int, threads: int
) -> None:
    """Each lab host takes all cores for its own, so the demonstration says how many threads a rank has."""
    trained: list[Any] = []
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(cores)))
    monkeypatch.setattr(demo, "train_to_its_end", lambda cluster, training: trained.append(training))
    hosts = tuple(Host(rank=n, address=f"10.0.0.{n}", slots=1) for n in range(4))
    demo._train_maskrcnn(cast(Any, SimpleNamespace(hosts=hosts)), "/shared/shapes")

    (training,) = trained
    assert hosts[:2] == training.hosts
    assert ("--threads", str(threads), "DATA.BASEDIR=/shared/shapes") == training.program.words[:3]


def test_where_no_lab_can_be_made_the_demo_says_why_and_uses_one_host(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """With two slots, in one line."""
    monkeypatch.setattr(demo, "FOLDER", tmp_path)
    monkeypatch.setattr(demo.machine, "missing", lambda: Missing("needs this", "do that", is_permission=True))
    with demo.demo_cluster(keep=False) as cluster:
        assert [("localhost", 2)] == [(h.address, h.slots) for h in cluster.hosts]

    assert (
        "a lab needs this, so the demo uses one host, localhost slots=2 (for four: do that)"
        == capsys.readouterr().out.splitlines()[0]
    )


def test_a_folder_that_the_demo_cannot_write_to_ends_it_before_it_begins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As one that root's demo has left for who is not root: in words, and no lab is made."""
    (tmp_path / "taken").write_text("")
    monkeypatch.setattr(demo, "FOLDER", tmp_path / "taken/demo")
    monkeypatch.setattr(demo.lab, "up", lambda *_, **__: pytest.fail("a lab is made"))
    with (
        pytest.raises(
            ClusterError, match=r"taken/demo, where the demo leaves what it makes, cannot be written \(Not a d"
        ),
        demo.demo_cluster(keep=False),
    ):
        pytest.fail("it begins")
