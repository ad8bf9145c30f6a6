"""`nvidia-smi -q -x` as judges read it: its GPUs, and fields with their units."""

import functools
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable, Iterator

from cluster.health.check import About, Judge
from cluster.health.verdict import Problem, Unreadable, Verdict
from cluster.health.xid import ACTION

Gpu = ElementTree.Element
NO_ANSWER = ("Unknown Error", "ERR!", "GPU is lost", "[Unknown Error]")


def gpus(log: str) -> Iterator[tuple[int, Gpu]]:
    """Every GPU with its index. Raises Unreadable if it is not the log, or not of all GPUs."""
    root = ElementTree.fromstring(log)
    gpus = root.findall("gpu")
    attached = root.findtext("attached_gpus")
    if root.tag != "nvidia_smi_log" or attached is None or int(attached) != len(gpus):
        raise Unreadable(f"{len(gpus)} of {attached} GPUs in it")
    yield from enumerate(gpus)


def each_gpu(judge: Callable[[int, Gpu], Iterator[Problem]]) -> Judge:
    """The judge of one GPU, by its index, as a judge of the whole log."""

    @functools.wraps(judge)
    def judged(log: str, about: About) -> list[Problem]:
        return [p for i, gpu in gpus(log) for p in judge(i, gpu)]

    return judged


def part(gpu: Gpu, *paths: str) -> Gpu:
    """The first of these parts that there is: drivers have renamed some. Raises Unreadable without any."""
    for path in paths:
        if (found := gpu.find(path)) is not None:
            return found
    raise Unreadable(f"no <{paths[0]}>")


def text(element: Gpu, path: str) -> str | None:
    """A field's text, None if it is not there."""
    said = element.findtext(path)
    return said.strip() if said else None


def must(gpu: Gpu, path: str) -> str:
    """A field's text. Raises Unreadable without it."""
    said = text(gpu, path)
    if said is None:
        raise Unreadable(f"no <{path}>")
    return said


def number(field: Gpu | None, unit: str = "") -> int:
    """A count; 0 where the GPU has no such counter (N/A)."""
    said = (field.text or "").strip() if field is not None else "N/A"
    return 0 if said in ("N/A", "", *NO_ANSWER) or not said[0].isdigit() else int(said.removesuffix(unit).strip())


def degrees(heat: Gpu, path: str) -> float | None:
    """A temperature in degrees Celsius, None where the GPU has none."""
    said = text(heat, path)
    return float(said.removesuffix(" C")) if said and said.endswith(" C") else None


def watts(power: Gpu, path: str) -> float | None:
    """A power in watts, None where the GPU has none."""
    said = text(power, path)
    return float(said.removesuffix(" W")) if said and said.endswith(" W") else None


def problem(check: str, what: str, means: str, verdict: Verdict, *, unfit: bool = True) -> Problem:
    """A problem whose action is the usual one of its verdict."""
    do, command = ACTION[verdict]
    return Problem(check=check, what=what, means=means, verdict=verdict, do=do, command=command, unfit=unfit)
