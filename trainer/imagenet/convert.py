"""Conversion of raw files to shards, in parallel over cores and hosts, with a manifest that accounts for every file."""

import contextlib
import dataclasses
import itertools
import json
import math
import shutil
from collections.abc import Callable, Mapping
from concurrent.futures import as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from trainer.common.checkpoints.checkpoint import write_atomically
from trainer.common.data.dataset import MANIFEST
from trainer.common.data.process_pool import process_pool
from trainer.common.files.errors import ConfigError, TrainerError
from trainer.common.files.plural import counted
from trainer.imagenet.raw import Raw, RawImage
from trainer.imagenet.shards import FACTS_FOLDER, ImageOptions, Shard, ShardTask, write_shard, written

DEFAULT_SHARDS = {"train": 1024, "validation": 128}  # the reference's
IMAGES_PER_SHARD = 128  # minimum; smaller sets get fewer shards


@dataclass(frozen=True, kw_only=True)
class Options:
    """Options of a conversion."""

    images: ImageOptions = field(default_factory=ImageOptions)
    train_shards: int | None = None
    validation_shards: int | None = None
    first_number: int = 0  # in the shards' names: 0, or 1 as in the reference's resizer
    part: tuple[int, int] = (1, 1)  # this process's part of the shards, of how many
    processes: int | None = None


@dataclass(frozen=True)
class ConversionResult:
    """Result of a conversion: the shards written, and the manifest if all parts have finished."""

    shards: int  # written or found written, by this part
    found: int  # those that an earlier run had written
    manifest: dict[str, object] | None  # None: other parts still have shards to write


def convert(
    raw: Raw, out: Path, options: Options, progress: Callable[[Shard], None] = lambda _: None
) -> ConversionResult:
    """Write this part's shards. The process that finds the shards of all parts written also writes `manifest.json`.

    Shards that an earlier run finished are not written again.

    Raises:
        ConfigError: `out` already holds a finished set.
        TrainerError: the disk is full or a worker died.
    """
    tasks = {
        "train": shard_tasks("train", shuffled(raw.train), out, options.train_shards, options),
        "validation": shard_tasks("validation", raw.validation, out, options.validation_shards, options),
    }
    part, parts = options.part
    mine = [t for i, t in enumerate(itertools.chain.from_iterable(tasks.values())) if i % parts == part - 1]
    todo = [t for t in mine if written(t) is None]
    # Checked last: the process that writes the manifest then removes the files that `written` reads.
    if (out / MANIFEST).exists():
        if parts == 1:
            raise ConfigError(f"{out / MANIFEST} exists: this folder is already prepared; give another --out")
        return ConversionResult(
            0, 0, None
        )  # the other parts finished before this one began, which has nothing to write
    if todo:
        try:
            (out / FACTS_FOLDER).mkdir(parents=True, exist_ok=True)
        except OSError as e:
            raise ConfigError(f"{out} cannot be written ({e.strerror}): give another --out") from e
    try:
        with process_pool(options.processes) as pool:
            for future in as_completed([pool.submit(write_shard, task) for task in todo]):
                progress(future.result())
    except BrokenProcessPool as e:
        raise TrainerError(
            "a worker died, perhaps for want of memory: give fewer --processes; the same command goes "
            "on with what is missing"
        ) from e
    return ConversionResult(len(mine), len(mine) - len(todo), _finish(raw, out, tasks, options))


def _finish(raw: Raw, out: Path, tasks: Mapping[str, list[ShardTask]], options: Options) -> dict[str, object] | None:
    results: dict[str, list[Shard]] = {}
    for split, every in tasks.items():
        found = [written(task) for task in every]
        results[split] = [shard for shard in found if shard is not None]
        if len(results[split]) < len(every):
            return None
    manifest = make_manifest(raw, results, options)
    write_atomically(out / MANIFEST, json.dumps(manifest, indent=1) + "\n")
    with contextlib.suppress(OSError):  # another part may be doing the same
        shutil.rmtree(out / FACTS_FOLDER)
    return manifest


def shuffled(sources: tuple[RawImage, ...]) -> tuple[RawImage, ...]:
    """Return the files in an order that mixes the classes, the same every time."""
    return tuple(sources[i] for i in np.random.default_rng(0).permutation(len(sources)))


def shard_tasks(
    split: str, sources: tuple[RawImage, ...], out: Path, count: int | None, options: Options
) -> list[ShardTask]:
    """Return the tasks that write the files in equal consecutive parts.

    By default there are 1024 or 128 shards, fewer if they would hold few images.
    """
    shards = count or min(DEFAULT_SHARDS[split], max(1, math.ceil(len(sources) / IMAGES_PER_SHARD)))
    bounds = [len(sources) * i // shards for i in range(shards + 1)]
    return [
        ShardTask(out / f"{split}-{i:05d}-of-{shards:05d}", sources[a:b], options.images)
        for i, (a, b) in enumerate(itertools.pairwise(bounds), start=options.first_number)
    ]


def make_manifest(raw: Raw, results: Mapping[str, list[Shard]], options: Options) -> dict[str, object]:
    """Return the manifest: the files read, written, repaired and rejected, the classes, and the options.

    Raises:
        TrainerError: the numbers do not add up.
    """
    everything = [shard for shards in results.values() for shard in shards]
    rejected = {name: why for shard in everything for name, why in shard.rejected.items()}
    rejected |= dict.fromkeys(raw.unlabelled, "lies in no synset's folder")
    found = len(raw.train) + len(raw.validation) + len(raw.unlabelled)
    count = sum(shard.records for shard in everything)
    if found != count + len(rejected):
        raise TrainerError(f"of {counted(found, 'file')} {count} written and {len(rejected)} rejected: some were lost")
    return {
        "format": 1,
        "files": found,
        "written": count,
        "rejected": rejected,
        "repaired": {name: was for shard in everything for name, was in shard.repaired.items()},
        "classes": [
            {"label": i, "synset": synset, "name": name}
            for i, (synset, name) in enumerate(zip(raw.synsets, raw.names, strict=True), start=1)
        ],
        "options": {**dataclasses.asdict(options.images), "first_number": options.first_number},
        "splits": {
            split: {"examples": sum(shard.records for shard in shards), "shards": [shard.facts() for shard in shards]}
            for split, shards in results.items()
        },
    }
