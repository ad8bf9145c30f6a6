"""Reader of `nvidia-smi -q -x`: its GPUs, their fields with units, and the output outside the report."""

import functools
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable, Iterator

from cluster.health.check import TROUBLE, About, Judge, PartlyRead
from cluster.health.known_faults import ABSENT_FIELDS, ACTION, SILENT_FIELDS
from cluster.health.verdict import Problem, Severity, Unreadable
from cluster.terminal import counted

Gpu = ElementTree.Element
_BEGIN, _END = "<nvidia_smi_log>", "</nvidia_smi_log>"
# Fields that every driver since 470 reports for every GPU: without one of these the report is not complete.
ALWAYS = ("persistence_mode", "performance_state", "pci", "ecc_errors", "retired_pages", "remapped_rows", "temperature")


def is_report(out: str) -> bool:
    """Return True if nvidia-smi printed a whole report, whether it printed anything else or not."""
    return _BEGIN in out and _END in out


def beside_report(out: str) -> str:
    """Return nvidia-smi's output before and after its report: warnings, GPUs that it could not open."""
    before, _, rest = out.partition(_BEGIN)
    lines = [*before.splitlines(), *rest.rpartition(_END)[2].splitlines()]
    return "\n".join(line for line in lines if line.strip() and not line.startswith(("<?xml", "<!DOCTYPE")))


def _root(log: str) -> Gpu:
    """Parse the report. Raises ParseError."""
    if not is_report(log):
        return ElementTree.fromstring(log)
    return ElementTree.fromstring(log[log.index(_BEGIN) : log.rindex(_END) + len(_END)])


def attached(log: str) -> int:
    """Return how many GPUs the driver has, of which the report may lack some. Raises Unreadable."""
    root = _root(log)
    count, listed = root.findtext("attached_gpus"), len(root.findall("gpu"))
    if root.tag != "nvidia_smi_log" or count is None or not 0 <= int(count) - listed < max(int(count), 1):
        raise Unreadable(f"{listed} of {counted(int(count or 0), 'GPU')} in it")
    return int(count)


def gpus(log: str) -> Iterator[tuple[int, Gpu]]:
    """Yield every listed GPU with its index. Raises Unreadable if this is no report, or lacks a part of a GPU."""
    attached(log)
    found = _root(log).findall("gpu")
    for i, gpu in enumerate(found):
        for name in ALWAYS:
            if len(gpu.findall(name)) != 1:
                raise Unreadable(f"GPU {i}: {len(gpu.findall(name))} times <{name}>")
    yield from enumerate(found)


def silent_field(gpu: Gpu) -> tuple[str, str, Severity] | None:
    """Return a field in which a GPU does not answer the driver, its text, and its verdict. Temperature comes first."""
    told = [(field.tag, (field.text or "").strip()) for field in gpu.iter()]
    silent = [
        (tag, words, SILENT_FIELDS[unbracketed(words)]) for tag, words in told if unbracketed(words) in SILENT_FIELDS
    ]
    heat = [row for row in silent if row[0] == "gpu_temp"]
    return max(heat or silent, key=lambda row: row[2].rank, default=None)


def unbracketed(said: str) -> str:
    """Return a field's text without the brackets that the CSV formats put around `N/A` and errors."""
    return said.strip().removeprefix("[").removesuffix("]").strip()


def each_gpu(judge: Callable[[int, Gpu], Iterator[Problem]]) -> Judge:
    """Turn a judge of one GPU and its index into a judge of the whole log.

    A GPU that does not answer the driver hides no problem of the others. Raises PartlyRead with the others' problems.
    """

    @functools.wraps(judge)
    def judged(log: str, about: About) -> list[Problem]:
        problems: list[Problem] = []
        unread: list[int] = []
        for i, gpu in gpus(log):
            try:
                problems += judge(i, gpu)
            except TROUBLE as e:
                if silent_field(gpu) is None:
                    raise PartlyRead(f"GPU {i}: {e}", problems) from e
                unread.append(i)
        if unread:
            raise PartlyRead(f"{counted(len(unread), 'GPU')} did not answer the driver", problems, is_told=True)
        return problems

    return judged


def part(gpu: Gpu, *paths: str) -> Gpu:
    """Return the first of these parts that exists: drivers have renamed some. Raises Unreadable if none does."""
    for path in paths:
        if (found := gpu.find(path)) is not None:
            return found
    raise Unreadable(f"no <{paths[0]}>")


def text(element: Gpu, path: str) -> str | None:
    """Return a field's text, None if it is missing."""
    said = element.findtext(path)
    return said.strip() if said else None


def must(gpu: Gpu, path: str) -> str:
    """Return a field's text. Raises Unreadable if it is missing or there twice."""
    fields = gpu.findall(path)
    if len(fields) != 1:
        raise Unreadable(f"{len(fields)} times <{path}>")
    return (fields[0].text or "").strip()


def has(gpu: Gpu, path: str) -> bool:
    """Return True if the driver reports this part for this GPU. Some drivers leave it out, others write only N/A."""
    found = gpu.find(path)
    return found is not None and (len(found) > 0 or unbracketed(found.text or "") not in ABSENT_FIELDS)


def field_text(gpu: Gpu, folder: str, name: str) -> str | None:
    """Return a field's text, None if the driver reports nothing of this part.

    Raises Unreadable if only the field is missing.
    """
    return must(gpu, f"{folder}/{name}") if has(gpu, folder) else None


def one_of(part: Gpu, *names: str) -> str:
    """Return the text of the first of these fields that exists, because drivers have renamed some.

    Raises Unreadable if none exists.
    """
    return must(part, next((name for name in names if part.find(name) is not None), names[0]))


def number(said: str, unit: str = "") -> int:
    """Return a count, 0 if the GPU has no such counter (N/A) or does not answer. Another check reports the latter."""
    return 0 if _is_no_value(said) else int(said.removesuffix(unit).strip())


def measure(said: str, unit: str) -> float | None:
    """Return a number without its unit, None if the GPU has no such value or does not answer."""
    return None if _is_no_value(said) else float(said.removesuffix(unit))


def _is_no_value(said: str) -> bool:
    return unbracketed(said) in ABSENT_FIELDS or unbracketed(said) in SILENT_FIELDS


def problem(check: str, what: str, means: str, verdict: Severity, *, unfit: bool = True) -> Problem:
    """Return a problem with the usual action for its verdict."""
    do, command = ACTION[verdict]
    return Problem(check=check, what=what, means=means, verdict=verdict, do=do, command=command, unfit=unfit)
