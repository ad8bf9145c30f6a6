"""Reading `nvidia-smi -q -x`: its GPUs, and their fields with units."""

import functools
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable, Iterator

from cluster.health.check import About, Judge
from cluster.health.verdict import Problem, Unreadable, Verdict
from cluster.health.xid import ACTION
from cluster.terminal import counted

Gpu = ElementTree.Element
NO_ANSWER = ("Unknown Error", "ERR!", "GPU is lost", "[Unknown Error]")
NOT_THERE = ("N/A", "[N/A]", "Not Supported", "[Not Supported]")  # this GPU has no such thing
# What every driver since 470 tells of every GPU: without one of these the report is not whole.
ALWAYS = ("persistence_mode", "performance_state", "pci", "ecc_errors", "retired_pages", "remapped_rows", "temperature")


def gpus(log: str) -> Iterator[tuple[int, Gpu]]:
    """Every GPU with its index. Raises Unreadable if it is not the log, not of all GPUs, or lacks a part of one."""
    root = ElementTree.fromstring(log)
    gpus = root.findall("gpu")
    attached = root.findtext("attached_gpus")
    if root.tag != "nvidia_smi_log" or attached is None or int(attached) != len(gpus):
        raise Unreadable(f"{len(gpus)} of {counted(int(attached or 0), 'GPU')} in it")
    for i, gpu in enumerate(gpus):
        for name in ALWAYS:
            if len(gpu.findall(name)) != 1:
                raise Unreadable(f"GPU {i}: {len(gpu.findall(name))} times <{name}>")
    yield from enumerate(gpus)


def each_gpu(judge: Callable[[int, Gpu], Iterator[Problem]]) -> Judge:
    """Turn a judge of one GPU and its index into a judge of the whole log."""

    @functools.wraps(judge)
    def judged(log: str, about: About) -> list[Problem]:
        return [p for i, gpu in gpus(log) for p in judge(i, gpu)]

    return judged


def part(gpu: Gpu, *paths: str) -> Gpu:
    """The first of these parts that exists, because drivers have renamed some. Raises Unreadable if none does."""
    for path in paths:
        if (found := gpu.find(path)) is not None:
            return found
    raise Unreadable(f"no <{paths[0]}>")


def text(element: Gpu, path: str) -> str | None:
    """A field's text, or None if it is missing."""
    said = element.findtext(path)
    return said.strip() if said else None


def must(gpu: Gpu, path: str) -> str:
    """A field's text. Raises Unreadable if it is missing, or there twice."""
    fields = gpu.findall(path)
    if len(fields) != 1:
        raise Unreadable(f"{len(fields)} times <{path}>")
    return (fields[0].text or "").strip()


def has(gpu: Gpu, path: str) -> bool:
    """Whether the driver reports this part for this GPU. Some drivers leave it out, others write N/A for all of it."""
    found = gpu.find(path)
    return found is not None and (len(found) > 0 or (found.text or "").strip() not in NOT_THERE)


def told(gpu: Gpu, folder: str, name: str) -> str | None:
    """A field's text, or None if the driver reports nothing of this part. Raises Unreadable if only it is missing."""
    return must(gpu, f"{folder}/{name}") if has(gpu, folder) else None


def one_of(part: Gpu, *names: str) -> str:
    """The text of the first of these fields that exists, as drivers renamed some. Raises Unreadable if none does."""
    return must(part, next((name for name in names if part.find(name) is not None), names[0]))


def number(said: str, unit: str = "") -> int:
    """A count; 0 where the GPU has no such counter (N/A) or does not answer, which is a problem of its own."""
    return 0 if said in (*NOT_THERE, *NO_ANSWER) else int(said.removesuffix(unit).strip())


def measure(said: str, unit: str) -> float | None:
    """A number without its unit, or None if the GPU has no such value or does not answer."""
    return None if said in (*NOT_THERE, *NO_ANSWER) else float(said.removesuffix(unit))


def problem(check: str, what: str, means: str, verdict: Verdict, *, unfit: bool = True) -> Problem:
    """A problem with the usual action for its verdict."""
    do, command = ACTION[verdict]
    return Problem(check=check, what=what, means=means, verdict=verdict, do=do, command=command, unfit=unfit)
