"""A folder of TFRecord shards: which splits it has, whether all shards are there, how many examples they hold."""

import json
import re
from dataclasses import dataclass
from pathlib import Path

from trainer import records
from trainer.errors import ConfigError

MANIFEST = "manifest.json"
SPLITS = ("train", "validation")
_NAME = re.compile(r"(?P<split>\w+)-(?P<number>\d{5})-of-(?P<count>\d{5})$")


@dataclass(frozen=True)
class Split:
    """The shards of one split, in the order of their names."""

    name: str
    shards: tuple[Path, ...]

    def index(self, skip_damaged: bool = False) -> records.Index:
        """Where each example lies. Reads the record headers, not the images.

        Raises:
            TrainerError: a shard is cut off or no TFRecord file, unless such shards are to be skipped; names it.
        """
        return records.scan(self.shards, skip_damaged)


def find_split(folder: Path, name: str) -> Split:
    """The split's shards, in `folder` itself or in `folder/<name>`.

    Shards are called `<name>-00000-of-00004`, counted from 0 or from 1, as the two reference tools do.

    Raises:
        ConfigError: there is no such folder, no shard, or one of the shards that their names promise is missing.
    """
    if not folder.is_dir():
        raise ConfigError(f"{folder}: no such data folder; prepare one with python -m trainer.imagenet")
    for place in (folder, folder / name):
        found = sorted(path for path in place.glob(f"{name}-*-of-*") if _NAME.match(path.name))
        if found:
            return Split(name, _all_there(name, found))
    raise ConfigError(
        f"{folder}: no {name}-*-of-* shards there or in {folder / name}; prepare them with python -m trainer.imagenet"
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
    """How many classes the folder's manifest names; None without a manifest (shards of another tool)."""
    path = folder / MANIFEST
    if not path.is_file():
        return None
    try:
        return len(json.loads(path.read_text())["classes"])
    except (ValueError, KeyError, TypeError) as e:
        raise ConfigError(
            f"{path}: not a manifest of python -m trainer.imagenet ({e!r}); prepare the folder again"
        ) from e
