"""Reader of ImageNet's official archives, which are not unpacked.

ILSVRC2012_img_train.tar contains one tar per synset, ILSVRC2012_img_val.tar the validation images. In an uncompressed
tar every file is a range of bytes, so a file of the inner tar is a range of the outer one. The labels are in the
development kit: each synset's number (meta.mat), and each validation image's number.
"""

import io
import tarfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from trainer.common.files.errors import ConfigError
from trainer.imagenet.devkit import TRUTH, Kit, read_kit
from trainer.imagenet.label_sources import other_sources
from trainer.imagenet.labels import LabelSource, agreed
from trainer.imagenet.raw import Raw, RawImage, label_validation, list_source, read_synsets
from trainer.imagenet.tar import TarMember, files_in

TRAIN, VALIDATION = "ILSVRC2012_img_train.tar", "ILSVRC2012_img_val.tar"
READERS = 16  # threads that look for files at once: a network file system answers each in a millisecond


def are_here(folder: Path) -> bool:
    """Return True if the folder holds the archives rather than the files."""
    return (folder / TRAIN).is_file()


def read_archives(folder: Path, synsets_file: Path | None = None, labels_file: Path | None = None) -> Raw:
    """Return all files of the three archives, with labels.

    Args:
        synsets_file: a list of synsets to compare with the kit's (default `synsets.txt`, if it is there).
        labels_file: a list of validation labels to compare with the kit's (default `val_synsets.txt`, if it is there).

    Raises:
        ConfigError: an archive is missing, damaged, or they do not fit together.
    """
    kit = read_kit(folder)
    labels = {synset: i for i, synset in enumerate(kit.names, start=1)}
    _compare_synsets(kit, synsets_file or folder / "synsets.txt", is_asked=synsets_file is not None)
    train = tuple(_train_files(folder / TRAIN, labels))
    names = [source.name for source in train]
    archive = LabelSource("its archive", {source.name: frozenset([source.synset]) for source in train})
    agreed(names, [archive, *other_sources(folder, "train", names, labels)])
    path = folder / VALIDATION
    files = [
        RawImage(path, m.name, m.name.rsplit("/", 1)[-1], "", 0, m.offset, m.size)
        for m in sorted(_members(path), key=lambda m: m.name)
    ]
    names = [file.name for file in files]
    others = other_sources(folder, "validation", names, labels)
    beside = labels_file or folder / "val_synsets.txt"
    if labels_file or beside.exists():
        others.append(list_source(names, beside, labels, others))
    validation = label_validation(files, kit.validation, labels, folder / TRUTH, others)
    return Raw(tuple(kit.names), tuple(kit.names.values()), train, validation, ())


def _compare_synsets(kit: Kit, path: Path, *, is_asked: bool) -> None:
    if not is_asked and not path.exists():
        return
    other = read_synsets(path)
    if different := sorted(set(other) ^ set(kit.names)):
        where = "is not one of the development kit's" if different[0] in other else "is only in the development kit"
        raise ConfigError(f"{path}: {different[0]} {where}: a label is a synset's place, so both must have the same")


def _members(path: Path) -> list[TarMember]:
    try:
        with path.open("rb") as file:
            return files_in(file)
    except (OSError, tarfile.TarError) as e:
        raise ConfigError(f"{path} cannot be read as a tar file ({e}): download it again") from e


def _train_files(path: Path, labels: dict[str, int]) -> list[RawImage]:
    inners = _members(path)
    strange = [inner.name for inner in inners if _synset(inner) not in labels]
    if strange:
        raise ConfigError(f"{path}: {strange[0]} is not one of the development kit's {len(labels)} synsets")
    with path.open("rb") as file, ThreadPoolExecutor(READERS) as pool:
        found = list(pool.map(lambda inner: _synset_files(path, file, inner, labels[_synset(inner)]), inners))
    sources = [source for of_synset in found for source in of_synset]
    if not sources:
        raise ConfigError(f"{path} holds no images: download it again")
    return sources


def _synset(inner: TarMember) -> str:
    return inner.name.rsplit("/", 1)[-1].removesuffix(".tar")


def _synset_files(path: Path, file: io.BufferedReader, inner: TarMember, label: int) -> list[RawImage]:
    synset = _synset(inner)
    try:
        members = files_in(file, inner.offset, inner.size)
    except (OSError, tarfile.TarError) as e:
        raise ConfigError(f"{path}: {inner.name} inside cannot be read ({e}): download it again") from e
    return [
        RawImage(path, f"{synset}/{m.name}", m.name.rsplit("/", 1)[-1], synset, label, m.offset, m.size)
        for m in members
    ]
