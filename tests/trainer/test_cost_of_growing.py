"""The benchmark of growing: what its ranks find, and what becomes of it."""

import contextlib
import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from benchmarks import all_reduce
from benchmarks.scaling import LINKS, Found, rows, without
from benchmarks.scaling_rank import FREE
from cfn.estimate.layers import network
from cfn.estimate.slower_links import step_s
from cluster.inventory import ROOT
from tests.conftest import PATIENCE_S, unused_port
from tests.processes import begun

SLOW = next(iter(LINKS))


def test_ranks_ask_for_every_link_and_tell_their_steps(ranks: Any, tmp_path: Path) -> None:
    """Two real ranks, in every round; memory of each, and all-reduces over each link."""
    for number in range(4):
        (tmp_path / f"{number}.set").touch()
    flags = ("--batch", 2, "--rounds", 2, "--steps", 2, "--links", FREE, SLOW)
    ranks(2, "benchmarks/scaling_rank.py", tmp_path, *flags)

    assert [FREE, SLOW] * 2 == [(tmp_path / f"{n}.asked").read_text() for n in range(4)]
    everyone = json.loads((tmp_path / "found.json").read_text())
    assert 2 == len(everyone)
    found = Found.of(everyone, batch=2)
    assert {FREE: 4, SLOW: 4} == {link: len(steps) for link, steps in found.steps.items()}
    assert all(0 <= w <= s for link in found.steps for w, s in zip(found.waited[link], found.steps[link], strict=True))
    assert all(size > 100e6 for size in found.peak_bytes)
    assert min(found.parts.large_s, found.parts.small_s) > 0
    assert {FREE: 2, SLOW: 2} == {link: len(times) for link, times in found.large_s.items()}


def ring(sizes: Sequence[int]) -> list[tuple[int, str, str]]:
    """Exit code, stdout and stderr of each host of a ring of sockets on this machine; what each is to have summed."""
    ports = [unused_port() for _ in sizes]
    with contextlib.ExitStack() as stack:
        processes = []
        for n, (port, after, size) in enumerate(zip(ports, [*ports[1:], ports[0]], sizes, strict=True)):
            words = [sys.executable, str(ROOT / "benchmarks/socket_ring.py"), str(port), f"127.0.0.1:{after}"]
            words += ["--hosts", str(len(sizes)), "--bytes", str(size), "--times", "2", *["--first"] * (not n)]
            pipe = subprocess.PIPE
            processes.append(stack.enter_context(begun(words, stdout=pipe, stderr=pipe, text=True)))
        said = [one.communicate(timeout=PATIENCE_S) for one in processes]
        return [(one.returncode, *words) for one, words in zip(processes, said, strict=True)]


def test_sockets_send_around_a_ring_and_the_first_says_its_seconds() -> None:
    """Where one sends less than the others wait for, nobody is told a time."""
    (code, seconds, trouble), *others = ring([30_000_000] * 3)
    assert [(0, "", "")] * 2 == others
    assert (0, "") == (code, trouble)
    assert 2 == len([s for s in map(float, seconds.split()) if s > 0])

    (code, seconds, trouble), *_ = ring([30_000_000, 30_000_000, 3_000])
    assert (1, "", "the host before is gone\n") == (code, seconds, trouble)


def test_a_prediction_stands_beside_each_limited_step() -> None:
    """Means over the ranks, medians over the steps; the ratio is the larger over the smaller."""
    first: dict[str, Any] = {"steps": {FREE: [[1.0, 0.2]] * 3, SLOW: [[6.0, 5.0], [8.0, 7.0], [7.0, 6.0]]}}
    first |= {"small_s": [0.01], "large_s": {FREE: [0.3], SLOW: [3.01]}, "peak_bytes": 500e6}
    found = Found.of([first, {**first, "peak_bytes": 700e6}], batch=16)
    layers = network("resnet18", 32)
    result = {r["what"]: r for r in rows([found], {(2, SLOW): [15e6, 24e6, 25e6], (4, SLOW): [9e6]})}

    step = result[f"2 ranks, batch 16, {SLOW}: a step"]
    predicted = step_s(found.parts, layers, 24e6)
    assert (7.0, round(7.0 / predicted, 3), 1.15) == (step["value"], step["ratio"], step["goal"])
    assert f"{predicted:.3f} s predicted, -" in step["against"]
    assert 600 == result["2 ranks, batch 16: peak memory of a rank"]["value"]
    assert 32 / 7 == pytest.approx(result[f"2 ranks, batch 16, {SLOW}: all ranks"]["value"], abs=1e-4)
    assert 600 / 7 == pytest.approx(
        result[f"2 ranks, batch 16, {SLOW}: of a step, waited for the others and gradients"]["value"], abs=1e-3
    )
    assert None is result["2 ranks, batch 16, no limit: a step"]["ratio"]
    assert f"error of the prediction over {SLOW}: 0 of 1 within 15 %" in result


def test_one_rank_needs_no_link() -> None:
    """Its speed and its memory are the unit of the others."""
    alone: dict[str, Any] = {"steps": {FREE: [[0.5, 0.0]]}, "small_s": [], "large_s": {FREE: []}, "peak_bytes": 500e6}
    result = [r["what"] for r in rows([Found.of([alone], batch=16)], {})]

    assert "1 rank, batch 16, no limit: all ranks" in result
    assert not [what for what in result if "all-reduce" in what or "error" in what]


def test_an_all_reduce_is_told_beside_the_same_without_the_flags() -> None:
    """mpirun's words differ in these alone; medians, over each link."""
    words = ["mpirun", "--mca", "btl", "tcp,self", "--mca", "btl_tcp_flags", "send", "-x", "A=1", "python"]
    assert ["mpirun", "--mca", "btl", "tcp,self", "-x", "A=1", "python"] == without(
        words, all_reduce.LEFT_OUT[all_reduce.DEFAULT]
    )
    assert words == without(words, all_reduce.LEFT_OUT[all_reduce.OURS])
    sides = {"ours": {FREE: [3.0, 1.0, 1.5], SLOW: [7.0]}, "default": {FREE: [9.0, 2.0, 2.0], SLOW: [10.0]}}
    told = [(r["what"], r["value"], r["against"], r["ratio"]) for r in all_reduce.rows({4: sides})]
    assert [
        ("4 ranks, no limit: an all-reduce of 47 MB", 1.5, "Open MPI's default flags", 0.75),
        (f"4 ranks, {SLOW}: an all-reduce of 47 MB", 7.0, "Open MPI's default flags", 0.7),
    ] == told
