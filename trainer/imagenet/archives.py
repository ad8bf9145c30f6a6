"""ImageNet's official archives, read where they lie: nothing is unpacked.

ILSVRC2012_img_train.tar holds one tar per synset, ILSVRC2012_img_val.tar the validation images. In an uncompressed
tar every file is a range of bytes, so a file of the inner tar is a range of the outer one. The labels are in the
development kit: which synset has which number (meta.mat), and each validation image's number.
"""

import io
import tarfile
from dataclasses import dataclass
from pathlib import Path

from trainer.errors import ConfigError
from trainer.imagenet.matlab import structs
from trainer.imagenet.raw import Raw, Source, label_validation

TRAIN, VALIDATION = "ILSVRC2012_img_train.tar", "ILSVRC2012_img_val.tar"
DEVKITS = ("ILSVRC2012_devkit_t12.tar.gz", "ILSVRC2012_devkit_t12.tar", "ILSVRC2012_devkit_t12")
META, TRUTH = "data/meta.mat", "data/ILSVRC2012_validation_ground_truth.txt"
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
        Source(path, m.name, m.name.rsplit("/", 1)[-1], "", 0, m.offset_data, m.size)
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
        synsets = {
            int(r["ILSVRC2012_ID"]): (str(r["WNID"]), str(r["words"]))
            for r in rows
            if int(r["ILSVRC2012_ID"]) <= CLASSES
        }
        validation = tuple(synsets[int(word)][0] for word in truth.decode().split())
    except (ValueError, KeyError, TypeError) as e:
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
        except (OSError, tarfile.TarError, KeyError, EOFError) as e:
            raise ConfigError(f"{kit} cannot be read ({e}): download it again") from e
    raise ConfigError(f"{folder}: the development kit is missing; expected {DEVKITS[0]} beside {TRAIN}")


def _members(path: Path) -> list[tarfile.TarInfo]:
    try:
        with tarfile.open(path, "r:") as tar:
            return [m for m in tar if m.isfile()]
    except (OSError, tarfile.TarError) as e:
        raise ConfigError(f"{path} cannot be read as a tar file ({e}): download it again") from e


def _train_files(path: Path, labels: dict[str, int]) -> list[Source]:
    found = []
    with path.open("rb") as file:
        for inner in _members(path):
            synset = inner.name.rsplit("/", 1)[-1].removesuffix(".tar")
            if synset not in labels:
                raise ConfigError(f"{path}: {inner.name} is not one of the development kit's {len(labels)} synsets")
            try:
                with tarfile.open(fileobj=_Window(file, inner.offset_data, inner.size), mode="r:") as tar:
                    found += [
                        Source(
                            path,
                            f"{synset}/{m.name}",
                            m.name.rsplit("/", 1)[-1],
                            synset,
                            labels[synset],
                            inner.offset_data + m.offset_data,
                            m.size,
                        )
                        for m in tar
                        if m.isfile()
                    ]
            except tarfile.TarError as e:
                raise ConfigError(f"{path}: {inner.name} inside cannot be read ({e}): download it again") from e
    if not found:
        raise ConfigError(f"{path} holds no images: download it again")
    return found


class _Window(io.RawIOBase):
    """A range of an open file as a file of its own."""

    def __init__(self, file: io.BufferedReader, start: int, size: int) -> None:
        self._file, self._start, self._size, self._at = file, start, size, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._at = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence]
        return self._at

    def read(self, size: int = -1) -> bytes:
        left = max(0, self._size - self._at)
        self._file.seek(self._start + self._at)
        data = self._file.read(left if size < 0 else min(size, left))
        self._at += len(data)
        return data
