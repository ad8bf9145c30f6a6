"""Comparison of the labels that several sources give to the same files. Contradicting sources are refused."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePath

from trainer.common.files.errors import ConfigError
from trainer.common.files.plural import counted
from trainer.imagenet.label_names import file_number

SHOWN = 3  # contradicting files that an error names


@dataclass(frozen=True)
class LabelSource:
    """Source of labels, with the synsets it allows for each of its files."""

    name: str  # name in error messages
    synsets: Mapping[str, frozenset[str]]  # file, relative to the raw folder -> the synsets it may have


def agreed(files: Sequence[str], sources: Sequence[LabelSource]) -> dict[str, str]:
    """Return each file's synset, on which all sources that know the file agree.

    Raises:
        ConfigError: two sources contradict each other, or a file has no label. The message names the files.
    """
    wrong = list(contradictions(files, sources))
    if wrong:
        raise ConfigError(
            f"the labels of {counted(len(wrong), 'file')} of {len(files)} contradict each other: "
            + "; ".join(wrong[:SHOWN])
            + ("; ..." if len(wrong) > SHOWN else "")
            + ": correct the wrong source or move it away"
        )
    found: dict[str, str] = {}
    for file in files:
        common = _common(file, sources)
        if len(common) != 1:
            raise ConfigError(
                f"{file} has no label: {', '.join(s.name for s in sources) or 'nothing'} does not give it one synset"
            )
        found[file] = next(iter(common))
    _refuse_twice(found)
    return found


def contradictions(files: Sequence[str], sources: Sequence[LabelSource]) -> Iterator[str]:
    """Yield one sentence for each file to which two sources give different synsets."""
    for file in files:
        if any(file in s.synsets for s in sources) and not _common(file, sources):
            told = (f"{s.name} says {' or '.join(sorted(s.synsets[file]))}" for s in sources if file in s.synsets)
            yield f"{file} ({', '.join(told)})"


def listed(files: Sequence[str], synsets: Sequence[str], name: str, others: Sequence[LabelSource]) -> LabelSource:
    """Return a list's labels, one synset per file, in the order that does not contradict the other sources.

    ImageNet's lists are in the order of the numbers in the files' names. Other files are taken in the order of their
    names, or of their paths where only that order agrees with the other sources.

    Raises:
        ConfigError: the files could be taken in several orders with different labels.
    """
    by_name = sorted(files, key=lambda f: (PurePath(f).name, f))
    by_path = sorted(files, key=PurePath)
    numbers = [file_number(f) for f in files]
    orders = [by_name, by_path]
    if all(numbers):
        orders[0] = [f for _, f in sorted(zip(numbers, files, strict=True))]
    candidates = [LabelSource(name, {f: frozenset([s]) for f, s in zip(o, synsets, strict=True)}) for o in orders]
    fitting = [c for c in candidates if next(contradictions(files, [c, *others]), None) is None]
    if not fitting or all(_is_known(f, others) for f in files):
        return (fitting or candidates)[0]
    if all(numbers):
        if sorted(numbers) != list(range(1, len(files) + 1)):
            _refuse_gap(orders[0], name)
        return candidates[0]
    for file in files:
        if len({c.synsets[file] for c in fitting}) > 1:
            raise ConfigError(
                f"{name}: the line of {file} depends on whether files are in the order of their names or of their "
                "paths: write 'FILE SYNSET' on each line"
            )
    return fitting[0]


def _refuse_gap(in_order: Sequence[str], name: str) -> None:
    line, file = next((i, f) for i, f in enumerate(in_order, start=1) if file_number(f) != i)
    raise ConfigError(
        f"{name}: {file} is file {line} of {len(in_order)}, but its name says line {file_number(file)}: bring the "
        "missing files, or write 'FILE SYNSET' on each line"
    )


def _common(file: str, sources: Sequence[LabelSource]) -> frozenset[str]:
    told = [s.synsets[file] for s in sources if file in s.synsets]
    return frozenset.intersection(*told) if told else frozenset()


def _is_known(file: str, sources: Sequence[LabelSource]) -> bool:
    return any(file in s.synsets for s in sources)


def _refuse_twice(found: Mapping[str, str]) -> None:
    """Raise ConfigError if one of ImageNet's validation images exists in two places with different labels."""
    first: dict[int, str] = {}
    for file, synset in found.items():
        number = file_number(file)
        if number and found[first.setdefault(number, file)] != synset:
            raise ConfigError(
                f"{first[number]} ({found[first[number]]}) and {file} ({synset}) are the same image with different "
                "labels: remove the wrong one"
            )
