"""Folder of TFRecord shards: reading its manifest, checking that all shards exist, counting their examples."""

import itertools
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from trainer.common.data import index_cache, records
from trainer.common.files.errors import ConfigError

MANIFEST = "manifest.json"
SPLITS = ("train", "validation")
_NAME = re.compile(r"(?P<split>\w+)-(?P<number>\d{5})-of-(?P<count>\d{5})$")


@dataclass(frozen=True, kw_only=True)
class ShardFacts:
    """Name, size and checksum of one shard, from the manifest."""

    name: str
    records: int
    bytes: int
    sha256: str


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """Manifest of a folder of shards: counts of the source files, the classes and the shards."""

    files: int
    written: int
    rejected: int
    classes: tuple[str, ...]
    """Synsets, in the order of the labels from 1."""
    shards: tuple[ShardFacts, ...]


def read_manifest(folder: Path) -> Manifest | None:
    """Read the folder's manifest; None without one (shards of another tool).

    Raises:
        ConfigError: it cannot be read, or is not what `python -m trainer.imagenet` writes.
    """
    path = folder / MANIFEST
    try:
        return _manifest(json.loads(path.read_text()))
    except FileNotFoundError:
        return None
    except OSError as e:
        raise ConfigError(f"{path} cannot be read: {e.strerror}") from e
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as e:
        raise ConfigError(
            f"{path} is no manifest of python -m trainer.imagenet ({e!r}): copy or prepare the folder again"
        ) from e


def _manifest(value: dict[str, Any]) -> Manifest:
    shards = [shard for split in value["splits"].values() for shard in split["shards"]]
    if not isinstance(value["rejected"], dict) or not isinstance(value["classes"], list):
        raise TypeError("rejected or classes")
    return Manifest(
        files=_count(value["files"]),
        written=_count(value["written"]),
        rejected=len(value["rejected"]),
        classes=tuple(str(c["synset"]) for c in value["classes"]),
        shards=tuple(
            ShardFacts(
                name=_shard_name(s["name"]),
                records=_count(s["records"]),
                bytes=_count(s["bytes"]),
                sha256=str(s["sha256"]),
            )
            for s in shards
        ),
    )


def _count(value: Any) -> int:
    if type(value) is not int or value < 0:
        raise TypeError(f"{value!r} is no number of things")
    return value


def _shard_name(value: Any) -> str:
    if not _NAME.fullmatch(value):
        raise ValueError(f"{value!r} is no shard's name")
    return str(value)


@dataclass(frozen=True)
class Split:
    """Shards of one split, ordered by name."""

    name: str
    shards: tuple[Path, ...]
    sizes: Mapping[str, int] = field(default_factory=dict)  # bytes by the shard's name, as far as a manifest says

    def index(self, skip_damaged: bool = False, *, keeps: bool = False) -> records.Index:
        """Return the index of all examples.

        Reads the record headers, not the images, unless an earlier run saved the index.

        Args:
            keeps: save the index beside the shards for the next run.

        Raises:
            TrainerError: a shard is cut off, is not a TFRecord file or differs in size from the manifest. The message
                names it. With `skip_damaged` such shards are skipped instead.
        """
        file = self.shards[0].with_name(f".index-{self.name}.npz")
        found = index_cache.load(file, self.shards, self.sizes)
        if found is None:
            found = records.scan(self.shards, skip_damaged, self.sizes)
            if keeps and found.paths == self.shards:
                index_cache.save(file, found)
        return found


def find_split(folder: Path, name: str) -> Split:
    """Return the split's shards, in `folder` itself or in `folder/<name>`.

    Shards are called `<name>-00000-of-00004`, counted from 0 or from 1, as the two reference tools do.

    Raises:
        ConfigError: there is no such folder, no shard, or one of the shards that the names imply is missing.
    """
    if not folder.is_dir():
        raise ConfigError(f"{folder}: no such data folder: 'inv data.imagenet' prepares one")
    manifest = read_manifest(folder)
    for place in (folder, folder / name):
        found = sorted(path for path in place.glob(f"{name}-*-of-*") if _NAME.match(path.name))
        if found:
            sizes = {shard.name: shard.bytes for shard in manifest.shards} if manifest else {}
            return Split(name, _all_there(name, found), sizes)
    raise ConfigError(
        f"{folder}: no {name}-*-of-* shards there or in {folder / name}: 'inv data.imagenet' prepares them"
    )


def _all_there(name: str, found: list[Path]) -> tuple[Path, ...]:
    parsed = [_NAME.match(path.name) for path in found]
    counts = {int(m["count"]) for m in parsed if m}
    numbers = {int(m["number"]) for m in parsed if m}
    if len(counts) != 1:
        raise ConfigError(
            f"{found[0].parent}: {name} shards of different sets lie together "
            f"(of {', '.join(map(str, sorted(counts)))}); keep one set per folder"
        )
    count = counts.pop()
    first = 0 if 0 in numbers else 1
    missing = sorted(set(range(first, first + count)) - numbers)
    if missing:
        names = ", ".join(f"{name}-{n:05d}-of-{count:05d}" for n in missing[:3]) + (", …" if len(missing) > 3 else "")
        raise ConfigError(
            f"{found[0].parent}: {len(missing)} of {count} {name} shards are missing ({names}); copy them again"
        )
    return tuple(found)


def classes_in(folder: Path) -> int | None:
    """Return the number of classes in the folder's manifests; None without a manifest (shards of another tool).

    Raises:
        ConfigError: the manifests of its two splits give the same label to different synsets.
    """
    places = (folder, *(folder / split for split in SPLITS))
    found = [(place, manifest) for place in places if (manifest := read_manifest(place))]
    for place, manifest in found[1:]:
        first_place, first = found[0]
        if manifest.classes != first.classes:
            pairs = itertools.zip_longest(first.classes, manifest.classes)
            label, (one, other) = next((i, pair) for i, pair in enumerate(pairs, start=1) if pair[0] != pair[1])
            raise ConfigError(
                f"label {label} is {one or 'no class'} in {first_place / MANIFEST}, but {other or 'no class'} in "
                f"{place / MANIFEST}: prepare both splits with one list of synsets"
            )
    return len(found[0][1].classes) if found else None
