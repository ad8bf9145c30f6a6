"""ImageNet's official archives, read where they lie: nothing is unpacked.

ILSVRC2012_img_train.tar holds one tar per synset, ILSVRC2012_img_val.tar the validation images. In an uncompressed
tar every file is a range of bytes, so a file of the inner tar is a range of the outer one. The labels are in the
development kit: which synset has which number (meta.mat), and each validation image's number.
"""

import io
import tarfile
import zlib
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from trainer.errors import ConfigError
from trainer.imagenet.matlab import structs
from trainer.imagenet.raw import Raw, Source, label_validation
from trainer.imagenet.tar import Member, files_in

TRAIN, VALIDATION = "ILSVRC2012_img_train.tar", "ILSVRC2012_img_val.tar"
DEVKITS = ("ILSVRC2012_devkit_t12.tar.gz", "ILSVRC2012_devkit_t12.tar", "ILSVRC2012_devkit_t12")
META, TRUTH = "data/meta.mat", "data/ILSVRC2012_validation_ground_truth.txt"
READERS = 16  # threads that look for files at once: a network file system answers each in a millisecond
CLASSES = 1000  # numbers above are inner nodes of the hierarchy


def are_here(folder: Path) -> bool:
    """Whether the folder holds the archives rather than the files."""
    return (folder / TRAIN).is_file()


@dataclass(frozen=True)
class Kit:
    """The development kit's labels."""

    names: dict[str, str]  # synset -> what it is called, sorted by synset
    validation: tuple[str, ...]  # synset of each validation image, in the order of their names


def read_archives(folder: Path) -> Raw:
    """All files of the three archives, with labels.

    Raises:
        ConfigError: an archive is missing, damaged, or they do not fit together.
    """
    kit = read_kit(folder)
    labels = {synset: i for i, synset in enumerate(kit.names, start=1)}
    train = tuple(_train_files(folder / TRAIN, labels))
    path = folder / VALIDATION
    files = [
        Source(path, m.name, m.name.rsplit("/", 1)[-1], "", 0, m.offset, m.size)
        for m in sorted(_members(path), key=lambda m: m.name)
    ]
    validation = label_validation(files, kit.validation, labels, folder / TRUTH)
    return Raw(tuple(kit.names), tuple(kit.names.values()), train, validation, ())


def read_kit(folder: Path) -> Kit:
    """The labels from the packed or the unpacked development kit.

    Raises:
        ConfigError: it is not there, or not what it should be.
    """
    meta, truth = _kit_files(folder)
    try:
        rows = structs(meta)["synsets"]
        numbered = [(int(r["ILSVRC2012_ID"]), str(r["WNID"]), str(r["words"])) for r in rows]
        synsets = {number: (synset, words) for number, synset, words in numbered if number <= CLASSES}
        if sorted(synsets) != list(range(1, len(synsets) + 1)) or len({s for s, _ in synsets.values()}) < len(synsets):
            raise ValueError("its synsets are not numbered from 1, each once")
        validation = tuple(synsets[int(word)][0] for word in truth.decode().split())
    except (ValueError, KeyError, TypeError, OverflowError) as e:
        raise ConfigError(f"{folder}: the development kit cannot be understood ({e!r}): download it again") from e
    return Kit(dict(sorted(synsets.values())), validation)


def _kit_files(folder: Path) -> tuple[bytes, bytes]:
    for name in DEVKITS:
        kit = folder / name
        try:
            if kit.is_dir():
                return (kit / META).read_bytes(), (kit / TRUTH).read_bytes()
            if kit.is_file():
                with tarfile.open(kit) as tar:
                    inside = {m.name.split("/", 1)[-1]: m for m in tar if m.isfile()}
                    files = [tar.extractfile(inside[part]) for part in (META, TRUTH)]
                    return tuple(f.read() for f in files if f)  # type: ignore[return-value]  # both are files
        except (OSError, tarfile.TarError, KeyError, EOFError, zlib.error) as e:
            raise ConfigError(f"{kit} cannot be read ({e}): download it again") from e
    raise ConfigError(f"{folder}: the development kit is missing; expected {DEVKITS[0]} beside {TRAIN}")


def _members(path: Path) -> list[Member]:
    try:
        with path.open("rb") as file:
            return files_in(file)
    except (OSError, tarfile.TarError) as e:
        raise ConfigError(f"{path} cannot be read as a tar file ({e}): download it again") from e


def _train_files(path: Path, labels: dict[str, int]) -> list[Source]:
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


def _synset(inner: Member) -> str:
    return inner.name.rsplit("/", 1)[-1].removesuffix(".tar")


def _synset_files(path: Path, file: io.BufferedReader, inner: Member, label: int) -> list[Source]:
    synset = _synset(inner)
    try:
        members = files_in(file, inner.offset, inner.size)
    except (OSError, tarfile.TarError) as e:
        raise ConfigError(f"{path}: {inner.name} inside cannot be read ({e}): download it again") from e
    return [
        Source(path, f"{synset}/{m.name}", m.name.rsplit("/", 1)[-1], synset, label, m.offset, m.size) for m in members
    ]
