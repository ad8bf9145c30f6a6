"""Reader of the raw folder: its files and the label of each."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from trainer.common.files.errors import ConfigError
from trainer.common.files.plural import counted
from trainer.imagenet.devkit import has_kit, read_kit
from trainer.imagenet.label_sources import by_number, named_list, other_sources, read_lines
from trainer.imagenet.labels import LabelSource, agreed, listed

VALIDATION_FOLDERS = ("val", "validation")


@dataclass(frozen=True)
class RawImage:
    """Raw image: either a file, or a range of bytes of an archive."""

    path: Path
    name: str  # relative to the raw folder; its identity in the manifest
    filename: str  # name in the record
    synset: str
    label: int  # 1 .. number of synsets, by sorted synset
    offset: int = 0
    size: int = -1  # to the end

    def read(self, most: int) -> bytes:
        """Read the image's bytes, at most `most`. Returns fewer than `size` where the archive is cut off."""
        with self.path.open("rb") as file:
            size = self.size if self.size >= 0 else os.fstat(file.fileno()).st_size
            file.seek(self.offset)
            return file.read(min(size, most))


@dataclass(frozen=True)
class Raw:
    """Files of a raw folder, with labels, in a fixed order."""

    synsets: tuple[str, ...]  # sorted; label = place + 1
    names: tuple[str, ...]  # what each synset is called
    train: tuple[RawImage, ...]
    validation: tuple[RawImage, ...]
    unlabelled: tuple[str, ...]  # files outside of every synset's folder


def read_synsets(path: Path) -> dict[str, str]:
    """Return names by synset, sorted by synset. A line is `n01440764 tench`, and the name may be missing."""
    found: dict[str, str] = {}
    for number, line in enumerate(read_lines(path), start=1):
        if not line.strip():
            continue
        synset, *name = line.split(maxsplit=1)
        if synset in found:
            raise ConfigError(f"{path}:{number}: {synset} stands there twice")
        found[synset] = name[0].strip() if name else synset
    if not found:
        raise ConfigError(f"{path}: expected one synset per line, found none")
    return dict(sorted(found.items()))


def read_raw(folder: Path, synsets_file: Path | None = None, labels_file: Path | None = None) -> Raw:
    """Return the files of `train/<synset>/*` and `val/*` with their labels.

    Every existing source of labels is compared with the others: folders, file names and numbers, the list of validation
    labels, the development kit, Kaggle's tables, box annotations.

    Raises:
        ConfigError: a folder or list is missing, a file has no label, or two sources contradict each other.
    """
    names = read_synsets(synsets_file or folder / "synsets.txt")
    labels = {synset: i for i, synset in enumerate(names, start=1)}
    train_folder = _folder(folder, ("train",))
    train, lost = [], [p for p in _files(train_folder) if p.parent == train_folder]
    for sub in sorted(p for p in train_folder.iterdir() if p.is_dir()):
        if sub.name not in labels:
            raise ConfigError(
                f"{sub}: {sub.name} is not in the list of synsets; complete the list or move the folder away"
            )
        train += [RawImage(p, str(p.relative_to(folder)), p.name, sub.name, labels[sub.name]) for p in _files(sub)]
    validation = _validation(folder, labels, labels_file)
    if not train:
        raise ConfigError(f"{train_folder}: no file in any synset's folder")
    found = [source.name for source in train]
    agreed(found, other_sources(folder, "train", found, labels))
    return Raw(
        tuple(names), tuple(names.values()), tuple(train), validation, tuple(str(p.relative_to(folder)) for p in lost)
    )


def label_validation(
    files: Sequence[RawImage],
    synsets: Sequence[str],
    labels: Mapping[str, int],
    labels_file: Path,
    others: Sequence[LabelSource] = (),
) -> tuple[RawImage, ...]:
    """Return the validation files with their labels, on which the list and all other sources agree.

    Args:
        synsets: one per file, in the order of the numbers in their names, or of their names.

    Raises:
        ConfigError: there are more or fewer of them than files, one is unknown, or another source contradicts it.
    """
    names = [file.name for file in files]
    return _labelled(files, [_ordered_list(names, synsets, labels, labels_file, others), *others], labels)


def list_source(
    files: Sequence[str], path: Path, labels: Mapping[str, int], others: Sequence[LabelSource]
) -> LabelSource:
    """Return the labels of a list with one synset per file, or with lines of 'FILE SYNSET'.

    Raises:
        ConfigError: it cannot be read, or does not fit the files.
    """
    lines = [line.strip() for line in read_lines(path) if line.strip()]
    return named_list(lines, files, path) or _ordered_list(files, lines, labels, path, others)


def _validation(folder: Path, labels: Mapping[str, int], labels_file: Path | None) -> tuple[RawImage, ...]:
    files = _files(_folder(folder, VALIDATION_FOLDERS))
    sources = [RawImage(p, str(p.relative_to(folder)), p.name, "", 0) for p in files]
    names = [source.name for source in sources]
    others = other_sources(folder, "validation", names, labels)
    if has_kit(folder):
        others.append(by_number(names, read_kit(folder).validation, "the development kit"))
    path = labels_file or folder / "val_synsets.txt"
    if labels_file or path.exists() or not all(any(name in o.synsets for o in others) for name in names):
        others.insert(0, list_source(names, path, labels, others))
    return _labelled(sources, others, labels)


def _ordered_list(
    files: Sequence[str], synsets: Sequence[str], labels: Mapping[str, int], path: Path, others: Sequence[LabelSource]
) -> LabelSource:
    if len(files) != len(synsets):
        raise ConfigError(
            f"{path} has {counted(len(synsets), 'label')} for {counted(len(files), 'validation file')}: it must have "
            "one per file, in the order of their names"
        )
    for number, synset in enumerate(synsets, start=1):
        if synset not in labels:
            raise ConfigError(f"{path}:{number}: {synset!r} is not in the list of synsets")
    return listed(files, synsets, str(path), others)


def _labelled(
    files: Sequence[RawImage], sources: Sequence[LabelSource], labels: Mapping[str, int]
) -> tuple[RawImage, ...]:
    synsets = agreed([file.name for file in files], sources)
    if unknown := next((f for f, s in synsets.items() if s not in labels), None):
        raise ConfigError(f"{unknown}: {synsets[unknown]} is not in the list of synsets; complete the list")
    return tuple(replace(f, synset=synsets[f.name], label=labels[synsets[f.name]]) for f in files)


def _folder(root: Path, names: Sequence[str]) -> Path:
    for name in names:
        if (root / name).is_dir():
            return root / name
    raise ConfigError(f"{root}: no folder {' or '.join(names)} there; expected train/<synset>/*.JPEG and val/*.JPEG")


def _files(folder: Path) -> list[Path]:
    def refuse(error: OSError) -> None:  # os.walk ignores errors by default and would omit these files
        raise ConfigError(f"{error.filename} cannot be read: {error.strerror}") from error

    found = (Path(parent, name) for parent, _, names in os.walk(folder, onerror=refuse) for name in names)
    return sorted(p for p in found if p.is_file())
