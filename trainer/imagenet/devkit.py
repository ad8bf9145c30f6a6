"""Reader of ImageNet's development kit: each synset's number, and each validation image's number."""

import tarfile
import zlib
from dataclasses import dataclass
from pathlib import Path

from trainer.common.files.errors import ConfigError
from trainer.imagenet.matlab import structs

DEVKITS = ("ILSVRC2012_devkit_t12.tar.gz", "ILSVRC2012_devkit_t12.tar", "ILSVRC2012_devkit_t12")
META, TRUTH = "data/meta.mat", "data/ILSVRC2012_validation_ground_truth.txt"
CLASSES = 1000  # numbers above are inner nodes of the hierarchy


@dataclass(frozen=True)
class Kit:
    """Labels of the development kit."""

    names: dict[str, str]  # synset -> name, sorted by synset
    validation: tuple[str, ...]  # synset of each validation image, in the order of their names


def has_kit(folder: Path) -> bool:
    """Return True if the folder contains the development kit, packed or unpacked."""
    return any((folder / name).exists() for name in DEVKITS)


def read_kit(folder: Path) -> Kit:
    """Read the labels from the packed or the unpacked development kit.

    Raises:
        ConfigError: it is missing, or damaged.
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
    raise ConfigError(f"{folder}: the development kit is missing; expected {DEVKITS[0]} beside the archives")
