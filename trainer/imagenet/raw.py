"""The raw folder: which files it holds, and which label each of them has."""

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from trainer.errors import ConfigError
from trainer.words import counted

VALIDATION_FOLDERS = ("val", "validation")


@dataclass(frozen=True)
class Source:
    """One file of the raw data: by itself, or a range of bytes of an archive."""

    path: Path
    name: str  # relative to the raw folder; its identity in the manifest
    filename: str  # as the record tells it
    synset: str
    label: int  # 1 .. number of synsets, by sorted synset
    offset: int = 0
    size: int = -1  # to the end

    def read(self, most: int) -> bytes:
        """Its bytes, at most so many; fewer than `size` where the archive is cut off."""
        with self.path.open("rb") as file:
            size = self.size if self.size >= 0 else os.fstat(file.fileno()).st_size
            file.seek(self.offset)
            return file.read(min(size, most))


@dataclass(frozen=True)
class Raw:
    """All files of a raw folder, with labels, in a fixed order."""

    synsets: tuple[str, ...]  # sorted; label = place + 1
    names: tuple[str, ...]  # what each synset is called
    train: tuple[Source, ...]
    validation: tuple[Source, ...]
    unlabelled: tuple[str, ...]  # files that lie where no label can be known


def read_synsets(path: Path) -> dict[str, str]:
    """Synset -> name, sorted by synset; one `n01440764 tench` per line, the name may be missing."""
    found: dict[str, str] = {}
    for number, line in enumerate(_lines(path), start=1):
        if not line.strip():
            continue
        synset, _, name = line.strip().partition(" ")
        if synset in found:
            raise ConfigError(f"{path}:{number}: {synset} stands there twice")
        found[synset] = name or synset
    if not found:
        raise ConfigError(f"{path}: expected one synset per line, found none")
    return dict(sorted(found.items()))


def read_raw(folder: Path, synsets_file: Path | None = None, labels_file: Path | None = None) -> Raw:
    """The folder `train/<synset>/*` and `val/*` with its labels.

    Raises:
        ConfigError: a folder or list is missing, or the label file does not fit the validation images.
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
        train += [Source(p, str(p.relative_to(folder)), p.name, sub.name, labels[sub.name]) for p in _files(sub)]
    validation = _validation(folder, labels, labels_file or folder / "val_synsets.txt")
    if not train:
        raise ConfigError(f"{train_folder}: no file in any synset's folder")
    return Raw(
        tuple(names), tuple(names.values()), tuple(train), validation, tuple(str(p.relative_to(folder)) for p in lost)
    )


def _validation(folder: Path, labels: dict[str, int], labels_file: Path) -> tuple[Source, ...]:
    files = _files(_folder(folder, VALIDATION_FOLDERS))
    synsets = [line.strip() for line in _lines(labels_file) if line.strip()]
    sources = [Source(p, str(p.relative_to(folder)), p.name, "", 0) for p in files]
    return label_validation(sources, synsets, labels, labels_file)


def label_validation(
    files: Sequence[Source], synsets: Sequence[str], labels: dict[str, int], labels_file: Path
) -> tuple[Source, ...]:
    """The validation files with their labels.

    Args:
        synsets: one per file, in the order of their names.

    Raises:
        ConfigError: there are more or fewer of them than files, or one is unknown.
    """
    if len(files) != len(synsets):
        raise ConfigError(
            f"{labels_file} has {counted(len(synsets), 'label')} for {counted(len(files), 'validation file')}: "
            "it must have "
            "one per file, in the order of their names"
        )
    for number, synset in enumerate(synsets, start=1):
        if synset not in labels:
            raise ConfigError(f"{labels_file}:{number}: {synset!r} is not in the list of synsets")
    return tuple(replace(f, synset=s, label=labels[s]) for f, s in zip(files, synsets, strict=True))


def _folder(root: Path, names: Sequence[str]) -> Path:
    for name in names:
        if (root / name).is_dir():
            return root / name
    raise ConfigError(f"{root}: no folder {' or '.join(names)} there; expected train/<synset>/*.JPEG and val/*.JPEG")


def _files(folder: Path) -> list[Path]:
    def refuse(error: OSError) -> None:  # or its files would be lost without a word
        raise ConfigError(f"{error.filename} cannot be read: {error.strerror}") from error

    found = (Path(parent, name) for parent, _, names in os.walk(folder, onerror=refuse) for name in names)
    return sorted(p for p in found if p.is_file())


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text().splitlines()
    except OSError as e:
        raise ConfigError(f"{path} cannot be read: {e.strerror}") from e
    except UnicodeDecodeError as e:
        raise ConfigError(f"{path} is no text ({e.reason} at byte {e.start})") from e
